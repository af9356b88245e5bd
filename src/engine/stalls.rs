//! The store that is late itself must not expire sessions whose clients are not (rule 14). Three parts serve that:
//! [`StallMeter`] moves the deadlines of sessions by the store's own stalls; before a session expires its connection is
//! asked by a [`LivenessQuestion`] to read what has come; [`Connection::end_silent`] ends the session if that was
//! nothing.
//!
//! A belief of a client (`held_until`, invariant 6) is no concern of this: it ends by the client's own clock, a margin
//! before the first deadline that the store sets. To move a deadline later is always safe.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Engine;
use super::connection::Connection;
use super::state::State;
use crate::clock::{BootInstant, Clock};

/// Looked for as often. A stall that begins between two beats counts from the second.
const PERIOD: Duration = Duration::from_millis(250);

/// Lateness of timers that counts as no stall: a busy machine has as much.
const SLACK: Duration = Duration::from_millis(50);

/// The lateness of a beat that is due again and again, under the store's lock: a stopped process, a machine without a
/// processor to spare and a long turn under the lock all keep it from coming. On [`Clock::awake`]: suspended with
/// its machine, a server frees the locks of holders that are gone as if it had been at work.
#[derive(Debug)]
pub(super) struct StallMeter {
    due: BootInstant,
}

impl StallMeter {
    fn new(awake: BootInstant) -> Self {
        let due = awake.after(PERIOD);
        Self { due }
    }

    /// Returns for how long the beat has been due, as far as that was not counted yet.
    fn late(&mut self, awake: BootInstant) -> Duration {
        let late = awake.since(self.due);
        if late < SLACK {
            return Duration::ZERO;
        }
        self.due = awake;
        late
    }

    /// Returns the same, and waits for the next beat.
    fn beat(&mut self, awake: BootInstant) -> Duration {
        let late = self.late(awake);
        self.due = awake.after(PERIOD);
        late
    }
}

/// The question that a connection is asked before its session expires: has its client sent anything that is not read
/// yet?
#[derive(Debug, Default)]
pub(super) struct LivenessQuestion(AtomicBool);

impl LivenessQuestion {
    /// Asks. The connection must be woken.
    pub(super) fn ask(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Takes the question back. Returns true if there was one.
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

impl Connection {
    /// Says that all is read that the client has sent. If the connection was asked for signs of life, and none was
    /// among it, that ends the session. What the log does not take now ends by a tick.
    pub(crate) fn end_silent(&self) {
        if !self.outbox().question().take() {
            return;
        }
        let now = self.engine.now(true, true);
        let mut state = self.engine.state.lock();
        if !state.may_tick() {
            return;
        }
        state.apply(|core, effects| core.end_silent(self.session, now, effects));
        self.engine.settle(state);
    }
}

impl State {
    /// Counts what the store is late by now: before it judges any session.
    pub(super) fn count_stall(&mut self, clock: &Clock) {
        if let Some(stalls) = &mut self.stalls {
            self.core.count_stall(stalls.late(clock.awake()));
        }
    }
}

impl Engine {
    /// Measures stalls from now on: sessions of other processes depend on what the store has read.
    pub(super) fn measure_stalls(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.stalls.is_some() {
            return;
        }
        state.stalls = Some(StallMeter::new(self.clock.awake()));
        drop(state);
        crate::spawn_detached(beat(Arc::downgrade(self), self.clock.clone()));
    }
}

/// Beats as long as the store lives.
async fn beat(engine: Weak<Engine>, clock: Clock) {
    loop {
        clock.sleep(PERIOD).await;
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let mut state = engine.state.lock();
        // Read under the lock: to wait for it is to be late.
        let awake = clock.awake();
        let stalls = state.stalls.as_mut();
        let late = stalls.map_or(Duration::ZERO, |stalls| stalls.beat(awake));
        state.core.count_stall(late);
        drop(state);
        if late >= WORTH_TELLING {
            tracing::warn!(
                late_ms = late.as_millis() as u64,
                "the store was kept from its work: sessions expire later"
            );
        }
    }
}

/// Shorter stalls are not worth a warning.
const WORTH_TELLING: Duration = Duration::from_secs(1);
