//! Requests and replies as plain data, used by the core, the engine, the backends and the wire.
//!
//! One wrapper around any backend can therefore drop, delay, repeat or hold back each of them (see
//! [`testing`](crate::testing)).

mod entry_name;
mod proof;
mod reply;
mod request;
mod response;

pub use self::entry_name::{EntryName, EntryRole};
pub(crate) use self::proof::{PendingProof, Proof, ProofPolicy};
pub(crate) use self::reply::unexpected;
pub use self::reply::{OpReply, Predecessor, ReadReply, Reply};
pub use self::request::{
    Blockers, Condition, Create, Enqueue, GetPredecessor, Op, ReadOp, Request, SEMAPHORE_CHILDREN,
    SHARED_MARKER, sequence_of,
};
pub use self::response::Response;
#[cfg(feature = "client")]
pub(crate) use self::response::SharedReply;
