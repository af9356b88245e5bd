//! [`Semaphore`]: a counting semaphore with fair permits.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::forward::forward_methods;
use super::{Client, Permit};
use crate::observe::QueueEntry;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// The blocking variant of [`Semaphore`](crate::Semaphore).
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
    /// Creates the semaphore at a path, with the number of permits that this program expects it to have. See
    /// [`Semaphore::new`](crate::Semaphore::new).
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath, permits: u32) -> Result<Self, Error> {
        crate::Semaphore::new(client.as_async(), path, permits).map(Self)
    }

    /// Opens the semaphore at a path with the number of permits stored there.
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
}

forward_methods! { Semaphore {
    /// Returns the total number of permits, held or not.
    fn permits() -> u32;

    /// Returns the number of permits that are free now.
    fn available() -> u32;

    /// Changes the number of permits for all clients.
    fn set_permits(permits: u32) -> ();

    /// Acquires a permit, in the order of arrival.
    fn acquire() -> Permit;

    /// Acquires `count` permits together, in the order of arrival.
    fn acquire_many(count: u32) -> Permit;

    /// Acquires a permit within `timeout`.
    fn acquire_timeout(timeout: Duration) -> Permit;

    /// Acquires `count` permits with the given options.
    fn acquire_with(count: u32, options: LockOptions) -> Permit;

    /// Acquires a permit if one is free now, otherwise returns `None`.
    fn try_acquire() -> Option<Permit>;

    /// Acquires `count` permits if that many are free now, otherwise returns `None`.
    fn try_acquire_many(count: u32) -> Option<Permit>;

    /// Acquires `count` permits if that many are free now, with the given options.
    fn try_acquire_with(count: u32, options: LockOptions) -> Option<Permit>;

    /// Lists the requests that are waiting for permits, in order.
    fn waiters() -> Vec<QueueEntry>;

    /// Lists the held permits, in the order of their grants.
    fn holders() -> Vec<QueueEntry>;
}}
