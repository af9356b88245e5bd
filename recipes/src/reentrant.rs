//! [`ReentrantMutex`]: the mutex that its owner may enter again.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_store::{Client, Error, ZnodePath};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::coop;

use crate::error::Result;
use crate::guard::Guard;
use crate::mutex::Mutex;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// A mutex that its owner may enter again while holding it.
///
/// The owner is explicit, because tasks have no identity and move between threads. All clones of an [`Owner`] are the
/// same owner, so pass the owner down to calls that may enter again. An owner also excludes holders of a plain
/// [`Mutex`] at the same path.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::ReentrantMutex;
///
/// let client = lockkeeper::connect("memory:reentrant").await?;
/// let mutex = ReentrantMutex::new(&client, "/lock/orders")?;
/// let owner = mutex.owner();
/// let outer = owner.lock().await?;
/// let inner = owner.lock().await?; // at once, without a request
/// assert_eq!(inner.fencing_token(), outer.fencing_token());
/// drop(outer);
/// assert!(inner.is_held()); // until the last one goes
/// inner.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantMutex {
    mutex: Mutex,
}

impl ReentrantMutex {
    /// Creates the mutex at a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        let mutex = Mutex::new(client, path)?;
        Ok(Self { mutex })
    }

    /// Returns the znode that contains the queue.
    pub fn path(&self) -> &ZnodePath {
        self.mutex.path()
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        self.mutex.client()
    }

    /// Creates a new owner, which excludes all others.
    pub fn owner(&self) -> Owner {
        Owner(Arc::new(Shared {
            mutex: self.mutex.clone(),
            hold: AsyncMutex::new(Weak::new()),
        }))
    }
}

/// The identity that may enter a [`ReentrantMutex`] again. All clones are the same owner.
#[derive(Clone)]
pub struct Owner(Arc<Shared>);

struct Shared {
    mutex: Mutex,
    /// The owner's guard, which lives until the last [`ReentrantGuard`] of the owner is dropped. The task that waits
    /// for the first entry locks this mutex, so that the owner's other tasks do not join the queue.
    hold: AsyncMutex<Weak<Guard>>,
}

impl Owner {
    /// Enters immediately and without a request if this owner holds the lock, otherwise waits in the order of arrival.
    /// Concurrent waits of one owner share one entry in the queue. When this entry is granted, all of them enter.
    ///
    /// Cancel safe: a dropped wait leaves the queue. If other tasks of the owner are waiting too, one of them then
    /// joins the queue at the end.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) while the owner still has guards of a lost hold. Drop them first, so
    /// that work under them does not mistake the new hold for the lost one. Also the errors of [`Mutex::lock`].
    pub async fn lock(&self) -> Result<ReentrantGuard> {
        self.enter(LockOptions::new()).await
    }

    /// Enters within `timeout`, which covers the whole call.
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), and the errors of [`lock`](Self::lock).
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<ReentrantGuard> {
        self.lock_with(LockOptions::new().timeout(timeout)).await
    }

    /// Enters with the given options. Metadata, events and the queue limit only matter if the owner does not hold the
    /// lock yet.
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), [`LockError::QueueFull`](crate::LockError::QueueFull),
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and the errors of [`lock`](Self::lock).
    pub async fn lock_with(&self, mut options: LockOptions) -> Result<ReentrantGuard> {
        let mutex = &self.0.mutex;
        options.check()?;
        let deadline = options.start(mutex.client());
        // The deadline also covers the wait for other tasks of this owner, so the mutex gets no timeout.
        options.timeout = None;
        let (path, enter) = (mutex.path(), self.enter(options));
        deadline.run(path, path, enter).await
    }

    /// Enters again if this owner holds the lock, or acquires the lock if it is free. Returns `None` if another owner
    /// holds the lock or waits for it, or if another task of this owner is acquiring it.
    ///
    /// # Errors
    /// Same as [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        self.try_lock_with(LockOptions::new()).await
    }

    /// Like [`try_lock`](Self::try_lock), with the given options. A queue limit has no effect.
    ///
    /// Cancel safe, like [`lock`](Self::lock).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout) if the store does not answer in time,
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and the errors of [`lock`](Self::lock).
    pub async fn try_lock_with(&self, options: LockOptions) -> Result<Option<ReentrantGuard>> {
        // Lets other tasks run during a loop over free locks.
        coop::consume_budget().await;
        let Ok(mut hold) = self.0.hold.try_lock() else {
            return Ok(None);
        };
        if let Some(again) = again(&hold)? {
            return Ok(Some(again));
        }
        let guard = self.0.mutex.try_lock_with(options).await?;
        Ok(guard.map(|guard| first(&mut hold, guard)))
    }

    async fn enter(&self, options: LockOptions) -> Result<ReentrantGuard> {
        coop::consume_budget().await;
        let mut hold = match self.0.hold.try_lock() {
            Ok(hold) => hold,
            Err(_) => {
                if let Some(progress) = &options.progress {
                    progress.note(self.0.mutex.path(), 1);
                }
                self.0.hold.lock().await
            }
        };
        if let Some(again) = again(&hold)? {
            return Ok(again);
        }
        let guard = self.0.mutex.lock_with(options).await?;
        Ok(first(&mut hold, guard))
    }

    /// Returns `true` while this owner holds the lock.
    pub fn is_held(&self) -> bool {
        // A task that keeps `hold` locked is still waiting, so the owner does not hold the lock.
        let hold = self.0.hold.try_lock();
        let hold = hold.ok().and_then(|hold| hold.upgrade());
        hold.is_some_and(|guard| guard.is_held())
    }
}

fn again(hold: &Weak<Guard>) -> Result<Option<ReentrantGuard>> {
    let Some(guard) = hold.upgrade() else {
        return Ok(None);
    };
    match guard.reason() {
        None => Ok(Some(ReentrantGuard { guard })),
        // A new grant would hide the loss from work that still runs under the guards of the lost hold.
        Some(reason) => Err(reason.into()),
    }
}

fn first(hold: &mut Weak<Guard>, guard: Guard) -> ReentrantGuard {
    let guard = Arc::new(guard);
    *hold = Arc::downgrade(&guard);
    ReentrantGuard { guard }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("mutex", &self.0.mutex)
            .field("held", &self.is_held())
            .finish()
    }
}

/// The guard of one entry of an [`Owner`]. Dropping or releasing the owner's last guard releases the lock.
///
/// All entries share one znode and one token. The guard dereferences to the shared [`Guard`].
#[must_use = "dropping the last guard releases the lock"]
pub struct ReentrantGuard {
    guard: Arc<Guard>,
}

impl ReentrantGuard {
    /// Returns the owner's current number of entries, including this one.
    pub fn entries(&self) -> usize {
        Arc::strong_count(&self.guard)
    }

    /// Leaves the mutex. The last entry releases the lock, and waits until the store has confirmed the release.
    ///
    /// Dropping the future does not stop the release.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if the lock was lost before the call.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        // If several entries leave concurrently, `into_inner` returns the guard to exactly one of them.
        let known = self.guard.reason();
        let release = Arc::into_inner(self.guard).map(Guard::release);
        async move {
            match (release, known) {
                (Some(release), _) => release.await,
                (None, Some(reason)) => Err(reason.into()),
                (None, None) => Ok(()),
            }
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard")
            .field("entries", &self.entries())
            .field("guard", &self.guard)
            .finish()
    }
}
