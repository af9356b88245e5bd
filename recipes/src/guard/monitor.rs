//! [`Monitor`]: notices the loss of a guard in the background, and reports it as an event and in the log.

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

/// Background watch that notices and reports the loss of a guard. The watch starts when the lock has been held for a
/// clock tick, or when `is_held` is called. Most locks are released earlier and so need no task, timers or
/// subscriptions.
pub(super) struct Monitor(Arc<Watched>);

#[derive(Default)]
struct Watched {
    lost: OnceLock<LostReason>,
    is_reported: AtomicBool,
    /// Notified when `is_held` is called, so that a running monitor starts to watch for a removal.
    asked: Notify,
    is_ended: AtomicBool,
    ended: Notify,
    hold: Mutex<Option<MonitoredHold>>,
}

struct MonitoredHold {
    _heartbeat: Heartbeat,
    postponed: Option<(MonitoredGrant, TickPlace)>,
}

struct MonitoredGrant {
    session: Session,
    lease: Lease,
    holder: GrantInfo,
}

pub(super) struct GrantInfo {
    path: ZnodePath,
    kind: Kind,
    token: FencingToken,
    data: EntryData,
    reporter: Reporter,
}

impl GrantInfo {
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

    /// Returns `None` if the monitor is already watching or has ended.
    fn take_postponed(&self) -> Option<MonitoredGrant> {
        let postponed = self.hold.lock().as_mut()?.postponed.take();
        postponed.map(|(subject, _)| subject)
    }
}

impl Wake for Watched {
    fn wake(self: Arc<Self>) {
        if let Some(subject) = self.take_postponed() {
            watch(self, subject, Start::Tick, None);
        }
    }
}

pub(crate) type OnLoss = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub(crate) struct GuardView {
    lease: Lease,
    watched: Arc<Watched>,
}

impl GuardView {
    pub(crate) fn is_held(&self) -> bool {
        self.watched.lost.get().is_none() && self.lease.is_valid()
    }
}

impl Guard {
    /// Starts a monitor that watches immediately. The monitor calls the function returned by `on_loss` when the guard
    /// is lost, but not when the guard is released.
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

    fn subject(&self) -> MonitoredGrant {
        MonitoredGrant {
            session: self.0.session.clone(),
            lease: self.0.held.lease.clone(),
            holder: self.holder(),
        }
    }

    pub(super) fn holder(&self) -> GrantInfo {
        GrantInfo {
            path: self.0.held.node.path().clone(),
            kind: self.0.kind,
            token: self.0.held.token,
            data: self.0.data.lock().clone(),
            reporter: self.0.reporter.clone(),
        }
    }
}

impl Monitor {
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
        let hold = MonitoredHold {
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
        // Register for the tick under the mutex, so that even an immediate tick finds the lock to watch.
        if let Some(hold) = &mut *self.0.hold.lock() {
            let tick = clock.wake_at_next_tick(self.0.clone().into());
            hold.postponed = Some((guard.subject(), tick));
        }
    }

    pub(super) fn lost(&self) -> &OnceLock<LostReason> {
        &self.0.lost
    }

    pub(super) fn watch_removal(&self) {
        match self.0.take_postponed() {
            Some(subject) => watch(self.0.clone(), subject, Start::Asked, None),
            None => self.0.asked.notify_one(),
        }
    }

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
        let hold = self.0.hold.lock().take();
        drop(hold);
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop();
    }
}

enum Start {
    Tick,
    Asked,
    Events(Listener),
}

fn watch(watched: Arc<Watched>, subject: MonitoredGrant, start: Start, on_loss: Option<OnLoss>) {
    spawn_detached(async move {
        let MonitoredGrant {
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
        // Check again whether the monitor has ended. After `select` polled the first future, a release may have ended
        // the monitor and sent its delete, which `loss` then mistook for a removal by another client.
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
        // The lease has lapsed, but the session may survive and keep the znode. Delete the znode, so that the next
        // contender gets the lock.
        if reason == LostReason::LeaseExpired {
            remove(session, &holder.path);
        }
    });
}

#[inline]
pub(super) fn reason_of(lease: &Lease) -> Option<LostReason> {
    if lease.is_valid() {
        return None;
    }
    // If the session has ended, its end is the more precise reason.
    let status = lease.status();
    Some(match status.state() {
        SessionState::Expired => LostReason::SessionExpired,
        SessionState::Closed => LostReason::SessionClosed,
        _ if !status.is_alive() => LostReason::SessionClosed,
        _ => LostReason::LeaseExpired,
    })
}

pub(super) enum WatchScope<'a> {
    /// Watch for a removal, but only after the first call of `is_held` or after a while, because a short hold should
    /// not cost a watch.
    Later(&'a Notify),
    Removal,
    Requests(&'a Listener),
}

pub(super) async fn loss(
    session: &Session,
    path: &ZnodePath,
    lease: &Lease,
    scope: WatchScope<'_>,
    reporter: Option<&Reporter>,
) -> LostReason {
    let status = session.status();
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
        // A new connection may have a shorter session timeout, and so an earlier deadline.
        let ends = select(deadline, status.shortened());
        match select(select(removal.as_mut(), states.next()), ends).await {
            // The end of the session deletes the znode too, and we may receive the deletion event before we notice the
            // end.
            Either::Left(Either::Left(())) => {
                return reason_of(lease).unwrap_or(LostReason::Revoked);
            }
            Either::Left(Either::Right(Some(state))) => suspension.tell(state),
            _ => {}
        }
    }
}

async fn asked_or_held_for_a_while(session: &Session, asked: &Notify) {
    let held = async {
        match session.timeout() {
            Some(timeout) => session.clock().sleep(timeout / 3).await,
            None => std::future::pending().await,
        }
    };
    select(asked.notified(), held).await;
}

/// Reports suspensions of the session as events of the guard. If the stream of states skips a suspension, we do not
/// report the resumption either.
struct Suspension<'a> {
    reporter: Option<&'a Reporter>,
    status: &'a SessionStatus,
    is_told: bool,
}

impl<'a> Suspension<'a> {
    fn new(reporter: Option<&'a Reporter>, status: &'a SessionStatus) -> Self {
        let mut this = Self {
            reporter,
            status,
            is_told: false,
        };
        this.tell(status.state());
        this
    }

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

/// Waits until the znode has been deleted. If the session ends first, waits forever, because the caller notices the
/// end.
///
/// After each event we read the znode again. If the event was caused by the end of the session, the read fails.
async fn removed(session: &Session, path: &ZnodePath, listener: Option<&Listener>) {
    loop {
        match watch_own(session, path, listener).await {
            Ok(Some((owner, watcher))) if owner == session.id() => {
                let _ = watcher.await;
            }
            Ok(_) => return,
            Err(Error::ConnectionLoss) => {}
            // Without permission, or after the end of the session, we cannot notice a removal.
            Err(_) => std::future::pending().await,
        }
        if !session.status().is_alive() {
            std::future::pending::<()>().await;
        }
    }
}

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
