//! [`State`]: the core, with everything that its shell keeps under the same lock. [`apply`](State::apply) is the only
//! way to change it.
//!
//! One lock around core, queue and outboxes makes all orders the same. Transactions reach the log in the order of their
//! zxids (invariant 2), and events and answers leave in the order in which they happened (invariants 3, 9 and 13).

use std::sync::{Arc, Weak};

use super::Engine;
use super::durable::{DurabilityWait, Durable};
use super::outbox::{Ending, Outbox};
use super::sessions::{Peer, SessionTable};
use super::stalls::StallMeter;
use crate::backend::SessionStatus;
use crate::core::{Ahead, Core, Effects, End, Fired, SessionRef, WatchKey};
use crate::model::entry::PredecessorWatch;
use crate::model::error::Result;
use crate::model::protocol::Request;
use crate::model::types::{SessionState, Zxid};
use crate::model::watch::WatchCell;
use crate::runtime::clock::{BootInstant, Clock};

/// A store's content, and the receivers of its changes.
pub(super) struct State {
    pub(super) core: Core,
    /// Effects of the last core call, until [`collect`](Self::collect) hands them out.
    effects: Effects,
    /// Cells of this process's watchers, by watch index.
    pub(super) cells: Vec<Option<Arc<WatchCell>>>,
    pub(super) sessions: SessionTable,
    /// Time of the next scheduled [`tick`](Engine::tick).
    pub(super) alarm: Option<BootInstant>,
    /// Set once sessions of other processes are admitted.
    pub(super) stalls: Option<StallMeter>,
    /// `None` for a store in memory.
    pub(super) durable: Option<Durable>,
}

/// Wake-ups that remain after a core call. They happen without the lock, because a waker may run its task in place, and
/// the task may call the store.
#[derive(Default)]
pub(super) struct Wakeups {
    /// Most calls wake at most one watcher, so this avoids an allocation.
    cell: Option<Arc<WatchCell>>,
    more_cells: Vec<Arc<WatchCell>>,
    ended: Vec<(Arc<SessionStatus>, SessionState)>,
    pub(super) outboxes: Vec<Arc<Outbox>>,
    pub(super) alarm: Option<BootInstant>,
}

/// Capacity for events that is kept between calls. One transaction may fire a million.
const MAX_KEPT_EVENTS: usize = 1 << 10;

impl State {
    pub(super) fn new(core: Core) -> Self {
        Self {
            core,
            effects: Effects::default(),
            cells: Vec::new(),
            sessions: SessionTable::default(),
            alarm: None,
            stalls: None,
            durable: None,
        }
    }

    /// Makes one call to the core, and hands the resulting transactions to the log.
    ///
    /// Both happen under one lock. Otherwise another session could see a transaction that the log does not have yet,
    /// and [`bind`](Self::bind) could not hold that session's answer back (invariant 2).
    #[inline]
    pub(super) fn apply<T>(&mut self, act: impl FnOnce(&mut Core, &mut Effects) -> T) -> T {
        self.apply_logged(|core, effects, _| act(core, effects))
    }

    /// Works as [`apply`](Self::apply), for a call that also gives the log a record, which must precede its
    /// transactions.
    #[inline]
    pub(super) fn apply_logged<T>(
        &mut self,
        act: impl FnOnce(&mut Core, &mut Effects, Option<&mut Durable>) -> T,
    ) -> T {
        // If the call moves this, its answer must not run ahead of the transaction.
        let before = self.core.last_kept();
        let outcome = act(&mut self.core, &mut self.effects, self.durable.as_mut());
        if let Some(durable) = &mut self.durable {
            durable.append_txns(&mut self.core, before);
        }
        outcome
    }

    /// Checks that a request may be carried out, as `Durable::admit`.
    #[inline]
    pub(super) fn admit(&self, session: SessionRef, request: &Request) -> Result<Zxid> {
        match &self.durable {
            Some(durable) => durable.admit(&self.core, session, request),
            None => Ok(Zxid(0)),
        }
    }

    /// Returns true if an answer to a session of this process about its own entries need not wait for the log.
    #[inline]
    pub(super) fn answers_at_once(&mut self, slot: u32, shown: impl FnOnce(&Core) -> Zxid) -> bool {
        match &self.durable {
            None => true,
            Some(durable) => {
                let bound = shown(&self.core).max(*self.sessions.min_durable_zxid(slot));
                durable.check().is_ok()
                    && !self.core.logs_session(slot)
                    && durable.passage(bound).is_none()
            }
        }
    }

    /// Checks that the log has not failed (invariant 12).
    pub(super) fn check_log(&self) -> Result<()> {
        self.durable.as_ref().map_or(Ok(()), Durable::check)
    }

    /// Returns true if the log has room for ends of sessions and reaped znodes.
    pub(super) fn may_tick(&self) -> bool {
        self.durable.as_ref().is_none_or(Durable::has_reserve)
    }

    /// Raises a session's bound to the transaction that its next message shows. 0 without a log.
    #[inline]
    pub(super) fn bind(&mut self, slot: u32, shown: Zxid) -> Zxid {
        match &self.durable {
            Some(durable) => durable.bind(self.sessions.min_durable_zxid(slot), shown),
            None => Zxid(0),
        }
    }

    /// Returns the future that an answer showing this transaction waits for, if it must. It also waits for earlier
    /// answers.
    #[inline]
    pub(super) fn passage(&mut self, slot: u32, shown: Zxid) -> Option<DurabilityWait> {
        let durable = self.durable.as_ref()?;
        let bound = durable.bind(self.sessions.min_durable_zxid(slot), shown);
        durable.passage(bound)
    }

    /// Collects the effects of a core call. `None` if there are none.
    pub(super) fn gather(&mut self, clock: &Clock) -> Option<Wakeups> {
        let alarm = self.next_alarm(clock);
        (alarm.is_some() || !self.effects.is_empty()).then(|| {
            let mut wakeups = Wakeups {
                alarm,
                ..Wakeups::default()
            };
            self.collect(&mut wakeups);
            wakeups
        })
    }

    /// Delivers the events of the last call, and adds the wake-ups that remain.
    ///
    /// It must run before the lock is released and before any answer is put out, because an event precedes every later
    /// answer (invariants 3 and 9).
    pub(super) fn collect(&mut self, wakeups: &mut Wakeups) {
        // Taken out so that `deliver` can borrow the rest, and put back to keep its buffer.
        let mut fired = std::mem::take(&mut self.effects.fired);
        for fired in fired.drain(..) {
            self.deliver(fired, wakeups);
        }
        fired.shrink_to(MAX_KEPT_EVENTS);
        self.effects.fired = fired;
        // These sessions have missed events, so nothing more may be sent to them.
        for slot in self.effects.overflowed.drain(..) {
            if let Some(outbox) = self.sessions.outbox(slot)
                && outbox.end(Ending::Overflow)
            {
                wakeups.outboxes.push(outbox.clone());
            }
        }
        self.cut_slow_readers(wakeups);
        for (watch, session, end) in self.effects.dropped.drain(..) {
            if let Some(cell) = self.cells[watch.index as usize].take() {
                cell.end(end.error(session));
                wakeups.wake(cell);
            }
        }
        for slot in self.effects.asked.drain(..) {
            if let Some(outbox) = self.sessions.outbox(slot) {
                outbox.ask_for_signs();
                wakeups.outboxes.push(outbox.clone());
            }
        }
        // Last, because the events above need the slots of ended sessions.
        for ended in self.effects.ended.drain(..) {
            match self.sessions.end(ended.slot) {
                Peer::Remote(outbox) => {
                    self.sessions.close(&outbox);
                    let ending = match ended.end {
                        End::Expired => Ending::Expired,
                        End::Closed => Ending::Closed,
                    };
                    if outbox.end(ending) {
                        wakeups.outboxes.push(outbox);
                    }
                }
                Peer::Local(status) => {
                    // Before the lock is released. From then on the session's locks are free, and its guards must not
                    // believe in them (invariant 6).
                    status.set_closing();
                    let state = match ended.end {
                        End::Expired => SessionState::Expired,
                        End::Closed => SessionState::Closed,
                    };
                    wakeups.ended.push((status, state));
                }
                Peer::Absent => {}
            }
        }
    }

    /// Closes the slowest connections while all unread bytes together are over their limit.
    #[inline]
    pub(super) fn cut_slow_readers(&self, wakeups: &mut Wakeups) {
        if self.sessions.unread().is_over() {
            wakeups.outboxes.extend(self.sessions.cut_slow_readers());
        }
    }

    #[inline]
    fn deliver(&mut self, fired: Fired, wakeups: &mut Wakeups) {
        if let Some(outbox) = self.sessions.outbox(fired.slot) {
            let outbox = outbox.clone();
            // An event shows the transaction of the call that fired it, which `bind` knows.
            let bound = self.bind(fired.slot, Zxid(0));
            if outbox.put_news(bound, fired.watch, fired.news) {
                wakeups.outboxes.push(outbox);
            }
            return;
        }
        // A session of this process, because others have no watches while disconnected.
        let Some(cell) = self.cells.get_mut(fired.watch.index as usize) else {
            return;
        };
        // The core may reuse the index of a watch that has fired.
        let cell = if fired.is_last {
            cell.take()
        } else {
            cell.clone()
        };
        let Some(cell) = cell else { return };
        if let Some(durable) = &self.durable {
            if durable.deliver(
                self.sessions.min_durable_zxid(fired.slot),
                &cell,
                fired.news,
            ) {
                wakeups.wake(cell);
            }
            return;
        }
        cell.put(fired.news);
        wakeups.wake(cell);
    }

    /// Sets the alarm to the core's next deadline and returns it, unless an earlier one is set. The task of a later
    /// alarm ends when it finds this one ([`Engine::tick`]).
    pub(super) fn next_alarm(&mut self, clock: &Clock) -> Option<BootInstant> {
        let due = self.core.next_deadline(|| clock.now())?;
        if self.alarm.is_some_and(|alarm| alarm <= due) {
            return None;
        }
        self.alarm = Some(due);
        self.alarm
    }

    pub(super) fn turn_behind(&mut self, ahead: Ahead) -> PredecessorWatch {
        let cell = Arc::<WatchCell>::default();
        self.keep_cell(ahead.watch, cell.clone());
        PredecessorWatch {
            cell,
            watch: ahead.watch.to_u64(),
            ahead: ahead.role,
            is_own: ahead.is_own,
        }
    }

    pub(super) fn keep_cell(&mut self, watch: WatchKey, cell: Arc<WatchCell>) {
        let index = watch.index as usize;
        if self.cells.len() <= index {
            self.cells.resize_with(index + 1, || None);
        }
        self.cells[index] = Some(cell);
    }
}

impl Wakeups {
    fn wake(&mut self, cell: Arc<WatchCell>) {
        if self.cell.is_none() {
            self.cell = Some(cell);
        } else {
            self.more_cells.push(cell);
        }
    }

    /// Wakes tasks and starts the timer. Never call it under the store's lock, because wakers are user code.
    pub(super) fn carry_out(self, engine: &Arc<Engine>) {
        for (status, state) in self.ended {
            status.set_state(state);
        }
        for cell in self.cell.iter().chain(&self.more_cells) {
            cell.wake();
        }
        for outbox in &self.outboxes {
            outbox.wake();
        }
        if let Some(alarm) = self.alarm {
            crate::spawn_detached(keep_time(
                Arc::downgrade(engine),
                engine.clock.clone(),
                alarm,
            ));
        }
    }
}

/// Ticks at every alarm until nothing is due, another timer has taken over, or the store is gone.
async fn keep_time(engine: Weak<Engine>, clock: Clock, mut alarm: BootInstant) {
    loop {
        clock.sleep_until(alarm).await;
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let Some(next) = engine.tick(alarm) else {
            return;
        };
        alarm = next;
    }
}
