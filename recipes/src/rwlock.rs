//! [`RwLock`]: many readers or one writer, in the order of arrival.
//!
//! Readers and writers share one queue.

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

/// A read-write lock shared by all programs that use the same path in the same store. Any number of readers or one
/// writer can hold the lock.
///
/// The lock is fair: a reader waits for all earlier writers, and a writer waits for all earlier contenders. When a
/// writer leaves, the readers up to the next writer hold the lock together. Each contender watches only the nearest
/// znode that blocks it.
///
/// All clones are the same lock. The lock is not reentrant: if a task holds a read guard and calls `write`, it waits
/// for its own guard ([`try_upgrade`](ReadGuard::try_upgrade) does not wait).
///
/// Curator's `InterProcessReadWriteLock` can use the same path.
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
    /// Creates the lock at a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        Ok(Self {
            client: client.clone(),
            queue: path.into_lock_path()?.into_queue(),
        })
    }

    /// Returns the znode that contains the queue.
    pub fn path(&self) -> &ZnodePath {
        self.queue.path()
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Acquires the lock as a reader. Waits until all earlier writers have left.
    ///
    /// Fair: no later writer holds the lock before this reader. A task that already reads must not call `read` again.
    /// If a writer has queued in between, the writer waits for the first read, and the second read waits for the
    /// writer. We log such a wait as a warning.
    ///
    /// Cancel safe: a dropped wait leaves the queue and loses its place.
    ///
    /// # Errors
    /// [`LockError::Store`](crate::LockError::Store), [`LockError::EntryDeleted`](crate::LockError::EntryDeleted),
    /// [`LockError::WrongKind`](crate::LockError::WrongKind).
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

    /// Acquires the lock as the writer. Waits until all earlier contenders have left.
    ///
    /// Fair: no later contender holds the lock before this writer. Cancel safe, like [`read`](Self::read).
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
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

    /// Acquires the lock as a reader within `timeout`, which covers the whole call.
    ///
    /// Fair and cancel safe, like [`read`](Self::read).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), and the errors of [`read`](Self::read).
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

    /// Acquires the lock as the writer within `timeout`, which covers the whole call.
    ///
    /// Fair and cancel safe, like [`write`](Self::write).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), and the errors of [`read`](Self::read).
    pub async fn write_timeout(&self, timeout: Duration) -> Result<WriteGuard> {
        self.write_with(LockOptions::new().timeout(timeout)).await
    }

    /// Acquires the lock as a reader with the given options. A queue limit counts all contenders ahead, including
    /// readers that hold the lock, but only applies if this reader has to wait.
    ///
    /// Fair and cancel safe, like [`read`](Self::read).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), [`LockError::QueueFull`](crate::LockError::QueueFull),
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and the errors of [`read`](Self::read).
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

    /// Acquires the lock as the writer with the given options.
    ///
    /// Fair and cancel safe, like [`write`](Self::write).
    ///
    /// # Errors
    /// Same as [`read_with`](Self::read_with).
    pub async fn write_with(&self, options: LockOptions) -> Result<WriteGuard> {
        self.writers().acquire(options).await.map(WriteGuard::new)
    }

    /// Acquires the lock as a reader if no writer holds it or waits for it now, otherwise returns `None`.
    ///
    /// A failed try costs one read and no write. The result `None` can be outdated unless
    /// [`synced`](LockOptions::synced) is set. A try never overtakes a waiting writer.
    ///
    /// Cancel safe, like [`read`](Self::read).
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
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

    /// Acquires the lock as the writer if no other contender holds it or waits for it now, otherwise returns `None`.
    ///
    /// Cancel safe, like [`read`](Self::read).
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        self.try_write_with(LockOptions::new()).await
    }

    /// Like [`try_read`](Self::try_read), with the given options. A queue limit has no effect.
    ///
    /// Cancel safe, like [`read`](Self::read).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout) if the store does not answer in time,
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and the errors of [`read`](Self::read).
    pub async fn try_read_with(&self, options: LockOptions) -> Result<Option<ReadGuard>> {
        let guard = self.readers().try_acquire(options).await?;
        Ok(guard.map(ReadGuard::new))
    }

    /// Like [`try_write`](Self::try_write), with the given options. A queue limit has no effect.
    ///
    /// Cancel safe, like [`read`](Self::read).
    ///
    /// # Errors
    /// Same as [`try_read_with`](Self::try_read_with).
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
