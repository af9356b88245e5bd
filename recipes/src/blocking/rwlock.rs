//! [`RwLock`]: the fair read-write lock.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::forward::forward_methods;
use super::{Client, ReadGuard, WriteGuard};
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// The blocking variant of [`RwLock`](crate::RwLock).
///
/// ```
/// # let client = lockkeeper::blocking::connect("memory:example-blocking-rwlock-RwLock")?;
/// use lockkeeper::blocking::RwLock;
///
/// let lock = RwLock::new(&client, "/lock/report")?;
/// let (one, other) = (lock.read()?, lock.read()?);
/// assert!(lock.try_write()?.is_none());
/// drop((one, other));
/// let reader = lock.write()?.downgrade()?;
/// reader.release()?;
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RwLock(crate::RwLock);

impl RwLock {
    /// Creates the lock at a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::RwLock::new(client.as_async(), path).map(Self)
    }

    /// Returns the znode that contains the queue.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }
}

forward_methods! { RwLock {
    /// Acquires the lock as a reader.
    fn read() -> ReadGuard;

    /// Acquires the lock as a reader within `timeout`.
    fn read_timeout(timeout: Duration) -> ReadGuard;

    /// Acquires the lock as a reader with the given options.
    fn read_with(options: LockOptions) -> ReadGuard;

    /// Acquires the lock as a reader if that is possible now, otherwise returns `None`.
    fn try_read() -> Option<ReadGuard>;

    /// Acquires the lock as a reader if that is possible now, with the given options.
    fn try_read_with(options: LockOptions) -> Option<ReadGuard>;

    /// Acquires the lock as the writer.
    fn write() -> WriteGuard;

    /// Acquires the lock as the writer within `timeout`.
    fn write_timeout(timeout: Duration) -> WriteGuard;

    /// Acquires the lock as the writer with the given options.
    fn write_with(options: LockOptions) -> WriteGuard;

    /// Acquires the lock as the writer if that is possible now, otherwise returns `None`.
    fn try_write() -> Option<WriteGuard>;

    /// Acquires the lock as the writer if that is possible now, with the given options.
    fn try_write_with(options: LockOptions) -> Option<WriteGuard>;
}}
