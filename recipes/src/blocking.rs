//! The recipes for threads without async. Each call blocks its thread until it is done.
//!
//! Blocking and async callers can contend for the same path, also within one program. Each type has the same methods as
//! its async counterpart, with the same fairness, tokens, options and errors. Only `protect` is missing, because a
//! blocking call cannot be stopped. For the same reason, the closure passed to [`Election::run`] must itself check for
//! a loss. No async runtime is needed.
//!
//! # In a program with a tokio runtime
//!
//! You can call these functions on any thread that is not driving async tasks, such as a `std` thread, or inside
//! [`spawn_blocking`](https://docs.rs/tokio/latest/tokio/task/fn.spawn_blocking.html) and
//! [`block_in_place`](https://docs.rs/tokio/latest/tokio/task/fn.block_in_place.html).
//!
//! Inside an async task, a call **panics**, like tokio's `blocking_recv`, because it would block other tasks. A call
//! panics before it sends anything, with two exceptions: [`release`](BlockingGuard::release) and the conversions of a
//! read-write lock send their request first. Executors other than tokio cannot be detected, so on them a call always
//! blocks. You can drop a guard anywhere.
//!
//! # Streams
//!
//! Use [`iter`] to read the streams of the async recipes, such as lock events or a warden's reports. Types whose calls
//! never wait, such as [`Warden`](crate::Warden), have no blocking variant. Pass them the client that
//! [`Client::as_async`] returns.
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
pub use once_per::{Attempt, OncePer, Run};
pub use reentrant::{Owner, ReentrantMutex};
pub use revocation::Revoker;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;

use crate::error::{LockError, Result};

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
    // A thread that drives tasks has a runtime handle, and so do `spawn_blocking` and `block_in_place`. Only tokio
    // knows which case this is.
    if tokio::runtime::Handle::try_current().is_ok() {
        // If this thread drives tasks, tokio's `blocking_lock` panics. Locking this free mutex has no other effect.
        let free = tokio::sync::Mutex::new(());
        drop(free.blocking_lock());
    }
    pollster::block_on(future)
}
