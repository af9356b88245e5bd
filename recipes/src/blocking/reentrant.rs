//! [`ReentrantMutex`]: the mutex that its owner may enter again.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::forward::forward_methods;
use super::{Client, ReentrantGuard};
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// The blocking variant of [`ReentrantMutex`](crate::ReentrantMutex).
///
/// An [`Owner`] is not a thread. All its clones are the same owner, even on different threads.
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
    /// Creates the mutex at a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::ReentrantMutex::new(client.as_async(), path).map(Self)
    }

    /// Returns the znode that contains the queue.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Creates a new owner, which excludes all others.
    pub fn owner(&self) -> Owner {
        Owner(self.0.owner())
    }
}

/// The identity that may enter a [`ReentrantMutex`] again. All clones are the same owner.
#[derive(Clone, Debug)]
pub struct Owner(crate::Owner);

impl Owner {
    /// Returns `true` while this owner holds the lock.
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }
}

forward_methods! { Owner {
    /// Enters immediately if this owner holds the lock, otherwise in the order of arrival.
    fn lock() -> ReentrantGuard;

    /// Enters within `timeout`.
    fn lock_timeout(timeout: Duration) -> ReentrantGuard;

    /// Enters with the given options.
    fn lock_with(options: LockOptions) -> ReentrantGuard;

    /// Enters if this owner holds the lock or the lock is free.
    fn try_lock() -> Option<ReentrantGuard>;

    /// Enters if this owner holds the lock or the lock is free, with the given options.
    fn try_lock_with(options: LockOptions) -> Option<ReentrantGuard>;
}}
