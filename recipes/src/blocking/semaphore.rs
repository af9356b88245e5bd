//! [`Semaphore`]: a number of permits.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::{Client, Permit, wait};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// A number of permits among all programs that name the same path of the same store. See
/// [`Semaphore`](crate::Semaphore).
#[derive(Clone, Debug)]
pub struct Semaphore(crate::Semaphore);

impl Semaphore {
    /// The semaphore at a path, of so many permits. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath, permits: u32) -> Result<Self, Error> {
        crate::Semaphore::new(client.as_async(), path, permits).map(Self)
    }

    /// The semaphore at a path, of as many permits as it has. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn open(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::Semaphore::open(client.as_async(), path).map(Self)
    }

    /// The znode of the semaphore.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// How many permits there are in all.
    ///
    /// # Errors
    /// Those of [`Semaphore::permits`](crate::Semaphore::permits).
    pub fn permits(&self) -> Result<u32> {
        wait(self.0.permits())
    }

    /// How many permits nobody holds.
    ///
    /// # Errors
    /// Those of [`Semaphore::available`](crate::Semaphore::available).
    pub fn available(&self) -> Result<u32> {
        wait(self.0.available())
    }

    /// Changes how many permits there are, for all.
    ///
    /// # Errors
    /// Those of [`Semaphore::set_permits`](crate::Semaphore::set_permits).
    pub fn set_permits(&self, permits: u32) -> Result<()> {
        wait(self.0.set_permits(permits))
    }

    /// Waits for a permit, in the order of arrival.
    ///
    /// # Errors
    /// Those of [`Semaphore::acquire`](crate::Semaphore::acquire).
    pub fn acquire(&self) -> Result<Permit> {
        wait(self.0.acquire()).map(Permit)
    }

    /// Waits for `count` permits at once, in the order of arrival.
    ///
    /// # Errors
    /// Those of [`Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    pub fn acquire_many(&self, count: u32) -> Result<Permit> {
        wait(self.0.acquire_many(count)).map(Permit)
    }

    /// Waits for a permit for no longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`Semaphore::acquire_timeout`](crate::Semaphore::acquire_timeout).
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Permit> {
        wait(self.0.acquire_timeout(timeout)).map(Permit)
    }

    /// Waits for `count` permits on terms of one's own.
    ///
    /// # Errors
    /// Those of [`Semaphore::acquire_with`](crate::Semaphore::acquire_with).
    pub fn acquire_with(&self, count: u32, options: LockOptions) -> Result<Permit> {
        wait(self.0.acquire_with(count, options)).map(Permit)
    }

    /// Takes a permit if one is to be had now.
    ///
    /// # Errors
    /// Those of [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        Ok(wait(self.0.try_acquire())?.map(Permit))
    }

    /// Takes `count` permits if they are to be had now.
    ///
    /// # Errors
    /// Those of [`Semaphore::try_acquire_many`](crate::Semaphore::try_acquire_many).
    pub fn try_acquire_many(&self, count: u32) -> Result<Option<Permit>> {
        Ok(wait(self.0.try_acquire_many(count))?.map(Permit))
    }
}
