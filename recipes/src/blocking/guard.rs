//! [`BlockingGuard`]: the guards of the blocking recipes.

use std::borrow::Borrow;
use std::time::Duration;

use lockkeeper_store::{Deadline, Session, ZnodePath};

use super::forward::{Blocking, forward_methods};
use super::{block_on, wait};
#[cfg(doc)]
use crate::error::LockError;
use crate::error::{LostReason, Result};
use crate::lock_guard::LockGuard;
use crate::metadata::LockMetadata;
use crate::path::LockPath;
use crate::revocation::RevocationRequest;
use crate::select::{Either, select};
use crate::token::FencingToken;

/// The guard of a blocking recipe. Dropping it releases the lock.
///
/// It wraps an async guard and has the methods of [`LockGuard`] except `protect`, because a blocking call cannot be
/// stopped. Check [`is_held`](Self::is_held) between the steps of your work instead.
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock"]
pub struct BlockingGuard<G: LockGuard>(pub(super) G);

/// The guard of a mutex.
pub type Guard = BlockingGuard<crate::Guard>;
/// The guard of a reader.
pub type ReadGuard = BlockingGuard<crate::ReadGuard>;
/// The guard of a writer.
pub type WriteGuard = BlockingGuard<crate::WriteGuard>;
/// The guard of one entry into a reentrant mutex.
pub type ReentrantGuard = BlockingGuard<crate::ReentrantGuard>;
/// The guard of a semaphore's permits.
pub type Permit = BlockingGuard<crate::Permit>;
/// The guard of an election.
pub type Leadership = BlockingGuard<crate::Leadership>;
/// The guard of several locks held as one.
pub type MultiGuard = BlockingGuard<crate::MultiGuard>;

impl<G: LockGuard> BlockingGuard<G> {
    /// Returns the token that the resource must check. See [`Guard::fencing_token`](crate::Guard::fencing_token).
    pub fn fencing_token(&self) -> FencingToken {
        self.0.fencing_token()
    }

    /// Returns `true` while the lock is held. See [`Guard::is_held`](crate::Guard::is_held).
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Returns the deadline until which no other client can hold the lock. See
    /// [`Guard::held_until`](crate::Guard::held_until).
    pub fn held_until(&self) -> Option<Deadline> {
        self.0.held_until()
    }

    /// Blocks until the lock is lost, and returns the reason.
    ///
    /// # Panics
    /// Inside an async task. See the [module](crate::blocking).
    #[track_caller]
    pub fn lost(&self) -> LostReason {
        block_on(self.0.lost())
    }

    /// Blocks until the lock is lost, for at most `timeout`. Returns `None` if the lock is still held by then.
    ///
    /// # Panics
    /// Same as [`lost`](Self::lost).
    ///
    /// ```
    /// # let client = lockkeeper::blocking::connect("memory:example-blocking-guard-lost-timeout")?;
    /// use std::time::Duration;
    ///
    /// let guard = lockkeeper::blocking::Mutex::new(&client, "/lock/orders")?.lock()?;
    /// while guard.lost_timeout(Duration::from_millis(10)).is_none() {
    ///     // a step of the work, under `guard.fencing_token()`
    ///     # break;
    /// }
    /// # Ok::<(), lockkeeper::LockError>(())
    /// ```
    #[track_caller]
    pub fn lost_timeout(&self, timeout: Duration) -> Option<LostReason> {
        let timeout = self.0.session().clock().sleep(timeout);
        match block_on(select(self.0.lost(), timeout)) {
            Either::Left(reason) => Some(reason),
            Either::Right(()) => None,
        }
    }

    /// Blocks until a [`Revoker`](super::Revoker) requests the release. Returns each request only once.
    ///
    /// # Errors
    /// [`LostReason`], if the lock is lost first.
    #[track_caller]
    pub fn revocation_requested(&self) -> Result<RevocationRequest, LostReason> {
        block_on(self.0.revocation_requested())
    }

    /// Blocks until a [`Revoker`](super::Revoker) requests the release, for at most `timeout`. Returns `None` if no
    /// request arrives in this time.
    ///
    /// # Errors
    /// [`LostReason`], if the lock is lost first.
    #[track_caller]
    pub fn revocation_requested_timeout(
        &self,
        timeout: Duration,
    ) -> Result<Option<RevocationRequest>, LostReason> {
        let timeout = self.0.session().clock().sleep(timeout);
        match block_on(select(self.0.revocation_requested(), timeout)) {
            Either::Left(request) => request.map(Some),
            Either::Right(()) => Ok(None),
        }
    }

    /// Reports that the holder is still working. See [`Guard::keep_alive`](crate::Guard::keep_alive).
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock is lost, and store errors.
    #[track_caller]
    pub fn keep_alive(&self) -> Result<()> {
        wait(self.0.keep_alive())
    }

    /// Returns the holder's metadata.
    pub fn metadata(&self) -> LockMetadata {
        self.0.metadata()
    }

    /// Returns the holder's znodes, one for each lock or permit.
    pub fn paths(&self) -> impl Iterator<Item = &ZnodePath> {
        self.0.paths()
    }

    /// Returns the session that holds the lock.
    pub fn session(&self) -> &Session {
        self.0.session()
    }

    /// Releases the lock, and blocks until the store has confirmed that.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock was lost before the call, and store errors.
    ///
    /// # Panics
    /// Inside an async task, but only after sending the release. See the [module](crate::blocking).
    #[track_caller]
    pub fn release(self) -> Result<()> {
        wait(self.0.release())
    }

    /// Returns the async guard.
    pub fn as_async(&self) -> &G {
        &self.0
    }

    /// Converts this into the async guard.
    pub fn into_async(self) -> G {
        self.0
    }
}

impl<G: LockGuard> From<G> for BlockingGuard<G> {
    fn from(guard: G) -> Self {
        Self(guard)
    }
}

impl<G: LockGuard> Borrow<G> for BlockingGuard<G> {
    fn borrow(&self) -> &G {
        &self.0
    }
}

/// Outcome of [`ReadGuard::try_upgrade`](BlockingGuard::try_upgrade).
pub type Upgrade = crate::Upgrade<ReadGuard, WriteGuard>;

impl ReadGuard {
    /// Becomes the writer if no other contender holds the lock or waits for it. See
    /// [`ReadGuard::try_upgrade`](crate::ReadGuard::try_upgrade).
    ///
    /// # Errors
    /// Same as [`ReadGuard::try_upgrade`](crate::ReadGuard::try_upgrade).
    #[track_caller]
    pub fn try_upgrade(self) -> Result<Upgrade> {
        Ok(match wait(self.0.try_upgrade())? {
            crate::Upgrade::Upgraded(guard) => Upgrade::Upgraded(BlockingGuard(guard)),
            crate::Upgrade::Refused(guard) => Upgrade::Refused(BlockingGuard(guard)),
        })
    }
}

impl WriteGuard {
    /// Becomes a reader at the same position in the queue. See [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    ///
    /// # Errors
    /// Same as [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    #[track_caller]
    pub fn downgrade(self) -> Result<ReadGuard> {
        wait(self.0.downgrade()).map(BlockingGuard)
    }
}

impl ReentrantGuard {
    /// Returns the owner's current number of entries, including this one.
    pub fn entries(&self) -> usize {
        self.0.entries()
    }
}

impl Permit {
    /// Returns the number of permits held, at least one.
    pub fn count(&self) -> u32 {
        self.0.count()
    }

    /// Splits off `count` permits into a separate guard. See [`Permit::split`](crate::Permit::split).
    pub fn split(&mut self, count: u32) -> Option<Self> {
        self.0.split(count).map(Self)
    }
}

impl MultiGuard {
    /// Returns the locks in the caller's order.
    pub fn keys(&self) -> impl Iterator<Item = &LockPath> {
        self.0.keys()
    }

    /// Splits the guard into one guard per lock.
    pub fn into_guards(self) -> Vec<(LockPath, Guard)> {
        self.0.into_guards().blocking()
    }
}

impl Leadership {
    /// Returns the fencing token of this term.
    pub fn epoch(&self) -> FencingToken {
        self.0.epoch()
    }

    /// Returns the leader's data, as set by its campaign or by `set_data`.
    pub fn data(&self) -> String {
        self.0.data()
    }

    /// Resigns, and blocks until the store has confirmed the resignation. Same as [`release`](Self::release).
    ///
    /// # Errors
    /// Same as [`release`](Self::release).
    #[track_caller]
    pub fn resign(self) -> Result<()> {
        self.release()
    }
}

forward_methods! { Leadership {
    /// Changes the leader's data, which observers see.
    fn set_data(data: impl Into<String>) -> ();
}}
