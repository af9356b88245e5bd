//! [`Durable`]: the log of a store in a folder. Nothing that the store tells runs ahead of what its log has (invariant 2).
//!
//! [`State`](super::state::State) asks it at each step of a change: [`admit`](Durable::admit) before,
//! [`keep`](Durable::keep) after, [`bind`](Durable::bind) for what goes out. `volatile.rs` stands for it in builds
//! without the feature `file`.

use std::sync::Arc;

use super::Engine;
pub(super) use super::file::Files;
use super::outbox::Ending;
use super::sessions::Peer;
use crate::clock::BootInstant;
use crate::core::{Core, SessionRef};
use crate::error::{Error, Result};
use crate::future::BoxFuture;
pub(super) use crate::log::{DurabilityBarrier, Passage};
use crate::log::{EPOCH_BITS, Record, WriteQueue};
use crate::protocol::Request;
use crate::types::{SessionState, Zxid};
use crate::watch::{WatchCell, WatchedEvent};

/// The store's end of its log.
pub(super) struct Durable {
    queue: Arc<WriteQueue>,
    /// The last transaction of the last call, as far as somebody waits for it: what is being handed out shows this.
    shown: Zxid,
    /// Zxid at whose use another epoch is reserved.
    reserve_at: Zxid,
    timeouts: Timeouts,
}

/// Timeouts of sessions of other processes, as the log has them: a start that cannot go on with these sessions waits
/// for the longest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timeouts {
    /// The longest that any was ever granted.
    pub(super) longest_ms: u64,
    /// Durable once the log has this transaction.
    pub(super) recorded_at: Zxid,
    /// The longest that any was ever allowed; 0 if the store was never served.
    pub(super) allowed_ms: u64,
    /// True if nothing that is acknowledged to such a session runs ahead of the log.
    pub(super) are_sessions_kept: bool,
    /// Before this no session is opened: clients may still believe in one that was ended.
    pub(super) pause_until: Option<BootInstant>,
}

/// The most that a session's begin, end or timeout takes in the log.
const SESSION_BYTES: usize = 128;

const HALF_AN_EPOCH: i64 = 1 << (EPOCH_BITS - 1);

impl Durable {
    /// Creates the store's end of a log whose epoch has just begun.
    pub(super) fn new(queue: Arc<WriteQueue>, last_zxid: Zxid, timeouts: Timeouts) -> Self {
        Self {
            queue,
            shown: Zxid(0),
            reserve_at: Zxid(last_zxid.0 + HALF_AN_EPOCH),
            timeouts,
        }
    }

    /// Checks that the log has not failed: after that nothing is acknowledged any more (invariant 12).
    pub(super) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Returns the log's failure; quickly when there is none.
    fn failure(&self) -> Option<Error> {
        if self.queue.barrier.is_open_to(Zxid(0)) {
            return None;
        }
        self.queue.barrier.failure()
    }

    /// Returns true if the log has room for what the store does by itself.
    pub(super) fn has_reserve(&self) -> bool {
        self.failure().is_none() && self.queue.has_reserve()
    }

    /// Checks that a request may be carried out. Returns the transaction that its answer will show.
    ///
    /// # Errors
    /// [`Error::StoreFailed`], [`Error::DiskFull`]; [`Error::LimitReached`] while the log is busy: there will be room.
    pub(super) fn admit(
        &self,
        core: &Core,
        session: SessionRef,
        request: &Request,
    ) -> Result<Zxid> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if !self.queue.takes_any() && core.needs_log(session, request) {
            self.check_room(core.txn_bytes(session, request), request)?;
        }
        Ok(core.shown_by(request))
    }

    /// Checks that the log has room for so many bytes of a request.
    fn check_room(&self, bytes: usize, request: &Request) -> Result<()> {
        self.queue.check_room(bytes, frees(request))
    }

    /// Takes over the transactions that a call to the core has left. `before` is the core's
    /// [`last_kept`](Core::last_kept) before the call.
    pub(super) fn keep(&mut self, core: &mut Core, before: Zxid) {
        let last = core.last_kept();
        let has_moved = last > before;
        self.shown = if has_moved { last } else { Zxid(0) };
        let kept = core.kept();
        if let Some(txn) = kept.last() {
            let handed = txn.zxid;
            self.queue.append(kept, has_moved);
            if self.queue.is_short() {
                // Also what nobody waits for: else its client would outrun the log, and be refused.
                self.shown = handed.max(self.shown);
            }
        }
        let used = core.last_zxid();
        if used >= self.reserve_at {
            self.queue.append_record(&Record::Epoch(epoch_of(used) + 1));
            self.reserve_at.0 += 2 * HALF_AN_EPOCH;
        }
    }

    /// Moves a session's bound: what it is told next waits for what that shows, and for what it was told before.
    pub(super) fn bind(&self, bound: &mut Zxid, shown: Zxid) -> Zxid {
        *bound = shown.max(self.shown).max(*bound);
        *bound
    }

    /// Returns the future that an answer of this bound waits for, if it has to wait.
    pub(super) fn passage(&self, bound: Zxid) -> Option<Passage> {
        let barrier = &self.queue.barrier;
        (!barrier.is_open_to(bound)).then(|| barrier.passage(bound))
    }

    /// Puts an event in its cell, now or when it may be seen. Returns true if that is now.
    pub(super) fn deliver(
        &self,
        bound: &mut Zxid,
        cell: &Arc<WatchCell>,
        event: WatchedEvent,
    ) -> bool {
        let shown = self.shown.max(*bound);
        if self.queue.barrier.is_open_to(shown) {
            cell.put(event);
            return true;
        }
        match self.queue.barrier.hold(shown, cell, event) {
            None => true,
            Some(held_to) => {
                // Events are held in one order, so this one may wait for more than it shows: so do the answers after
                // it.
                *bound = held_to;
                false
            }
        }
    }

    /// Returns the end of the pause in which no session may be opened, if it is not over. Ends one that is.
    pub(super) fn pause(&mut self, now: BootInstant) -> Option<BootInstant> {
        let until = self.timeouts.pause_until?;
        if until > now {
            return Some(until);
        }
        // From now on sessions are kept as the durability class says.
        self.timeouts.pause_until = None;
        self.queue.set_pausing(false);
        self.append_terms();
        tracing::info!("the pause is over: sessions are admitted");
        None
    }

    fn append_terms(&self) {
        let timeouts = &self.timeouts;
        self.queue.append_record(&Record::SessionTerms {
            // A kill in the pause must bring the next start to make it again.
            are_kept: timeouts.are_sessions_kept && timeouts.pause_until.is_none(),
            allowed_ms: timeouts.allowed_ms,
        });
    }
}

/// The part for sessions of other processes.
impl Durable {
    /// Checks that the log has not failed, and has room for one more session.
    pub(super) fn check_session(&self) -> Result<()> {
        self.check()?;
        self.queue.check_room(SESSION_BYTES, false)
    }

    /// Waits while the log is busy and has no room for one more session; `None` if it is not.
    pub(super) fn session_room(&self) -> Option<BoxFuture<()>> {
        let is_busy = matches!(self.check_session(), Err(Error::LimitReached { .. }));
        is_busy.then(|| Box::pin(self.queue.clone().until_room(SESSION_BYTES, false)) as _)
    }

    /// Waits while the log is busy and has no room for a request that needs it; `None` if it is not.
    pub(super) fn request_room(
        &self,
        core: &Core,
        session: SessionRef,
        request: &Request,
    ) -> Option<BoxFuture<()>> {
        if self.queue.takes_any() || self.failure().is_some() || !core.needs_log(session, request) {
            return None;
        }
        let bytes = core.txn_bytes(session, request);
        let is_busy = matches!(
            self.check_room(bytes, request),
            Err(Error::LimitReached { .. })
        );
        is_busy.then(|| Box::pin(self.queue.clone().until_room(bytes, frees(request))) as _)
    }

    /// Notes the timeout of a session that was opened just now, as transaction `opened`, and is not in the log yet.
    pub(super) fn note_timeout(&mut self, ms: u64, opened: Zxid) {
        if ms > self.timeouts.longest_ms {
            self.timeouts.longest_ms = ms;
            self.timeouts.recorded_at = opened;
            self.queue.append_record(&Record::LongestTimeout { ms });
        }
    }

    /// Holds what a session is told from now on until the log has what was done last and, in every durability class,
    /// the longest timeout, which this session's may be. Returns the future of that.
    pub(super) fn hold_session(&self, bound: &mut Zxid) -> Passage {
        let barrier = &self.queue.barrier;
        *bound = self.shown.max(self.timeouts.recorded_at).max(*bound);
        match barrier.has_written(self.timeouts.recorded_at) {
            true => barrier.passage(*bound),
            false => barrier.written(*bound),
        }
    }

    /// Returns the transaction with which the log has the longest timeout.
    pub(super) fn timeout_recorded_at(&self) -> Zxid {
        self.timeouts.recorded_at
    }

    /// Notes the longest timeout that sessions of other processes are allowed from now on.
    pub(super) fn allow(&mut self, ms: u64) {
        if ms > self.timeouts.allowed_ms {
            self.timeouts.allowed_ms = ms;
            self.append_terms();
        }
    }

    /// Returns the barrier behind which everything waits for the log.
    pub(super) fn barrier(&self) -> Arc<DurabilityBarrier> {
        self.queue.barrier.clone()
    }
}

/// Returns true for a request that frees room.
fn frees(request: &Request) -> bool {
    matches!(
        request,
        Request::Delete { .. } | Request::Withdraw { .. } | Request::Close
    )
}

/// Returns the epoch of a zxid.
pub(super) fn epoch_of(zxid: Zxid) -> u32 {
    (zxid.0 >> EPOCH_BITS) as u32
}

impl Engine {
    /// Returns the queue of the log, if the store keeps one.
    pub(super) fn log_queue(&self) -> Option<Arc<WriteQueue>> {
        let state = self.state.lock();
        Some(state.durable.as_ref()?.queue.clone())
    }

    /// Stops the store, whose log has failed. Nobody holds anything any more.
    pub(super) fn stop(&self, failure: &Error) {
        tracing::error!(%failure, "the store has stopped");
        let mut state = self.state.lock();
        let cells: Vec<_> = state.cells.iter_mut().filter_map(Option::take).collect();
        let (mut statuses, mut outboxes) = (Vec::new(), Vec::new());
        for peer in state.sessions.peers() {
            match peer {
                Peer::Local(status) => {
                    status.set_closing();
                    statuses.push(status.clone());
                }
                Peer::Remote(outbox) => outboxes.push(outbox.clone()),
                Peer::Absent => {}
            }
        }
        drop(state);
        for status in statuses {
            status.set_state(SessionState::Expired);
        }
        for cell in cells {
            cell.end(failure.clone());
            cell.wake();
        }
        for outbox in outboxes {
            outbox.end(Ending::Stopped);
            outbox.wake();
        }
    }
}
