//! [`Durable`]: the store's end of its log, and how a write becomes durable.
//!
//! No reply and no event runs ahead of the log (invariant 2). A write takes five steps. [`State`](super::state::State)
//! takes the first four under the store's lock:
//!
//! 1. Admission: [`admit`](Durable::admit) refuses a request unless the disk already has room for its transaction. So a
//!    full disk refuses writes, and never fails one that was applied.
//! 2. Application: the core carries out the request and leaves transactions with every decision made
//!    (`core/journal.rs`).
//! 3. Hand-over: [`keep`](Durable::keep) appends them to the [`WriteQueue`] in the order of their zxids.
//! 4. Binding: [`bind`](Durable::bind) raises the zxid that the log must have before the session receives anything
//!    more. A reply waits for it at the [`DurabilityBarrier`] ([`passage`](Durable::passage)), and an event is held
//!    there ([`deliver`](Durable::deliver)). For a served session both wait in its outbox, in one order.
//! 5. Writing: the log's writer (`log/writer.rs`) writes a batch of the queue as one frame, syncs it, and opens the
//!    barrier up to the batch's last zxid. Held events reach their watchers first, then replies leave.
//!
//! A change that concerns only sessions of this process leaves no transaction, because they die with the process. Among
//! the [durability classes](super::Durability), `DelayedRestart` does not wait for transactions that concern only
//! sessions, and `None` waits only while room in the log is short.
//!
//! After a failed write the barrier stays closed and the store stops (invariant 12).

use std::sync::Arc;

use super::Engine;
pub(super) use super::file::Files;
use super::outbox::Ending;
use super::sessions::Peer;
use crate::core::{Core, SessionRef};
#[cfg(any(test, feature = "server"))]
pub(super) use crate::log::Known;
pub(super) use crate::log::{DurabilityBarrier, DurabilityWait};
use crate::log::{Record, WriteQueue, epoch};
use crate::model::error::{Error, Result};
use crate::model::protocol::Request;
use crate::model::types::{SessionState, Zxid};
use crate::model::watch::{WatchCell, WatchUpdate};
use crate::runtime::clock::BootInstant;
use crate::runtime::future::BoxFuture;

/// The store's end of its log.
pub(super) struct Durable {
    queue: Arc<WriteQueue>,
    /// The last transaction of the last core call if it is logged synchronously, otherwise 0. That call's replies and
    /// events show it.
    visible_zxid: Zxid,
    /// The last epoch reserved in the log, or about to be.
    reserved: u32,
    timeouts: Timeouts,
}

/// Logged timeouts of sessions of other processes. A start that cannot continue these sessions waits for the longest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timeouts {
    /// The longest ever granted.
    pub(super) longest_ms: u64,
    /// `longest_ms` is durable once the log has this transaction.
    pub(super) recorded_at: Zxid,
    /// The longest ever allowed. 0 if the store was never served.
    pub(super) allowed_ms: u64,
    /// True if nothing acknowledged to such a session runs ahead of the log.
    pub(super) are_sessions_kept: bool,
    /// No session is opened before this time, because clients may still believe in sessions that were ended.
    pub(super) pause_until: Option<BootInstant>,
}

/// Most bytes for the start, the end or the timeout of a session in the log.
const SESSION_BYTES: usize = 128;

impl Durable {
    pub(super) fn new(queue: Arc<WriteQueue>, last_zxid: Zxid, timeouts: Timeouts) -> Self {
        Self {
            queue,
            visible_zxid: Zxid(0),
            reserved: epoch::to_reserve(last_zxid),
            timeouts,
        }
    }

    /// Checks that the log has not failed (invariant 12).
    pub(super) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    fn failure(&self) -> Option<Error> {
        // Only a failure closes the barrier for zxid 0, so the common case takes no lock.
        if self.queue.barrier.is_open_to(Zxid(0)) {
            return None;
        }
        self.queue.barrier.failure()
    }

    /// Returns true if the log has room for ends of sessions and reaped znodes.
    pub(super) fn has_reserve(&self) -> bool {
        self.failure().is_none() && self.queue.has_reserve()
    }

    /// Checks that a request may be carried out. Returns the transaction that its answer will show.
    ///
    /// # Errors
    /// [`Error::StoreFailed`], [`Error::DiskFull`], or [`Error::LimitReached`] while the log is busy, which will pass.
    pub(super) fn admit(
        &self,
        core: &Core,
        session: SessionRef,
        request: &Request,
    ) -> Result<Zxid> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        // One load shows that there is plenty of room. Then we measure no request.
        if !self.queue.takes_any() && core.needs_log(session, request) {
            self.check_room(core.txn_bytes(session, request), request)?;
        }
        // The state before the request. `bind` adds its own transaction from `shown`.
        Ok(core.shown_by(request))
    }

    fn check_room(&self, bytes: usize, request: &Request) -> Result<()> {
        self.queue.check_room(bytes, frees(request))
    }

    /// Takes over the transactions of a core call. `before` is the core's [`last_kept`](Core::last_kept) before it.
    pub(super) fn append_txns(&mut self, core: &mut Core, before: Zxid) {
        let last = core.last_kept();
        // Asynchronous transactions do not move it, because nothing waits for them.
        let has_moved = last > before;
        self.visible_zxid = if has_moved { last } else { Zxid(0) };
        let kept = core.kept();
        if let Some(txn) = kept.last() {
            let handed = txn.zxid;
            self.queue.append(kept, has_moved);
            if self.queue.is_short() {
                // Answers now wait for asynchronous transactions, too, so that no client outruns the log and is
                // refused.
                self.visible_zxid = handed.max(self.visible_zxid);
            }
        }
        // Zxids within an epoch are counted only in memory, so the log must reserve the epoch first. Otherwise fencing
        // tokens could repeat after a crash.
        let needed = epoch::to_reserve(core.last_zxid());
        if needed > self.reserved {
            self.reserved = needed;
            self.queue.append_record(&Record::Epoch(needed));
        }
    }

    /// Raises a session's bound to the transaction that its next message shows. A bound never falls, so no message
    /// overtakes an earlier one.
    pub(super) fn bind(&self, bound: &mut Zxid, shown: Zxid) -> Zxid {
        *bound = shown.max(self.visible_zxid).max(*bound);
        *bound
    }

    /// Returns the future that an answer with this bound waits for, if it must.
    pub(super) fn passage(&self, bound: Zxid) -> Option<DurabilityWait> {
        let barrier = &self.queue.barrier;
        (!barrier.is_open_to(bound)).then(|| barrier.passage(bound))
    }

    /// Puts news in their cell when they may be seen. Returns true if that is now.
    pub(super) fn deliver(
        &self,
        bound: &mut Zxid,
        cell: &Arc<WatchCell>,
        news: WatchUpdate,
    ) -> bool {
        let shown = self.visible_zxid.max(*bound);
        if self.queue.barrier.is_open_to(shown) {
            cell.put(news);
            return true;
        }
        // The barrier may have opened by now. It then fills the cell itself and returns `None`.
        match self.queue.barrier.hold(shown, cell, news) {
            None => true,
            Some(held_to) => {
                // Held events have one order across all sessions, so this one may wait for more than it shows. Later
                // answers must wait as long, or they would overtake it (invariant 9).
                *bound = held_to;
                false
            }
        }
    }

    /// Returns the end of the pause that admits no session. Ends a pause whose time has passed.
    pub(super) fn pause(&mut self, now: BootInstant) -> Option<BootInstant> {
        let until = self.timeouts.pause_until?;
        if until > now {
            return Some(until);
        }
        self.timeouts.pause_until = None;
        self.queue.set_pausing(false);
        self.append_terms();
        tracing::info!("the pause is over: sessions are admitted");
        None
    }

    fn append_terms(&self) {
        let timeouts = &self.timeouts;
        self.queue.append_record(&Record::SessionTerms {
            // A kill during the pause must make the next start pause again.
            are_kept: timeouts.are_sessions_kept && timeouts.pause_until.is_none(),
            allowed_ms: timeouts.allowed_ms,
        });
    }
}

/// The part for sessions of other processes.
impl Durable {
    /// Checks that the log takes another session.
    pub(super) fn check_session(&self) -> Result<()> {
        self.check()?;
        self.queue.check_room(SESSION_BYTES, false)
    }

    /// Returns a future that waits until a busy log has room for another session.
    pub(super) fn session_room(&self) -> Option<BoxFuture<()>> {
        let is_busy = matches!(self.check_session(), Err(Error::LimitReached { .. }));
        is_busy.then(|| Box::pin(self.queue.clone().wait_for_room(SESSION_BYTES, false)) as _)
    }

    /// Returns a future that waits until a busy log has room. A full disk refuses the request instead.
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
        is_busy.then(|| Box::pin(self.queue.clone().wait_for_room(bytes, frees(request))) as _)
    }

    /// Notes the timeout of a session that transaction `opened` has opened and that is not logged yet.
    pub(super) fn note_timeout(&mut self, ms: u64, opened: Zxid) {
        // A pause lasts for the longest timeout, so most sessions need no record.
        if ms > self.timeouts.longest_ms {
            self.timeouts.longest_ms = ms;
            self.timeouts.recorded_at = opened;
            self.queue.append_record(&Record::LongestTimeout { ms });
        }
    }

    /// Holds back all messages to a session until the log has the last transaction and the longest timeout, which may
    /// be this session's.
    pub(super) fn hold_session(&self, bound: &mut Zxid) -> DurabilityWait {
        let barrier = &self.queue.barrier;
        *bound = self.visible_zxid.max(self.timeouts.recorded_at).max(*bound);
        // In the class `None`, `passage` may run ahead of the log, but the longest timeout must not. After a restart
        // without it, a client could still believe in its session after the pause (invariant 6).
        match barrier.has_written(self.timeouts.recorded_at) {
            true => barrier.passage(*bound),
            false => barrier.written(*bound),
        }
    }

    pub(super) fn timeout_recorded_at(&self) -> Zxid {
        self.timeouts.recorded_at
    }

    /// Notes the longest timeout that sessions may be granted from now on.
    pub(super) fn allow(&mut self, ms: u64) {
        if ms > self.timeouts.allowed_ms {
            self.timeouts.allowed_ms = ms;
            self.append_terms();
        }
    }

    pub(super) fn barrier(&self) -> Arc<DurabilityBarrier> {
        self.queue.barrier.clone()
    }
}

/// Returns true if a request frees room. It may use part of the reserve, so that a full store can be emptied.
fn frees(request: &Request) -> bool {
    matches!(
        request,
        Request::Delete { .. } | Request::Withdraw { .. } | Request::Close
    )
}

impl Engine {
    pub(super) fn log_queue(&self) -> Option<Arc<WriteQueue>> {
        let state = self.state.lock();
        Some(state.durable.as_ref()?.queue.clone())
    }

    /// Stops the store after a failure of its log. All its sessions are over, and nothing is held.
    pub(super) fn stop(&self, failure: &Error) {
        tracing::error!(%failure, "the store has stopped");
        let mut state = self.state.lock();
        let cells: Vec<_> = state.cells.iter_mut().filter_map(Option::take).collect();
        let (mut statuses, mut outboxes) = (Vec::new(), Vec::new());
        for peer in state.sessions.peers() {
            match peer {
                Peer::Local(status) => {
                    // Under the lock, as at every end of a session, so that no guard believes in its lock from here on.
                    status.set_closing();
                    statuses.push(status.clone());
                }
                Peer::Remote(outbox) => outboxes.push(outbox.clone()),
                Peer::Absent => {}
            }
        }
        // Not under the lock, because wakers are user code and may call the store.
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
