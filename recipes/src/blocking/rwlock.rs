//! [`RwLock`]: the fair read-write lock.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::{BlockingGuard, Client, ReadGuard, WriteGuard, wait};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// A read-write lock among all programs that name the same path of the same store. See
/// [`RwLock`](crate::RwLock).
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
    /// Creates the lock at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::RwLock::new(client.as_async(), path).map(Self)
    }

    /// Returns the znode under which the queue stands.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Acquires the lock as a reader.
    ///
    /// # Errors
    /// Those of [`RwLock::read`](crate::RwLock::read).
    #[track_caller]
    pub fn read(&self) -> Result<ReadGuard> {
        wait(self.0.read()).map(BlockingGuard)
    }

    /// Acquires the lock as a reader within `timeout`.
    ///
    /// # Errors
    /// Those of [`RwLock::read_timeout`](crate::RwLock::read_timeout).
    #[track_caller]
    pub fn read_timeout(&self, timeout: Duration) -> Result<ReadGuard> {
        wait(self.0.read_timeout(timeout)).map(BlockingGuard)
    }

    /// Acquires the lock as a reader with the given options.
    ///
    /// # Errors
    /// Those of [`RwLock::read_with`](crate::RwLock::read_with).
    #[track_caller]
    pub fn read_with(&self, options: LockOptions) -> Result<ReadGuard> {
        wait(self.0.read_with(options)).map(BlockingGuard)
    }

    /// Acquires the lock as a reader if that is possible now; else `None`.
    ///
    /// # Errors
    /// Those of [`RwLock::try_read`](crate::RwLock::try_read).
    #[track_caller]
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(wait(self.0.try_read())?.map(BlockingGuard))
    }

    /// Acquires the lock as a reader if that is possible now, with the given options.
    ///
    /// # Errors
    /// Those of [`RwLock::try_read_with`](crate::RwLock::try_read_with).
    #[track_caller]
    pub fn try_read_with(&self, options: LockOptions) -> Result<Option<ReadGuard>> {
        Ok(wait(self.0.try_read_with(options))?.map(BlockingGuard))
    }

    /// Acquires the lock as the writer.
    ///
    /// # Errors
    /// Those of [`RwLock::write`](crate::RwLock::write).
    #[track_caller]
    pub fn write(&self) -> Result<WriteGuard> {
        wait(self.0.write()).map(BlockingGuard)
    }

    /// Acquires the lock as the writer within `timeout`.
    ///
    /// # Errors
    /// Those of [`RwLock::write_timeout`](crate::RwLock::write_timeout).
    #[track_caller]
    pub fn write_timeout(&self, timeout: Duration) -> Result<WriteGuard> {
        wait(self.0.write_timeout(timeout)).map(BlockingGuard)
    }

    /// Acquires the lock as the writer with the given options.
    ///
    /// # Errors
    /// Those of [`RwLock::write_with`](crate::RwLock::write_with).
    #[track_caller]
    pub fn write_with(&self, options: LockOptions) -> Result<WriteGuard> {
        wait(self.0.write_with(options)).map(BlockingGuard)
    }

    /// Acquires the lock as the writer if that is possible now; else `None`.
    ///
    /// # Errors
    /// Those of [`RwLock::try_write`](crate::RwLock::try_write).
    #[track_caller]
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(wait(self.0.try_write())?.map(BlockingGuard))
    }

    /// Acquires the lock as the writer if that is possible now, with the given options.
    ///
    /// # Errors
    /// Those of [`RwLock::try_write_with`](crate::RwLock::try_write_with).
    #[track_caller]
    pub fn try_write_with(&self, options: LockOptions) -> Result<Option<WriteGuard>> {
        Ok(wait(self.0.try_write_with(options))?.map(BlockingGuard))
    }
}
