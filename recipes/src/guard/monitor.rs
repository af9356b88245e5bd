//! [`Monitor`]: notices the loss of a guard by itself, and reports it as an event and in the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use lockkeeper_store::{
    Error, Heartbeat, Lease, Session, SessionId, SessionState, SessionStatus, Watcher, ZnodePath,
    spawn_detached,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Guard;
use crate::error::LostReason;
use crate::events::{EventSink, LockEvent};
use crate::queue::remove;
use crate::revocation::Listener;
use crate::select::{Either, select};

/// Watch over a guard with a session that can lapse, or with events.
pub(super) struct Monitor {
    watched: Arc<Watched>,
    heartbeat: Mutex<Option<Heartbeat>>,
}

/// State that a guard, its monitor's work and its views share.
#[derive(Debug, Default)]
struct Watched {
    lost: OnceLock<LostReason>,
    /// True once the loss has been put as an event: by the monitor, or by a holder that noticed it first, and released.
    is_told: AtomicBool,
    /// Notified when `is_held` is called.
    asked: Notify,
    /// True once the guard is gone, or its monitor is not needed any more.
    is_ended: AtomicBool,
    ended: Notify,
}

impl Watched {
    async fn until_ended(&self) {
        while !self.is_ended.load(Ordering::Acquire) {
            self.ended.notified().await;
        }
    }
}

/// Function to call at a loss.
pub(crate) type OnLoss = Box<dyn FnOnce() + Send>;

/// View of a guard that outlives it, to tell whether it is held.
#[derive(Clone, Debug)]
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
        let view = GuardView {
            lease: self.held.lease.clone(),
            watched: Arc::default(),
        };
        let watched = view.watched.clone();
        self.monitor = Some(Monitor::start(&self, watched, Some(on_loss(view))));
        self
    }
}

impl Monitor {
    /// Starts the monitor of a guard without views.
    pub(super) fn of(guard: &Guard) -> Box<Self> {
        Self::start(guard, Arc::default(), None)
    }

    fn start(guard: &Guard, watched: Arc<Watched>, on_loss: Option<OnLoss>) -> Box<Self> {
        let heartbeat = guard.session.heartbeat();
        let (session, path) = (guard.session.clone(), guard.held.path.clone());
        let (lease, events) = (guard.held.lease.clone(), guard.events.clone());
        let listener = events.is_some().then(|| guard.listener());
        let (shared, is_viewed) = (watched.clone(), on_loss.is_some());
        spawn_detached(async move {
            let watched = &*shared;
            let loss = async {
                let look = match &listener {
                    Some(listener) => WatchScope::Requests(listener),
                    None if is_viewed => WatchScope::Removal,
                    None => outlasts_a_tick(&session, &watched.asked).await,
                };
                // Boxed: a hold that ends within a tick needs no room for it.
                Box::pin(loss(&session, &path, &lease, look, events.as_ref())).await
            };
            let Either::Right(reason) = select(watched.until_ended(), loss).await else {
                return;
            };
            // Again: a release between the two polls of the select has ended this before it sent the delete, which is
            // then no removal.
            if watched.is_ended.load(Ordering::Acquire) {
                return;
            }
            let reason = *watched.lost.get_or_init(|| reason);
            tracing::warn!(%path, %reason, "a lock was lost");
            if let Some(on_loss) = on_loss {
                on_loss();
            }
            watched.tell_lost(events.as_ref(), reason);
            // The session may survive the lapse of the lease, and would keep the znode: let others in.
            if reason == LostReason::LeaseExpired {
                remove(&session, &path);
            }
        });
        let heartbeat = Mutex::new(Some(heartbeat));
        Box::new(Self { watched, heartbeat })
    }

    /// Returns the reason of the loss, once it is known to the guard, its monitor or a view.
    pub(super) fn lost(&self) -> &OnceLock<LostReason> {
        &self.watched.lost
    }

    /// Starts to watch for a removal.
    pub(super) fn watch_removal(&self) {
        self.watched.asked.notify_one();
    }

    /// Ends the monitor. Puts the event of a loss that it has not put yet.
    pub(super) fn end(&self, known: Option<LostReason>, events: Option<&EventSink>) {
        if let Some(reason) = known.filter(|reason| *reason != LostReason::Released) {
            self.watched.tell_lost(events, reason);
        }
        self.stop();
    }

    fn stop(&self) {
        if !self.watched.is_ended.swap(true, Ordering::AcqRel) {
            self.watched.ended.notify_one();
        }
        drop(self.heartbeat.lock().take());
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Watched {
    fn tell_lost(&self, events: Option<&EventSink>, reason: LostReason) {
        if let Some(events) = events
            && !self.is_told.swap(true, Ordering::AcqRel)
        {
            events.put(LockEvent::Lost { reason });
        }
    }
}

/// Waits until a lock has been held for a tick of the clock, or `is_held` is called: most are released before, and are
/// spared the timers and subscriptions of the watch. What their monitor would have reported is late by a tick, and
/// `is_held` knows it by itself.
async fn outlasts_a_tick<'a>(session: &Session, asked: &'a Notify) -> WatchScope<'a> {
    match select(asked.notified(), session.clock().next_tick()).await {
        Either::Left(()) => WatchScope::Removal,
        Either::Right(_) => WatchScope::Later(asked),
    }
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
    look: WatchScope<'_>,
    events: Option<&EventSink>,
) -> LostReason {
    let status = session.status();
    // Subscribed before the lease is checked: a change in between is not missed.
    let mut states = status.states();
    let mut suspension = Suspension::new(events, status);
    let mut removal = Box::pin(async {
        match look {
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
    events: Option<&'a EventSink>,
    status: &'a SessionStatus,
    is_told: bool,
}

impl<'a> Suspension<'a> {
    /// Tells of the suspension that the guard begins with, if the connection was lost since it was granted.
    fn new(events: Option<&'a EventSink>, status: &'a SessionStatus) -> Self {
        let mut this = Self {
            events,
            status,
            is_told: false,
        };
        this.tell(status.state());
        this
    }

    /// A stream of states misses those that were overwritten: of a suspension that was missed no end is told.
    fn tell(&mut self, state: SessionState) {
        let Some(events) = self.events else { return };
        match state {
            SessionState::Suspended if !std::mem::replace(&mut self.is_told, true) => {
                events.put(LockEvent::Suspended {
                    held_until: self.status.held_until(),
                });
            }
            SessionState::Reconnected if std::mem::replace(&mut self.is_told, false) => {
                events.put(LockEvent::Resumed);
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
