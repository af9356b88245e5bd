//! What a store does that keeps a log: nothing that it tells runs ahead of what is durable.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::embedded::Embedded;
use super::outbox::Ending;
use super::{Engine, State, put_default};
use crate::clock::BootInstant;
use crate::core::SessionRef;
use crate::error::{Error, Result};
#[cfg(any(test, feature = "server"))]
use crate::future::BoxFuture;
#[cfg(any(test, feature = "server"))]
pub(super) use crate::log::DurabilityBarrier;
use crate::log::{EPOCH_BITS, Passage, Record, WriteQueue};
use crate::protocol::{Request, Response};
use crate::types::{SessionState, Zxid};
use crate::watch::{WatchCell, WatchedEvent};

/// What a store keeps of its log.
pub(super) struct Durable {
    line: Arc<WriteQueue>,
    /// By slot: what a session is told next waits until the log has this.
    bounds: Vec<Zxid>,
    /// What is being handed out shows this.
    shown: Zxid,
    /// When the core has used this zxid, another epoch is reserved.
    reserve_at: Zxid,
    pub(super) timeouts: Timeouts,
}

/// Timeouts of sessions of other processes, as the log has them: a start that cannot go on with these sessions waits
/// for the longest.
#[cfg_attr(
    not(any(test, feature = "server")),
    allow(
        dead_code,
        reason = "only sessions of other processes have timeouts that a restart waits for"
    )
)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timeouts {
    /// The longest that any was ever granted.
    pub(super) longest_ms: u64,
    /// When the log has this transaction, it has that.
    pub(super) recorded_at: Zxid,
    /// The longest that any was ever allowed; 0 if the store was never served.
    pub(super) allowed_ms: u64,
    /// True if nothing that is acknowledged to such a session runs ahead of the log.
    pub(super) are_sessions_kept: bool,
    /// Before this no session is opened: clients may still believe in one that was ended.
    pub(super) pause_until: Option<BootInstant>,
}

#[cfg(any(test, feature = "server"))]
/// The most that a session's begin, end or timeout takes in the log.
const SESSION_BYTES: usize = 128;

impl Durable {
    /// Of a log whose epoch has just begun.
    pub(super) fn new(line: Arc<WriteQueue>, last_zxid: Zxid) -> Self {
        Self {
            line,
            bounds: Vec::new(),
            shown: Zxid(0),
            reserve_at: Zxid(last_zxid.0 + HALF_AN_EPOCH),
            timeouts: Timeouts::default(),
        }
    }

    /// Ends the pause, if there is one and its time has come: from now on sessions are kept as the class says.
    pub(super) fn end_pause(&mut self, now: BootInstant) {
        if self.timeouts.pause_until.is_some_and(|until| until <= now) {
            self.timeouts.pause_until = None;
            self.line.set_pausing(false);
            self.tell_terms();
            tracing::info!("the pause is over: sessions are admitted");
        }
    }

    fn tell_terms(&self) {
        let timeouts = &self.timeouts;
        self.line.append_record(&Record::SessionTerms {
            // A kill in the pause must bring the next start to make it again.
            are_kept: timeouts.are_sessions_kept && timeouts.pause_until.is_none(),
            allowed_ms: timeouts.allowed_ms,
        });
    }

    /// What a session is told next waits for what it shows, and for what it was told before.
    pub(super) fn bind(&mut self, slot: u32, shown: Zxid) -> Zxid {
        let shown = shown.max(self.shown);
        let bound = put_default(&mut self.bounds, slot);
        *bound = shown.max(*bound);
        *bound
    }

    /// A new session in this slot waits for nothing.
    pub(super) fn seat(&mut self, slot: u32) {
        *put_default(&mut self.bounds, slot) = Zxid(0);
    }

    /// Puts an event in its cell, now or when it may be seen; whether that is now.
    pub(super) fn deliver(
        &mut self,
        slot: u32,
        cell: &Arc<WatchCell>,
        event: WatchedEvent,
    ) -> bool {
        let bound = put_default(&mut self.bounds, slot);
        let shown = self.shown.max(*bound);
        if self.line.gate.is_open_to(shown) {
            cell.put(event);
            return true;
        }
        match self.line.gate.hold(shown, cell, event) {
            None => true,
            Some(held_to) => {
                *bound = held_to;
                false
            }
        }
    }

    /// Checks that the log has room for so many bytes of a request.
    fn check_room(&self, bytes: usize, request: &Request) -> Result<()> {
        self.line.check_room(bytes, frees(request))
    }
}

/// Returns true for a request that frees room.
fn frees(request: &Request) -> bool {
    matches!(
        request,
        Request::Delete { .. } | Request::Withdraw { .. } | Request::Close
    )
}

/// The part for sessions of other processes.
#[cfg(any(test, feature = "server"))]
impl Durable {
    /// Waits while the log is busy, for room for a request that takes so many `bytes`, if it needs the log; `None` if it
    /// is not busy.
    pub(super) fn until_room(
        &self,
        request: &Request,
        bytes: impl FnOnce() -> Option<usize>,
    ) -> Option<BoxFuture<()>> {
        if self.line.takes_any() || self.failure().is_some() {
            return None;
        }
        let bytes = bytes()?;
        let is_busy = matches!(
            self.check_room(bytes, request),
            Err(Error::LimitReached { .. })
        );
        is_busy.then(|| Box::pin(self.line.clone().until_room(bytes, frees(request))) as _)
    }

    /// Waits while the log is busy, for room for one more session.
    pub(super) fn until_session_room(&self) -> BoxFuture<()> {
        Box::pin(self.line.clone().until_room(SESSION_BYTES, false))
    }

    /// Checks that the log has room for one more session.
    pub(super) fn check_session(&self) -> Result<()> {
        self.line.check_room(SESSION_BYTES, false)
    }

    /// Notes the timeout of a session that was opened just now, as transaction `opened`, and is not in the log yet.
    pub(super) fn note_timeout(&mut self, ms: u64, opened: Zxid) {
        if ms > self.timeouts.longest_ms {
            self.timeouts.longest_ms = ms;
            self.timeouts.recorded_at = opened;
            self.line.append_record(&Record::LongestTimeout { ms });
        }
    }

    /// Holds what a session is told from now on until the log has `zxid`, and, in every durability class, until it has
    /// the longest timeout, which this session's may be: the future of that.
    pub(super) fn hold_session(&mut self, slot: u32, zxid: Zxid) -> Passage {
        let gate = &self.line.gate;
        let bound = put_default(&mut self.bounds, slot);
        *bound = zxid.max(self.timeouts.recorded_at).max(*bound);
        match gate.has_written(self.timeouts.recorded_at) {
            true => gate.passage(*bound),
            false => gate.written(*bound),
        }
    }

    /// Notes the longest timeout that sessions of other processes are allowed from now on.
    pub(super) fn allow(&mut self, ms: u64) {
        if ms > self.timeouts.allowed_ms {
            self.timeouts.allowed_ms = ms;
            self.tell_terms();
        }
    }

    /// The last transaction of the last call, as far as somebody waits for it.
    pub(super) fn shown(&self) -> Zxid {
        self.shown
    }

    /// The gate of the log.
    pub(super) fn gate(&self) -> Arc<DurabilityBarrier> {
        self.line.gate.clone()
    }
}

const HALF_AN_EPOCH: i64 = 1 << (EPOCH_BITS - 1);

impl State {
    /// Whether a request may be carried out; and what its answer will show, as it looks before.
    ///
    /// # Errors
    /// [`Error::StoreFailed`], [`Error::DiskFull`]; [`Error::LimitReached`] while the log is busy: there will be room.
    pub(super) fn admit(&self, session: SessionRef, request: &Request) -> Result<Zxid> {
        let Some(durable) = &self.durable else {
            return Ok(Zxid(0));
        };
        if let Some(failure) = durable.failure() {
            return Err(failure);
        }
        if !durable.line.takes_any() && self.core.needs_log(session, request) {
            durable.check_room(self.core.txn_bytes(session, request), request)?;
        }
        Ok(self.core.shown_by(request))
    }

    #[cfg(any(test, feature = "server"))]
    /// Bounds what a session is told next by what it shows, and by what it was told before.
    pub(super) fn bind(&mut self, slot: u32, shown: Zxid) -> Zxid {
        let durable = self.durable.as_mut();
        durable.map_or(Zxid(0), |durable| durable.bind(slot, shown))
    }

    /// What an answer waits for that shows this, if it has to wait. It leaves after the answers before it.
    pub(super) fn passage(&mut self, slot: u32, shown: Zxid) -> Option<Passage> {
        let durable = self.durable.as_mut()?;
        let bound = durable.bind(slot, shown);
        let gate = &durable.line.gate;
        (!gate.is_open_to(bound)).then(|| gate.passage(bound))
    }

    /// Whether the store is still at work.
    pub(super) fn check_log(&self) -> Result<()> {
        let failure = self.durable.as_ref().and_then(Durable::failure);
        failure.map_or(Ok(()), Err)
    }

    /// Hands to the log what a call to the core has left for it. `before` is the core's
    /// [`last_kept`](crate::core::Core::last_kept) before the call.
    pub(super) fn keep(&mut self, before: Zxid) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let last = self.core.last_kept();
        let has_moved = last > before;
        durable.shown = if has_moved { last } else { Zxid(0) };
        let kept = self.core.kept();
        if let Some(txn) = kept.last() {
            let handed = txn.zxid;
            durable.line.append(kept, has_moved);
            if durable.line.is_short() {
                // Also what nobody waits for: else its client would outrun the log, and be refused.
                durable.shown = handed.max(durable.shown);
            }
        }
        let used = self.core.last_zxid();
        if used >= durable.reserve_at {
            durable
                .line
                .append_record(&Record::Epoch(epoch_of(used) + 1));
            durable.reserve_at.0 += 2 * HALF_AN_EPOCH;
        }
    }

    /// Whether the log has room for what the store does by itself.
    pub(super) fn may_tick(&self) -> bool {
        let durable = self.durable.as_ref();
        durable.is_none_or(|durable| durable.failure().is_none() && durable.line.has_reserve())
    }
}

impl Durable {
    /// Quick where there is none.
    fn failure(&self) -> Option<Error> {
        if self.line.gate.is_open_to(Zxid(0)) {
            return None;
        }
        self.line.gate.failure()
    }
}

/// The epoch that a zxid is of.
pub(super) fn epoch_of(zxid: Zxid) -> u32 {
    (zxid.0 >> EPOCH_BITS) as u32
}

impl Embedded {
    /// Answers what was not carried out; after the answers before it.
    #[cold]
    pub(super) fn refuse(&self, error: Error, mut guard: MutexGuard<'_, State>) -> Response {
        let refused = Response::ready(Err(error));
        match guard.passage(self.session.slot, Zxid(0)) {
            None => refused,
            Some(passage) => held(refused, passage),
        }
    }
}

/// An answer that leaves when the log has what it shows.
pub(super) fn held(response: Response, passage: Passage) -> Response {
    Response::pending(async move {
        passage.await?;
        response.await
    })
}

impl Engine {
    pub(super) fn line(&self) -> Option<Arc<WriteQueue>> {
        let state = self.state.lock();
        Some(state.durable.as_ref()?.line.clone())
    }

    /// The log has failed: the store stops. Nobody holds anything any more.
    pub(super) fn stop(&self, failure: &Error) {
        tracing::error!(%failure, "the store has stopped");
        let mut state = self.state.lock();
        let statuses: Vec<_> = state.statuses.iter().flatten().cloned().collect();
        let cells: Vec<_> = state.cells.iter_mut().filter_map(Option::take).collect();
        let outboxes: Vec<_> = state.outboxes.iter().flatten().cloned().collect();
        statuses.iter().for_each(|status| status.set_closing());
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
