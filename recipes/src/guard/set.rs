//! [`GuardSet`]: several guards that stand and fall as one.

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

/// Several znodes of one session, granted by one transaction and held as one: the core of a
/// [`Permit`](crate::Permit) and of a [`MultiGuard`](crate::MultiGuard), as a [`Guard`] is that of all guards with
/// one znode.
///
/// All of them have one fencing token. The set is lost with the first of them. Dropping it sends the releases of
/// all before it waits for any to be written, at most as long as the drop of one [`Guard`].
#[must_use = "dropping guards releases what they hold"]
pub struct GuardSet {
    /// Never empty, but while they are moved out. Most permits are single: no allocation for that.
    guards: SmallVec<[Guard; 1]>,
}

impl GuardSet {
    pub(crate) fn new(guards: impl IntoIterator<Item = Guard>) -> Self {
        let guards = SmallVec::from_iter(guards);
        debug_assert!(!guards.is_empty());
        Self { guards }
    }

    /// Creates the set of one guard, as most permits are.
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

    /// Takes `count` guards out, from the end, if others stay.
    pub(crate) fn split_off(&mut self, count: usize) -> Option<Self> {
        let stays = self.guards.len().checked_sub(count)?;
        (count > 0 && stays > 0).then(|| Self::new(self.guards.drain(stays..)))
    }

    /// Returns the fencing token of the grant, which all of the set share. See [`Guard::fencing_token`].
    pub fn fencing_token(&self) -> FencingToken {
        self.first().fencing_token()
    }

    /// Returns the deadline until which no other client can hold any of the set. See [`Guard::held_until`].
    pub fn held_until(&self) -> Option<Deadline> {
        self.first().held_until()
    }

    /// Returns true while all of the set can be believed to be held; false from the first loss on. A forced removal
    /// is noticed as [`Guard::is_held`] says.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// Waits until any of the set is lost, and returns the reason. While it waits, a forced removal of any of them
    /// is noticed too.
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        let mut losses: FuturesUnordered<_> = self.guards.iter().map(Guard::lost).collect();
        losses.next().await.expect("a set is never empty")
    }

    /// Waits until another client requests any of the set. See [`Guard::revocation_requested`]; a request to all holders
    /// of a semaphore is made to each permit.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`LostReason`], if any of the set is lost first.
    pub async fn revocation_requested(&self) -> Result<RevocationRequest, LostReason> {
        let requests = self.guards.iter().map(Guard::revocation_requested);
        let mut requests: FuturesUnordered<_> = requests.collect();
        requests.next().await.expect("a set is never empty")
    }

    /// Runs a future for as long as all of the set is held. See [`Guard::protect`].
    ///
    /// # Errors
    /// [`LostReason`], if any of the set is lost first.
    pub async fn protect<F: Future>(&self, future: F) -> Result<F::Output, LostReason> {
        match select(self.lost(), future).await {
            Either::Left(reason) => Err(reason),
            Either::Right(output) => Ok(output),
        }
    }

    /// Says, in each znode of the set, that the holder is still at work. See [`Guard::keep_alive`].
    ///
    /// Dropped or failed midway, some may have been written.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when any of the set is lost, and those of the store.
    pub async fn keep_alive(&self) -> Result<()> {
        try_join_all(self.guards.iter().map(Guard::keep_alive)).await?;
        Ok(())
    }

    /// Returns the holder's description of itself, as it stands in each znode.
    pub fn metadata(&self) -> LockMetadata {
        self.first().metadata()
    }

    /// Returns the holder's znodes, one for each lock or permit.
    pub fn paths(&self) -> impl Iterator<Item = &ZnodePath> {
        self.guards.iter().map(Guard::path)
    }

    /// Returns the session that holds.
    pub fn session(&self) -> &Session {
        self.first().session()
    }

    /// Releases all of the set, and waits until the store has confirmed it.
    ///
    /// All releases are sent by the call itself; dropping the future does not stop them.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when any of the set had been lost before: what was done under it
    /// since may have been done beside another holder. The others are released all the same.
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
