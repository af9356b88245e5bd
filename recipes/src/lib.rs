//! Fair queued locks in the ZooKeeper style, on an embedded store or a real ensemble.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use lockkeeper::Mutex;
//!
//! let client = lockkeeper::connect("memory:").await?;
//! let mutex = Mutex::new(&client, "/lock/orders")?;
//! let guard = mutex.lock().await?; // fair: in order of arrival
//! println!("token {}", guard.fencing_token()); // the resource refuses older ones
//! guard.release().await?; // or drop
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! The same program uses a real ZooKeeper when the URL is `zookeeper://host:2181/app`.
//!
//! # The recipes, and the forms of their calls
//!
//! Every recipe queues its contenders in the order of their arrival, and has the same forms of its one verb:
//!
//! | | waits | within a timeout | with [`LockOptions`] | tries | tries with options |
//! |---|---|---|---|---|---|
//! | [`Mutex`] | `lock` | `lock_timeout` | `lock_with` | `try_lock` | `try_lock_with` |
//! | [`ReentrantMutex`], by its [`Owner`] | `lock` | `lock_timeout` | `lock_with` | `try_lock` | `try_lock_with` |
//! | [`RwLock`], readers | `read` | `read_timeout` | `read_with` | `try_read` | `try_read_with` |
//! | [`RwLock`], writers | `write` | `write_timeout` | `write_with` | `try_write` | `try_write_with` |
//! | [`Semaphore`] | `acquire`, `acquire_many` | `acquire_timeout` | `acquire_with` | `try_acquire`, `try_acquire_many` | `try_acquire_with` |
//! | [`Election`] | `campaign` | `campaign_timeout` | `campaign_with` | `try_campaign` | `try_campaign_with` |
//! | several mutexes, all or none | [`lock_all()`] | [`lock_all_timeout()`] | [`lock_all_with()`] | [`try_lock_all()`] | [`try_lock_all_with()`] |
//! | several mutexes, one by one | [`lock_each()`] | [`lock_each_timeout()`] | [`lock_each_with()`] | [`try_lock_many()`] | [`try_lock_many_with()`] |
//!
//! - A **wait** ends with the grant. It can be dropped at any moment, and leaves no znode behind.
//! - A **timeout** is one deadline for everything: opening a session, joining the queue, waiting. A wait fails with
//!   [`LockError::Timeout`] when it was not granted by then, a try when the store has not answered by then.
//! - A **try** answers `None` (or names what is contended) if the lock is held or waited for now. That costs one
//!   read and no write. "Held" is as stale as the server that answers, unless the options are
//!   [`synced`](LockOptions::synced); "free" is always confirmed by the queue.
//! - **Options** mean the same everywhere: metadata, events and the timeout count for all calls, the queue limit for
//!   waits, `synced` for tries.
//!
//! Each grant is a guard with the interface of [`LockGuard`]: `is_held`, `held_until`, `lost`, `protect`, `release`,
//! `keep_alive`, `revocation_requested`, `metadata`, and the `fencing_token` that makes the lock safe. A guard of one
//! znode is a [`Guard`], one of several is a [`GuardSet`].
//!
//! The same recipes for threads without async are in [`blocking`]. Others see a lock with [`queue()`] and
//! [`observe()`], all locks below a prefix with [`list_locks()`] and [`observe_locks()`], follow one contender with
//! [`lock_events`], ask for a lock with a [`Revoker`], and watch for overdue holders with a [`Warden`]. A job that a whole
//! fleet starts at the same moment runs once a period with [`OncePer`].

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod deadline;
mod election;
mod error;
mod events;
mod futures_unordered;
mod guard;
#[cfg(any(doc, doctest))]
pub mod guides;
mod holders;
mod list_locks;
mod lock_guard;
mod many;
mod metadata;
mod meter;
#[cfg(feature = "metrics")]
pub mod metrics;
mod mutex;
mod names;
mod observe;
mod once_per;
mod options;
mod path;
mod queue;
mod queue_lock;
mod reentrant;
mod reporter;
mod retry;
mod revocation;
mod rwlock;
mod select;
mod semaphore;
mod stream;
mod synced;
#[cfg(feature = "test-util")]
pub mod testing;
mod token;
mod warden;

pub use election::{
    Election, ElectionState, Leader, LeaderChange, LeaderChanges, Leadership, Role,
};
pub use error::{LockError, LostReason, Result};
pub use events::{EventSink, LockEvent, LockEvents, PreviousHolder, lock_events};
pub use guard::{Guard, GuardSet};
pub use holders::holders;
pub use list_locks::{
    LockChange, LockChanges, LockInfo, LockList, LockPrefix, LockQueue, LockQueuePart, list_locks,
    lock_queue, lock_queue_part, observe_locks,
};
pub use lock_guard::LockGuard;
#[cfg(all(feature = "server", feature = "tls"))]
pub use lockkeeper_store::TlsOptions;
#[cfg(all(feature = "server", feature = "metrics"))]
pub use lockkeeper_store::register_process_metrics;
pub use lockkeeper_store::{
    Acl, AclEntry, Client, ClientTls, Clock, ConnectOptions, Deadline, Error, Session, SessionId,
    SessionState, StateStream, Store, StoreOptions, Target, TargetError, TlsError, ZnodePath,
    connect, connect_with,
};
#[cfg(feature = "file")]
pub use lockkeeper_store::{Durability, disk};
#[cfg(feature = "server")]
pub use lockkeeper_store::{NotReady, Server, ServerError, ServerMonitor, ServerOptions};
pub use many::{
    LockEach, MultiGuard, TryLockMany, lock_all, lock_all_timeout, lock_all_with, lock_each,
    lock_each_timeout, lock_each_with, try_lock_all, try_lock_all_with, try_lock_many,
    try_lock_many_with,
};
pub use metadata::LockMetadata;
pub use mutex::Mutex;
pub use names::LockKind;
pub use observe::{QueueEntry, Snapshots, observe, queue};
pub use once_per::{OncePer, Run, Turn};
pub use options::LockOptions;
pub use path::{IntoLockPath, LockPath};
pub use reentrant::{Owner, ReentrantGuard, ReentrantMutex};
pub use revocation::{FencingEnforced, RevocationRequest, RevokeTarget, Revoker};
pub use rwlock::{ReadGuard, RwLock, Upgrade, WriteGuard};
pub use semaphore::{Permit, Semaphore};
pub use token::{FencingGate, FencingToken, InvalidToken, StaleToken};
pub use warden::{
    Overdue, OverdueLevel, Warden, WardenBuilder, WardenReport, WardenReports, WardenStats,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

// The published package does not contain this one.
#[cfg(all(doctest, feature = "simulation"))]
#[doc = include_str!("../../README.md")]
pub struct RepositoryReadme;
