//! [`Overdue`] holders, and [`WardenReports`], the stream of [`WardenReport`]s.

use std::fmt;
use std::time::Duration;

use lockkeeper_store::{Error, HumanDuration, ZnodePath};

use crate::metadata::LockMetadata;
use crate::observe::QueueEntry;
use crate::stream::{Lossy, LossySender, named_stream};

/// Level of an overdue holder: the last of its declared durations that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OverdueLevel {
    /// [`expected_hold`](crate::LockOptions::expected_hold) has passed.
    Expected,
    /// [`alert_after`](crate::LockOptions::alert_after) has passed.
    Alert,
    /// [`auto_unlock_after`](crate::LockOptions::auto_unlock_after) has passed. The warden may remove the holder.
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

/// Statistics of a warden, based on its last reads.
///
/// Below a prefix, only locks with a holder that declares a duration are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WardenStats {
    /// Number of locks with a holder.
    pub locks: usize,
    /// Number of holders, overdue or not. For semaphores, the number of held permits.
    pub holders: usize,
    /// Number of waiters for locks below prefixes.
    pub waiters: usize,
    /// Number of holders whose highest level is [`Expected`](OverdueLevel::Expected).
    pub overdue_expected: usize,
    /// Number of holders whose highest level is [`Alert`](OverdueLevel::Alert).
    pub overdue_alert: usize,
    /// Number of holders whose highest level is [`AutoUnlock`](OverdueLevel::AutoUnlock).
    pub overdue_auto_unlock: usize,
    /// The longest time that a holder was seen without a sign of life.
    pub longest_hold: Duration,
}

/// A holder that has held longer than it declared.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Overdue {
    /// Path of the lock.
    pub path: ZnodePath,
    /// The holder's entry. If Curator's `Revoker` has overwritten its metadata, the entry contains the last known
    /// metadata.
    pub entry: QueueEntry,
    /// The level reached.
    pub level: OverdueLevel,
    /// Time since the warden first saw the holder, or saw its last sign of life. The holder may have held for longer.
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
    /// The warden has removed the holder. If the reply to the delete was lost, the holder may have left by itself.
    Removed {
        /// Path of the lock.
        path: ZnodePath,
        /// The entry that was deleted.
        entry: QueueEntry,
    },
    /// The store refused a request, and the lock is no longer watched.
    Failed {
        /// Path of the lock.
        path: ZnodePath,
        /// The store's error.
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
        report_removal(reporter, lock, entry);
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

pub(super) fn report_removal(
    reporter: &LossySender<WardenReport>,
    lock: &ZnodePath,
    entry: QueueEntry,
) {
    #[cfg(feature = "metrics")]
    crate::metrics::METRICS.removed.inc();
    let path = lock.clone();
    reporter.send(WardenReport::Removed { path, entry });
}

impl Lossy for WardenReport {
    fn missed(count: u64) -> Self {
        Self::Missed { count }
    }
}

named_stream! {
    /// Stream of a warden's reports. While 1,024 reports are unread, new reports are dropped and counted
    /// ([`Missed`](WardenReport::Missed)), so a slow reader never slows down the warden.
    WardenReports of WardenReport;
    /// Waits for the next report. Returns `None` when the warden has ended.
    ///
    /// Cancel safe: no report is lost.
}
