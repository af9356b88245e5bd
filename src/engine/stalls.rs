//! [`StallMeter`]: measures stalls, during which the store could not work. A client's requests may wait unread during a
//! stall, so the core may postpone the expiry of the client's session (`core/expiry.rs`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Engine;
use super::state::State;
use crate::runtime::clock::{BootInstant, Clock};
use crate::runtime::histogram::Histogram;

/// Interval of the beats. A stall that starts between two beats counts only from the due time of the second beat.
const PERIOD: Duration = Duration::from_millis(250);

/// A beat that is late by less than this is not a stall, because timers on a busy machine may be this late.
const SLACK: Duration = Duration::from_millis(50);

/// Measures how late a periodic beat is. A beat is late if the process was stopped, if the machine had no free
/// processor, or if another task held the store's lock for a long time.
///
/// The meter uses [`Clock::awake`], which stops while the machine is suspended. Clients on other machines keep running,
/// so a server that wakes up frees the locks of clients that went silent in the meantime.
#[derive(Debug)]
pub(super) struct StallMeter {
    /// Due time of the next beat, or the time up to which its lateness was already counted.
    due: BootInstant,
    pub(super) counted: Histogram<{ STALL_BOUNDS_NS.len() }>,
}

/// Bounds of the histogram in nanoseconds, from about twice [`SLACK`] to the longest usual session timeouts.
const STALL_BOUNDS_NS: [u64; 9] = [
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
];

impl StallMeter {
    fn new(awake: BootInstant) -> Self {
        let due = awake.after(PERIOD);
        let counted = Histogram::new(&STALL_BOUNDS_NS);
        Self { due, counted }
    }

    /// Returns the lateness that was not counted before. Returns 0 if it is less than [`SLACK`].
    fn late(&mut self, awake: BootInstant) -> Duration {
        let late = awake.since(self.due);
        if late < SLACK {
            return Duration::ZERO;
        }
        // The late beat may still follow. It must add only the lateness after this moment.
        self.due = awake;
        self.counted.add(late);
        late
    }

    fn beat(&mut self, awake: BootInstant) -> Duration {
        let late = self.late(awake);
        self.due = awake.after(PERIOD);
        late
    }
}

impl State {
    /// Counts the lateness of the beat so far. Call this before the core decides about any session.
    pub(super) fn count_stall(&mut self, clock: &Clock) {
        if let Some(stalls) = &mut self.stalls {
            self.core.count_stall(stalls.late(clock.awake()));
        }
    }
}

impl Engine {
    /// Starts to measure stalls. Only sessions of other processes need this, because a late store has not yet read the
    /// signs of life that their clients sent.
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

async fn beat(engine: Weak<Engine>, clock: Clock) {
    loop {
        clock.sleep(PERIOD).await;
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let mut state = engine.state.lock();
        // Read the clock after taking the lock, because the time spent waiting for the lock counts as lateness.
        let awake = clock.awake();
        let stalls = state.stalls.as_mut();
        let late = stalls.map_or(Duration::ZERO, |stalls| stalls.beat(awake));
        state.core.count_stall(late);
        drop(state);
        if late >= LEAST_REPORTED {
            tracing::warn!(
                late_ms = late.as_millis() as u64,
                "the store was kept from its work: sessions expire later"
            );
        }
    }
}

const LEAST_REPORTED: Duration = Duration::from_secs(1);
