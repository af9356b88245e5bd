//! [`RwLock`]: many readers or one writer, in the order of their arrival.
//!
//! Both stand in the one queue; their kinds decide which entries block which. [`convert`] changes the kind of a holder.

mod convert;
mod guards;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{Client, Error, ZnodeHandle, ZnodePath};

use crate::error::Result;
use crate::names::Kind;
use crate::options::LockOptions;
use crate::path::IntoLockPath;
use crate::queue_lock::QueueLock;

pub use guards::{ReadGuard, Upgrade, WriteGuard};

/// A read-write lock among all programs that name the same path of the same store: any number of
/// readers hold it together, or one writer alone.
///
/// It is fair to both: a reader waits for the writers that came before it, a writer for all contenders that came before
/// it, in the order in which their znodes were created. So no stream of readers starves a writer, and no stream of
/// writers a reader; when a writer leaves, the readers up to the next writer hold the lock together. Each contender
/// watches one znode, the nearest that blocks it: a writer's release wakes the readers behind it once each, or the next
/// writer; a writer wakes at most once for each reader ahead.
///
/// It outlives its client's sessions: after an expiry the next `read` or `write` opens a new one. A clone is the same
/// lock. It is not re-entrant: a reader that waits to write waits for itself ([`try_upgrade`](ReadGuard::try_upgrade)
/// does not wait), and a second read can wait for a writer that came in between, which waits for the first read.
///
/// The znodes' names are those of Curator's `InterProcessReadWriteLock`, with which it shares a path.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::{FencingGate, RwLock};
///
/// # let mut report = FencingGate::default();
/// let client = lockkeeper::connect("memory:").await?;
/// let lock = RwLock::new(&client, "/lock/report")?;
///
/// let writer = lock.write().await?;
/// report.admit(writer.fencing_token())?; // the resource refuses older tokens
/// let reader = writer.downgrade().await?; // others may read now; no other writer came in between
/// report.admit_shared(reader.fencing_token())?;
/// let another = lock.read().await?;
/// another.release().await?;
/// reader.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct RwLock {
    client: Client,
    queue: Arc<ZnodeHandle>,
}

impl RwLock {
    /// Creates the lock at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        Ok(Self {
            client: client.clone(),
            queue: path.into_lock_path()?.into_queue(),
        })
    }

    /// Returns the znode under which the queue stands.
    pub fn path(&self) -> &ZnodePath {
        self.queue.path()
    }

    /// Returns the client that the lock speaks through.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Acquires the lock as a reader: waits until all writers that came before have left.
    ///
    /// Fair: no writer that comes later holds it before this reader. So a task that already reads must not read again: if a
    /// writer waits in between, it waits for the first read, and the second read for the writer, for ever. Such a wait is
    /// logged as a warning, as that of a [`Mutex`](crate::Mutex).
    ///
    /// Cancel safe: a dropped wait leaves the queue, at whichever moment it is dropped. It loses its place.
    ///
    /// # Errors
    /// [`LockError::Store`](crate::LockError::Store) with the session's end or a refusal,
    /// [`LockError::EntryDeleted`](crate::LockError::EntryDeleted) if the waiter's entry was removed,
    /// [`LockError::WrongKind`](crate::LockError::WrongKind) if another recipe uses the path.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-rwlock-read").await?;
    /// let lock = lockkeeper::RwLock::new(&client, "/lock/report")?;
    /// let one = lock.read().await?;
    /// let other = lock.read().await?; // together with the first
    /// assert!(one.is_held() && other.is_held());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn read(&self) -> Result<ReadGuard> {
        self.read_with(LockOptions::new()).await
    }

    /// Acquires the lock as the writer: waits until all contenders that came before have left.
    ///
    /// Fair: no contender that comes later, reader or writer, holds it before this writer. Cancel safe, as
    /// [`read`](Self::read).
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-rwlock-write").await?;
    /// let lock = lockkeeper::RwLock::new(&client, "/lock/report")?;
    /// let writer = lock.write().await?;
    /// assert!(lock.try_read().await?.is_none());
    /// writer.release().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn write(&self) -> Result<WriteGuard> {
        self.write_with(LockOptions::new()).await
    }

    /// Acquires the lock as a reader within `timeout`: one deadline for everything, the joining
    /// of the queue included.
    ///
    /// Fair and cancel safe, as [`read`](Self::read).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), and those of [`read`](Self::read).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-rwlock-read-timeout").await?;
    /// use std::time::Duration;
    /// use lockkeeper::{LockError, RwLock};
    ///
    /// let lock = RwLock::new(&client, "/lock/report")?;
    /// let _writer = lock.write().await?;
    /// let waited = lock.read_timeout(Duration::from_millis(10)).await;
    /// assert!(matches!(waited, Err(LockError::Timeout { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn read_timeout(&self, timeout: Duration) -> Result<ReadGuard> {
        self.read_with(LockOptions::new().timeout(timeout)).await
    }

    /// Acquires the lock as the writer within `timeout`: one deadline for everything, the
    /// joining of the queue included.
    ///
    /// Fair and cancel safe, as [`write`](Self::write).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), and those of [`read`](Self::read).
    pub async fn write_timeout(&self, timeout: Duration) -> Result<WriteGuard> {
        self.write_with(LockOptions::new().timeout(timeout)).await
    }

    /// Acquires the lock as a reader with the given options. A queue limit counts all that are ahead, readers
    /// that hold the lock included; it counts only for a contender that has to wait.
    ///
    /// Fair and cancel safe, as [`read`](Self::read).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), [`LockError::QueueFull`](crate::LockError::QueueFull),
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and those of [`read`](Self::read).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-rwlock-read-with").await?;
    /// use lockkeeper::{LockError, LockOptions, RwLock};
    ///
    /// let lock = RwLock::new(&client, "/lock/report")?;
    /// let _writer = lock.write().await?;
    /// let refused = lock.read_with(LockOptions::new().queue_limit(0)).await;
    /// assert!(matches!(refused, Err(LockError::QueueFull { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn read_with(&self, options: LockOptions) -> Result<ReadGuard> {
        self.readers().acquire(options).await.map(ReadGuard::new)
    }

    /// Acquires the lock as the writer with the given options. See [`read_with`](Self::read_with).
    ///
    /// Fair and cancel safe, as [`write`](Self::write).
    ///
    /// # Errors
    /// Those of [`read_with`](Self::read_with).
    pub async fn write_with(&self, options: LockOptions) -> Result<WriteGuard> {
        self.writers().acquire(options).await.map(WriteGuard::new)
    }

    /// Acquires the lock as a reader if no writer holds it or waits for it now; `None` otherwise.
    ///
    /// A lock that is taken costs one request, a read, and no write. "Taken" may be as stale as the server that answers
    /// (a follower's view), unless the options say [`synced`](LockOptions::synced); "free" is confirmed by the queue
    /// itself.
    ///
    /// Never ahead of a waiting writer. Cancel safe, as [`read`](Self::read).
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-rwlock-try-read").await?;
    /// let lock = lockkeeper::RwLock::new(&client, "/lock/report")?;
    /// let _reader = lock.read().await?;
    /// assert!(lock.try_read().await?.is_some()); // readers share
    /// assert!(lock.try_write().await?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        self.try_read_with(LockOptions::new()).await
    }

    /// Acquires the lock as the writer if no other contender holds it or waits for it now; `None` otherwise.
    ///
    /// Its cost and the age of its answer are those of [`try_read`](Self::try_read). Cancel safe, as
    /// [`read`](Self::read).
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        self.try_write_with(LockOptions::new()).await
    }

    /// Acquires the lock as a reader if no writer holds it or waits for it now, with the given options; `None`
    /// otherwise. A queue limit has no effect.
    ///
    /// Cancel safe, as [`read`](Self::read).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout) when the store has not answered in time,
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and those of [`read`](Self::read).
    pub async fn try_read_with(&self, options: LockOptions) -> Result<Option<ReadGuard>> {
        let guard = self.readers().try_acquire(options).await?;
        Ok(guard.map(ReadGuard::new))
    }

    /// Acquires the lock as the writer if no other contender holds it or waits for it now, with the given options;
    /// `None` otherwise. A queue limit has no effect.
    ///
    /// Cancel safe, as [`read`](Self::read).
    ///
    /// # Errors
    /// Those of [`try_read_with`](Self::try_read_with).
    pub async fn try_write_with(&self, options: LockOptions) -> Result<Option<WriteGuard>> {
        let guard = self.writers().try_acquire(options).await?;
        Ok(guard.map(WriteGuard::new))
    }

    fn readers(&self) -> QueueLock<'_> {
        self.queue_lock(Kind::Read)
    }

    fn writers(&self) -> QueueLock<'_> {
        self.queue_lock(Kind::Write)
    }

    fn queue_lock(&self, kind: Kind) -> QueueLock<'_> {
        QueueLock {
            client: &self.client,
            queue: &self.queue,
            kind,
        }
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("path", self.path())
            .field("client", &self.client)
            .finish()
    }
}
