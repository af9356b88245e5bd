//! [`Mutex`]: the fair lock.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::forward::forward_methods;
use super::{Client, Guard};
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// The blocking variant of [`Mutex`](crate::Mutex).
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
    /// Creates the mutex at a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::Mutex::new(client.as_async(), path).map(Self)
    }

    /// Returns the znode that contains the queue.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }
}

forward_methods! { Mutex {
    /// Acquires the lock, in the order of arrival.
    fn lock() -> Guard;

    /// Acquires the lock within `timeout`, which covers the whole call.
    fn lock_timeout(timeout: Duration) -> Guard;

    /// Acquires the lock with the given options.
    fn lock_with(options: LockOptions) -> Guard;

    /// Acquires the lock if it is free now, otherwise returns `None`.
    fn try_lock() -> Option<Guard>;

    /// Acquires the lock if it is free now, with the given options.
    fn try_lock_with(options: LockOptions) -> Option<Guard>;
}}
