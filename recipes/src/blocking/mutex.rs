//! [`Mutex`]: the fair lock.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::{BlockingGuard, Client, Guard, wait};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// A mutex among all programs that name the same path of the same store. See
/// [`Mutex`](crate::Mutex).
///
/// ```
/// # let client = lockkeeper::blocking::connect("memory:example-blocking-mutex")?;
/// use lockkeeper::blocking::Mutex;
///
/// let mutex = Mutex::new(&client, "/lock/orders")?;
/// let guard = mutex.lock()?; // in order of arrival
/// assert!(mutex.try_lock()?.is_none());
/// guard.release()?; // or drop
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mutex(crate::Mutex);

impl Mutex {
    /// Creates the mutex at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::Mutex::new(client.as_async(), path).map(Self)
    }

    /// Returns the znode under which the queue stands.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Acquires the lock, in the order of arrival.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock).
    #[track_caller]
    pub fn lock(&self) -> Result<Guard> {
        wait(self.0.lock()).map(BlockingGuard)
    }

    /// Acquires the lock within `timeout`, everything included.
    ///
    /// # Errors
    /// Those of [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    #[track_caller]
    pub fn lock_timeout(&self, timeout: Duration) -> Result<Guard> {
        wait(self.0.lock_timeout(timeout)).map(BlockingGuard)
    }

    /// Acquires the lock with the given options.
    ///
    /// # Errors
    /// Those of [`Mutex::lock_with`](crate::Mutex::lock_with).
    #[track_caller]
    pub fn lock_with(&self, options: LockOptions) -> Result<Guard> {
        wait(self.0.lock_with(options)).map(BlockingGuard)
    }

    /// Acquires the lock if it is free now; else `None`.
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    #[track_caller]
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        Ok(wait(self.0.try_lock())?.map(BlockingGuard))
    }

    /// Acquires the lock if it is free now, with the given options.
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock_with`](crate::Mutex::try_lock_with).
    #[track_caller]
    pub fn try_lock_with(&self, options: LockOptions) -> Result<Option<Guard>> {
        Ok(wait(self.0.try_lock_with(options))?.map(BlockingGuard))
    }
}
