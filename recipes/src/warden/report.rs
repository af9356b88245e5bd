//! [`Overdue`] holders, and the stream of [`WardenReport`]s.

use std::fmt;
use std::time::Duration;

use lockkeeper_store::{Error, HumanDuration, ZnodePath};

use crate::metadata::LockMetadata;
use crate::observe::QueueEntry;
use crate::stream::{Lossy, LossySender, named_stream};

/// How overdue a holder is: the last of its declared durations that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OverdueLevel {
    /// [`expected_hold`](crate::LockOptions::expected_hold): longer than it expected.
    Expected,
    /// [`alert_after`](crate::LockOptions::alert_after): worth an alarm.
    Alert,
    /// [`auto_unlock_after`](crate::LockOptions::auto_unlock_after): it may be removed.
    AutoUnlock,
}

impl OverdueLevel {
    pub(super) const ALL: [Self; 3] = [Self::Expected, Self::Alert, Self::AutoUnlock];

    fn label(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Alert => "alert",
            Self::AutoUnlock => "auto_unlock",
        }
    }

    pub(super) fn after(self, metadata: &LockMetadata) -> Option<Duration> {
        match self {
            Self::Expected => metadata.expected_hold(),
            Self::Alert => metadata.alert_after(),
            Self::AutoUnlock => metadata.auto_unlock_after(),
        }
    }
}

impl fmt::Display for OverdueLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expected => "longer than expected",
            Self::Alert => "long enough for an alarm",
            Self::AutoUnlock => "long enough to be unlocked",
        })
    }
}

/// Statistics of a warden, as last read. See [`Warden::stats`](crate::Warden::stats).
///
/// They cover the locks that the warden times. Below a prefix these are only the locks with a holder that declares a
/// duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WardenStats {
    /// Locks with a holder.
    pub locks: usize,
    /// Holders, overdue or not. For semaphores the holders of permits.
    pub holders: usize,
    /// Waiters for locks below prefixes. For separately watched locks, waiters are not read.
    pub waiters: usize,
    /// Holders whose highest level is [`Expected`](OverdueLevel::Expected).
    pub overdue_expected: usize,
    /// Holders whose highest level is [`Alert`](OverdueLevel::Alert).
    pub overdue_alert: usize,
    /// Holders whose highest level is [`AutoUnlock`](OverdueLevel::AutoUnlock).
    pub overdue_auto_unlock: usize,
    /// The longest time that a holder was seen without a sign of life.
    pub longest_hold: Duration,
}

/// A holder that has held longer than it declared.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Overdue {
    /// The lock.
    pub path: ZnodePath,
    /// The holder's entry. If Curator's `Revoker` has overwritten its metadata, contains the last known.
    pub entry: QueueEntry,
    /// The level reached.
    pub level: OverdueLevel,
    /// How long the warden has seen it hold without a sign of life. It may have held longer.
    pub seen_for: Duration,
    /// Excess over the declared duration of this level.
    pub over_by: Duration,
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metadata = self.entry.metadata.as_ref();
        let label = metadata.and_then(|metadata| metadata.label.as_deref());
        write!(
            f,
            "{} is held by {} for {:.1}, {}, by {:.1}",
            self.path,
            label.unwrap_or(self.entry.path.name()),
            HumanDuration(self.seen_for),
            self.level,
            HumanDuration(self.over_by)
        )
    }
}

/// A report of a [`Warden`](super::Warden).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum WardenReport {
    /// A holder is overdue. Reported once per level, and again after a sign of life.
    Overdue(Overdue),
    /// The warden has removed the holder. If the reply to its delete was lost, the holder may have left on its own.
    Removed {
        /// The lock.
        path: ZnodePath,
        /// The entry that was deleted.
        entry: QueueEntry,
    },
    /// The store refused a request, and the lock is no longer watched.
    Failed {
        /// The lock.
        path: ZnodePath,
        /// The error.
        error: Error,
    },
    /// The reader was too slow, and reports were dropped.
    Missed {
        /// Number of dropped reports.
        count: u64,
    },
}

pub(super) fn report(
    reporter: &LossySender<WardenReport>,
    lock: &ZnodePath,
    removed: impl IntoIterator<Item = QueueEntry>,
    overdue: impl IntoIterator<Item = Overdue>,
) {
    for entry in removed {
        #[cfg(feature = "metrics")]
        crate::metrics::METRICS.removed.inc();
        let path = lock.clone();
        reporter.send(WardenReport::Removed { path, entry });
    }
    for overdue in overdue {
        tracing::warn!(path = %overdue.entry.path, level = overdue.level.label(), "a lock is overdue");
        #[cfg(feature = "metrics")]
        crate::metrics::METRICS
            .overdue
            .with_label_values(&[overdue.level.label()])
            .inc();
        reporter.send(WardenReport::Overdue(overdue));
    }
}

impl Lossy for WardenReport {
    fn missed(count: u64) -> Self {
        Self::Missed { count }
    }
}

named_stream! {
    /// Stream of a warden's reports, which ends with the warden. A slow reader never slows down the warden. If 1,024
    /// reports are unread, new ones are dropped and counted ([`Missed`](WardenReport::Missed)).
    WardenReports of WardenReport;
    /// Waits for the next report. Returns `None` when the warden has ended.
    ///
    /// Cancel safe: no report is lost.
}
