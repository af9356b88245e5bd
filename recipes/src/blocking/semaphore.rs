//! [`Semaphore`]: a number of permits.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::{BlockingGuard, Client, Permit, wait};
use crate::error::Result;
use crate::observe::QueueEntry;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// A number of permits among all programs that name the same path of the same store. See
/// [`Semaphore`](crate::Semaphore).
///
/// ```
/// # let client = lockkeeper::blocking::connect("memory:example-blocking-semaphore")?;
/// use lockkeeper::blocking::Semaphore;
///
/// let quota = Semaphore::new(&client, "/quota/geocoder", 10)?;
/// let permit = quota.acquire_many(3)?; // three at once, in order of arrival
/// assert_eq!(quota.available()?, 7);
/// permit.release()?; // or drop
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore(crate::Semaphore);

impl Semaphore {
    /// Creates the semaphore at a path, with the number of permits that this program expects it to have. Nothing is
    /// sent. See [`Semaphore::new`](crate::Semaphore::new).
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath, permits: u32) -> Result<Self, Error> {
        crate::Semaphore::new(client.as_async(), path, permits).map(Self)
    }

    /// Opens the semaphore at a path, with the number of permits that is stored there. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn open(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::Semaphore::open(client.as_async(), path).map(Self)
    }

    /// Returns the znode of the semaphore.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Returns the number of all permits, held or not.
    ///
    /// # Errors
    /// Those of [`Semaphore::permits`](crate::Semaphore::permits).
    #[track_caller]
    pub fn permits(&self) -> Result<u32> {
        wait(self.0.permits())
    }

    /// Returns the number of permits that are free now.
    ///
    /// # Errors
    /// Those of [`Semaphore::available`](crate::Semaphore::available).
    #[track_caller]
    pub fn available(&self) -> Result<u32> {
        wait(self.0.available())
    }

    /// Changes the number of permits for all clients.
    ///
    /// # Errors
    /// Those of [`Semaphore::set_permits`](crate::Semaphore::set_permits).
    #[track_caller]
    pub fn set_permits(&self, permits: u32) -> Result<()> {
        wait(self.0.set_permits(permits))
    }

    /// Acquires a permit, in the order of arrival.
    ///
    /// # Errors
    /// Those of [`Semaphore::acquire`](crate::Semaphore::acquire).
    #[track_caller]
    pub fn acquire(&self) -> Result<Permit> {
        wait(self.0.acquire()).map(BlockingGuard)
    }

    /// Acquires `count` permits at once, in the order of arrival.
    ///
    /// # Errors
    /// Those of [`Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    #[track_caller]
    pub fn acquire_many(&self, count: u32) -> Result<Permit> {
        wait(self.0.acquire_many(count)).map(BlockingGuard)
    }

    /// Acquires a permit within `timeout`.
    ///
    /// # Errors
    /// Those of [`Semaphore::acquire_timeout`](crate::Semaphore::acquire_timeout).
    #[track_caller]
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Permit> {
        wait(self.0.acquire_timeout(timeout)).map(BlockingGuard)
    }

    /// Acquires `count` permits with the given options.
    ///
    /// # Errors
    /// Those of [`Semaphore::acquire_with`](crate::Semaphore::acquire_with).
    #[track_caller]
    pub fn acquire_with(&self, count: u32, options: LockOptions) -> Result<Permit> {
        wait(self.0.acquire_with(count, options)).map(BlockingGuard)
    }

    /// Acquires a permit if one is free now; else `None`.
    ///
    /// # Errors
    /// Those of [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    #[track_caller]
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        Ok(wait(self.0.try_acquire())?.map(BlockingGuard))
    }

    /// Acquires `count` permits if so many are free now; else `None`.
    ///
    /// # Errors
    /// Those of [`Semaphore::try_acquire_many`](crate::Semaphore::try_acquire_many).
    #[track_caller]
    pub fn try_acquire_many(&self, count: u32) -> Result<Option<Permit>> {
        Ok(wait(self.0.try_acquire_many(count))?.map(BlockingGuard))
    }

    /// Acquires `count` permits if so many are free now, with the given options.
    ///
    /// # Errors
    /// Those of [`Semaphore::try_acquire_with`](crate::Semaphore::try_acquire_with).
    #[track_caller]
    pub fn try_acquire_with(&self, count: u32, options: LockOptions) -> Result<Option<Permit>> {
        Ok(wait(self.0.try_acquire_with(count, options))?.map(BlockingGuard))
    }

    /// Lists the requests that wait for permits, in order.
    ///
    /// # Errors
    /// Those of [`Semaphore::waiters`](crate::Semaphore::waiters).
    #[track_caller]
    pub fn waiters(&self) -> Result<Vec<QueueEntry>> {
        wait(self.0.waiters())
    }

    /// Lists the permits that are held, in the order of their grants.
    ///
    /// # Errors
    /// Those of [`Semaphore::holders`](crate::Semaphore::holders).
    #[track_caller]
    pub fn holders(&self) -> Result<Vec<QueueEntry>> {
        wait(self.0.holders())
    }
}
