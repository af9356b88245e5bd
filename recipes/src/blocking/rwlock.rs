//! [`RwLock`]: the fair read-write lock.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::{Client, ReadGuard, WriteGuard, wait};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// A read-write lock among all programs that name the same path of the same store. See
/// [`RwLock`](crate::RwLock).
#[derive(Clone, Debug)]
pub struct RwLock(crate::RwLock);

impl RwLock {
    /// The lock at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::RwLock::new(client.as_async(), path).map(Self)
    }

    /// The znode under which the queue stands.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Waits for the lock, to hold it with the other readers.
    ///
    /// # Errors
    /// Those of [`RwLock::read`](crate::RwLock::read).
    pub fn read(&self) -> Result<ReadGuard> {
        wait(self.0.read()).map(ReadGuard)
    }

    /// Waits for the lock, to hold it with the other readers, for no longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`RwLock::read_timeout`](crate::RwLock::read_timeout).
    pub fn read_timeout(&self, timeout: Duration) -> Result<ReadGuard> {
        wait(self.0.read_timeout(timeout)).map(ReadGuard)
    }

    /// Waits for the lock, to hold it with the other readers, on terms of one's own.
    ///
    /// # Errors
    /// Those of [`RwLock::read_with`](crate::RwLock::read_with).
    pub fn read_with(&self, options: LockOptions) -> Result<ReadGuard> {
        wait(self.0.read_with(options)).map(ReadGuard)
    }

    /// Takes the lock, to hold it with the other readers, if that is possible now.
    ///
    /// # Errors
    /// Those of [`RwLock::try_read`](crate::RwLock::try_read).
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(wait(self.0.try_read())?.map(ReadGuard))
    }

    /// Waits for the lock, to hold it alone.
    ///
    /// # Errors
    /// Those of [`RwLock::write`](crate::RwLock::write).
    pub fn write(&self) -> Result<WriteGuard> {
        wait(self.0.write()).map(WriteGuard)
    }

    /// Waits for the lock, to hold it alone, for no longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`RwLock::write_timeout`](crate::RwLock::write_timeout).
    pub fn write_timeout(&self, timeout: Duration) -> Result<WriteGuard> {
        wait(self.0.write_timeout(timeout)).map(WriteGuard)
    }

    /// Waits for the lock, to hold it alone, on terms of one's own.
    ///
    /// # Errors
    /// Those of [`RwLock::write_with`](crate::RwLock::write_with).
    pub fn write_with(&self, options: LockOptions) -> Result<WriteGuard> {
        wait(self.0.write_with(options)).map(WriteGuard)
    }

    /// Takes the lock, to hold it alone, if that is possible now.
    ///
    /// # Errors
    /// Those of [`RwLock::try_write`](crate::RwLock::try_write).
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(wait(self.0.try_write())?.map(WriteGuard))
    }
}
