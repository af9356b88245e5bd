//! ZooKeeper's protocol, as a 3.9 server speaks it with clients of 3.4 to 3.9: frames, records, codes and four-letter
//! words. This module performs no IO.
//!
//! A server reads a connection through [`Frames`]. The first frame is a [`ConnectRequest`], and each later frame is an
//! [`Incoming`] request. Reading anything else returns a [`Refused`], which describes how a ZooKeeper server reacts to
//! it. [`to_store`] converts a request to a request to the store, and returns a [`Shape`] that turns the store's answer
//! into a [`Response`].
//!
//! Sources: `zookeeper.jute` and the request processors of ZooKeeper 3.9. The tests compare with frames of real clients
//! and servers (`tests/wire`).

pub(crate) mod admin;
mod code;
mod connect;
mod convert;
mod extension;
mod frame;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod fuzz;
mod jute;
mod multi;
mod refusal;
mod request;
mod response;
mod stat;
#[cfg(test)]
mod tests;

pub(crate) use self::code::{About, Code};
pub(crate) use self::connect::{
    ConnectRequest, ConnectResponse, EXTENSION, Handshake, OLDEST_EXTENSION, PASSWORD_BYTES,
    ProcessStatement, ReplyHeader, RequestHeader, ServerLimits, xid,
};
pub(crate) use self::convert::{
    Shape, create_mode, departure, event, event_kind, flags, to_store, watch_mode,
};
pub(crate) use self::extension::{
    Ahead, BlockersRecord, CheckChildren, CheckData, Conditions, Departure, Enqueue, ForgetWatch,
    GetPredecessor, GetQueue, put_departure, reason,
};
pub(crate) use self::frame::{
    BadLength, Frames, LARGEST_FRAME_BYTES, LENGTH_BYTES, SPEAKS_TLS, foreign_protocol, put_frame,
};
pub(crate) use self::jute::{Data, Jute, Malformed, NonNullList, Path, Reader, Text};
pub(crate) use self::multi::{MultiOp, MultiResult, failed};
pub(crate) use self::refusal::Refusal;
pub(crate) use self::request::{
    AddWatch, Auth, Create, CreateTtl, Incoming, Named, Op, Prefix, Read, Reconfig, Refused,
    Request, Sasl, SetAcl, SetData, SetWatches, SetWatches2, Sync, UNKNOWN_ZXID, Versioned,
    Watches,
};
pub(crate) use self::response::{ClientInfo, Response, WatcherEvent, put_event};
pub(crate) use self::stat::{AclRecord, acl, acl_records};
