//! The recipes for threads without async: each call blocks its thread until it is done.
//!
//! The same locks as those of the async types, in the same queues: both can contend for one path,
//! in one program, too. Fairness, tokens and errors are theirs; read there what is not said here.
//! No runtime is needed: the store's own threads do the work, and a call parks its thread.
//!
//! Called inside a tokio runtime, a call would stop whatever else its thread has to run; so it
//! fails with [`LockError::InsideRuntime`] and does nothing. That is said of `spawn_blocking`, too: use
//! the async types there, with `Handle::block_on`, or a thread of `std`.
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
mod guard;
mod mutex;
mod rwlock;
mod semaphore;

pub use client::{Client, connect, connect_with};
pub use election::{Election, LeaderChanges};
pub use guard::{Guard, Leadership, Permit, ReadGuard, Upgrade, WriteGuard};
pub use mutex::Mutex;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;

use crate::error::{LockError, Result};

/// Parks this thread until a future is done.
fn wait<T, E: Into<LockError>>(future: impl Future<Output = Result<T, E>>) -> Result<T> {
    outside_runtime()?;
    pollster::block_on(future).map_err(Into::into)
}

fn outside_runtime() -> Result<()> {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => Err(LockError::InsideRuntime),
        Err(_) => Ok(()),
    }
}
