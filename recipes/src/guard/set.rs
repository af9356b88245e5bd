//! [`GuardSet`]: several guards held as one.

use std::fmt;
use std::future::Future;

use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lockkeeper_store::{Deadline, Session, ZnodePath};
use smallvec::SmallVec;

use super::{Guard, all_confirmed, drop_all, send_all};
use crate::error::{LostReason, Result};
use crate::metadata::LockMetadata;
use crate::revocation::RevocationRequest;
use crate::select::{Either, select};
use crate::token::FencingToken;

/// Several znodes of one session, granted by one transaction and held as one. [`Permit`](crate::Permit) and
/// [`MultiGuard`](crate::MultiGuard) are built on it.
///
/// All znodes share one fencing token. If one znode is lost, the whole set counts as lost. Dropping the set sends all
/// releases first, and then waits at most as long as the drop of one [`Guard`].
#[must_use = "dropping guards releases what they hold"]
pub struct GuardSet {
    guards: SmallVec<[Guard; 1]>,
}

impl GuardSet {
    pub(crate) fn new(guards: impl IntoIterator<Item = Guard>) -> Self {
        let guards = SmallVec::from_iter(guards);
        debug_assert!(!guards.is_empty());
        Self { guards }
    }

    #[inline]
    pub(crate) fn of_one(guard: Guard) -> Self {
        let guards = SmallVec::from_buf([guard]);
        Self { guards }
    }

    fn first(&self) -> &Guard {
        &self.guards[0]
    }

    pub(crate) fn guards(&self) -> &[Guard] {
        &self.guards
    }

    pub(crate) fn into_guards(mut self) -> impl Iterator<Item = Guard> + Send + 'static {
        std::mem::take(&mut self.guards).into_iter()
    }

    pub(crate) fn split_off(&mut self, count: usize) -> Option<Self> {
        let stays = self.guards.len().checked_sub(count)?;
        (count > 0 && stays > 0).then(|| Self::new(self.guards.drain(stays..)))
    }

    /// Returns the fencing token, which the whole set shares.
    pub fn fencing_token(&self) -> FencingToken {
        self.first().fencing_token()
    }

    /// Returns the deadline until which no other client can hold any part of the set.
    pub fn held_until(&self) -> Option<Deadline> {
        self.first().held_until()
    }

    /// Returns `true` while the whole set is held. See [`Guard::is_held`].
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// Waits until any part of the set is lost, and returns the reason. Also notices a forced removal.
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        let mut losses: FuturesUnordered<_> = self.guards.iter().map(Guard::lost).collect();
        losses.next().await.expect("a set is never empty")
    }

    /// Waits until another client requests the release of any part of the set. A request to all holders of a semaphore
    /// is returned once for each permit. See [`Guard::revocation_requested`].
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`LostReason`], if any part of the set is lost first.
    pub async fn revocation_requested(&self) -> Result<RevocationRequest, LostReason> {
        let requests = self.guards.iter().map(Guard::revocation_requested);
        let mut requests: FuturesUnordered<_> = requests.collect();
        requests.next().await.expect("a set is never empty")
    }

    /// Runs a future while the whole set is held.
    ///
    /// # Errors
    /// [`LostReason`], if any part of the set is lost first.
    pub async fn protect<F: Future>(&self, future: F) -> Result<F::Output, LostReason> {
        match select(self.lost(), future).await {
            Either::Left(reason) => Err(reason),
            Either::Right(output) => Ok(output),
        }
    }

    /// Reports in each znode that the holder is still working. See [`Guard::keep_alive`].
    ///
    /// If the call fails or is dropped, some znodes may have been written.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if any part of the set is lost, and store errors.
    pub async fn keep_alive(&self) -> Result<()> {
        try_join_all(self.guards.iter().map(Guard::keep_alive)).await?;
        Ok(())
    }

    /// Returns the holder's metadata, as written to each znode.
    pub fn metadata(&self) -> LockMetadata {
        self.first().metadata()
    }

    /// Returns the holder's znodes, one per lock or permit.
    pub fn paths(&self) -> impl Iterator<Item = &ZnodePath> {
        self.guards.iter().map(Guard::path)
    }

    /// Returns the session that holds the locks.
    pub fn session(&self) -> &Session {
        self.first().session()
    }

    /// Releases all guards, even if some are already lost. In that case the result is an error.
    pub(crate) fn release(mut self) -> impl Future<Output = Result<()>> + Send + 'static {
        all_confirmed(send_all(self.guards.drain(..)))
    }
}

impl Drop for GuardSet {
    fn drop(&mut self) {
        drop_all(self.guards.drain(..));
    }
}

impl fmt::Debug for GuardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
