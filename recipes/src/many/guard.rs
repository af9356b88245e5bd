//! [`MultiGuard`]: the guard of several locks held as one.

use std::fmt;
use std::future::Future;
use std::ops::Deref;

use crate::error::Result;
use crate::guard::{Guard, GuardSet};
use crate::path::LockPath;

/// The guard of several locks, returned by [`lock_all`](crate::lock_all()). If one lock is lost, all count as lost.
/// Dropping the guard releases all locks.
///
/// It is a [`GuardSet`] with one znode per lock. All resources check the same
/// [`fencing_token`](GuardSet::fencing_token), which is greater than the token of every earlier holder of any of the
/// locks.
#[must_use = "dropping a guard releases the locks"]
pub struct MultiGuard {
    keys: Vec<LockPath>,
    guards: GuardSet,
}

impl MultiGuard {
    pub(super) fn new(keys: Vec<LockPath>, guards: Vec<Guard>) -> Self {
        let guards = GuardSet::new(guards);
        Self { keys, guards }
    }

    /// Returns the locks in the caller's order.
    pub fn keys(&self) -> impl Iterator<Item = &LockPath> {
        self.keys.iter()
    }

    /// Returns the guard of the lock `key`, or `None` if the call did not name this lock.
    pub fn get(&self, key: &LockPath) -> Option<&Guard> {
        let index = self.keys.iter().position(|known| known == key)?;
        self.guards.guards().get(index)
    }

    /// Splits this into one guard per lock. From then on, each can be lost separately.
    pub fn into_guards(self) -> Vec<(LockPath, Guard)> {
        self.keys
            .into_iter()
            .zip(self.guards.into_guards())
            .collect()
    }

    /// Releases all locks, and waits until the store has confirmed the releases.
    ///
    /// Dropping the future does not stop the releases.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if one of the locks was lost before the call. The other locks are
    /// released anyway.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.guards.release()
    }
}

impl Deref for MultiGuard {
    type Target = GuardSet;

    fn deref(&self) -> &GuardSet {
        &self.guards
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("fencing_token", &self.fencing_token())
            .field("keys", &self.keys)
            .field("guards", &self.guards)
            .finish()
    }
}
