//! [`ReentrantMutex`]: the mutex that its owner may enter again.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_store::{Client, Error, ZnodePath};
use tokio::sync::Mutex as Turnstile;

use crate::contest::in_time;
use crate::error::Result;
use crate::guard::Guard;
use crate::mutex::Mutex;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// A mutex that its owner may enter again while it holds it.
///
/// Who the owner is cannot be guessed: a task has no identity, and moves between threads. It is whoever
/// has a clone of the same [`Owner`]: pass it down with the call that may need to enter again. Among
/// owners it is the same fair [`Mutex`], and at the same path it excludes the other's holders too.
/// A clone is the same mutex.
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
    /// The mutex at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        let mutex = Mutex::new(client, path)?;
        Ok(Self { mutex })
    }

    /// The znode under which the queue stands.
    pub fn path(&self) -> &ZnodePath {
        self.mutex.path()
    }

    /// The client that the mutex speaks through.
    pub fn client(&self) -> &Client {
        self.mutex.client()
    }

    /// A new owner, which excludes every other.
    pub fn owner(&self) -> Owner {
        Owner(Arc::new(Shared {
            mutex: self.mutex.clone(),
            hold: Turnstile::new(Weak::new()),
        }))
    }
}

/// Who may enter again. A clone is the same owner. See [`ReentrantMutex`].
#[derive(Clone)]
pub struct Owner(Arc<Shared>);

struct Shared {
    mutex: Mutex,
    /// What the owner holds, if it does. Who contends for the first entry keeps this to itself, so
    /// that the others of the same owner wait for the outcome.
    hold: Turnstile<Weak<Guard>>,
}

impl Owner {
    /// Enters: at once, without a request, if this owner holds the lock; else waits for it in the
    /// order of arrival. Tasks of one owner that wait at the same time wait in one place, and all
    /// enter when it is granted.
    ///
    /// Cancel safe: a dropped wait leaves the queue. If others of the same owner wait too, one of
    /// them joins it again, at its end.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) while guards are left of a holding that was lost:
    /// who is still at work under them must not take a new one for the old. Once they are gone, the
    /// lock is taken anew. And those of [`Mutex::lock`].
    pub async fn lock(&self) -> Result<ReentrantGuard> {
        self.enter(LockOptions::new()).await
    }

    /// [`lock`](Self::lock) for no longer than `timeout`: one deadline for everything.
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), and those of [`lock`](Self::lock).
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<ReentrantGuard> {
        self.lock_with(LockOptions::new().timeout(timeout)).await
    }

    /// [`lock`](Self::lock) on terms of one's own. Metadata, events and the queue's limit are those of
    /// the first entry; they mean nothing to who enters again.
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout),
    /// [`LockError::QueueFull`](crate::LockError::QueueFull), and those of [`lock`](Self::lock).
    pub async fn lock_with(&self, mut options: LockOptions) -> Result<ReentrantGuard> {
        let mutex = &self.0.mutex;
        let progress = options.begin();
        let timeout = options.timeout.take();
        let (client, path) = (mutex.client(), mutex.path());
        let timed_out = |after| progress.timed_out(client, path, path, after);
        in_time(client, timeout, self.enter(options), timed_out).await
    }

    /// Enters if this owner holds the lock or it is free; `None` if another holds it or it is waited
    /// for, be it by this owner itself.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        self.try_lock_with(LockOptions::new()).await
    }

    /// [`try_lock`](Self::try_lock), with metadata and events. A timeout and a queue limit mean nothing here.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock).
    pub async fn try_lock_with(&self, options: LockOptions) -> Result<Option<ReentrantGuard>> {
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
        let mut hold = self.0.hold.lock().await;
        if let Some(again) = again(&hold)? {
            return Ok(again);
        }
        let guard = self.0.mutex.lock_with(options).await?;
        Ok(first(&mut hold, guard))
    }

    /// Whether this owner holds the lock now, as far as can be believed.
    pub fn is_held(&self) -> bool {
        // Who keeps it to itself is waiting to enter, or about to.
        let hold = self.0.hold.try_lock();
        let hold = hold.ok().and_then(|hold| hold.upgrade());
        hold.is_some_and(|guard| guard.is_held())
    }
}

/// Enters what is held already.
fn again(hold: &Weak<Guard>) -> Result<Option<ReentrantGuard>> {
    let Some(guard) = hold.upgrade() else {
        return Ok(None);
    };
    match guard.reason() {
        None => Ok(Some(ReentrantGuard { guard })),
        Some(reason) => Err(reason.into()),
    }
}

/// Enters what has been granted just now.
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

/// One of an [`Owner`]'s entries. The lock is released when the last of them goes.
///
/// All entries share one znode, and so one token. What a [`Guard`] can be asked, it can be asked too.
#[must_use = "dropping the last guard releases the lock"]
pub struct ReentrantGuard {
    guard: Arc<Guard>,
}

impl ReentrantGuard {
    /// How many entries the owner has now, this one included.
    pub fn entries(&self) -> usize {
        Arc::strong_count(&self.guard)
    }

    /// Says that the holder is still at work: its expected duration counts anew from now.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when the lock is lost, and those of the store.
    pub async fn keep_alive(&self) -> Result<()> {
        self.guard.keep_alive().await
    }

    /// Leaves; who leaves last releases the lock, and waits until the store has confirmed it.
    ///
    /// Who is last is decided, and the release sent, by the call itself; dropping the future does
    /// not stop it.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when the lock had been lost before, to every one
    /// that leaves.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
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
