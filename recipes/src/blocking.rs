//! The recipes for threads without async: each call blocks its thread until it is done.
//!
//! They are the locks of the async types, in the same queues: both can contend for one path, in one program, too.
//! Fairness, tokens, options and errors are theirs, and each type has the same methods under the same names, except for
//! `protect`, which stops a future. [`Election::run`] takes a closure, which has to notice a loss itself. No runtime is
//! needed: the store's own threads do the work, and a call parks its thread.
//!
//! # In a program with a tokio runtime
//!
//! A call may block on any thread that is not driving async tasks: a thread of `std`, and within
//! [`spawn_blocking`](https://docs.rs/tokio/latest/tokio/task/fn.spawn_blocking.html) and
//! [`block_in_place`](https://docs.rs/tokio/latest/tokio/task/fn.block_in_place.html).
//!
//! Inside an async task it would stop everything else that its thread has to run, the task that releases the lock
//! among them. So it **panics** there, as tokio's own `blocking_recv` and `blocking_lock` do, before anything is sent;
//! but a [`release`](BlockingGuard::release), and a conversion of a read-write lock, has been sent by then. Use the
//! async types there. Other executors give no way to tell: there a call blocks wherever it is made.
//!
//! Dropping a guard is allowed everywhere; see [`Guard`](crate::Guard).
//!
//! # Streams
//!
//! The streams of the async recipes, such as the events of a lock or a warden's reports, are read by [`iter`]; types
//! that never wait, such as [`Warden`](crate::Warden), are used as they are, with [`Client::as_async`].
//!
//! ```
//! use std::time::Duration;
//! use lockkeeper::blocking::{self, Mutex};
//!
//! let client = blocking::connect("memory:")?;
//! let mutex = Mutex::new(&client, "/lock/orders")?;
//! let guard = mutex.lock_timeout(Duration::from_secs(5))?;
//! println!("token {}", guard.fencing_token()); // the resource refuses older ones
//! guard.release()?; // or drop
//! client.close()?;
//! # Ok::<(), lockkeeper::LockError>(())
//! ```

mod client;
mod election;
mod forward;
mod guard;
mod many;
mod mutex;
mod observe;
mod once_per;
mod reentrant;
mod revocation;
mod rwlock;
mod semaphore;

pub use client::{Client, connect, connect_with};
pub use election::{Election, ElectionState, LeaderChanges};
pub use guard::{
    BlockingGuard, Guard, Leadership, MultiGuard, Permit, ReadGuard, ReentrantGuard, Upgrade,
    WriteGuard,
};
pub use many::{
    LockEach, TryLockMany, lock_all, lock_all_timeout, lock_all_with, lock_each, lock_each_timeout,
    lock_each_with, try_lock_all, try_lock_all_with, try_lock_many, try_lock_many_with,
};
pub use mutex::Mutex;
pub use observe::{
    Iter, LockChanges, Snapshots, iter, list_locks, lock_queue, lock_queue_part, observe,
    observe_locks, queue,
};
pub use once_per::{OncePer, Run, Turn};
pub use reentrant::{Owner, ReentrantMutex};
pub use revocation::Revoker;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;

use crate::error::{LockError, Result};

/// Parks this thread until a fallible future is done.
#[track_caller]
fn wait<T, E: Into<LockError>>(future: impl Future<Output = Result<T, E>>) -> Result<T> {
    block_on(future).map_err(Into::into)
}

/// Parks this thread until a future is done.
///
/// # Panics
/// On a thread that drives async tasks of a tokio runtime.
#[track_caller]
fn block_on<F: Future>(future: F) -> F::Output {
    if tokio::runtime::Handle::try_current().is_ok() {
        // Only tokio knows whether this thread drives tasks at the moment, or runs `spawn_blocking` or
        // `block_in_place`. It panics in calls that block; this one takes a free lock, so it has no other effect.
        let free = tokio::sync::Mutex::new(());
        drop(free.blocking_lock());
    }
    pollster::block_on(future)
}
