//! [`SessionStatus`]: a session's state and lease. The session's backend and the replies to its requests update the
//! status. Locks and waiters read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use tracing::field::display;

use super::lease::{Beat, Lease, LeaseState};
use super::states::{StateStream, States};
use crate::model::error::{Error, Result};
use crate::model::protocol::PendingProof;
use crate::model::types::{HumanDuration, SessionId, SessionState};
use crate::runtime::clock::{BootInstant, Clock, Deadline};
use crate::runtime::process::is_forked;

static PENDING_CLEANUPS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of clean-ups ([`Cleanup`](crate::Cleanup)) in progress in all sessions of this process.
pub fn pending_cleanups() -> usize {
    PENDING_CLEANUPS.load(Ordering::Relaxed)
}

/// State and lease of a session.
#[derive(Debug)]
pub struct SessionStatus {
    id: SessionId,
    clock: Clock,
    /// `None` if the store never expires the session.
    lease: Option<Mutex<LeaseState>>,
    /// Wakes tasks that wait for a fresh lease.
    renewed: Notify,
    /// Wakes the tasks that wait for the end of the lease when a shorter timeout makes the lease end earlier.
    shortened: Notify,
    /// Wakes the session's heartbeat task when the time of the next heartbeat may have changed.
    pulse: Arc<Notify>,
    state: AtomicU8,
    closing: AtomicBool,
    states: States,
    cleanups: Mutex<usize>,
    cleaned_up: Condvar,
}

pub(crate) const DEFAULT_TICK: Duration = Duration::from_secs(2);

impl SessionStatus {
    /// Returns the status of a session that was just opened by a request sent at `sent`.
    ///
    /// `timeout` is `None` if the store never expires the session. `quorum_only` is true for an ensemble, whose
    /// followers answer reads without asking the leader. The ensemble's tick is ZooKeeper's default of 2 s unless
    /// [`with_tick`](Self::with_tick) changes it.
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

    /// Sets the tick of the ensemble (see [`ConnectOptions::ensemble_tick`]). Has no effect on a session at a single
    /// server.
    ///
    /// [`ConnectOptions::ensemble_tick`]: crate::ConnectOptions::ensemble_tick
    #[must_use]
    pub fn with_tick(mut self, tick: Duration) -> Self {
        if let Some(lease) = &mut self.lease {
            lease.get_mut().set_tick(tick);
        }
        self
    }

    /// Lets only a confirmed keep-alive prove that the session is alive ([`KeepAlive`](super::lease::KeepAlive)).
    #[cfg(feature = "etcd")]
    pub(crate) fn with_keep_alive(mut self) -> Self {
        if let Some(lease) = &mut self.lease {
            lease.get_mut().set_keep_alive();
        }
        self
    }

    /// Returns the session's id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns the session's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the timeout that was negotiated last. `None` if the store never expires the session.
    #[inline]
    pub fn timeout(&self) -> Option<Duration> {
        self.lease.as_ref().map(|lease| lease.lock().timeout())
    }

    #[inline]
    pub(crate) fn has_timeout(&self) -> bool {
        self.lease.is_some()
    }

    /// Returns true if only a committed write proves that the session is alive, as in an ensemble. Returns false for a
    /// session that never expires.
    pub fn quorum_only(&self) -> bool {
        self.tick().is_some()
    }

    #[cfg(feature = "client")]
    pub(crate) fn set_single_server(&self) {
        if let Some(lease) = &self.lease {
            lease.lock().set_single_server();
        }
    }

    /// Returns the ensemble's tick. `None` for a session at a single server or without a timeout.
    pub fn tick(&self) -> Option<Duration> {
        self.lease.as_ref()?.lock().tick()
    }

    /// Returns the current state.
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

    /// Returns the number of the current connection, which grows with each reconnection.
    pub fn connection(&self) -> u64 {
        self.states.connections()
    }

    /// Returns a stream of the state changes that follow this call. A newer state replaces an unread one.
    pub fn states(&self) -> StateStream {
        self.states.stream()
    }

    /// Sets the state. A final state is never overwritten.
    pub fn set_state(&self, state: SessionState) {
        let mut is_new = false;
        self.states.set(state, || {
            is_new = true;
            // Call this before `Suspended` becomes visible. A request that is submitted later is sent on the next
            // connection, so its answer must not prove writes of the lost connection.
            if state == SessionState::Suspended
                && let Some(lease) = &self.lease
            {
                lease.lock().disconnected();
            }
            self.state.store(state as u8, Ordering::Release);
        });
        if is_new {
            self.log(state);
        }
        // No answer on the new connection has yet proved that the session is alive, so a heartbeat is due immediately.
        if state == SessionState::Reconnected {
            self.pulse.notify_one();
        }
    }

    fn log(&self, state: SessionState) {
        let session = self.id;
        match state {
            SessionState::Suspended => {
                let held_for = self
                    .held_until()
                    .map(|deadline| HumanDuration(deadline.remaining()))
                    .map(|left| display(format!("{left:.1}")));
                tracing::warn!(%session, held_for, "the connection is lost: locks are held for that long at most");
            }
            SessionState::Reconnected => tracing::info!(%session, "the connection is back"),
            SessionState::Expired => tracing::warn!(%session, "the session has expired"),
            SessionState::Connected | SessionState::Closed => {}
        }
    }

    /// Marks the session as being closed by this client. The session holds no locks from now on, because the next
    /// holder may be granted a lock before we see the answer to the close.
    pub(crate) fn set_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Returns true while the session can hold locks, regardless of its lease. Always false in the child of a fork,
    /// because the session belongs to the parent.
    #[inline]
    pub fn is_alive(&self) -> bool {
        !is_forked() && !self.closing.load(Ordering::Acquire) && !self.state().is_final()
    }

    /// Returns the error that requests of an ended session fail with. `None` while the session has not ended.
    pub fn end(&self) -> Option<Error> {
        let session = self.id;
        match self.state() {
            _ if is_forked() => Some(Error::Forked),
            SessionState::Expired => Some(Error::SessionExpired { session }),
            SessionState::Closed => Some(Error::SessionClosed { session }),
            _ => None,
        }
    }

    pub(crate) fn sending(&self) -> Option<PendingProof> {
        let lease = self.lease.as_ref()?;
        Some(lease.lock().sending(self.clock.now()))
    }

    /// `is_commit` is true if the answer shows that a write was committed.
    pub(crate) fn answered(&self, request: PendingProof, is_commit: bool) {
        let Some(lease) = &self.lease else { return };
        let renewed = lease.lock().answered(request, is_commit, self.clock.now());
        // Wake tasks without the lease's lock, because wakers are user code.
        if renewed {
            self.renewed.notify_waiters();
        }
    }

    /// Returns true if the proof has extended the lease.
    #[cfg(feature = "client")]
    pub(crate) fn prove(&self, sent: BootInstant) -> bool {
        let lease = self.lease.as_ref();
        let is_proof = lease.is_some_and(|lease| lease.lock().prove(sent, self.clock.now()));
        if is_proof {
            self.renewed.notify_waiters();
        }
        is_proof
    }

    /// Records that the next connection may renegotiate the timeout. The lease is not extended until the new timeout is
    /// known.
    #[cfg(feature = "client")]
    pub(crate) fn unsettle_timeout(&self) {
        if let Some(lease) = &self.lease {
            lease.lock().unsettle();
        }
    }

    #[cfg(feature = "client")]
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let Some(lease) = &self.lease else { return };
        lease.lock().settle(timeout, self.clock.now());
        // Grants, the end of the lease and the next heartbeat all depend on the timeout.
        self.renewed.notify_waiters();
        self.shortened.notify_waiters();
        self.pulse.notify_one();
    }

    /// Waits until a reconnection has set a shorter timeout. The lease may then end earlier than an earlier call to
    /// [`held_until`](Self::held_until) returned.
    ///
    /// Cancel safe.
    pub fn shortened(&self) -> impl Future<Output = ()> + Send + '_ {
        self.shortened.notified()
    }

    /// Waits until the lease has enough time left [for a grant](Lease::may_grant), and returns the lease.
    ///
    /// Cancel safe.
    pub(crate) async fn fresh_lease(self: &Arc<Self>) -> Result<Lease> {
        let mut states = self.states();
        loop {
            // Create this future before the checks, because `notify_waiters` wakes only futures that exist. Otherwise
            // we would miss a proof that arrives in between.
            let renewed = self.renewed.notified();
            if !self.is_alive() {
                let session = self.id;
                return Err(self.end().unwrap_or(Error::SessionClosed { session }));
            }
            if self.is_fresh() {
                return Ok(self.lease());
            }
            crate::runtime::future::select(renewed, states.next()).await;
        }
    }

    #[inline]
    pub(super) fn is_fresh(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.is_none_or(|lease| lease.lock().is_fresh(self.clock.now()))
    }

    pub(crate) fn pulse(&self) -> &Arc<Notify> {
        &self.pulse
    }

    pub(crate) fn next_beat(&self, last: Option<Beat>) -> Option<BootInstant> {
        let lease = self.lease.as_ref()?;
        Some(lease.lock().next_beat(last, self.clock.now()))
    }

    pub(crate) fn idle_after(&self) -> Duration {
        let lease = self.lease.as_ref();
        lease.map_or(Duration::ZERO, |lease| lease.lock().idle_after())
    }

    /// Returns the end of the session's lease. Until that time, no other session can hold what this session holds.
    /// Returns `None` if the session has no timeout and holds everything until it ends.
    ///
    /// The lease ends nine tenths of the timeout after the newest *proven* request was sent, that is, a request that
    /// the server has provably counted as a sign of life. A single server proves a request by answering it. In an
    /// ensemble, only committed writes prove anything: the answer to write B proves an earlier write A on the same
    /// connection, not B itself. A counts only if its answer arrived at least a [tick](Self::tick) (or a quarter of the
    /// timeout, if that is shorter) before B was sent.
    ///
    /// A reconnection may shorten the timeout and so the lease.
    #[inline]
    pub fn held_until(&self) -> Option<Deadline> {
        let lease = self.lease.as_ref()?;
        let end = lease.lock().end();
        Some(Deadline::new(self.clock.clone(), end))
    }

    /// Returns the session's current lease, which a lock keeps. The lease is valid until the session ends or
    /// [`held_until`](Self::held_until) passes.
    #[inline]
    pub fn lease(self: &Arc<Self>) -> Lease {
        Lease::new(self.clone())
    }

    #[inline]
    pub(super) fn lapses(&self) -> u64 {
        let lease = self.lease.as_ref();
        lease.map_or(0, |lease| lease.lock().lapses())
    }

    /// Returns true if the session is alive, its lease has not ended, and its number of lapses is still `lapses`.
    #[inline]
    pub(super) fn is_valid_since(&self, lapses: u64) -> bool {
        self.is_alive()
            && self.lease.as_ref().is_none_or(|lease| {
                // Read the end and the lapses under one lock. Otherwise a renewal between the two reads would hide the
                // lapse.
                let lease = lease.lock();
                !lease.has_ended(self.clock.now()) && lease.lapses() == lapses
            })
    }

    #[inline]
    pub(super) fn may_grant_since(&self, lapses: u64) -> bool {
        self.is_alive()
            && self.lease.as_ref().is_none_or(|lease| {
                let lease = lease.lock();
                let now = self.clock.now();
                !lease.has_ended(now) && lease.lapses() == lapses && lease.is_fresh(now)
            })
    }

    /// Returns the number of this session's clean-ups ([`Cleanup`](super::Cleanup)) in progress.
    pub fn pending_cleanups(&self) -> usize {
        *self.cleanups.lock()
    }

    pub(super) fn begin_cleanup(&self) {
        *self.cleanups.lock() += 1;
        PENDING_CLEANUPS.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_cleanup(&self) {
        let mut cleanups = self.cleanups.lock();
        *cleanups -= 1;
        PENDING_CLEANUPS.fetch_sub(1, Ordering::Relaxed);
        if *cleanups == 0 {
            self.cleaned_up.notify_all();
        }
    }

    /// Waits until no clean-up is in progress. Returns false if `limit` passes first.
    pub(crate) fn wait_for_cleanups(&self, limit: Duration) -> bool {
        let mut cleanups = self.cleanups.lock();
        let is_pending = |cleanups: &mut usize| *cleanups > 0;
        let waited = self
            .cleaned_up
            .wait_while_for(&mut cleanups, is_pending, limit);
        !waited.timed_out()
    }
}

#[cfg(test)]
mod tests;
