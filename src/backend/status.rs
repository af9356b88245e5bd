//! [`SessionStatus`]: where a session stands, and until when it can believe so.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::states::{StateStream, States};
use crate::clock::{Clock, Deadline, Moment};
use crate::error::Error;
use crate::fork;
use crate::types::{SessionId, SessionState};

/// Where a session stands with its store. The backend writes it, everybody reads it.
#[derive(Debug)]
pub struct SessionStatus {
    id: SessionId,
    clock: Clock,
    /// The negotiated timeout; zero for none.
    timeout_ns: AtomicU64,
    /// Whether only a committed write proves that the session lives.
    quorum_only: bool,
    /// When the last request was sent whose answer proves that the session lived then.
    proved_ns: AtomicU64,
    /// When the last acknowledged write was sent, where the write after it proves this one.
    last_write_ns: AtomicU64,
    /// How often the moment passed until which the session could be believed, before a new proof came.
    lapses: AtomicU64,
    state: AtomicU8,
    closing: AtomicBool,
    states: States,
    cleanups: AtomicUsize,
}

impl SessionStatus {
    /// The status of a session that was connected just now, by a request sent at `sent`.
    ///
    /// `timeout` is `None` where the store never expires the session. `quorum_only` says that the
    /// store is an ensemble, whose followers answer by themselves.
    pub fn new(
        id: SessionId,
        clock: Clock,
        timeout: Option<Duration>,
        quorum_only: bool,
        sent: Moment,
    ) -> Self {
        Self {
            id,
            clock,
            timeout_ns: AtomicU64::new(timeout.map_or(0, nanos)),
            quorum_only,
            proved_ns: AtomicU64::new(sent.as_nanos()),
            last_write_ns: AtomicU64::new(sent.as_nanos()),
            lapses: AtomicU64::new(0),
            state: AtomicU8::new(SessionState::Connected as u8),
            closing: AtomicBool::new(false),
            states: States::connected(),
            cleanups: AtomicUsize::new(0),
        }
    }

    /// The session's number.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The clock that the session lives by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The negotiated timeout; `None` where the store never expires the session.
    #[inline]
    pub fn timeout(&self) -> Option<Duration> {
        match self.timeout_ns.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// Whether only a committed write proves that the session lives (an ensemble).
    pub fn quorum_only(&self) -> bool {
        self.quorum_only
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
        self.states
            .set(state, || self.state.store(state as u8, Ordering::Release));
    }

    /// Says that the session is being closed from this side: from now on nothing is held.
    pub(crate) fn set_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Whether the session can still hold anything, timeouts apart. It is the parent's alone after a fork.
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

    /// Notes that the store answered a request that was sent at `sent`.
    pub(crate) fn prove(&self, sent: Moment, was_write: bool) {
        let sent = sent.as_nanos();
        // Counted before the new proof is written: who reads the proof, then the count, misses none.
        if self
            .held_until()
            .is_some_and(|deadline| deadline.has_passed())
        {
            self.lapses.fetch_add(1, Ordering::SeqCst);
        }
        if !self.quorum_only {
            self.proved_ns.fetch_max(sent, Ordering::AcqRel);
        } else if was_write {
            // The quorum has committed a write sent after the last one: the last one's touch is known to the leader.
            let before = self.last_write_ns.fetch_max(sent, Ordering::AcqRel);
            self.proved_ns.fetch_max(before.min(sent), Ordering::AcqRel);
        }
    }

    /// Until when nobody else can hold what this session holds; `None` for as long as it lives.
    ///
    /// The moment at which the last request was sent whose answer proves the session alive, plus
    /// nine tenths of the timeout.
    #[inline]
    pub fn held_until(&self) -> Option<Deadline> {
        let timeout = self.timeout()?;
        let proved = Moment::from_nanos(self.proved_ns.load(Ordering::Acquire));
        Some(Deadline::new(
            self.clock.clone(),
            proved.after(timeout - timeout / MARGIN),
        ))
    }

    /// How often [`held_until`](Self::held_until) had passed when a new proof of life came. What
    /// was held before such a lapse is lost, whether or not anybody looked meanwhile.
    #[inline]
    pub fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::SeqCst)
    }

    /// Returns the number of clean-ups of the session that have not come to their end ([`Cleanup`](super::Cleanup)).
    pub fn pending_cleanups(&self) -> usize {
        self.cleanups.load(Ordering::Relaxed)
    }

    pub(super) fn cleanup_begins(&self) {
        self.cleanups.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn cleanup_ends(&self) {
        self.cleanups.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether what this session has taken since `lapses` can be believed to be held, forced
    /// removal apart.
    #[inline]
    pub fn may_hold(&self, lapses: u64) -> bool {
        self.is_alive()
            && self
                .held_until()
                .is_none_or(|deadline| !deadline.has_passed())
            && self.lapses() == lapses
    }
}

/// A session stops believing when 1/10 of its timeout is left.
const MARGIN: u32 = 10;

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
