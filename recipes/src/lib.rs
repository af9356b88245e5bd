//! Lockkeeper: fair queued locks in the ZooKeeper style.
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

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod contest;
mod election;
mod error;
mod events;
mod guard;
#[cfg(any(doc, doctest))]
pub mod guides;
mod holders;
mod many;
mod metadata;
mod mutex;
mod names;
mod observe;
mod options;
mod path;
mod progress;
mod queue;
mod reentrant;
mod revocation;
mod rwlock;
mod select;
mod semaphore;
mod token;
mod warden;

pub use election::{
    Election, ElectionState, Leader, LeaderChange, LeaderChanges, Leadership, Role,
};
pub use error::{LockError, LostReason, Result};
pub use events::{EventSink, LockEvent, LockEvents, PreviousHolder, lock_events};
pub use guard::Guard;
pub use holders::holders;
#[cfg(all(feature = "server", feature = "tls"))]
pub use lockkeeper_store::TlsOptions;
pub use lockkeeper_store::{
    Acl, AclEntry, Client, ClientTls, Clock, ConnectOptions, Deadline, Error, Session, SessionId,
    SessionState, StateStream, Store, StoreOptions, Target, TargetError, TlsError, ZnodePath,
    connect, connect_with,
};
#[cfg(feature = "file")]
pub use lockkeeper_store::{Durability, disk};
#[cfg(feature = "server")]
pub use lockkeeper_store::{Server, ServerError, ServerOptions};
pub use many::{
    LockEach, MultiGuard, TryLockMany, lock_all, lock_all_with, lock_each, lock_each_with,
    try_lock_many, try_lock_many_with,
};
pub use metadata::LockMetadata;
pub use mutex::Mutex;
pub use observe::{QueueEntry, Snapshots, observe, queue};
pub use options::LockOptions;
pub use path::LockPath;
pub use reentrant::{Owner, ReentrantGuard, ReentrantMutex};
pub use revocation::{FencingEnforced, RevocationRequest, RevokeTarget, Revoker};
pub use rwlock::{ReadGuard, RwLock, Upgrade, WriteGuard};
pub use semaphore::{Permit, Semaphore};
pub use token::{FencingGate, FencingToken, StaleToken};
pub use warden::{Overdue, OverdueLevel, Warden, WardenBuilder, WardenReport, WardenReports};

#[cfg(feature = "test-util")]
pub use lockkeeper_store::testing;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
