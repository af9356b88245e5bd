//! [`Guard`]: a held lock, the core of all guards.
//!
//! A guard owns one znode of one session. It is believed to hold while the lease of its grant is valid and the znode is
//! not known to be gone; once lost, it stays lost (invariant 6). [`GuardSet`] is several guards held as one,
//! [`LockGuard`](crate::LockGuard) the interface of all guards.

mod monitor;
mod parts;
mod release;
mod self_node;
mod set;

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use lockkeeper_store::{Deadline, Error, Session, Stat, ZnodePath};
use parking_lot::Mutex;

use crate::error::{LockError, LostReason, Result};
use crate::events::EventSink;
use crate::metadata::{EntryData, LockMetadata};
use crate::names::Kind;
use crate::queue::Grant;
use crate::reporter::Reporter;
use crate::revocation::RevocationRequest;
use crate::select::{Either, select};
use crate::token::FencingToken;

pub use set::GuardSet;

pub(crate) use monitor::{GuardView, OnLoss};
pub(crate) use parts::GuardParts;
use release::{all_confirmed, drop_all, send_all};

use monitor::{Monitor, WatchScope, loss, reason_of};
use self_node::SelfNode;

/// The guard of a lock: proof that it is held, until it is released, dropped or lost.
///
/// Dropping it releases the lock; [`release`](Self::release) waits until the store has confirmed that.
///
/// With a store in another process the drop sends the release, and returns when that has been written to the
/// connection, so that the end of the process cannot overtake it; it waits for at most 5 ms, and not at all while the
/// connection is lost. A guard that is never dropped (`std::process::exit`, a static variable, SIGKILL) is released
/// when its session's timeout has passed.
///
/// A guard belongs to the session that took it, and is lost with it. [`is_held`](Self::is_held) is
/// advice, good against everything but frozen clocks, trouble of an ensemble's leader and forced
/// removal; what makes a lock safe is the [`fencing_token`](Self::fencing_token), checked by the
/// resource itself.
#[must_use = "dropping a guard releases the lock"]
pub struct Guard(Box<GuardState>);

/// State of a guard. Boxed: a guard is moved several times on its way to its holder.
struct GuardState {
    session: Session,
    held: Grant,
    kind: Kind,
    /// The holder's metadata, as written or about to be written.
    data: Mutex<EntryData>,
    own: OnceLock<Box<SelfNode>>,
    lost: OnceLock<LostReason>,
    monitor: Option<Monitor>,
    reporter: Reporter,
    released: AtomicBool,
}

impl Guard {
    #[inline(always)] // as `of`
    pub(crate) fn new(
        session: Session,
        held: Grant,
        kind: Kind,
        data: EntryData,
        events: Option<EventSink>,
    ) -> Self {
        let reporter = Reporter::of_hold(&session, &held, kind, &data, events);
        Self::of(GuardParts {
            session,
            held,
            kind,
            data,
            reporter,
            own: None,
        })
    }

    /// Returns the token that the resource must check. It is greater than that of every earlier holder.
    pub fn fencing_token(&self) -> FencingToken {
        self.0.held.token
    }

    /// Returns the deadline until which no other client can hold the lock, as far as clocks and the server allow. It moves
    /// on while the session lives. `None` if it is held until it is released, closed or removed.
    ///
    /// This is the session's deadline, and tells nothing of a forced removal: see [`is_held`](Self::is_held).
    pub fn held_until(&self) -> Option<Deadline> {
        self.0.session.held_until()
    }

    /// Returns true while the lock can be believed to be held; false from the first doubt on.
    ///
    /// A forced removal (by a [`Revoker`](crate::Revoker), a [`Warden`](crate::Warden) or an operator) is noticed even if
    /// [`lost`](Self::lost) is not awaited:
    ///
    /// - With a store in this process immediately, by a read, unless the session was opened with a timeout.
    /// - Elsewhere as soon as the store's event arrives. The guard watches its own znode from the first call of this method
    ///   on, and in any case once it has held for a third of the session's timeout, or a quarter of a second longer; so a
    ///   removal before that is noticed a round trip later. A shorter hold without such a call costs no request.
    ///
    /// It never waits. While disconnected it depends on [`held_until`](Self::held_until) alone.
    pub fn is_held(&self) -> bool {
        if self.reason().is_some() {
            return false;
        }
        match &self.0.monitor {
            Some(monitor) => {
                monitor.watch_removal();
                true
            }
            None => self.stands(),
        }
    }

    /// Returns true if the znode exists, in a store that answers at once.
    fn stands(&self) -> bool {
        if let Some(entry) = self.0.held.node.key()
            && self.0.session.has_entry(entry)
        {
            return self.reason().is_none();
        }
        match self
            .0
            .session
            .exists(self.0.held.node.path())
            .now_or_never()
        {
            Ok(Ok(stat)) if !self.is_mine(stat) => {
                if self.0.lost.set(LostReason::Revoked).is_ok() {
                    self.holder().report_lost(LostReason::Revoked);
                }
                false
            }
            // No right to read it, the session has ended meanwhile, or no answer yet.
            _ => self.reason().is_none(),
        }
    }

    fn is_mine(&self, stat: Option<Stat>) -> bool {
        stat.is_some_and(|stat| stat.ephemeral_owner == self.0.session.id())
    }

    /// Returns the reason of the loss, if the lock is known to be lost. The first reason noted stays, so that all callers
    /// see the same.
    pub(crate) fn reason(&self) -> Option<LostReason> {
        if let Some(reason) = self.0.lost.get() {
            return Some(*reason);
        }
        let told = self
            .0
            .monitor
            .as_ref()
            .and_then(|monitor| monitor.lost().get().copied());
        let reason = told.or_else(|| reason_of(&self.0.held.lease))?;
        Some(self.note(reason))
    }

    /// Waits until the lock is lost, and returns the reason. While it waits, a forced removal is noticed too.
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        if let Some(reason) = self.reason() {
            return reason;
        }
        let reason = loss(
            &self.0.session,
            self.0.held.node.path(),
            &self.0.held.lease,
            WatchScope::Removal,
            None,
        )
        .await;
        self.note(reason)
    }

    /// Waits until another client requests the lock (see [`Revoker`](crate::Revoker)), and returns the request; at once if
    /// one has come already. Each request is returned once, to one caller; of several that came before this was called,
    /// the last.
    ///
    /// The holder decides whether it finishes and releases, or goes on.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`LostReason`], if the lock is lost first.
    pub async fn revocation_requested(&self) -> Result<RevocationRequest, LostReason> {
        if let Some(reason) = self.reason() {
            return Err(reason);
        }
        let listener = self.listener();
        let look = WatchScope::Requests(&listener);
        let loss = loss(
            &self.0.session,
            self.0.held.node.path(),
            &self.0.held.lease,
            look,
            None,
        );
        // Needs no waker of its own: the future polled before it fills the listener.
        let request = poll_fn(|_| match listener.take() {
            Some(request) => Poll::Ready(request),
            None => Poll::Pending,
        });
        match select(loss, request).await {
            Either::Left(reason) => Err(self.note(reason)),
            Either::Right(request) => Ok(request),
        }
    }

    /// Runs a future for as long as the lock is held.
    ///
    /// # Errors
    /// [`LostReason`], if the lock is lost first. The future is dropped then; but tasks that it spawned and requests that
    /// it sent go on, and only the token stops those.
    pub async fn protect<F: Future>(&self, future: F) -> Result<F::Output, LostReason> {
        match select(self.lost(), future).await {
            Either::Left(reason) => Err(reason),
            Either::Right(output) => Ok(output),
        }
    }

    /// Returns the holder's metadata, as written to its znode.
    pub fn metadata(&self) -> LockMetadata {
        LockMetadata::parse(&self.0.data.lock().to_bytes()).unwrap_or_default()
    }

    /// Returns the holder's znode.
    pub fn path(&self) -> &ZnodePath {
        self.0.held.node.path()
    }

    /// Returns the session that holds.
    pub fn session(&self) -> &Session {
        &self.0.session
    }

    /// Releases the lock and waits until the store has confirmed it.
    ///
    /// The release is sent by the call itself; dropping the future does not stop it. A release that the
    /// store refuses for a passing reason (a limit, a full disk) is repeated until it succeeds or the
    /// session has ended: while the future is awaited, and in the background once it is dropped.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock had been lost before: another client may have held it while work under this guard
    /// went on.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.release_owned()
    }

    fn note(&self, reason: LostReason) -> LostReason {
        // The monitor's cell is shared with views of this guard: the first reason in it counts for all.
        let reason = match &self.0.monitor {
            Some(monitor) => {
                if reason != LostReason::Released {
                    // It reports the loss, and would look for a removal much later.
                    monitor.watch_removal();
                }
                *monitor.lost().get_or_init(|| reason)
            }
            None => reason,
        };
        *self.0.lost.get_or_init(|| reason)
    }

    fn note_end(&self, error: Error) -> LockError {
        match lost_with(&error) {
            Some(reason) => self.note(reason).into(),
            None => error.into(),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !*self.0.released.get_mut() && self.send_release().is_under_way() {
            // The process may end with the next instruction: the delete must be on the connection before (invariant 7).
            self.0.session.flush();
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("path", self.0.held.node.path())
            .field("fencing_token", &self.0.held.token)
            .field("held", &self.reason().is_none())
            .finish()
    }
}

/// Returns the loss that the end of a session causes.
fn lost_with(error: &Error) -> Option<LostReason> {
    match error {
        Error::SessionExpired { .. } => Some(LostReason::SessionExpired),
        Error::SessionClosed { .. } => Some(LostReason::SessionClosed),
        _ => None,
    }
}
