//! Fair distributed locks: mutex, read-write lock, semaphore and leader election, with a fencing token for every grant.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use lockkeeper::Mutex;
//!
//! let client = lockkeeper::connect("memory:").await?;
//! let mutex = Mutex::new(&client, "/locks/orders")?;
//! let guard = mutex.lock().await?; // waits its turn: first come, first served
//! println!("fencing token {}", guard.fencing_token());
//! guard.release().await?; // dropping the guard releases the lock as well
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # Which URL
//!
//! The URL given to [`connect`] selects the store that holds the locks.
//!
//! | Who shares the lock? | URL | Needs | If the store's machine dies |
//! |---|---|---|---|
//! | tasks in one program | `memory:`, or `memory:NAME` for a separate store | nothing | the program dies with it |
//! | the same, with data and tokens that survive a restart | `file:DIR` | a Unix system | the next start continues, if the disk survives |
//! | processes on one machine | `lockkeeper+unix:///run/lockkeeper.sock` | `lockkeeper serve --listen unix:PATH` | the holders die with it |
//! | a few machines | `lockkeeper://host:2181` | `lockkeeper serve` on one of them | no lock is granted until it is back |
//! | machines that must not depend on any single one | `zookeeper://zk1:2181,zk2:2181,zk3:2181/app` | a ZooKeeper ensemble | the ensemble carries on while it has a majority |
//!
//! The path at the end of a served or ZooKeeper URL is a chroot: all lock paths are relative to it. [`connect_with`] takes
//! [`ConnectOptions`]: the session timeout (15 s by default), timeouts for connecting, credentials, TLS.
//!
//! A lock belongs to the session of its [`Client`]. If the process dies, a served store frees the lock when the session
//! timeout has passed, or immediately over a Unix socket on Linux. In an embedded store, the lock ends with the
//! process.
//!
//! # When a lock is lost
//!
//! A holder that is paused, or cut off from the store, loses its session and with it the lock. The guard detects the
//! loss with the client's own clock, before the store may grant the lock to another client:
//!
//! - [`Guard::protect`] drops the future that it runs and returns the [`LostReason`].
//! - [`Guard::lost`] resolves. [`Guard::is_held`] returns `false` from then on, and never `true` again.
//! - [`Guard::release`] returns [`LockError::Lost`].
//!
//! After a loss, stop the work. Acquire the lock again if you still need it. A broken connection only suspends the
//! lock: it stays held until [`Guard::held_until`], and survives if the client reconnects before that time.
//!
//! Dropping a guard sends the release before the drop returns. If the process exits without dropping its guards
//! (`std::process::exit`, `kill -9`), other processes wait until its session times out.
//!
//! # Fencing
//!
//! The store cannot stop a write that is already on its way to the resource. Send [`Guard::fencing_token`] with every
//! write, and let the resource reject tokens that are older than the newest one it has seen, in the same atomic step as
//! the write. Tokens of one lock grow with each grant, also across restarts. [`FencingGate`] implements the check in
//! Rust. [`guides::fencing`] covers SQL, object stores and HTTP.
//!
//! # Recipes and their methods
//!
//! Every recipe queues its contenders in the order of arrival, and has the same variants of its method:
//!
//! | | waits | with a timeout | with [`LockOptions`] | tries | tries with options |
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
//! - A **wait** ends with the grant. You can drop the future at any time, and it leaves no znode behind.
//! - A **timeout** covers the whole call: opening a session, joining the queue, and waiting. A wait fails with
//!   [`LockError::Timeout`] if the lock was not granted by then, and a try if the store has not answered by then.
//! - A **try** returns `None` (or names the contended locks) if the lock is held or waited for. A failed try costs one
//!   read and no write. The result "held" can be as outdated as the server that answers, unless you set the option
//!   [`synced`](LockOptions::synced). The result "free" is always confirmed by joining the queue.
//! - **Options** mean the same in all recipes.
//!
//! Each grant is a guard with the interface of [`LockGuard`]. A [`Guard`] has one znode, and a [`GuardSet`] has
//! several. [`blocking`] has the same recipes for threads without async. [`OncePer`] runs a job once per period, even
//! if every machine of a fleet starts it.
//!
//! To inspect locks, use [`queue()`] and [`observe()`] for one lock, and [`list_locks()`] and [`observe_locks()`] for
//! all locks below a prefix. [`lock_events`] streams the events of one contender. A [`Revoker`] asks a holder to
//! release its lock or removes the holder by force. A [`Warden`] reports overdue holders.
//!
//! # Features
//!
//! | feature | |
//! |---|---|
//! | `client` (default) | `lockkeeper://`, `lockkeeper+unix://` and `zookeeper://` URLs |
//! | `file` | `file:` URLs, the embedded store in a directory |
//! | `server` | `Server`, to serve the embedded store to other processes |
//! | `tls` | TLS for clients (`lockkeeper+tls://`, `zookeeper+tls://`) and servers |
//! | `metrics` | metrics of all locks of the process, for Prometheus |
//! | `test-util` | `testing`: fresh stores, virtual time and faults |
//!
//! Any async executor works.
//!
//! # Guides
//!
//! - [Choosing a lock](guides::which_lock): which recipe on which store, with a few lines of code for each
//! - [Fencing in practice](guides::fencing): SQL, object stores, HTTP, and resources that cannot be fenced
//! - [Testing](guides::testing): lose a lock on demand, in virtual time
//! - [Running the server](guides::operating), and [locks in operation](guides::operations)
//! - [Migrating](guides::migrating) from Redis, Redlock, etcd, Curator or kazoo
//! - [Sharing a path](guides::interop) with other ZooKeeper clients

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod deadline;
mod election;
mod error;
mod events;
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
pub use once_per::{Attempt, OncePer, Run};
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

// Only for builds in the repository, because the published package does not contain this file.
#[cfg(all(doctest, feature = "simulation"))]
#[doc = include_str!("../../README.md")]
pub struct RepositoryReadme;
