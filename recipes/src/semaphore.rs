//! [`Semaphore`]: a number of permits, granted in order of arrival.
//!
//! Waiters stand in the common queue. Its head takes permits, or a request that finds no queue ([`grant`]); a free one of a
//! store in this process takes no request ([`local`]). [`znodes`] has the stored number.

mod grant;
mod leases;
mod local;
mod permit;
mod znodes;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{Client, Error, ZnodePath};
use tokio::task::coop;

pub use self::permit::Permit;

use self::grant::PermitWaiter;
use self::leases::check_count;
#[cfg(feature = "simulation")]
pub(crate) use self::znodes::PermitsData;
use self::znodes::Znodes;
#[cfg(doc)]
use crate::error::LockError;
use crate::error::Result;
use crate::observe::{QueueEntry, queue};
use crate::options::LockOptions;
use crate::path::{IntoLockPath, LockPath};
use crate::synced::read_synced;

/// A number of permits, shared by all programs that name the same path of the same store.
///
/// It is fair: requests are granted in the order in which they joined the queue, each at once with all the permits that
/// it asks for. So small requests cannot starve a large one ahead of them, and two requests for several permits cannot
/// deadlock with a part of the permits each. The permits of a holder that dies come back when its session ends.
///
/// The number of permits is stored once, the same for every client. [`set_permits`](Self::set_permits) changes it while
/// others hold and wait. Lowering it revokes nothing: until enough permits have been released, more than the new number
/// may be held.
///
/// With more than one permit, several holders work at the same time; see [`Permit`] for the meaning of the token then.
/// A clone is the same semaphore; it outlives its client's sessions.
///
/// Below the path, waiters stand in `locks` and held permits in `leases`, one znode each (the layout of Curator's
/// `InterProcessSemaphoreV2`), and the number is the data of `permits`, as JSON. [`waiters`](Self::waiters) and
/// [`holders`](Self::holders) list them.
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
/// quota.set_permits(5).await?; // for all clients, while others hold and wait
/// assert_eq!(quota.available().await?, 1);
/// more.release().await?;
/// permit.release().await?; // or drop
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Semaphore {
    client: Client,
    znodes: Arc<Znodes>,
}

impl Semaphore {
    /// Creates the semaphore at a path, with the number of permits that this program expects it to have.
    /// Nothing is sent.
    ///
    /// Its first use stores the number, if none is stored. If another is, that use and all after it fail with
    /// [`LockError::PermitsMismatch`], until the numbers agree or [`set_permits`](Self::set_permits) has been called. A
    /// handle whose number has agreed once, and its clones, follow all later changes.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-semaphore-new").await?;
    /// use lockkeeper::{LockError, Semaphore};
    ///
    /// let quota = Semaphore::new(&client, "/quota/geocoder", 10)?;
    /// assert_eq!(quota.permits().await?, 10); // stored by this first use
    /// let other = Semaphore::new(&client, "/quota/geocoder", 20)?;
    /// assert!(matches!(other.permits().await, Err(LockError::PermitsMismatch { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn new(client: &Client, path: impl IntoLockPath, permits: u32) -> Result<Self, Error> {
        Self::with_permits(client, path.into_lock_path()?, Some(permits))
    }

    /// Opens the semaphore at a path, with the number of permits that is stored there. Nothing is sent.
    ///
    /// Its use fails with [`LockError::NoPermits`] where no number is stored.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-semaphore-open").await?;
    /// use lockkeeper::Semaphore;
    ///
    /// Semaphore::new(&client, "/quota/geocoder", 10)?.permits().await?;
    /// let quota = Semaphore::open(&client, "/quota/geocoder")?;
    /// assert_eq!(quota.available().await?, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn open(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        Self::with_permits(client, path.into_lock_path()?, None)
    }

    fn with_permits(client: &Client, path: LockPath, permits: Option<u32>) -> Result<Self, Error> {
        Ok(Self {
            client: client.clone(),
            znodes: Arc::new(Znodes::new(path, permits)?),
        })
    }

    /// Returns the znode under which the semaphore stands.
    pub fn path(&self) -> &ZnodePath {
        &self.znodes.root
    }

    /// Returns the client that the semaphore speaks through.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the number of all permits, held or not.
    ///
    /// One read, as stale as the server that answers. Cancel safe.
    ///
    /// # Errors
    /// [`LockError::PermitsMismatch`], [`LockError::NoPermits`], [`LockError::InvalidPermitsData`],
    /// [`LockError::WrongKind`], and those of the store.
    pub async fn permits(&self) -> Result<u32> {
        Ok(self.supply().await?.total)
    }

    /// Returns the number of permits that are free now; 0 if more are held than exist, after the number was lowered.
    /// Waiters are not counted: a free permit may be about to go to the first of them.
    ///
    /// One read, as stale as the server that answers. Cancel safe.
    ///
    /// # Errors
    /// Those of [`permits`](Self::permits).
    pub async fn available(&self) -> Result<u32> {
        Ok(self.supply().await?.free())
    }

    async fn supply(&self) -> Result<znodes::Supply> {
        let session = self.client.session().await?;
        self.znodes.check_stated(&session).await?;
        self.znodes.read(&session).await
    }

    /// Changes the number of permits for all clients, or stores it where none is stored.
    ///
    /// Waiters are granted the permits that a higher number allows. A lower one revokes nothing; a request for more
    /// than the new number fails with [`LockError::TooManyPermits`] when its turn comes. With 0, all requests are
    /// refused.
    ///
    /// Cancelling it midway leaves open whether the number was changed. A change whose reply is lost is sent again; of
    /// concurrent changes the last one that is carried out wins.
    ///
    /// # Errors
    /// [`LockError::WrongKind`], and those of the store.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-semaphore-set-permits").await?;
    /// let quota = lockkeeper::Semaphore::new(&client, "/quota/geocoder", 2)?;
    /// let _both = quota.acquire_many(2).await?;
    /// quota.set_permits(1).await?; // revokes nothing
    /// assert_eq!((quota.permits().await?, quota.available().await?), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn set_permits(&self, permits: u32) -> Result<()> {
        let session = self.client.session().await?;
        self.znodes.change(&session, permits).await
    }

    /// Acquires a permit: waits for it, in the order of arrival.
    ///
    /// Fair: no later request is granted before this one, though it asks for fewer permits.
    ///
    /// Cancel safe: a dropped wait leaves the queue and holds nothing, at whichever moment it is dropped. It loses its
    /// place.
    ///
    /// # Errors
    /// [`LockError::TooManyPermits`] if the semaphore has 0 permits, [`LockError::Store`] with the session's end or a
    /// refusal, [`LockError::EntryDeleted`] if the waiter's entry was removed, and those of [`permits`](Self::permits).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-semaphore-acquire").await?;
    /// let quota = lockkeeper::Semaphore::new(&client, "/quota/geocoder", 10)?;
    /// let permit = quota.acquire().await?;
    /// // at most ten clients are here at a time
    /// permit.release().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn acquire(&self) -> impl Future<Output = Result<Permit>> + Send {
        self.acquire_with(1, LockOptions::new())
    }

    /// Acquires several permits, all granted at once, in the order of arrival.
    ///
    /// Fair, as [`acquire`](Self::acquire). The wait ends when so many permits are free at the same moment.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::TooManyPermits`] if `count` is above the number of all permits: at once, or when its turn comes, if
    /// the number was lowered while it waited. [`Error::BadArguments`] for 0, [`Error::TooLarge`] for more than one
    /// request can carry (some thousands), and those of [`acquire`](Self::acquire).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:acquire-many").await?;
    /// let quota = lockkeeper::Semaphore::new(&client, "/quota/geocoder", 10)?;
    /// let batch = quota.acquire_many(4).await?;
    /// assert_eq!((batch.count(), quota.available().await?), (4, 6));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn acquire_many(&self, count: u32) -> Result<Permit> {
        self.acquire_with(count, LockOptions::new()).await
    }

    /// Acquires a permit within `timeout`: one deadline for everything, the joining of the queue included.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::Timeout`], and those of [`acquire`](Self::acquire).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-semaphore-acquire-timeout").await?;
    /// use std::time::Duration;
    /// use lockkeeper::{LockError, Semaphore};
    ///
    /// let quota = Semaphore::new(&client, "/quota/geocoder", 1)?;
    /// let _permit = quota.acquire().await?;
    /// let waited = quota.acquire_timeout(Duration::from_millis(10)).await;
    /// assert!(matches!(waited, Err(LockError::Timeout { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Permit> {
        self.acquire_with(1, LockOptions::new().timeout(timeout))
            .await
    }

    /// Acquires `count` permits with the given options. A queue limit counts the waiters ahead, not the holders.
    ///
    /// Among its events, `Queued` and `Advanced` with position 0 mean that no waiter is ahead, but too few permits are
    /// free.
    ///
    /// Fair and cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::Timeout`], [`LockError::QueueFull`], [`LockError::InvalidField`], and those of
    /// [`acquire_many`](Self::acquire_many).
    pub async fn acquire_with(&self, count: u32, options: LockOptions) -> Result<Permit> {
        // As in `QueueLock::acquire`.
        coop::consume_budget().await;
        if let Some(permit) = self.take_locally(count, &options)? {
            return Ok(permit);
        }
        let permit = Box::pin(self.grant_in_time(count, options, false)).await?;
        Ok(permit.expect("only a try comes back without permits"))
    }

    /// Acquires a permit if one is free now and the queue is empty; else `None`.
    ///
    /// A failed try costs one read and no write. "Taken" may be as stale as the server that answers (a follower's
    /// view), unless the options say [`synced`](LockOptions::synced); a grant is confirmed by the store. On ZooKeeper a
    /// request that does not have to wait also stands in the queue for a moment: a concurrent try may return `None`
    /// although several permits are free. A try never passes a waiter.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-semaphore-try-acquire").await?;
    /// let quota = lockkeeper::Semaphore::new(&client, "/quota/geocoder", 1)?;
    /// let permit = quota.try_acquire().await?.expect("it is free");
    /// assert!(quota.try_acquire().await?.is_none());
    /// permit.release().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Permit>> {
        self.try_acquire_many(1).await
    }

    /// Acquires several permits if so many are free now and the queue is empty; else `None`.
    /// See [`try_acquire`](Self::try_acquire).
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// Those of [`acquire_many`](Self::acquire_many).
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<Permit>> {
        self.try_acquire_with(count, LockOptions::new()).await
    }

    /// Acquires `count` permits if so many are free now and the queue is empty, with the given options; else
    /// `None`. A queue limit has no effect. See [`try_acquire`](Self::try_acquire).
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::Timeout`] when the store has not answered in time, [`LockError::InvalidField`], and those of
    /// [`acquire_many`](Self::acquire_many).
    pub async fn try_acquire_with(
        &self,
        count: u32,
        options: LockOptions,
    ) -> Result<Option<Permit>> {
        coop::consume_budget().await;
        match self.take_locally(count, &options)? {
            Some(permit) => Ok(Some(permit)),
            None => Box::pin(self.grant_in_time(count, options, true)).await,
        }
    }

    async fn grant_in_time(
        &self,
        count: u32,
        mut options: LockOptions,
        only_if_free: bool,
    ) -> Result<Option<Permit>> {
        let deadline = options.start(&self.client);
        let grant = pin!(self.grant(count, options, only_if_free));
        let queue = self.znodes.locks.path();
        deadline.run(self.path(), queue, grant).await
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
        self.znodes.check_stated(&session).await?;
        // Refused here if possible: in the queue a request for too many would hold up all behind it until its turn.
        // The hint may be old, so the stored number decides.
        if count > self.znodes.last_seen().number {
            let supply = self.znodes.read(&session).await?;
            self.znodes.check_total(count, supply.total)?;
        }
        check_count(self.znodes.leases.path(), count)?;
        if only_if_free {
            let look = || self.znodes.looks_free(&session, count);
            if !read_synced(&session, self.path(), options.synced, look).await? {
                return Ok(None);
            }
        }
        let data = options.data(session.clock().unix_ms());
        let terms = options.wait_options(data, only_if_free);
        let events = options.events;
        PermitWaiter::grant(&self.znodes, &session, count, &terms, events).await
    }

    /// Lists the requests that wait for permits, in order. The first may be granted at this moment.
    ///
    /// As stale as the server that answers, and several reads, as [`queue`](crate::queue()). Cancel safe.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn waiters(&self) -> Result<Vec<QueueEntry>, Error> {
        queue(
            &self.client,
            LockPath::try_from(self.znodes.locks.path().clone())?,
        )
        .await
    }

    /// Lists the permits that are held, one entry each, in the order of their grants. Of several permits that were granted
    /// together, `sequence` counts from 0; of a single one it tells nothing.
    ///
    /// As stale as the server that answers, and several reads, as [`queue`](crate::queue()). Cancel safe.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-semaphore-holders").await?;
    /// let quota = lockkeeper::Semaphore::new(&client, "/quota/geocoder", 10)?;
    /// let permit = quota.acquire_many(2).await?;
    /// let held = quota.holders().await?;
    /// assert_eq!(held.len(), 2);
    /// assert_eq!(held[0].fencing_token, permit.fencing_token());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn holders(&self) -> Result<Vec<QueueEntry>, Error> {
        let leases = LockPath::try_from(self.znodes.leases.path().clone())?;
        let mut held = queue(&self.client, leases).await?;
        // Lease names end with their index in the grant, or with any number, so the order of the queue says nothing about
        // the grants.
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
