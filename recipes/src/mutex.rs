//! [`Mutex`]: the fair lock, one queue in which every entry blocks those behind it.

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

/// A mutex among all programs that name the same path of the same store.
///
/// It is fair: the lock is granted in the order in which the contenders' znodes were created. Each contender watches
/// only the one before it, so that a release wakes one. It outlives its client's sessions: after an expiry the next
/// `lock` opens a new one. A clone is the same mutex. It is not re-entrant: a second `lock` waits for the first (see
/// [`ReentrantMutex`](crate::ReentrantMutex)). A wait while the same session holds the lock is logged as a warning, with
/// the path and the labels of both, when it has lasted for the session's timeout, or 10 s if that is less or there is
/// none, and up to half a second more: tasks of one client take turns, and only the time tells them from a task
/// that waits for itself.
///
/// Locks nest: a lock below the path of another is independent of it (see
/// [`LockPath`](crate::LockPath)).
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
    /// Creates the mutex at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        Ok(Self {
            client: client.clone(),
            queue: path.into_lock_path()?.into_queue(),
        })
    }

    /// Returns the parent znode of the queue.
    pub fn path(&self) -> &ZnodePath {
        self.queue.path()
    }

    /// Returns the client of the mutex.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Acquires the lock: waits for it, in the order of arrival.
    ///
    /// A free lock of a store in this process is granted without waiting. A task of tokio that takes it in a loop still lets
    /// other tasks run, because each call consumes a unit of [tokio's budget](tokio::task::coop), as tokio's locks do.
    /// Under another runtime such a loop should yield now and then.
    ///
    /// Cancel safe: a dropped wait leaves the queue at any moment, and loses its position. A wait that is kept must be polled,
    /// because it blocks those behind it once it is granted. If it is not polled for a second then, that is logged as a
    /// warning.
    ///
    /// # Errors
    /// [`LockError::Store`] with the session's end or a refusal, [`LockError::EntryDeleted`],
    /// [`LockError::WrongKind`].
    pub fn lock(&self) -> impl Future<Output = Result<Guard>> + Send {
        // Returned as it is: an `async fn` around it would move the guard once more.
        self.queue_lock().acquire(LockOptions::new())
    }

    /// Acquires the lock within `timeout`: one deadline for everything, the joining of the queue included.
    ///
    /// Cancel safe, as [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LockError::Timeout`], and those of [`lock`](Self::lock).
    pub fn lock_timeout(&self, timeout: Duration) -> impl Future<Output = Result<Guard>> + Send {
        self.lock_with(LockOptions::new().timeout(timeout))
    }

    /// Acquires the lock with the given options.
    ///
    /// Cancel safe, as [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LockError::Timeout`], [`LockError::QueueFull`], [`LockError::InvalidField`], and those of
    /// [`lock`](Self::lock).
    pub fn lock_with(&self, options: LockOptions) -> impl Future<Output = Result<Guard>> + Send {
        self.queue_lock().acquire(options)
    }

    /// Acquires the lock if it is free now; `None` if it is held or waited for.
    ///
    /// A held lock costs one read and no write. "Held" may be as stale as the server that answers
    /// (a follower's view), unless the options say [`synced`](LockOptions::synced); "free" is confirmed by the queue
    /// itself.
    ///
    /// Cancel safe, as [`lock`](Self::lock).
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<Guard>>> + Send {
        self.try_lock_with(LockOptions::new())
    }

    /// Acquires the lock if it is free now, with the given options; `None` if it is held or waited for. A queue limit
    /// has no effect.
    ///
    /// Cancel safe, as [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LockError::Timeout`] when the store has not answered in time, [`LockError::InvalidField`], and those of
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
