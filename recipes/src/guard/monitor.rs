//! [`Monitor`]: notices the loss of a guard by itself, and reports it as an event and in the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Wake;

use lockkeeper_store::{
    Error, Heartbeat, Lease, Session, SessionId, SessionState, SessionStatus, TickPlace, Watcher,
    ZnodePath, spawn_detached,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Guard;
use crate::error::LostReason;
use crate::events::LockEvent;
use crate::metadata::EntryData;
use crate::names::Kind;
use crate::queue::remove;
use crate::reporter::{Reporter, label};
use crate::revocation::Listener;
use crate::select::{Either, select};
use crate::token::FencingToken;

/// Watch over a guard with a session that can lapse, or with events.
///
/// Its work starts once the lock has outlasted a tick of the clock, or `is_held` is called: most locks are released
/// before, and are spared its task, timers and subscriptions. What it would have reported is late by a tick, and `is_held`
/// knows it by itself.
pub(super) struct Monitor(Arc<Watched>);

/// State that a guard, its monitor's work and its views share.
#[derive(Default)]
struct Watched {
    lost: OnceLock<LostReason>,
    /// True once the loss has been reported: by the monitor, or by a holder that noticed it first, and released.
    is_reported: AtomicBool,
    /// Notified when `is_held` is called, once the work has started.
    asked: Notify,
    /// True once the guard is gone, or its monitor is not needed any more.
    is_ended: AtomicBool,
    ended: Notify,
    /// `None` once the monitor has ended.
    hold: Mutex<Option<Hold>>,
}

/// Resources of a monitor while the guard holds.
struct Hold {
    _heartbeat: Heartbeat,
    /// `None` once the work has started.
    postponed: Option<(Subject, TickPlace)>,
}

/// The lock that is watched.
struct Subject {
    session: Session,
    lease: Lease,
    holder: Holder,
}

/// Description of a holder, for the report of its loss.
pub(super) struct Holder {
    path: ZnodePath,
    kind: Kind,
    token: FencingToken,
    data: EntryData,
    reporter: Reporter,
}

impl Holder {
    /// Logs the loss, and reports it as an event.
    pub(super) fn report_lost(&self, reason: LostReason) {
        tracing::warn!(
            path = %self.path,
            kind = self.kind.role(),
            label = label(&self.data),
            token = %self.token,
            %reason,
            "a lock was lost"
        );
        self.reporter.report(LockEvent::Lost { reason });
    }
}

impl Watched {
    fn is_first_to_report(&self) -> bool {
        !self.is_reported.swap(true, Ordering::AcqRel)
    }

    async fn until_ended(&self) {
        while !self.is_ended.load(Ordering::Acquire) {
            self.ended.notified().await;
        }
    }

    /// Takes the lock to be watched, unless the work has started, or the monitor has ended.
    fn take_postponed(&self) -> Option<Subject> {
        let postponed = self.hold.lock().as_mut()?.postponed.take();
        // The place is given up outside of the lock.
        postponed.map(|(subject, _)| subject)
    }
}

impl Wake for Watched {
    /// Starts the work, at the first tick of the clock that the lock has outlasted.
    fn wake(self: Arc<Self>) {
        if let Some(subject) = self.take_postponed() {
            watch(self, subject, Start::Tick, None);
        }
    }
}

/// Function to call at a loss.
pub(crate) type OnLoss = Box<dyn FnOnce() + Send>;

/// View of a guard that outlives it, to tell whether it is held.
#[derive(Clone)]
pub(crate) struct GuardView {
    lease: Lease,
    watched: Arc<Watched>,
}

impl GuardView {
    /// As [`Guard::is_held`].
    pub(crate) fn is_held(&self) -> bool {
        self.watched.lost.get().is_none() && self.lease.is_valid()
    }
}

impl Guard {
    /// Starts a monitor that notices a forced removal at once, and calls the function that `on_loss` returns when the lock
    /// is lost for any reason. A release is no loss.
    pub(crate) fn monitored(mut self, on_loss: impl FnOnce(GuardView) -> OnLoss) -> Self {
        let monitor = Monitor::new(&self);
        let view = GuardView {
            lease: self.0.held.lease.clone(),
            watched: monitor.0.clone(),
        };
        let start = match self.0.reporter.sink() {
            Some(_) => Start::Events(self.listener()),
            None => Start::Asked,
        };
        watch(
            monitor.0.clone(),
            self.subject(),
            start,
            Some(on_loss(view)),
        );
        self.0.monitor = Some(monitor);
        self
    }

    fn subject(&self) -> Subject {
        Subject {
            session: self.0.session.clone(),
            lease: self.0.held.lease.clone(),
            holder: self.holder(),
        }
    }

    pub(super) fn holder(&self) -> Holder {
        Holder {
            path: self.0.held.node.path().clone(),
            kind: self.0.kind,
            token: self.0.held.token,
            data: self.0.data.lock().clone(),
            reporter: self.0.reporter.clone(),
        }
    }
}

impl Monitor {
    /// Creates the monitor of a guard without views. It watches at once only where there are events to put.
    pub(super) fn of(guard: &Guard) -> Self {
        let monitor = Self::new(guard);
        match guard.0.reporter.sink() {
            Some(_) => {
                let start = Start::Events(guard.listener());
                watch(monitor.0.clone(), guard.subject(), start, None);
            }
            None => monitor.postpone(guard),
        }
        monitor
    }

    fn new(guard: &Guard) -> Self {
        let hold = Hold {
            _heartbeat: guard.0.session.heartbeat(),
            postponed: None,
        };
        Self(Arc::new(Watched {
            hold: Mutex::new(Some(hold)),
            ..Watched::default()
        }))
    }

    fn postpone(&self, guard: &Guard) {
        let clock = guard.0.session.clock();
        // Under the lock: a tick that comes at once finds the subject.
        if let Some(hold) = &mut *self.0.hold.lock() {
            let tick = clock.wake_at_next_tick(self.0.clone().into());
            hold.postponed = Some((guard.subject(), tick));
        }
    }

    /// Returns the reason of the loss, once it is known to the guard, its monitor or a view.
    pub(super) fn lost(&self) -> &OnceLock<LostReason> {
        &self.0.lost
    }

    /// Starts to watch for a removal.
    pub(super) fn watch_removal(&self) {
        match self.0.take_postponed() {
            Some(subject) => watch(self.0.clone(), subject, Start::Asked, None),
            None => self.0.asked.notify_one(),
        }
    }

    /// Ends the monitor of a guard. Reports a loss that it has not reported yet.
    pub(super) fn end(&self, guard: &Guard) {
        let known = guard.0.lost.get().copied();
        if let Some(reason) = known.filter(|reason| *reason != LostReason::Released)
            && self.0.is_first_to_report()
        {
            guard.holder().report_lost(reason);
        }
        self.stop();
    }

    fn stop(&self) {
        if !self.0.is_ended.swap(true, Ordering::AcqRel) {
            self.0.ended.notify_one();
        }
        // Dropped outside of its lock.
        let hold = self.0.hold.lock().take();
        drop(hold);
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reason for which a monitor starts its work.
enum Start {
    /// The lock has outlasted a tick.
    Tick,
    /// A removal is to be noticed soon.
    Asked,
    /// The caller wants events.
    Events(Listener),
}

/// Watches a lock in the background until the monitor ends or the lock is lost.
fn watch(watched: Arc<Watched>, subject: Subject, start: Start, on_loss: Option<OnLoss>) {
    spawn_detached(async move {
        let Subject {
            session,
            lease,
            holder,
        } = &subject;
        let scope = match &start {
            Start::Tick => WatchScope::Later(&watched.asked),
            Start::Asked => WatchScope::Removal,
            Start::Events(listener) => WatchScope::Requests(listener),
        };
        let loss = loss(session, &holder.path, lease, scope, Some(&holder.reporter));
        let Either::Right(reason) = select(watched.until_ended(), loss).await else {
            return;
        };
        // Again: a release between the two polls of the select has ended this before it sent the delete, which is
        // then no removal.
        if watched.is_ended.load(Ordering::Acquire) {
            return;
        }
        let reason = *watched.lost.get_or_init(|| reason);
        if let Some(on_loss) = on_loss {
            on_loss();
        }
        if watched.is_first_to_report() {
            holder.report_lost(reason);
        }
        // The session may survive the lapse of the lease, and would keep the znode: let others in.
        if reason == LostReason::LeaseExpired {
            remove(session, &holder.path);
        }
    });
}

/// Returns the reason for which a lease can no longer be believed in; `None` while it is valid.
#[inline]
pub(super) fn reason_of(lease: &Lease) -> Option<LostReason> {
    if lease.is_valid() {
        return None;
    }
    // The end of the session is the more exact reason.
    let status = lease.status();
    Some(match status.state() {
        SessionState::Expired => LostReason::SessionExpired,
        SessionState::Closed => LostReason::SessionClosed,
        _ if !status.is_alive() => LostReason::SessionClosed,
        _ => LostReason::LeaseExpired,
    })
}

/// Scope of the watch over a held znode. Its session is always watched.
pub(super) enum WatchScope<'a> {
    /// Its existence, from the first `is_held` on, or when it has been held for a while: the watch costs a request, which a
    /// short hold is spared.
    Later(&'a Notify),
    /// Its existence, from now on.
    Removal,
    /// Its existence, and the revocation requests that others write into its data.
    Requests(&'a Listener),
}

/// Waits until a held znode is lost, and returns the reason.
pub(super) async fn loss(
    session: &Session,
    path: &ZnodePath,
    lease: &Lease,
    scope: WatchScope<'_>,
    reporter: Option<&Reporter>,
) -> LostReason {
    let status = session.status();
    // Subscribed before the lease is checked: a change in between is not missed.
    let mut states = status.states();
    let mut suspension = Suspension::new(reporter, status);
    let mut removal = Box::pin(async {
        match scope {
            WatchScope::Later(asked) => {
                asked_or_held_for_a_while(session, asked).await;
                removed(session, path, None).await;
            }
            WatchScope::Removal => removed(session, path, None).await,
            WatchScope::Requests(listener) => removed(session, path, Some(listener)).await,
        }
    });
    loop {
        if let Some(reason) = reason_of(lease) {
            return reason;
        }
        let deadline = async {
            match status.held_until() {
                Some(deadline) => session.clock().sleep_until(deadline.moment()).await,
                None => std::future::pending().await,
            }
        };
        // A new connection may bring a shorter timeout, and with it an earlier deadline.
        let ends = select(deadline, status.shortened());
        match select(select(removal.as_mut(), states.next()), ends).await {
            // The end of the session deletes the znode, too, and its event may come first.
            Either::Left(Either::Left(())) => {
                return reason_of(lease).unwrap_or(LostReason::Revoked);
            }
            Either::Left(Either::Right(Some(state))) => suspension.tell(state),
            // The deadline has moved, or has passed: the loop looks again.
            _ => {}
        }
    }
}

/// Waits until `is_held` is called, for a third of the session's timeout at most: the interval of its heartbeats.
async fn asked_or_held_for_a_while(session: &Session, asked: &Notify) {
    let held = async {
        match session.timeout() {
            Some(timeout) => session.clock().sleep(timeout / 3).await,
            None => std::future::pending().await,
        }
    };
    select(asked.notified(), held).await;
}

/// Suspensions of a session, as the events of a guard: each resumption is told after its suspension.
struct Suspension<'a> {
    reporter: Option<&'a Reporter>,
    status: &'a SessionStatus,
    is_told: bool,
}

impl<'a> Suspension<'a> {
    /// Tells of the suspension that the guard begins with, if the connection was lost since it was granted.
    fn new(reporter: Option<&'a Reporter>, status: &'a SessionStatus) -> Self {
        let mut this = Self {
            reporter,
            status,
            is_told: false,
        };
        this.tell(status.state());
        this
    }

    /// A stream of states misses those that were overwritten: of a suspension that was missed no end is told.
    fn tell(&mut self, state: SessionState) {
        let Some(reporter) = self.reporter else {
            return;
        };
        match state {
            SessionState::Suspended if !std::mem::replace(&mut self.is_told, true) => {
                reporter.report(LockEvent::Suspended {
                    held_until: self.status.held_until(),
                });
            }
            SessionState::Reconnected if std::mem::replace(&mut self.is_told, false) => {
                reporter.report(LockEvent::Resumed);
            }
            _ => {}
        }
    }
}

/// Waits until a held znode is gone; forever if the session ends first, which the caller notices by itself.
///
/// An event alone is not believed: at the end of the session it may come before that end is known. So the znode is read
/// again after each.
async fn removed(session: &Session, path: &ZnodePath, listener: Option<&Listener>) {
    loop {
        match watch_own(session, path, listener).await {
            Ok(Some((owner, watcher))) if owner == session.id() => {
                let _ = watcher.await;
            }
            Ok(_) => return,
            Err(Error::ConnectionLoss) => {}
            // The right is missing, or the session is over: a removal cannot be noticed.
            Err(_) => std::future::pending().await,
        }
        if !session.status().is_alive() {
            std::future::pending::<()>().await;
        }
    }
}

/// Arms a watch on a held znode, and passes its data to the listener. Returns its owner, if it exists.
async fn watch_own(
    session: &Session,
    path: &ZnodePath,
    listener: Option<&Listener>,
) -> Result<Option<(SessionId, Watcher)>, Error> {
    let Some(listener) = listener else {
        let (stat, watcher) = session.watch_exists(path).await?;
        return Ok(stat.map(|stat| (stat.ephemeral_owner, watcher)));
    };
    match session.watch_data(path).await {
        Ok((data, stat, watcher)) => {
            listener.hear(&data, &stat);
            Ok(Some((stat.ephemeral_owner, watcher)))
        }
        Err(Error::NoNode { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
