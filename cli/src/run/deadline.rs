//! [`Deadlines`]: the moments before the end of the lease at which the command is asked to end, and killed.

use std::time::Duration;

use lockkeeper_store::BootInstant;
use serde::{Deserialize, Serialize};

/// Moments that follow from the end of the lease (`held_until`), on the clock that counts suspended time and is the same
/// for all processes: nanoseconds since the machine's start.
///
/// A lease is renewed every third of the session's timeout and lasts nine tenths of it. Even in an ensemble, which proves
/// an earlier write, more than a quarter is left when the next proof comes: below a fifth, a renewal has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Deadlines {
    held_until: u64,
    timeout: u64,
}

/// SIGKILL needs time to act: the process may have to write out memory, and the machine may be busy.
const SHORTEST_MARGIN: Duration = Duration::from_millis(200);

impl Deadlines {
    pub(super) fn new(held_until: BootInstant, timeout: Duration) -> Self {
        Self {
            held_until: held_until.as_nanos(),
            timeout: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the moment at which the guardian sends SIGTERM.
    pub(super) fn terminate(&self) -> BootInstant {
        self.before_end(self.margin() * 2)
    }

    /// Returns the moment at which the reaper sends SIGTERM, since the guardian has not asked for it.
    pub(super) fn terminate_by_reaper(&self) -> BootInstant {
        self.before_end(self.margin() * 3 / 2)
    }

    /// Returns the moment at which the reaper kills whatever is left.
    pub(super) fn kill(&self) -> BootInstant {
        self.before_end(self.margin())
    }

    /// Returns the moment at which guardian and front do that, since the reaper has not.
    pub(super) fn kill_by_others(&self) -> BootInstant {
        self.before_end(self.margin() / 2)
    }

    /// Returns the interval at which the guardian looks at the lease: no large part of it, since reaper and front
    /// know only what they are told.
    pub(super) fn interval(&self) -> Duration {
        Duration::from_nanos(self.timeout / 20)
    }

    fn margin(&self) -> u64 {
        let shortest = SHORTEST_MARGIN.as_nanos() as u64;
        (self.timeout / 10).max(shortest).min(self.timeout / 4)
    }

    fn before_end(&self, by: u64) -> BootInstant {
        BootInstant::from_nanos(self.held_until.saturating_sub(by))
    }
}

/// Lateness from which this process concludes that it was stopped.
const LATE: Duration = Duration::from_millis(100);

/// Time for a message that the other process could not write while this one was stopped.
const TIME_TO_TELL: Duration = Duration::from_millis(200);

/// Moments to act that this process may have missed because it was stopped. The newest message it has read is old then.
#[derive(Default)]
pub(super) struct Overslept {
    due: Option<BootInstant>,
    not_before: BootInstant,
}

impl Overslept {
    /// Returns the moment at which to act. `due` is the moment that follows from the newest message.
    pub(super) fn due(&self, due: BootInstant) -> BootInstant {
        due.max(self.not_before)
    }

    /// Returns true, once for each moment, if this process was stopped when it should have acted. Then the newest message
    /// has some time to arrive.
    pub(super) fn is_new(&mut self, due: BootInstant, now: BootInstant) -> bool {
        if self.due == Some(due) || now.since(due) < LATE {
            return false;
        }
        self.due = Some(due);
        self.not_before = now.after(TIME_TO_TELL);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ends_before_the_lease() {
        for timeout in [400, 2_000, 4_000, 15_000, 60_000].map(Duration::from_millis) {
            let end = BootInstant::from_nanos(1_000_000_000_000);
            let deadlines = Deadlines::new(end, timeout);
            let (asked, asked_by_reaper) = (deadlines.terminate(), deadlines.terminate_by_reaper());
            assert!(asked < asked_by_reaper && asked_by_reaper < deadlines.kill());
            assert!(
                deadlines.kill() < deadlines.kill_by_others() && deadlines.kill_by_others() < end
            );
            let left = end.since(deadlines.kill());
            assert!(left >= SHORTEST_MARGIN.min(timeout / 4), "{timeout:?}");
            assert!(left <= timeout / 4 && end.since(asked) <= timeout / 2);
        }
    }
}
