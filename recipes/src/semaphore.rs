//! [`Semaphore`]: a counting semaphore whose permits are granted in order of arrival.
//!
//! A request takes its permits immediately if the queue is empty, or otherwise at the head of the queue ([`grant`]).
//! The embedded store has a fast path without a request ([`local`]).

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

/// A number of permits shared by all programs that use the same path in the same store.
///
/// It is fair. Requests are granted in the order of the queue, and each request gets all its permits at the same
/// moment. So small requests cannot starve a large one ahead of them.
///
/// The store keeps the number of permits, which is the same for every client. [`set_permits`](Self::set_permits)
/// changes it while others hold and wait.
///
/// With more than one permit, several clients work at the same time, so a resource must not reject older tokens. Clones
/// are the same semaphore.
///
/// The znode `locks` below the path contains the waiters and `leases` the held permits, one znode each, as in Curator's
/// `InterProcessSemaphoreV2`. The data of the znode `permits` is the number of permits, as JSON.
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
    ///
    /// The first use stores the number, unless one is stored already. If the stored number is different, all uses fail
    /// with [`LockError::PermitsMismatch`] until the numbers agree or [`set_permits`](Self::set_permits) is called.
    /// After that, this handle and its clones follow all changes.
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

    /// Opens the semaphore at a path with the number of permits stored there.
    ///
    /// All uses fail with [`LockError::NoPermits`] while no number is stored.
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

    /// Returns the znode of the semaphore.
    pub fn path(&self) -> &ZnodePath {
        &self.znodes.root
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the total number of permits, held or not.
    ///
    /// Sends one read, so the result may be as outdated as the server that answers. Cancel safe.
    ///
    /// # Errors
    /// [`LockError::PermitsMismatch`], [`LockError::NoPermits`], [`LockError::InvalidPermitsData`],
    /// [`LockError::WrongKind`], and store errors.
    pub async fn permits(&self) -> Result<u32> {
        Ok(self.supply().await?.total)
    }

    /// Returns the number of permits that are free now. Waiters are not counted, so the first waiter may be about to
    /// take a free permit.
    ///
    /// Sends one read, so the result may be as outdated as the server that answers. Cancel safe.
    ///
    /// # Errors
    /// Same as [`permits`](Self::permits).
    pub async fn available(&self) -> Result<u32> {
        Ok(self.supply().await?.free())
    }

    async fn supply(&self) -> Result<znodes::Supply> {
        let session = self.client.session().await?;
        self.znodes.check_stated(&session).await?;
        self.znodes.read(&session).await
    }

    /// Changes the number of permits for all clients, or stores it if none is stored.
    ///
    /// If the number falls, nothing is revoked, so more permits than the new number may be held for a while. A waiting
    /// request for more than the new number fails with [`LockError::TooManyPermits`] when it reaches the head of the
    /// queue.
    ///
    /// If the call is dropped, the number may or may not have been changed. The last of several concurrent changes
    /// wins.
    ///
    /// # Errors
    /// [`LockError::WrongKind`], and store errors.
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

    /// Acquires a permit, in the order of arrival.
    ///
    /// Fair: no later request is granted before this one, even if it needs fewer permits. Cancel safe: a dropped wait
    /// leaves the queue, loses its place and holds nothing.
    ///
    /// # Errors
    /// [`LockError::TooManyPermits`] if the semaphore has 0 permits, [`LockError::Store`], [`LockError::EntryDeleted`],
    /// and the errors of [`permits`](Self::permits).
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

    /// Acquires several permits, granted together, in the order of arrival.
    ///
    /// Waits until that many permits are free at the same moment. Fair and cancel safe, like
    /// [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::TooManyPermits`] if `count` exceeds the total number, [`Error::BadArguments`] if `count` is 0,
    /// [`Error::TooLarge`] if one request cannot carry so many permits (the limit is some thousands), and the errors of
    /// [`acquire`](Self::acquire).
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

    /// Acquires a permit within `timeout`, which covers the whole call.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::Timeout`], and the errors of [`acquire`](Self::acquire).
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
    /// The events `Queued` and `Advanced` with position 0 mean that no waiter is ahead, but too few permits are free.
    ///
    /// Fair and cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::Timeout`], [`LockError::QueueFull`], [`LockError::InvalidField`], and the errors of
    /// [`acquire_many`](Self::acquire_many).
    pub async fn acquire_with(&self, count: u32, options: LockOptions) -> Result<Permit> {
        // Lets other tasks run during a loop over free permits.
        coop::consume_budget().await;
        if let Some(permit) = self.take_locally(count, &options)? {
            return Ok(permit);
        }
        let permit = Box::pin(self.grant_in_time(count, options, false)).await?;
        Ok(permit.expect("only a try comes back without permits"))
    }

    /// Acquires a permit if one is free now and the queue is empty, otherwise returns `None`.
    ///
    /// A failed try costs one read and no write. The first use of a handle also reads or stores the number of permits.
    /// The result `None` can be outdated unless [`synced`](LockOptions::synced) is set. On ZooKeeper even a request
    /// that is granted immediately joins the queue for a moment, so a concurrent try may return `None` although permits
    /// are free. A try never overtakes a waiter.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// Same as [`acquire`](Self::acquire).
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

    /// Like [`try_acquire`](Self::try_acquire), for several permits.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// Same as [`acquire_many`](Self::acquire_many).
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<Permit>> {
        self.try_acquire_with(count, LockOptions::new()).await
    }

    /// Like [`try_acquire`](Self::try_acquire), for `count` permits and with the given options. A queue limit has no
    /// effect.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`LockError::Timeout`] if the store does not answer in time, [`LockError::InvalidField`], and the errors of
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
        // Refuse a request for too many permits here if possible. In the queue it would hold up later requests until it
        // reaches the head. The last seen number may be old, so read the stored number before a refusal.
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

    /// Lists the requests that are waiting for permits, in order.
    ///
    /// Takes several reads, like [`queue`](crate::queue()). Cancel safe.
    ///
    /// # Errors
    /// Store errors.
    pub async fn waiters(&self) -> Result<Vec<QueueEntry>, Error> {
        queue(
            &self.client,
            LockPath::try_from(self.znodes.locks.path().clone())?,
        )
        .await
    }

    /// Lists the held permits, one entry each, in the order of their grants.
    ///
    /// Takes several reads, like [`queue`](crate::queue()). Cancel safe.
    ///
    /// # Errors
    /// Store errors.
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
        // Sort, because the names are not in the order of the grants. A lease's name ends with the permit's index in
        // its grant, or with an arbitrary number.
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
