//! [`Permit`]: the holding of permits.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use lockkeeper_store::{Deadline, Session, ZnodePath};

use crate::error::{LostReason, Result};
use crate::guard::{Guard, drop_all, release_all};
use crate::metadata::LockMetadata;
use crate::revocation::RevocationRequest;
use crate::select::{Either, select};
use crate::token::FencingToken;

/// The holding of one or more permits of a [`Semaphore`](crate::Semaphore). Dropping it gives them
/// back, as the drop of a [`Guard`] does; [`release`](Self::release) says when that is done.
///
/// It belongs to the session that took it, and is lost with it. A semaphore of more than one permit
/// excludes nobody, so its [`fencing_token`](Self::fencing_token) fences nobody off either: it identifies the grant,
/// in the logs of the resource for instance. Only with a single permit in all, and as long as that is
/// not changed, is it a fencing token like a mutex's.
#[must_use = "dropping a permit gives it back"]
pub struct Permit {
    /// Never empty.
    leases: Vec<Guard>,
}

impl Permit {
    pub(super) fn new(leases: Vec<Guard>) -> Self {
        debug_assert!(!leases.is_empty());
        Self { leases }
    }

    /// How many permits this holds: one at least.
    pub fn count(&self) -> u32 {
        u32::try_from(self.leases.len()).unwrap_or(u32::MAX)
    }

    /// Takes `count` permits out of this, to be held and given back by themselves; the rest stays.
    /// `None`, and nothing changes, if `count` is 0 or no permit would stay.
    ///
    /// The events of the wait go on with what stays.
    pub fn split(&mut self, count: u32) -> Option<Self> {
        let stays = self
            .leases
            .len()
            .checked_sub(usize::try_from(count).ok()?)?;
        if count == 0 || stays == 0 {
            return None;
        }
        Some(Self::new(self.leases.split_off(stays)))
    }

    /// What identifies the grant: all its permits share it, and later grants have greater ones.
    pub fn fencing_token(&self) -> FencingToken {
        self.first().fencing_token()
    }

    fn first(&self) -> &Guard {
        &self.leases[0]
    }

    /// Until when nobody else can have these permits, as far as clocks and the server allow; it moves
    /// on while the session lives. `None`: until they are given back, closed or removed.
    pub fn held_until(&self) -> Option<Deadline> {
        self.first().held_until()
    }

    /// Returns true while all the permits can be believed to be held. Once it says no, it stays with that. A forced removal is
    /// noticed as [`Guard::is_held`] says.
    pub fn is_held(&self) -> bool {
        self.leases.iter().all(Guard::is_held)
    }

    /// Waits until one of the permits is lost, and says why. While it waits, a forced removal is
    /// noticed too.
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        if let [only] = self.leases.as_slice() {
            return only.lost().await;
        }
        let mut losses: Vec<_> = self
            .leases
            .iter()
            .map(|lease| Box::pin(lease.lost()))
            .collect();
        poll_fn(|context| {
            let mut polled = losses.iter_mut().map(|loss| Pin::new(loss).poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Waits until somebody asks for one of the permits. See
    /// [`Guard::revocation_requested`]; who asks all holders asks for each permit.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`LostReason`], if one of the permits is lost first.
    pub async fn revocation_requested(&self) -> Result<RevocationRequest, LostReason> {
        let requests = self.leases.iter().map(Guard::revocation_requested);
        let mut requests: Vec<_> = requests.map(Box::pin).collect();
        poll_fn(|context| {
            let mut polled = requests
                .iter_mut()
                .map(|request| request.as_mut().poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Runs a future for as long as all the permits are held.
    ///
    /// # Errors
    /// [`LostReason`], if one is lost first. The future is dropped then; but what it spawned or sent
    /// goes on.
    pub async fn protect<F: Future>(&self, future: F) -> Result<F::Output, LostReason> {
        match select(self.lost(), future).await {
            Either::Left(reason) => Err(reason),
            Either::Right(output) => Ok(output),
        }
    }

    /// What this holder wrote of itself into each of its leases.
    pub fn metadata(&self) -> LockMetadata {
        self.first().metadata()
    }

    /// Says that the holder is still at work: its expected duration counts anew from now, for all its
    /// permits.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when one is lost, and those of the store.
    pub async fn keep_alive(&mut self) -> Result<()> {
        for lease in &mut self.leases {
            lease.keep_alive().await?;
        }
        Ok(())
    }

    /// The leases' znodes, one for each permit.
    pub fn paths(&self) -> impl Iterator<Item = &ZnodePath> {
        self.leases.iter().map(Guard::path)
    }

    /// The session that holds.
    pub fn session(&self) -> &Session {
        self.first().session()
    }

    /// Gives the permits back and waits until the store has confirmed it.
    ///
    /// The release of all is sent by the call itself; dropping the future does not stop it.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when one had been lost before. The others are given
    /// back all the same.
    pub fn release(mut self) -> impl Future<Output = Result<()>> + Send + 'static {
        release_all(std::mem::take(&mut self.leases))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        drop_all(self.leases.drain(..));
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("count", &self.count())
            .field("fencing_token", &self.fencing_token())
            .field("held", &self.is_held())
            .finish()
    }
}
