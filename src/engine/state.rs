//! [`State`]: the core, and what its shell keeps under the same lock. [`apply`](State::apply) is the one way to change it.

use std::sync::{Arc, Weak};

use super::Engine;
use super::durable::{Durable, Passage};
use super::outbox::{Ending, Outbox};
use super::sessions::{Peer, SessionTable};
use super::stalls::StallMeter;
use crate::backend::SessionStatus;
use crate::clock::{BootInstant, Clock};
use crate::core::{Core, Effects, End, Fired, SessionRef, WatchKey};
use crate::error::Result;
use crate::protocol::Request;
use crate::types::{SessionState, Zxid};
use crate::watch::WatchCell;

/// A store's content, and the receivers of its changes.
pub(super) struct State {
    pub(super) core: Core,
    /// Effects of the last call to the core, until [`collect`](Self::collect) hands them out.
    effects: Effects,
    /// The watchers' cells, by the index of their watch.
    pub(super) cells: Vec<Option<Arc<WatchCell>>>,
    pub(super) sessions: SessionTable,
    /// Moment at which the timer goes off.
    pub(super) alarm: Option<BootInstant>,
    /// Set while sessions of other processes are let in.
    pub(super) stalls: Option<StallMeter>,
    /// The log; `None` of a store in memory.
    pub(super) durable: Option<Durable>,
}

/// Work left after a call to the core, to be done without the lock: a woken task may ask the store at once.
#[derive(Default)]
pub(super) struct Wakeups {
    /// Most calls wake one watcher at most: no allocation for that.
    cell: Option<Arc<WatchCell>>,
    more_cells: Vec<Arc<WatchCell>>,
    ended: Vec<(Arc<SessionStatus>, SessionState)>,
    pub(super) outboxes: Vec<Arc<Outbox>>,
    pub(super) alarm: Option<BootInstant>,
}

/// The room for events that is kept from one transaction to the next.
const KEPT_EVENTS: usize = 1 << 10;

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

    /// Has the core do one thing, and hands the transactions that come of it to the log.
    ///
    /// Both under one lock: whatever another session sees of it is on its way to the log already, in the order of the
    /// zxids, so that [`bind`](Self::bind) can hold it back until the log has it (invariant 2).
    #[inline]
    pub(super) fn apply<T>(&mut self, act: impl FnOnce(&mut Core, &mut Effects) -> T) -> T {
        self.apply_logged(|core, effects, _| act(core, effects))
    }

    /// Works as [`apply`](Self::apply), for a call of which the log must know more than its transactions, and before
    /// them.
    #[inline]
    pub(super) fn apply_logged<T>(
        &mut self,
        act: impl FnOnce(&mut Core, &mut Effects, Option<&mut Durable>) -> T,
    ) -> T {
        let before = self.core.last_kept();
        let outcome = act(&mut self.core, &mut self.effects, self.durable.as_mut());
        if let Some(durable) = &mut self.durable {
            durable.keep(&mut self.core, before);
        }
        outcome
    }

    /// Checks that a request may be carried out. Returns the transaction that its answer will show, as it looks before.
    ///
    /// # Errors
    /// [`Error::StoreFailed`](crate::Error::StoreFailed), [`Error::DiskFull`](crate::Error::DiskFull);
    /// [`Error::LimitReached`](crate::Error::LimitReached) while the log is busy: there will be room.
    #[inline]
    pub(super) fn admit(&self, session: SessionRef, request: &Request) -> Result<Zxid> {
        match &self.durable {
            Some(durable) => durable.admit(&self.core, session, request),
            None => Ok(Zxid(0)),
        }
    }

    /// Checks that the store is still at work: one whose log has failed is not (invariant 12).
    pub(super) fn check_log(&self) -> Result<()> {
        self.durable.as_ref().map_or(Ok(()), Durable::check)
    }

    /// Returns true if the log has room for what the store does by itself.
    pub(super) fn may_tick(&self) -> bool {
        self.durable.as_ref().is_none_or(Durable::has_reserve)
    }

    /// Bounds what a session is told next by what it shows, and by what the session was told before.
    #[inline]
    pub(super) fn bind(&mut self, slot: u32, shown: Zxid) -> Zxid {
        match &self.durable {
            Some(durable) => durable.bind(self.sessions.bound(slot), shown),
            None => Zxid(0),
        }
    }

    /// Returns the future that an answer waits for which shows this transaction, if it has to wait: for the log, and
    /// for the answers before it.
    #[inline]
    pub(super) fn passage(&mut self, slot: u32, shown: Zxid) -> Option<Passage> {
        let durable = self.durable.as_ref()?;
        let bound = durable.bind(self.sessions.bound(slot), shown);
        durable.passage(bound)
    }

    /// Gathers what a call to the core has done; `None`, quickly, when nobody is concerned.
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

    /// Puts events where the watchers look for them, and says what is left to do.
    pub(super) fn collect(&mut self, wakeups: &mut Wakeups) {
        // Taken out for the while, and their room put back.
        let mut fired = std::mem::take(&mut self.effects.fired);
        for fired in fired.drain(..) {
            self.deliver(fired, wakeups);
        }
        fired.shrink_to(KEPT_EVENTS);
        self.effects.fired = fired;
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
                    // Before the lock is let go, and with it what the session held: a guard must not believe in a lock
                    // that another session may have taken.
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

    /// Closes slow connections while more bytes wait for all clients together than may.
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
            let bound = self.bind(fired.slot, Zxid(0));
            if outbox.put_event(bound, fired.event) {
                wakeups.outboxes.push(outbox);
            }
            return;
        }
        // A session of another process that has no connection has no watches either.
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
            if durable.deliver(self.sessions.bound(fired.slot), &cell, fired.event) {
                wakeups.wake(cell);
            }
            return;
        }
        cell.put(fired.event);
        wakeups.wake(cell);
    }

    /// Returns the alarm to be set, if something is due before the one that is.
    pub(super) fn next_alarm(&mut self, clock: &Clock) -> Option<BootInstant> {
        let due = self.core.next_deadline(|| clock.now())?;
        if self.alarm.is_some_and(|alarm| alarm <= due) {
            return None;
        }
        self.alarm = Some(due);
        self.alarm
    }

    /// Keeps the cell of a watch.
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

    /// Wakes those concerned. Never under the lock: wakers are the users' code.
    pub(super) fn carry_out(self, engine: &Arc<Engine>) {
        for (status, state) in self.ended {
            if state == SessionState::Expired {
                tracing::warn!(session = %status.id(), "the session has expired");
            }
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

/// Ticks at `alarm` and whenever something is due, as long as the store lives.
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
