//! [`MultiGuard`]: the holding of several locks as one.

use std::fmt;
use std::future::Future;

use lockkeeper_store::{Deadline, Session};

use super::together::Together;
use crate::error::{LostReason, Result};
use crate::guard::{Guard, drop_all, release_all};
use crate::metadata::LockMetadata;
use crate::path::LockPath;
use crate::revocation::RevocationRequest;
use crate::select::{Either, select};
use crate::token::FencingToken;

/// The holding of several locks, from [`lock_all`](crate::lock_all()). It stands and falls as one: who
/// loses one of the locks has lost them all. Dropping it releases them all, as the drop of a [`Guard`] does;
/// [`release`](Self::release) says when that is done.
///
/// All resources get the same token: that of the transaction that joined all queues.
#[must_use = "dropping a guard releases the locks"]
pub struct MultiGuard {
    /// Never empty; in the order in which the locks were named.
    locks: Vec<(LockPath, Guard)>,
}

impl MultiGuard {
    pub(super) fn new(locks: Vec<(LockPath, Guard)>) -> Self {
        Self { locks }
    }

    fn guards(&self) -> impl Iterator<Item = &Guard> {
        self.locks.iter().map(|(_, guard)| guard)
    }

    fn first(&self) -> &Guard {
        &self.locks[0].1
    }

    /// The token that each of the resources must check: one for all. It is greater than that of
    /// every earlier holder of any of the locks.
    pub fn fencing_token(&self) -> FencingToken {
        self.first().fencing_token()
    }

    /// Until when nobody else can hold any of the locks; see [`Guard::held_until`].
    pub fn held_until(&self) -> Option<Deadline> {
        self.first().held_until()
    }

    /// Returns true while all the locks can be believed to be held. Once it says no, it stays with that. A forced removal is
    /// noticed as [`Guard::is_held`] says.
    pub fn is_held(&self) -> bool {
        self.guards().all(Guard::is_held)
    }

    /// Waits until any of the locks is lost, and says why. While it waits, a forced removal of any
    /// of them is noticed too.
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        let mut losses = Together::new(self.guards().map(Guard::lost));
        let (_, reason) = losses.next().await.expect("there is a lock to lose");
        reason
    }

    /// Waits until somebody asks for one of the locks. See [`Guard::revocation_requested`].
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`LostReason`], if one of the locks is lost first.
    pub async fn revocation_requested(&self) -> Result<RevocationRequest, LostReason> {
        let mut requests = Together::new(self.guards().map(Guard::revocation_requested));
        let (_, request) = requests.next().await.expect("there is a lock to ask for");
        request
    }

    /// Runs a future for as long as all the locks are held.
    ///
    /// # Errors
    /// [`LostReason`], if one is lost first. The future is dropped then; but what it spawned or sent
    /// goes on, and only the token stops that.
    pub async fn protect<F: Future>(&self, future: F) -> Result<F::Output, LostReason> {
        match select(self.lost(), future).await {
            Either::Left(reason) => Err(reason),
            Either::Right(output) => Ok(output),
        }
    }

    /// What this holder wrote of itself into each znode.
    pub fn metadata(&self) -> LockMetadata {
        self.first().metadata()
    }

    /// Says that the holder is still at work, at each of the locks: see [`Guard::keep_alive`].
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when one of the locks is lost, and those of the store.
    pub async fn keep_alive(&self) -> Result<()> {
        let mut keeping = Together::new(self.guards().map(Guard::keep_alive));
        while let Some((_, kept)) = keeping.next().await {
            kept?;
        }
        Ok(())
    }

    /// The locks, in the order in which they were named.
    pub fn keys(&self) -> impl Iterator<Item = &LockPath> {
        self.locks.iter().map(|(key, _)| key)
    }

    /// The holding of one of the locks.
    pub fn get(&self, key: &LockPath) -> Option<&Guard> {
        let mut locks = self.locks.iter();
        locks.find(|(path, _)| path == key).map(|(_, guard)| guard)
    }

    /// The session that holds.
    pub fn session(&self) -> &Session {
        self.first().session()
    }

    /// The locks one by one, to be released one by one. Each then stands and falls by itself.
    pub fn into_guards(mut self) -> Vec<(LockPath, Guard)> {
        std::mem::take(&mut self.locks)
    }

    /// Releases all the locks, and waits until the store has confirmed it.
    ///
    /// All releases are sent by the call itself; dropping the future does not stop them.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when one of the locks had been lost before: what
    /// was done under them since may have been done beside another holder. The others are released
    /// all the same.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        release_all(self.into_guards().into_iter().map(|(_, guard)| guard))
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        drop_all(self.locks.drain(..).map(|(_, guard)| guard));
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("fencing_token", &self.fencing_token())
            .field("locks", &self.locks)
            .finish()
    }
}
