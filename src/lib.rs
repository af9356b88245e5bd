//! The coordination store of Lockkeeper: znodes, sessions and watches with ZooKeeper's rules. The store is embedded in
//! the program, a Lockkeeper server, or a ZooKeeper ensemble. The recipes, such as the mutex, are in the package
//! `lockkeeper`, which re-exports the parts of this package that its users need.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use lockkeeper_store::CreateMode;
//!
//! let client = lockkeeper_store::connect("memory:doc").await?;
//! let session = client.session().await?;
//! let (path, _) = session.create(&"/job-".parse()?, "payload", CreateMode::EphemeralSequential).await?;
//! assert_eq!(path.as_str(), "/job-0000000000");
//! # Ok::<(), lockkeeper_store::Error>(()) }).unwrap();
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod client;
mod core;
mod engine;
mod log;
mod model;
mod runtime;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
#[cfg(feature = "test-util")]
pub mod testing;
mod tls;
#[cfg(any(feature = "client", feature = "server"))]
#[allow(
    dead_code,
    unused_imports,
    reason = "a whole protocol, of which the server and the client each use a part"
)]
mod wire;

pub use backend::{
    Backend, Cleanup, ConnectOptions, Connector, Flushed, Lease, LocalQueues, SessionStatus,
    StateStream, pending_cleanups, read_or_create_store_id,
};
pub use client::connect::{Client, connect, connect_with};
pub use client::session::{Call, Heartbeat, Session};
pub use client::target::Target;
pub use engine::Durability;
pub use engine::{Store, StoreOptions};
pub use model::acl::Acl;
pub use model::entry::{EnqueueMode, Enqueued, EntryKey, NewEntry, PredecessorWatch, ZnodeHandle};
pub use model::error::{Error, Result, TargetError};
pub use model::identity::Secret;
pub use model::path::ZnodePath;
pub use model::protocol::{
    Blockers, Condition, Create, Enqueue, EntryName, EntryRole, GetPredecessor, Op, OpReply,
    Predecessor, ReadOp, ReadReply, Reply, Request, Response, SEMAPHORE_CHILDREN, SHARED_MARKER,
    sequence_of,
};
pub use model::size::LARGEST_REQUEST_BYTES;
pub use model::types::{AclEntry, CreateMode, HumanDuration, SessionId, SessionState, Stat, Zxid};
pub use model::watch::{
    DeleteReason, EventKind, PersistentWatcher, PredecessorGone, WatchMode, WatchedEvent, Watcher,
};
pub use runtime::clock::{BootInstant, Clock, Deadline, Sleep, TickPlace};
pub use runtime::detached::spawn_detached;
pub use runtime::future::BoxFuture;
pub use runtime::future::{wake, wake_all};
pub use runtime::watch_channel::{WatchNotifier, WatchReceiver, WatchSender};
#[cfg(all(feature = "server", feature = "tls"))]
pub use server::TlsOptions;
#[cfg(all(feature = "server", feature = "metrics"))]
pub use server::register_process_metrics;
#[cfg(feature = "server")]
pub use server::{
    AccessOptions, AuditEvent, AuditOutcome, AuditRecord, AuditSink, KickOutcome, NotReady, Server,
    ServerError, ServerMonitor, ServerOptions, SessionInfo, SocketListener,
};
pub use tls::{ClientTls, TlsError};

/// Tools for data directories of [`Store::file`]: backup, restore, inspection and salvage. The command `lockkeeper`
/// (package `lockkeeper-cli`) offers the same tools.
///
/// In the repository, `docs/durability.md` describes the file formats, and `docs/operations.md` the procedures.
pub mod disk {
    pub use crate::log::backup::{Summary, backup, backup_to, restore};
    pub use crate::log::inspect::{
        Inspection, Problem, SegmentInfo, SegmentState, SessionInfo, SnapshotInfo, Subtree,
        inspect, inspect_top,
    };
    pub use crate::log::salvage::{Loss, LostPlace, Salvage, salvage};
}

#[cfg(doctest)]
#[doc = include_str!("README.md")]
pub struct Readme;
