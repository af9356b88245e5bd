//! [`Mutex`]: the fair lock.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::{Client, Guard, wait};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// A mutex among all programs that name the same path of the same store. See
/// [`Mutex`](crate::Mutex).
#[derive(Clone, Debug)]
pub struct Mutex(crate::Mutex);

impl Mutex {
    /// The mutex at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::Mutex::new(client.as_async(), path).map(Self)
    }

    /// The znode under which the queue stands.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Waits for the lock, in the order of arrival.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock).
    pub fn lock(&self) -> Result<Guard> {
        wait(self.0.lock()).map(Guard)
    }

    /// Waits for the lock for no longer than `timeout`, everything included.
    ///
    /// # Errors
    /// Those of [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub fn lock_timeout(&self, timeout: Duration) -> Result<Guard> {
        wait(self.0.lock_timeout(timeout)).map(Guard)
    }

    /// Waits for the lock on terms of one's own.
    ///
    /// # Errors
    /// Those of [`Mutex::lock_with`](crate::Mutex::lock_with).
    pub fn lock_with(&self, options: LockOptions) -> Result<Guard> {
        wait(self.0.lock_with(options)).map(Guard)
    }

    /// Takes the lock if it is free now.
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        Ok(wait(self.0.try_lock())?.map(Guard))
    }
}
