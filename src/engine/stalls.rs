//! [`StallMeter`]: measures how long the store was kept from its work, by the lateness of a periodic beat.
//!
//! The core decides which sessions are spared for it (`core/expiry.rs`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Engine;
use super::state::State;
use crate::runtime::clock::{BootInstant, Clock};
use crate::runtime::histogram::Histogram;

/// Interval of the beat. A stall that starts between two beats counts from the second.
const PERIOD: Duration = Duration::from_millis(250);

/// Lateness that is no stall, because timers on a busy machine are this late.
const SLACK: Duration = Duration::from_millis(50);

/// Meter of the lateness of a periodic beat under the store's lock. A stopped process, a machine without a free
/// processor and a long turn under the lock all delay the beat.
///
/// It uses [`Clock::awake`], which stops while the machine is suspended. Clients on other machines continue, so a
/// server that wakes up frees the locks of holders that are gone as if it had been at work.
#[derive(Debug)]
pub(super) struct StallMeter {
    /// Time of the next beat, or the time up to which its lateness is counted.
    due: BootInstant,
    pub(super) counted: Histogram<{ STALL_BOUNDS_NS.len() }>,
}

/// From [`SLACK`] to the longest usual session timeouts.
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

    /// Returns how long the beat has been due, without the part counted before.
    fn late(&mut self, awake: BootInstant) -> Duration {
        let late = awake.since(self.due);
        if late < SLACK {
            return Duration::ZERO;
        }
        // The beat is still to come and adds only the rest.
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
    /// Counts the present lateness. Call it before the core decides about any session.
    pub(super) fn count_stall(&mut self, clock: &Clock) {
        if let Some(stalls) = &mut self.stalls {
            self.core.count_stall(stalls.late(clock.awake()));
        }
    }
}

impl Engine {
    /// Measures stalls from now on. Only sessions of other processes need this, because a late store has not read their
    /// signs of life.
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
        // Read under the lock, because waiting for it counts as lateness.
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

/// Shortest stall that is worth a warning.
const LEAST_REPORTED: Duration = Duration::from_secs(1);
