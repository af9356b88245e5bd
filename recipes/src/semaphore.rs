//! [`Semaphore`]: a number of permits, granted in order of arrival.

mod grant;
mod leases;
mod permit;
mod place;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{Client, Error, ZnodePath};

pub use self::permit::Permit;

use self::grant::PermitWaiter;
use self::leases::check_count;
use self::place::Place;
#[cfg(doc)]
use crate::error::LockError;
use crate::error::Result;
use crate::observe::{QueueEntry, queue};
use crate::options::LockOptions;
use crate::path::{IntoLockPath, LockPath};
use crate::synced::read_synced;

/// A number of permits that all programs share that name the same path of the same store.
///
/// It is fair: requests are granted in the order in which they joined the queue, each at once with
/// all the permits that it asks for. So a large request is not starved by small ones behind it, and
/// two that ask for several do not wait for each other. The permits of a holder that dies come back
/// when its session ends.
///
/// The number of permits is stored once, the same for every client. [`set_permits`](Self::set_permits)
/// changes it while others hold and wait. Nothing is revoked when it is lowered: until enough has
/// been released, more than the new number may be held.
///
/// With more than one permit a semaphore excludes nobody; see [`Permit`] for what its token is worth.
/// A clone is the same semaphore; it outlives its client's sessions.
///
/// Below the path the waiters stand in `locks`, the permits that are held in `leases`, one znode for
/// each (the layout of Curator's `InterProcessSemaphoreV2`), and the number is the data of `permits`,
/// as JSON. [`waiters`](Self::waiters) and [`holders`](Self::holders) list them.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::Semaphore;
///
/// let client = lockkeeper::connect("memory:").await?;
/// let quota = Semaphore::new(&client, "/quota/geocoder", 10)?;
/// let permit = quota.acquire().await?;
/// let more = quota.acquire_many(3).await?; // three at once, in order of arrival
/// assert_eq!(quota.available().await?, 6);
/// quota.set_permits(5).await?; // for everybody, while others wait
/// assert_eq!(quota.available().await?, 1);
/// more.release().await?;
/// permit.release().await?; // or drop
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Semaphore {
    client: Client,
    place: Arc<Place>,
}

impl Semaphore {
    /// Creates the semaphore at a path, with the number of permits that this program expects it to have.
    /// Nothing is sent.
    ///
    /// At its first use the number is stored, if there is none; if another is stored, that use and
    /// all after it fail with [`LockError::PermitsMismatch`], until the numbers agree or
    /// [`set_permits`](Self::set_permits) has been called. A handle that has been in agreement once,
    /// and its clones, follow all later changes.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath, permits: u32) -> Result<Self, Error> {
        Self::stating(client, path.into_lock_path()?, Some(permits))
    }

    /// Opens the semaphore at a path, with however many permits it has. Nothing is sent.
    ///
    /// Its use fails with [`LockError::NoPermits`] where no number is stored.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn open(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        Self::stating(client, path.into_lock_path()?, None)
    }

    fn stating(client: &Client, path: LockPath, permits: Option<u32>) -> Result<Self, Error> {
        Ok(Self {
            client: client.clone(),
            place: Arc::new(Place::new(path, permits)?),
        })
    }

    /// Returns the znode under which the semaphore stands.
    pub fn path(&self) -> &ZnodePath {
        &self.place.root
    }

    /// Returns the client that the semaphore speaks through.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the number of all permits, held or not.
    ///
    /// # Errors
    /// [`LockError::PermitsMismatch`], [`LockError::NoPermits`], [`LockError::InvalidPermitsData`],
    /// [`LockError::WrongKind`], and those of the store.
    pub async fn permits(&self) -> Result<u32> {
        Ok(self.supply().await?.total)
    }

    /// Returns the number of permits that nobody holds now; 0 when more are held than there are, after the number
    /// was lowered. Waiters are not counted.
    ///
    /// # Errors
    /// Those of [`permits`](Self::permits).
    pub async fn available(&self) -> Result<u32> {
        Ok(self.supply().await?.free())
    }

    async fn supply(&self) -> Result<place::Supply> {
        let session = self.client.session().await?;
        self.place.settle(&session).await?;
        self.place.read(&session).await
    }

    /// Changes the number of permits for everybody, and stores it where there was none.
    ///
    /// Waiters are granted what a higher number allows. A lower one revokes nothing; a waiter for more than there are
    /// now fails with [`LockError::TooManyPermits`] when its turn comes. With 0 all requests are refused.
    ///
    /// Once it is sent, dropping the future does not take it back. If the connection breaks before
    /// the answer comes it is sent again, so that the last of several changes at once wins.
    ///
    /// # Errors
    /// [`LockError::WrongKind`], and those of the store.
    pub async fn set_permits(&self, permits: u32) -> Result<()> {
        let session = self.client.session().await?;
        self.place.change(&session, permits).await
    }

    /// Acquires a permit: waits for it, in the order of arrival.
    ///
    /// Cancel safe: a dropped wait leaves the queue and holds nothing, at whatever moment it is
    /// dropped. It loses its place.
    ///
    /// # Errors
    /// [`LockError::TooManyPermits`] when there are 0 in all, [`LockError::Store`] with the session's
    /// end or a refusal, [`LockError::EntryDeleted`], and those of [`permits`](Self::permits).
    pub async fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1).await
    }

    /// Acquires several permits, all granted at once, in the order of arrival: a later request waits behind this one,
    /// though it asks for fewer.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::TooManyPermits`] when `count` is above the number of all permits, or comes to be
    /// while it waits, which it learns when its turn comes; [`Error::BadArguments`] for 0,
    /// [`Error::TooLarge`] for more than one request can carry (some thousands), and those of
    /// [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, count: u32) -> Result<Permit> {
        let permit = self.grant(count, LockOptions::new(), false).await?;
        Ok(permit.expect("only a try comes back without permits"))
    }

    /// Acquires a permit within `timeout`: one deadline for everything, the joining of the queue included.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::Timeout`], and those of [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Permit> {
        self.acquire_with(1, LockOptions::new().timeout(timeout))
            .await
    }

    /// Acquires `count` permits with the given options. A queue limit counts the waiters ahead, not the holders.
    ///
    /// Of the events, `Queued` and `Advanced` with position 0 say that nobody is ahead, but that not
    /// enough permits are free.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::Timeout`], [`LockError::QueueFull`], and those of
    /// [`acquire_many`](Self::acquire_many).
    pub async fn acquire_with(&self, count: u32, options: LockOptions) -> Result<Permit> {
        let permit = self.grant_in_time(count, options, false).await?;
        Ok(permit.expect("only a try comes back without permits"))
    }

    /// Acquires a permit if one is free now and nobody else is in the queue; else `None`.
    ///
    /// A failed try costs one read and no write. Its answer may be as stale as the server that gives it (a follower's
    /// view), unless the options say [`synced`](LockOptions::synced); a grant is confirmed. A request that does not
    /// have to wait stands in the queue for a moment, too: a try beside it may come back without a permit though
    /// several are free.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Permit>> {
        self.try_acquire_many(1).await
    }

    /// Acquires several permits if so many are free now and nobody else is in the queue; else `None`.
    /// See [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// Those of [`acquire_many`](Self::acquire_many).
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<Permit>> {
        self.try_acquire_with(count, LockOptions::new()).await
    }

    /// Acquires `count` permits if so many are free now and nobody else is in the queue, with the given options; else
    /// `None`. A queue limit has no effect. See [`try_acquire`](Self::try_acquire).
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::Timeout`] when the store has not answered in time, and those of
    /// [`acquire_many`](Self::acquire_many).
    pub async fn try_acquire_with(
        &self,
        count: u32,
        options: LockOptions,
    ) -> Result<Option<Permit>> {
        self.grant_in_time(count, options, true).await
    }

    async fn grant_in_time(
        &self,
        count: u32,
        mut options: LockOptions,
        only_if_free: bool,
    ) -> Result<Option<Permit>> {
        let deadline = options.start(&self.client);
        let grant = self.grant(count, options, only_if_free);
        deadline.run(self.path(), &self.place.locks, grant).await
    }

    async fn grant(
        &self,
        count: u32,
        options: LockOptions,
        only_if_free: bool,
    ) -> Result<Option<Permit>> {
        if count == 0 {
            let nothing = "a request for 0 permits".to_owned();
            return Err(Error::BadArguments(nothing).into());
        }
        let session = self.client.session().await?;
        self.place.settle(&session).await?;
        // The number that was seen last spares most requests for too many a place in the queue.
        if count > self.place.last_seen() {
            let supply = self.place.read(&session).await?;
            self.place.check_total(count, supply.total)?;
        }
        check_count(&self.place.leases, count)?;
        if only_if_free {
            let look = || self.place.looks_free(&session, count);
            if !read_synced(&session, self.path(), options.synced, look).await? {
                return Ok(None);
            }
        }
        let data = options.data(session.clock().unix_ms());
        let terms = options.wait_options(data, only_if_free);
        let events = options.events;
        PermitWaiter::grant(&self.place, &session, count, &terms, events).await
    }

    /// Lists the requests that wait for permits, in order. The first may be granted right now.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn waiters(&self) -> Result<Vec<QueueEntry>, Error> {
        queue(&self.client, LockPath::try_from(self.place.locks.clone())?).await
    }

    /// Lists the permits that are held, one entry for each, in the order of their grants. Of those that
    /// were granted together, `sequence` counts from 0.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn holders(&self) -> Result<Vec<QueueEntry>, Error> {
        let leases = LockPath::try_from(self.place.leases.clone())?;
        let mut held = queue(&self.client, leases).await?;
        held.sort_by_key(|lease| (lease.fencing_token, lease.sequence));
        Ok(held)
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("path", self.path())
            .field("client", &self.client)
            .finish()
    }
}
