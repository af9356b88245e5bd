//! [`Mutex`]: the fair lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{Client, Error, ZnodeHandle, ZnodePath};

#[cfg(doc)]
use crate::error::LockError;
use crate::error::Result;
use crate::guard::Guard;
use crate::names::Kind;
use crate::options::LockOptions;
use crate::path::IntoLockPath;
use crate::queue_lock::QueueLock;

/// A mutex shared by all programs that use the same path in the same store.
///
/// It is fair: contenders get the lock in the order of arrival. Each contender watches only its predecessor, so a
/// release wakes only one contender. After the session has expired, the next `lock` opens a new session. Clones are the
/// same mutex.
///
/// It is not reentrant: a second `lock` waits for the first guard, so a task that keeps its guard waits forever (see
/// [`ReentrantMutex`](crate::ReentrantMutex)). If a wait is long and the same session holds the lock, we log a warning
/// with the path and the labels of waiter and holder.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::{FencingGate, Mutex};
///
/// # let mut ledger = FencingGate::default();
/// let client = lockkeeper::connect("memory:").await?;
/// let mutex = Mutex::new(&client, "/lock/orders")?;
/// let guard = mutex.lock().await?;
/// ledger.admit(guard.fencing_token())?; // the resource refuses older tokens
/// guard.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Mutex {
    client: Client,
    queue: Arc<ZnodeHandle>,
}

impl Mutex {
    /// Creates the mutex at a path.
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

    /// Acquires the lock, in the order of arrival.
    ///
    /// Each call consumes a unit of [tokio's budget](tokio::task::coop), so that a loop over free locks lets other
    /// tasks run. Under another runtime, yield in the loop.
    ///
    /// Cancel safe: a dropped wait leaves the queue and loses its position. Keep polling a wait that you do not drop,
    /// because a granted wait blocks all contenders behind it.
    ///
    /// # Errors
    /// [`LockError::Store`], [`LockError::EntryDeleted`], [`LockError::WrongKind`].
    pub fn lock(&self) -> impl Future<Output = Result<Guard>> + Send {
        // Not an `async fn`, which would move the guard once more.
        self.queue_lock().acquire(LockOptions::new())
    }

    /// Acquires the lock within `timeout`, which covers the whole call.
    ///
    /// Cancel safe, like [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LockError::Timeout`], and the errors of [`lock`](Self::lock).
    pub fn lock_timeout(&self, timeout: Duration) -> impl Future<Output = Result<Guard>> + Send {
        self.lock_with(LockOptions::new().timeout(timeout))
    }

    /// Acquires the lock with the given options.
    ///
    /// Cancel safe, like [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LockError::Timeout`], [`LockError::QueueFull`], [`LockError::InvalidField`], and the errors of
    /// [`lock`](Self::lock).
    pub fn lock_with(&self, options: LockOptions) -> impl Future<Output = Result<Guard>> + Send {
        self.queue_lock().acquire(options)
    }

    /// Acquires the lock if it is free now. Returns `None` if it is held or waited for.
    ///
    /// If the lock is held, the try costs one read and no write. The result `None` can be outdated unless
    /// [`synced`](LockOptions::synced) is set.
    ///
    /// Cancel safe, like [`lock`](Self::lock).
    ///
    /// # Errors
    /// Same as [`lock`](Self::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<Guard>>> + Send {
        self.try_lock_with(LockOptions::new())
    }

    /// Acquires the lock if it is free now, with the given options. Returns `None` if it is held or waited for. A queue
    /// limit has no effect.
    ///
    /// Cancel safe, like [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LockError::Timeout`] if the store does not answer in time, [`LockError::InvalidField`], and the errors of
    /// [`lock`](Self::lock).
    pub fn try_lock_with(
        &self,
        options: LockOptions,
    ) -> impl Future<Output = Result<Option<Guard>>> + Send {
        self.queue_lock().try_acquire(options)
    }

    fn queue_lock(&self) -> QueueLock<'_> {
        QueueLock {
            client: &self.client,
            queue: &self.queue,
            kind: Kind::Mutex,
        }
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("path", self.path())
            .field("client", &self.client)
            .finish()
    }
}
