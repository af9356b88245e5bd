//! [`Guard`]: a held lock.
//!
//! A guard owns one znode of one session. The lock counts as held while the guard's lease is valid and no deletion of
//! the znode is known. A lost guard stays lost (invariant 6).

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

/// A held lock. Dropping the guard releases the lock. [`release`](Self::release) also waits until the store has
/// confirmed the release.
///
/// If the store is in another process, the drop waits until the release has been written to the connection, because the
/// process may exit right afterwards. The drop waits for at most 5 ms, and not at all while the connection is lost. If
/// a guard is never dropped (`std::process::exit`, a static variable, SIGKILL), the lock is released after the session
/// timeout.
///
/// [`is_held`](Self::is_held) is only advice, because a frozen clock, a faulty ensemble leader or a forced removal can
/// make the result wrong. For safety the resource must check the [`fencing_token`](Self::fencing_token).
#[must_use = "dropping a guard releases the lock"]
pub struct Guard(Box<GuardState>);

/// Boxed because a guard is moved several times on its way to the caller.
struct GuardState {
    session: Session,
    held: Grant,
    kind: Kind,
    data: Mutex<EntryData>,
    own: OnceLock<Box<SelfNode>>,
    lost: OnceLock<LostReason>,
    monitor: Option<Monitor>,
    reporter: Reporter,
    released: AtomicBool,
}

impl Guard {
    #[inline(always)] // for the same reason as `of`
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

    /// Returns the token that the resource must check. It is greater than the token of every earlier holder.
    pub fn fencing_token(&self) -> FencingToken {
        self.0.held.token
    }

    /// Returns the deadline until which no other client can hold the lock, if clocks and the server work correctly. The
    /// deadline moves forward while the session lives. It does not reflect a forced removal.
    ///
    /// Returns `None` if the session has no timeout. The lock is then held until the guard is released, the client is
    /// closed or the entry is removed.
    pub fn held_until(&self) -> Option<Deadline> {
        self.0.session.held_until()
    }

    /// Returns `true` if the lock is still held, as far as this process can know.
    ///
    /// Never blocks. Once it has returned `false`, it never returns `true` again.
    ///
    /// # Forced removal
    ///
    /// A [`Revoker`](crate::Revoker), a [`Warden`](crate::Warden) or an operator can take the lock away. How soon this
    /// method notices the removal depends on the store:
    ///
    /// - Embedded store, in a session without a timeout: immediately.
    /// - Otherwise: when the deletion event arrives. The guard starts to watch its znode at the first call of this
    ///   method, or about a third of the session timeout after the grant, whichever is earlier.
    ///
    /// While the client is disconnected, the result depends only on [`held_until`](Self::held_until).
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
            _ => self.reason().is_none(),
        }
    }

    fn is_mine(&self, stat: Option<Stat>) -> bool {
        stat.is_some_and(|stat| stat.ephemeral_owner == self.0.session.id())
    }

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

    /// Waits until the lock is lost, and returns the reason. Also notices a forced removal.
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

    /// Waits until another client requests the lock (see [`Revoker`](crate::Revoker)), and returns the request. Each
    /// request is returned to one caller only. If several requests arrived before this call, returns the last one
    /// immediately.
    ///
    /// The holder decides whether to release the lock or to continue.
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
        // `loss` also reads requests from the znode and puts them into the listener. `select` polls `loss` first at
        // each wake, so this future needs no waker of its own.
        let request = poll_fn(|_| match listener.take() {
            Some(request) => Poll::Ready(request),
            None => Poll::Pending,
        });
        match select(loss, request).await {
            Either::Left(reason) => Err(self.note(reason)),
            Either::Right(request) => Ok(request),
        }
    }

    /// Runs a future while the lock is held.
    ///
    /// If the lock is lost first, returns the [`LostReason`] and drops the future. Tasks that the future spawned and
    /// requests that it sent continue, so the resource must also check the fencing token.
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

    /// Returns the session that holds the lock.
    pub fn session(&self) -> &Session {
        &self.0.session
    }

    /// Releases the lock and waits until the store has confirmed it.
    ///
    /// The call itself sends the release, so dropping the future does not stop the release. If the store refuses the
    /// release for a temporary reason (a limit, a full disk), the client retries until the release succeeds or the
    /// session has ended, in the background if necessary.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock was lost before the call. Another client may have held it while this guard's
    /// work continued.
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.release_owned()
    }

    fn note(&self, reason: LostReason) -> LostReason {
        // Use the reason that was stored first in the monitor's cell, because views of this guard read that cell too.
        let reason = match &self.0.monitor {
            Some(monitor) => {
                if reason != LostReason::Released {
                    // Wake the monitor to report the loss now. Otherwise it would look for a removal only much later.
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
            // The process may exit right after this drop, so the delete must be written to the connection first
            // (invariant 7).
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

fn lost_with(error: &Error) -> Option<LostReason> {
    match error {
        Error::SessionExpired { .. } => Some(LostReason::SessionExpired),
        Error::SessionClosed { .. } => Some(LostReason::SessionClosed),
        _ => None,
    }
}
