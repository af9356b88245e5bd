//! [`Deadlines`]: the times, before the lease ends, at which the command is terminated and then killed.

use std::time::Duration;

use lockkeeper_store::BootInstant;
use serde::{Deserialize, Serialize};

/// Deadlines derived from the end of the lease (`held_until`). Times are in nanoseconds since boot, on a clock that
/// includes suspended time and is the same for all processes.
///
/// The guardian renews the lease every third of the session timeout, and a lease lasts nine tenths of the timeout. More
/// than a fifth of the timeout is therefore left at each renewal. This is true even for an ensemble, where an answered
/// write extends the lease only from the time of an earlier write. If less is left, a renewal has failed, and the
/// command must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Deadlines {
    held_until: u64,
    timeout: u64,
}

/// Shortest time between SIGKILL and the end of the lease. A killed process needs this time to end if the machine is
/// busy or the process has to write out memory.
const SHORTEST_MARGIN: Duration = Duration::from_millis(200);

impl Deadlines {
    pub(super) fn new(held_until: BootInstant, timeout: Duration) -> Self {
        Self {
            held_until: held_until.as_nanos(),
            timeout: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    pub(super) fn terminate(&self) -> BootInstant {
        self.before_end(self.margin() * 2)
    }

    pub(super) fn terminate_by_reaper(&self) -> BootInstant {
        self.before_end(self.margin() * 3 / 2)
    }

    pub(super) fn kill(&self) -> BootInstant {
        self.before_end(self.margin())
    }

    /// Returns the time at which guardian and front kill the remaining processes in place of the reaper.
    pub(super) fn kill_by_others(&self) -> BootInstant {
        self.before_end(self.margin() / 2)
    }

    /// Returns the interval at which the guardian checks the lease. Short, because reaper and front know only the lease
    /// that the guardian has reported last.
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

/// A process that acts this long after its deadline concludes that it was stopped in the meantime.
const LATE: Duration = Duration::from_millis(100);

/// Time to wait for messages that the other process could not write while this process was stopped.
const TIME_TO_TELL: Duration = Duration::from_millis(200);

/// Detects deadlines that passed while this process was stopped. After a stop, the newest message that this process has
/// read may be outdated.
#[derive(Default)]
pub(super) struct Overslept {
    due: Option<BootInstant>,
    not_before: BootInstant,
}

impl Overslept {
    pub(super) fn due(&self, due: BootInstant) -> BootInstant {
        due.max(self.not_before)
    }

    /// Returns `true`, once per deadline, if this process was stopped at the deadline. Afterwards [`due`](Self::due)
    /// returns a later time, so that a newer message can arrive first.
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
