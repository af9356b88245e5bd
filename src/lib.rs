//! The coordination store of Lockkeeper: znodes, sessions and watches with ZooKeeper's rules,
//! embedded in the program or on a real ZooKeeper. The recipes (mutex and its kin) are in the
//! package `lockkeeper`, which re-exports what its users need from here.
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

mod acl;
mod backend;
mod clock;
mod connect;
mod core;
mod data;
mod detached;
pub mod disk;
mod engine;
mod entry;
mod error;
mod fork;
mod future;
mod histogram;
mod identity;
mod log;
mod path;
mod platform;
#[cfg_attr(
    not(any(feature = "client", feature = "server")),
    allow(dead_code, reason = "only clients and servers know processes")
)]
mod process;
mod protocol;
mod random;
#[cfg(feature = "server")]
mod server;
mod session;
#[cfg(feature = "simulation")]
mod simnet;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod size;
#[cfg(any(test, feature = "test-util"))]
mod splitmix;
mod target;
#[cfg(feature = "test-util")]
pub mod testing;
mod tls;
mod types;
mod wake;
mod watch;
mod watch_channel;
#[cfg(any(feature = "client", feature = "server"))]
#[allow(
    dead_code,
    unused_imports,
    reason = "a whole protocol, of which the server and the client each use a part"
)]
mod wire;

pub use acl::Acl;
pub use backend::{
    Backend, Cleanup, ConnectOptions, Connector, Flushed, Lease, LocalQueues, SessionStatus,
    StateStream, pending_cleanups, read_or_create_store_id,
};
pub use clock::{BootInstant, Clock, Deadline, Sleep, TickPlace};
pub use connect::{Client, connect, connect_with};
pub use detached::spawn_detached;
pub use engine::Durability;
pub use engine::{Store, StoreOptions};
pub use entry::{Condition, Entered, EntryKey, NewEntry, Place, Turn, ZnodeHandle};
pub use error::{Error, Result, TargetError};
pub use future::BoxFuture;
pub use identity::Secret;
pub use path::ZnodePath;
pub use protocol::{
    Blockers, Create, Enqueue, EntryName, EntryRole, GetPredecessor, Op, OpReply, Predecessor,
    ReadOp, ReadReply, Reply, Request, Response, SEMAPHORE_CHILDREN, SHARED_MARKER, sequence_of,
};
#[cfg(all(feature = "server", feature = "tls"))]
pub use server::TlsOptions;
#[cfg(all(feature = "server", feature = "metrics"))]
pub use server::register_process_metrics;
#[cfg(feature = "server")]
pub use server::{
    AccessOptions, AuditEvent, AuditOutcome, AuditRecord, AuditSink, KickOutcome, NotReady, Server,
    ServerError, ServerMonitor, ServerOptions, SessionInfo, SocketListener,
};
pub use session::{Call, Heartbeat, Session};
pub use size::LARGEST_REQUEST_BYTES;
pub use target::Target;
pub use tls::{ClientTls, TlsError};
pub use types::{AclEntry, CreateMode, HumanDuration, SessionId, SessionState, Stat, Zxid};
pub use wake::{wake, wake_all};
pub use watch::{
    DeleteReason, EventKind, PersistentWatcher, PredecessorGone, WatchMode, WatchedEvent, Watcher,
};
pub use watch_channel::{WatchNotifier, WatchReceiver, WatchSender};

#[cfg(doctest)]
#[doc = include_str!("README.md")]
pub struct Readme;
