//! [`MultiGuard`]: the guard of several locks that are held as one.

use std::fmt;
use std::future::Future;
use std::ops::Deref;

use crate::error::Result;
use crate::guard::{Guard, GuardSet};
use crate::path::LockPath;

/// The guard of several locks, from [`lock_all`](crate::lock_all()). It is held as one: the loss of one lock is the loss of
/// all. Dropping it releases all, as the drop of a [`Guard`] does; [`release`](Self::release) waits until that is done.
///
/// It is a [`GuardSet`], one znode for each lock, and has the methods of one. Each of the resources checks the same
/// [`fencing_token`](GuardSet::fencing_token): that of the transaction that joined all queues, greater than that of
/// every earlier holder of any of the locks.
#[must_use = "dropping a guard releases the locks"]
pub struct MultiGuard {
    /// In the order in which the locks were named, as the guards.
    keys: Vec<LockPath>,
    guards: GuardSet,
}

impl MultiGuard {
    pub(super) fn new(keys: Vec<LockPath>, guards: Vec<Guard>) -> Self {
        let guards = GuardSet::new(guards);
        Self { keys, guards }
    }

    /// Returns the locks, in the order in which they were named.
    pub fn keys(&self) -> impl Iterator<Item = &LockPath> {
        self.keys.iter()
    }

    /// Returns the guard of one of the locks.
    pub fn get(&self, key: &LockPath) -> Option<&Guard> {
        let index = self.keys.iter().position(|known| known == key)?;
        self.guards.guards().get(index)
    }

    /// Takes the guards of the locks out, to be released one by one. Each is then lost by itself.
    pub fn into_guards(self) -> Vec<(LockPath, Guard)> {
        self.keys
            .into_iter()
            .zip(self.guards.into_guards())
            .collect()
    }

    /// Releases all the locks, and waits until the store has confirmed it.
    ///
    /// All releases are sent by the call itself; dropping the future does not stop them.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if one of the locks had been lost before: another client may have held it
    /// meanwhile. The others are released nevertheless.
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
