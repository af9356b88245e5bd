//! [`ReentrantMutex`]: the mutex that its owner may enter again.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::{BlockingGuard, Client, ReentrantGuard, wait};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// A mutex that its owner may enter again while it holds it. See [`ReentrantMutex`](crate::ReentrantMutex).
///
/// The owner is not a thread: all clones of one [`Owner`] are the same owner, on any thread.
///
/// ```
/// use lockkeeper::blocking::{self, ReentrantMutex};
///
/// let client = blocking::connect("memory:blocking-reentrant")?;
/// let owner = ReentrantMutex::new(&client, "/lock/orders")?.owner();
/// let outer = owner.lock()?;
/// let inner = owner.lock()?; // at once
/// assert_eq!((inner.entries(), inner.fencing_token()), (2, outer.fencing_token()));
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantMutex(crate::ReentrantMutex);

impl ReentrantMutex {
    /// Creates the mutex at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::ReentrantMutex::new(client.as_async(), path).map(Self)
    }

    /// Returns the znode under which the queue stands.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Creates an owner, which excludes every other.
    pub fn owner(&self) -> Owner {
        Owner(self.0.owner())
    }
}

/// The identity under which a [`ReentrantMutex`] may be entered again. A clone is the same owner.
#[derive(Clone, Debug)]
pub struct Owner(crate::Owner);

impl Owner {
    /// Enters: at once if this owner holds the lock, else in the order of arrival.
    ///
    /// # Errors
    /// Those of [`Owner::lock`](crate::Owner::lock).
    #[track_caller]
    pub fn lock(&self) -> Result<ReentrantGuard> {
        wait(self.0.lock()).map(BlockingGuard)
    }

    /// Enters within `timeout`.
    ///
    /// # Errors
    /// Those of [`Owner::lock_timeout`](crate::Owner::lock_timeout).
    #[track_caller]
    pub fn lock_timeout(&self, timeout: Duration) -> Result<ReentrantGuard> {
        wait(self.0.lock_timeout(timeout)).map(BlockingGuard)
    }

    /// Enters with the given options.
    ///
    /// # Errors
    /// Those of [`Owner::lock_with`](crate::Owner::lock_with).
    #[track_caller]
    pub fn lock_with(&self, options: LockOptions) -> Result<ReentrantGuard> {
        wait(self.0.lock_with(options)).map(BlockingGuard)
    }

    /// Enters if this owner holds the lock or it is free.
    ///
    /// # Errors
    /// Those of [`Owner::try_lock`](crate::Owner::try_lock).
    #[track_caller]
    pub fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        Ok(wait(self.0.try_lock())?.map(BlockingGuard))
    }

    /// Enters if this owner holds the lock or it is free, with the given options.
    ///
    /// # Errors
    /// Those of [`Owner::try_lock_with`](crate::Owner::try_lock_with).
    #[track_caller]
    pub fn try_lock_with(&self, options: LockOptions) -> Result<Option<ReentrantGuard>> {
        Ok(wait(self.0.try_lock_with(options))?.map(BlockingGuard))
    }

    /// Returns true while this owner can be believed to hold the lock.
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }
}
