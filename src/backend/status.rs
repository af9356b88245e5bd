//! [`SessionStatus`]: where a session stands, and until when it can believe so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::lease::{Beat, Lease, LeaseState, Sent};
use super::states::{StateStream, States};
use crate::clock::{BootInstant, Clock, Deadline};
use crate::error::{Error, Result};
use crate::fork;
use crate::types::{SessionId, SessionState};

/// Where a session stands with its store. The backend writes it, everybody reads it.
#[derive(Debug)]
pub struct SessionStatus {
    id: SessionId,
    clock: Clock,
    /// `None` where the store never expires the session.
    lease: Option<Mutex<LeaseState>>,
    /// The tick of an ensemble; `None` where every answer proves that the session lives.
    tick: Option<Duration>,
    /// Wakes those who wait for a lease that is fresh.
    renewed: Notify,
    /// Wakes those who wait for the lease to end, when that comes sooner than it was to.
    shortened: Notify,
    /// Wakes the session's heartbeat, which has cause to come sooner.
    pulse: Arc<Notify>,
    state: AtomicU8,
    closing: AtomicBool,
    states: States,
    cleanups: Mutex<usize>,
    /// Notified when the last clean-up has come to its end.
    cleaned_up: Condvar,
}

/// ZooKeeper's own tick (`tickTime`), where nothing else is said.
pub(crate) const DEFAULT_TICK: Duration = Duration::from_secs(2);

impl SessionStatus {
    /// The status of a session that was connected just now, by a request sent at `sent`.
    ///
    /// `timeout` is `None` where the store never expires the session. `quorum_only` says that the
    /// store is an ensemble, whose followers answer by themselves; its tick is taken to be ZooKeeper's
    /// usual 2 s (see [`with_tick`](Self::with_tick)).
    pub fn new(
        id: SessionId,
        clock: Clock,
        timeout: Option<Duration>,
        quorum_only: bool,
        sent: BootInstant,
    ) -> Self {
        let tick = quorum_only.then_some(DEFAULT_TICK);
        Self {
            id,
            clock,
            lease: timeout.map(|timeout| Mutex::new(LeaseState::new(timeout, tick, sent))),
            tick,
            renewed: Notify::new(),
            shortened: Notify::new(),
            pulse: Arc::default(),
            state: AtomicU8::new(SessionState::Connected as u8),
            closing: AtomicBool::new(false),
            states: States::connected(),
            cleanups: Mutex::new(0),
            cleaned_up: Condvar::new(),
        }
    }

    /// The same, of an ensemble with this tick (see [`ConnectOptions::ensemble_tick`]). Means nothing
    /// to a session at a single server.
    ///
    /// [`ConnectOptions::ensemble_tick`]: crate::ConnectOptions::ensemble_tick
    #[must_use]
    pub fn with_tick(mut self, tick: Duration) -> Self {
        self.tick = self.tick.map(|_| tick);
        if let Some(lease) = &mut self.lease {
            lease.get_mut().set_tick(tick);
        }
        self
    }

    /// The session's number.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The clock that the session lives by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The timeout that is agreed with the server, as far as is known; `None` where the store never
    /// expires the session.
    #[inline]
    pub fn timeout(&self) -> Option<Duration> {
        self.lease.as_ref().map(|lease| lease.lock().timeout())
    }

    /// Returns true if the store may expire the session.
    #[inline]
    pub(crate) fn has_timeout(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether only a committed write proves that the session lives (an ensemble).
    pub fn quorum_only(&self) -> bool {
        self.tick.is_some()
    }

    /// The ensemble's tick; `None` at a single server.
    pub fn tick(&self) -> Option<Duration> {
        self.tick
    }

    /// The state now.
    #[inline]
    pub fn state(&self) -> SessionState {
        const STATES: [SessionState; 5] = [
            SessionState::Connected,
            SessionState::Suspended,
            SessionState::Reconnected,
            SessionState::Expired,
            SessionState::Closed,
        ];
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    /// The number of the current connection: it grows with each reconnection.
    pub fn connection(&self) -> u64 {
        self.states.connections()
    }

    /// All changes of state from now on; one that overtakes another replaces it.
    pub fn states(&self) -> StateStream {
        self.states.stream()
    }

    /// Writes a new state. A final one stays.
    pub fn set_state(&self, state: SessionState) {
        self.states.set(state, || {
            // Before the state is seen: what is sent from now on belongs to the next connection.
            if state == SessionState::Suspended
                && let Some(lease) = &self.lease
            {
                lease.lock().disconnected();
            }
            self.state.store(state as u8, Ordering::Release);
        });
        if state == SessionState::Reconnected {
            self.pulse.notify_one();
        }
    }

    /// Says that the session is being closed from this side: from now on nothing is held.
    pub(crate) fn set_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Returns true while the session can hold anything, timeouts apart. After a fork it is the parent's alone.
    #[inline]
    pub fn is_alive(&self) -> bool {
        !fork::is_forked() && !self.closing.load(Ordering::Acquire) && !self.state().is_final()
    }

    /// The error of a session that is over; `None` while it lives.
    pub fn end(&self) -> Option<Error> {
        let session = self.id;
        match self.state() {
            _ if fork::is_forked() => Some(Error::Forked),
            SessionState::Expired => Some(Error::SessionExpired { session }),
            SessionState::Closed => Some(Error::SessionClosed { session }),
            _ => None,
        }
    }

    /// Notes that a request is about to be sent.
    pub(crate) fn sending(&self) -> Option<Sent> {
        let lease = self.lease.as_ref()?;
        Some(lease.lock().sending(self.clock.now()))
    }

    /// Notes that the store answered a request, which was a `commit` or anything else.
    pub(crate) fn answered(&self, request: Sent, is_commit: bool) {
        let Some(lease) = &self.lease else { return };
        let renewed = lease.lock().answered(request, is_commit, self.clock.now());
        if renewed {
            self.renewed.notify_waiters();
        }
    }

    /// Notes that the session was alive when the store handled a request that was sent at `sent` or later.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn prove(&self, sent: BootInstant) {
        let Some(lease) = &self.lease else { return };
        if lease.lock().prove(sent, self.clock.now()) {
            self.renewed.notify_waiters();
        }
    }

    /// Notes that the timeout may be agreed anew with the next connection: until it is
    /// [known](Self::set_timeout), the lease does not move forward.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn unsettle_timeout(&self) {
        if let Some(lease) = &self.lease {
            lease.lock().unsettle();
        }
    }

    /// Writes the timeout that was agreed with the server.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let Some(lease) = &self.lease else { return };
        lease.lock().settle(timeout, self.clock.now());
        self.renewed.notify_waiters();
        self.shortened.notify_waiters();
        self.pulse.notify_one();
    }

    /// Waits until the lease may end sooner than [`held_until`](Self::held_until) said when this was
    /// called: when a reconnection has brought a shorter timeout.
    ///
    /// Cancel safe.
    pub fn shortened(&self) -> impl Future<Output = ()> + Send + '_ {
        self.shortened.notified()
    }

    /// Waits until the lease has [enough left](Lease::may_grant) for a grant, and returns it.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// The error of the session's end, if it comes first.
    pub(crate) async fn fresh_lease(self: &Arc<Self>) -> Result<Lease> {
        let mut states = self.states();
        loop {
            let renewed = self.renewed.notified();
            if !self.is_alive() {
                let session = self.id;
                return Err(self.end().unwrap_or(Error::SessionClosed { session }));
            }
            if self.is_fresh() {
                return Ok(self.lease());
            }
            crate::select::select(renewed, states.next()).await;
        }
    }

    /// Returns true if a fifth of the timeout is left until the lease ends.
    #[inline]
    pub(super) fn is_fresh(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.is_none_or(|lease| lease.lock().is_fresh(self.clock.now()))
    }

    /// Returns the wake-up of the session's heartbeat.
    pub(crate) fn pulse(&self) -> &Arc<Notify> {
        &self.pulse
    }

    /// When the next heartbeat is due; `None` for a session that needs none.
    pub(crate) fn next_beat(&self, last: Option<Beat>) -> Option<BootInstant> {
        let lease = self.lease.as_ref()?;
        Some(lease.lock().next_beat(last, self.clock.now()))
    }

    /// Returns the time for which a session keeps its proof fresh after its last use.
    pub(crate) fn idle_after(&self) -> Duration {
        let lease = self.lease.as_ref();
        lease.map_or(Duration::ZERO, |lease| lease.lock().idle_after())
    }

    /// Until when nobody else can hold what this session holds; `None` for as long as it lives.
    ///
    /// The moment at which the last request was sent whose answer proves the session alive, plus
    /// nine tenths of the timeout. A single server's answer proves it. In an ensemble a committed write
    /// does, of an earlier one that was answered on the same connection at least a
    /// [tick](Self::tick), or a quarter of the timeout, before it was sent.
    ///
    /// While it is not known which timeout was agreed with a new connection, it does not move forward;
    /// a shorter one brings it back.
    #[inline]
    pub fn held_until(&self) -> Option<Deadline> {
        let lease = self.lease.as_ref()?;
        let end = lease.lock().end();
        Some(Deadline::new(self.clock.clone(), end))
    }

    /// Returns the lease that the session has now, for a lock to remember: valid until the session ends, or
    /// [`held_until`](Self::held_until) passes.
    #[inline]
    pub fn lease(self: &Arc<Self>) -> Lease {
        Lease::new(self.clone())
    }

    /// Returns how often [`held_until`](Self::held_until) had passed when a new proof of life came.
    #[inline]
    pub(super) fn lapses(&self) -> u64 {
        let lease = self.lease.as_ref();
        lease.map_or(0, |lease| lease.lock().lapses())
    }

    /// Returns true if the session is alive, and its lease has not ended since it had had so many lapses.
    #[inline]
    pub(super) fn is_believed_since(&self, lapses: u64) -> bool {
        self.is_alive()
            && self.lease.as_ref().is_none_or(|lease| {
                let lease = lease.lock();
                !lease.has_ended(self.clock.now()) && lease.lapses() == lapses
            })
    }

    /// Returns the number of clean-ups of the session that have not come to their end ([`Cleanup`](super::Cleanup)).
    pub fn pending_cleanups(&self) -> usize {
        *self.cleanups.lock()
    }

    pub(super) fn cleanup_begins(&self) {
        *self.cleanups.lock() += 1;
    }

    pub(super) fn cleanup_ends(&self) {
        let mut cleanups = self.cleanups.lock();
        *cleanups -= 1;
        if *cleanups == 0 {
            self.cleaned_up.notify_all();
        }
    }

    /// Blocks until no clean-up is pending, for at most `limit`. Returns false if some are then.
    pub(crate) fn wait_for_cleanups(&self, limit: Duration) -> bool {
        let mut cleanups = self.cleanups.lock();
        let is_pending = |cleanups: &mut usize| *cleanups > 0;
        let waited = self
            .cleaned_up
            .wait_while_for(&mut cleanups, is_pending, limit);
        !waited.timed_out()
    }
}
