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

mod error;
mod events;
mod guard;
mod metadata;
mod mutex;
mod names;
mod observe;
mod path;
mod queue;
mod race;
mod token;

pub use error::{LockError, LostReason, Result};
pub use events::{EventSink, LockEvent, LockEvents, lock_events};
pub use guard::Guard;
pub use lockkeeper_store::{
    Acl, AclEntry, Client, Clock, ConnectOptions, Deadline, Error, Session, SessionId,
    SessionState, StateStream, Store, StoreOptions, Target, TargetError, ZnodePath, connect,
    connect_with,
};
pub use metadata::LockMetadata;
pub use mutex::{LockOptions, Mutex};
pub use observe::{QueueEntry, Snapshots, observe, queue};
pub use path::LockPath;
pub use token::{FencingGate, FencingToken, StaleToken};

#[cfg(feature = "test-util")]
pub use lockkeeper_store::testing;

#[cfg(all(doctest, feature = "test-util"))]
#[doc = include_str!("../../docs/testing.md")]
pub struct TestingGuide;
