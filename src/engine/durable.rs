//! [`Durable`]: the store's side of its log. No reply and no event leaves before the log has the transactions that it
//! shows (invariant 2).
//!
//! A write takes five steps. [`State`](super::state::State) performs the first four under the store's lock:
//!
//! 1. Admission: [`admit`](Durable::admit) refuses a request unless the disk has room for its transaction. So a full
//!    disk cannot fail a write that the core has already applied.
//! 2. Application: the core carries out the request. The resulting transactions contain the outcome of every decision
//!    (`core/journal.rs`).
//! 3. Hand-over: [`append_txns`](Durable::append_txns) appends the transactions to the [`WriteQueue`] in zxid order.
//! 4. Binding: [`bind`](Durable::bind) raises the session's *bound*, which is the zxid that the log must have before
//!    the session receives anything more. Replies ([`passage`](Durable::passage)) and events
//!    ([`deliver`](Durable::deliver)) wait at the [`DurabilityBarrier`] until the log has the bound. Messages to a
//!    session of another process wait in the session's outbox instead.
//! 5. Writing: the log's writer (`log/writer.rs`) writes a batch of the queue as one frame, syncs the file, and opens
//!    the barrier up to the batch's last zxid. The barrier hands the held events to their watchers before it lets
//!    replies leave.
//!
//! A change that concerns only sessions of this process is not logged, because these sessions end with the process. The
//! [durability class](super::Durability) decides which answers wait. With `DelayedRestart`, answers do not wait for
//! transactions that concern only sessions. With `None`, answers wait only while the log is short of room.
//!
//! After a failed write, the barrier stays closed and the store stops (invariant 12).

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

pub(super) struct Durable {
    queue: Arc<WriteQueue>,
    /// Last transaction of the last core call. The replies and events of that call wait until the log has it. 0 if they
    /// need not wait.
    visible_zxid: Zxid,
    /// Last reserved epoch. Its reservation may still be in the queue.
    reserved: u32,
    timeouts: Timeouts,
}

/// Timeouts of sessions of other processes, as recorded in the log. A restart that cannot continue these sessions waits
/// for the longest of the timeouts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timeouts {
    pub(super) longest_ms: u64,
    /// Once the log has this transaction, `longest_ms` is durable.
    pub(super) recorded_at: Zxid,
    /// The longest timeout that options have ever allowed, in milliseconds. 0 if the store was never served.
    pub(super) allowed_ms: u64,
    /// True if nothing was acknowledged to sessions of other processes before the log had it. A restart can then
    /// continue these sessions.
    pub(super) are_sessions_kept: bool,
    /// No session is opened before this time, because clients may still rely on sessions that the restart has ended.
    pub(super) pause_until: Option<BootInstant>,
}

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

    pub(super) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    fn failure(&self) -> Option<Error> {
        // The barrier blocks zxid 0 only after a failure, so the common case takes no lock.
        if self.queue.barrier.is_open_to(Zxid(0)) {
            return None;
        }
        self.queue.barrier.failure()
    }

    /// Returns true if the log has room to end sessions and to delete reaped znodes.
    pub(super) fn has_reserve(&self) -> bool {
        self.failure().is_none() && self.queue.has_reserve()
    }

    /// Checks that a request may be carried out. Returns the last transaction by another session that the answer will
    /// show.
    ///
    /// # Errors
    /// [`Error::StoreFailed`], [`Error::DiskFull`], or [`Error::LimitReached`] if the log is busy and will soon have
    /// room.
    pub(super) fn admit(
        &self,
        core: &Core,
        session: SessionRef,
        request: &Request,
    ) -> Result<Zxid> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        // `takes_any` is a single atomic load. If the log has plenty of room, we need not compute the size of the
        // transaction.
        if !self.queue.takes_any() && core.needs_log(session, request) {
            self.check_room(core.txn_bytes(session, request), request)?;
        }
        // `shown_by` covers the transactions by other sessions that the answer shows. `bind` adds the request's own
        // transaction.
        Ok(core.shown_by(request))
    }

    fn check_room(&self, bytes: usize, request: &Request) -> Result<()> {
        self.queue.check_room(bytes, frees(request))
    }

    /// Appends the transactions of a core call to the log's queue. `before` is the value of
    /// [`last_kept`](Core::last_kept) before the call.
    pub(super) fn append_txns(&mut self, core: &mut Core, before: Zxid) {
        let last = core.last_kept();
        // Transactions that are written asynchronously do not move `last_kept`, because no answer waits for them.
        let has_moved = last > before;
        self.visible_zxid = if has_moved { last } else { Zxid(0) };
        let kept = core.kept();
        if let Some(txn) = kept.last() {
            let handed = txn.zxid;
            self.queue.append(kept, has_moved);
            if self.queue.is_short() {
                // While the queue is short of room, answers also wait for asynchronous transactions. Otherwise a client
                // could send faster than the log writes, and would be refused.
                self.visible_zxid = handed.max(self.visible_zxid);
            }
        }
        // Zxids within an epoch are counted only in memory. So the log must reserve an epoch before the core uses its
        // zxids. Otherwise fencing tokens could repeat after a crash.
        let needed = epoch::to_reserve(core.last_zxid());
        if needed > self.reserved {
            self.reserved = needed;
            self.queue.append_record(&Record::Epoch(needed));
        }
    }

    /// Raises a session's bound, which is the zxid that the log must have before the session's next message leaves. The
    /// bound never falls, so no message overtakes an earlier one. Returns the new bound.
    pub(super) fn bind(&self, bound: &mut Zxid, shown: Zxid) -> Zxid {
        *bound = shown.max(self.visible_zxid).max(*bound);
        *bound
    }

    /// Returns the future that an answer with this bound must wait for, or `None` if the answer may leave now.
    pub(super) fn passage(&self, bound: Zxid) -> Option<DurabilityWait> {
        let barrier = &self.queue.barrier;
        (!barrier.is_open_to(bound)).then(|| barrier.passage(bound))
    }

    /// Puts an update in the cell of its watch once the log has the transactions that the update shows. Returns true if
    /// the update is in the cell now.
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
        // The barrier may have opened since the check above. `hold` then puts the update in the cell and returns
        // `None`.
        match self.queue.barrier.hold(shown, cell, news) {
            None => true,
            Some(held_to) => {
                // The barrier keeps the held events of all sessions in one order, so this event may have to wait for a
                // later transaction than its own. Later answers to this session must wait equally long, or they would
                // overtake the event (invariant 9).
                *bound = held_to;
                false
            }
        }
    }

    /// Returns the end of the pause during which no session is admitted, or `None` if there is no pause. Once the pause
    /// is over, records its end in the log.
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
            // While the pause lasts, the log says that sessions are not kept, so that the next start pauses again if
            // this process is killed.
            are_kept: timeouts.are_sessions_kept && timeouts.pause_until.is_none(),
            allowed_ms: timeouts.allowed_ms,
        });
    }
}

impl Durable {
    pub(super) fn check_session(&self) -> Result<()> {
        self.check()?;
        self.queue.check_room(SESSION_BYTES, false)
    }

    pub(super) fn session_room(&self) -> Option<BoxFuture<()>> {
        let is_busy = matches!(self.check_session(), Err(Error::LimitReached { .. }));
        is_busy.then(|| Box::pin(self.queue.clone().wait_for_room(SESSION_BYTES, false)) as _)
    }

    /// Returns a future that waits until a busy log has room for the request, or `None` if there is room or if the
    /// request will be refused because the disk is full.
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

    /// Notes the timeout of a new session. `opened` is the transaction that opened the session, which is not in the log
    /// yet.
    pub(super) fn note_timeout(&mut self, ms: u64, opened: Zxid) {
        // Record only a new longest timeout, because only the longest one determines a pause.
        if ms > self.timeouts.longest_ms {
            self.timeouts.longest_ms = ms;
            self.timeouts.recorded_at = opened;
            self.queue.append_record(&Record::LongestTimeout { ms });
        }
    }

    /// Holds back all messages to a new session until the log has the transaction that opened the session and the
    /// longest timeout, which may be this session's own.
    pub(super) fn hold_session(&self, bound: &mut Zxid) -> DurabilityWait {
        let barrier = &self.queue.barrier;
        *bound = self.visible_zxid.max(self.timeouts.recorded_at).max(*bound);
        // In the durability class `None`, messages may leave before the log has the transactions that they show, but
        // the longest timeout must be in the log first. Otherwise the pause after a restart could end while a client
        // still considers its session alive (invariant 6).
        match barrier.has_written(self.timeouts.recorded_at) {
            true => barrier.passage(*bound),
            false => barrier.written(*bound),
        }
    }

    pub(super) fn timeout_recorded_at(&self) -> Zxid {
        self.timeouts.recorded_at
    }

    /// Records that sessions may be granted timeouts of up to `ms` from now on.
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

/// Returns true if a request frees room. Such requests may use part of the log's reserve, so that clients can empty a
/// full store.
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

    /// Stops the store after a failure of its log, and ends all its sessions.
    pub(super) fn stop(&self, failure: &Error) {
        tracing::error!(%failure, "the store has stopped");
        let mut state = self.state.lock();
        let cells: Vec<_> = state.cells.iter_mut().filter_map(Option::take).collect();
        let (mut statuses, mut outboxes) = (Vec::new(), Vec::new());
        for peer in state.sessions.peers() {
            match peer {
                Peer::Local(status) => {
                    // Set this under the store's lock, so that from here on no guard reports its lock as held.
                    status.set_closing();
                    statuses.push(status.clone());
                }
                Peer::Remote(outbox) => outboxes.push(outbox.clone()),
                Peer::Absent => {}
            }
        }
        // Wake tasks without the lock, because wakers are user code and may call the store.
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
