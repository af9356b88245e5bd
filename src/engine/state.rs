//! [`State`]: the core, and everything else that the engine keeps under the same lock. [`apply`](State::apply) is the
//! only way to change the core.
//!
//! Because the core, the log's queue and the outboxes share one lock, all of them see all changes in the same order.
//! Transactions reach the log in zxid order (invariant 2), and events and answers leave in the order in which they
//! happened (invariants 3, 9 and 13).

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

pub(super) struct State {
    pub(super) core: Core,
    effects: Effects,
    pub(super) cells: Vec<Option<Arc<WatchCell>>>,
    pub(super) sessions: SessionTable,
    pub(super) alarm: Option<BootInstant>,
    /// Set once sessions of other processes are admitted.
    pub(super) stalls: Option<StallMeter>,
    /// `None` for a store in memory.
    pub(super) durable: Option<Durable>,
}

/// Wake-ups to perform after a core call, once the lock is released. A waker may run its task on the calling thread,
/// and the task may call the store.
#[derive(Default)]
pub(super) struct Wakeups {
    /// The first watch cell to wake. Most calls wake at most one watcher, so this field avoids an allocation.
    cell: Option<Arc<WatchCell>>,
    more_cells: Vec<Arc<WatchCell>>,
    ended: Vec<(Arc<SessionStatus>, SessionState)>,
    pub(super) outboxes: Vec<Arc<Outbox>>,
    pub(super) alarm: Option<BootInstant>,
}

/// Maximum number of events whose memory the buffer keeps between calls. A single transaction may fire a million
/// events.
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
    /// Both steps happen under one lock. Otherwise another session could see a transaction that was not handed to the
    /// log yet, and [`bind`](Self::bind) would not hold back the answer to that session (invariant 2).
    #[inline]
    pub(super) fn apply<T>(&mut self, act: impl FnOnce(&mut Core, &mut Effects) -> T) -> T {
        self.apply_logged(|core, effects, _| act(core, effects))
    }

    /// Works like [`apply`](Self::apply), for a call that also appends a record to the log. The record precedes the
    /// call's transactions.
    #[inline]
    pub(super) fn apply_logged<T>(
        &mut self,
        act: impl FnOnce(&mut Core, &mut Effects, Option<&mut Durable>) -> T,
    ) -> T {
        // If the call raises `last_kept`, its answer must wait until the log has the new transaction.
        let before = self.core.last_kept();
        let outcome = act(&mut self.core, &mut self.effects, self.durable.as_mut());
        if let Some(durable) = &mut self.durable {
            durable.append_txns(&mut self.core, before);
        }
        outcome
    }

    #[inline]
    pub(super) fn admit(&self, session: SessionRef, request: &Request) -> Result<Zxid> {
        match &self.durable {
            Some(durable) => durable.admit(&self.core, session, request),
            None => Ok(Zxid(0)),
        }
    }

    /// Returns true if an answer about a session's own entries need not wait for the log. Always returns false for a
    /// session whose changes are logged.
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

    pub(super) fn check_log(&self) -> Result<()> {
        self.durable.as_ref().map_or(Ok(()), Durable::check)
    }

    pub(super) fn may_tick(&self) -> bool {
        self.durable.as_ref().is_none_or(Durable::has_reserve)
    }

    #[inline]
    pub(super) fn bind(&mut self, slot: u32, shown: Zxid) -> Zxid {
        match &self.durable {
            Some(durable) => durable.bind(self.sessions.min_durable_zxid(slot), shown),
            None => Zxid(0),
        }
    }

    /// Returns the future that an answer showing the transaction `shown` must wait for, or `None` if the answer may
    /// leave now. The future also waits until earlier answers of the session may leave.
    #[inline]
    pub(super) fn passage(&mut self, slot: u32, shown: Zxid) -> Option<DurabilityWait> {
        let durable = self.durable.as_ref()?;
        let bound = durable.bind(self.sessions.min_durable_zxid(slot), shown);
        durable.passage(bound)
    }

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

    /// Delivers the events of the last call, and adds the necessary wake-ups to `wakeups`.
    ///
    /// This must run before the lock is released and before any answer is put in an outbox, because an event precedes
    /// every later answer (invariants 3 and 9).
    pub(super) fn collect(&mut self, wakeups: &mut Wakeups) {
        // Take the buffer out so that `deliver` can borrow `self`, and put it back to keep its memory.
        let mut fired = std::mem::take(&mut self.effects.fired);
        for fired in fired.drain(..) {
            self.deliver(fired, wakeups);
        }
        fired.shrink_to(MAX_KEPT_EVENTS);
        self.effects.fired = fired;
        // Overflowed sessions have missed events, so nothing more may be sent to them.
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
        // Do this last, because the steps above need the slots of the ended sessions.
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
                    // Do this before the store's lock is released, because other sessions can then acquire the
                    // distributed locks of the ended session. Its guards must no longer report these locks as held
                    // (invariant 6).
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
            // An event shows the transaction of the call that fired it. `bind` adds this transaction itself.
            let bound = self.bind(fired.slot, Zxid(0));
            if outbox.put_news(bound, fired.watch, fired.news) {
                wakeups.outboxes.push(outbox);
            }
            return;
        }
        // This is a session of this process, because a disconnected session of another process has no watches.
        let Some(cell) = self.cells.get_mut(fired.watch.index as usize) else {
            return;
        };
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

    /// Sets the alarm to the core's next deadline and returns it. Returns `None` if an alarm is already set for that
    /// time or earlier. If an alarm was set for a later time, its task ends when it finds the new alarm
    /// ([`Engine::tick`]).
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

    /// Wakes tasks and starts the timer. Do not call this under the store's lock, because wakers are user code.
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
