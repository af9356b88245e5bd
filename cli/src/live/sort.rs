//! The order of locks and holders, and the text that filters search.

use lockkeeper::{LockInfo, QueueEntry};

use crate::locks::leader_data;
use crate::locks::names::lock_name;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Name,
    /// Longest hold time first.
    Held,
    /// Largest number of waiters first.
    Waiters,
    /// Most overdue holder first.
    Overdue,
}

impl Sort {
    pub(crate) const ALL: [Self; 4] = [Self::Name, Self::Held, Self::Overdue, Self::Waiters];

    pub(crate) fn index(self) -> usize {
        Self::ALL.iter().position(|it| *it == self).unwrap_or(0)
    }

    pub(crate) fn next(self, step: isize) -> Self {
        let count = Self::ALL.len() as isize;
        Self::ALL[(self.index() as isize + step).rem_euclid(count) as usize]
    }
}

/// Rank offset that places holders without a known grant time last, in queue order.
const QUEUED: i64 = 1 << 62;

pub(crate) fn granted_at(rank: i64) -> Option<i64> {
    (rank < QUEUED).then_some(rank)
}

pub(crate) fn rank(sort: Sort, lock: &LockInfo, holder: Option<&QueueEntry>) -> i64 {
    match (sort, holder) {
        (Sort::Name, _) => 0,
        (Sort::Waiters, _) => -i64::try_from(lock.waiters).unwrap_or(i64::MAX),
        (Sort::Held | Sort::Overdue, None) => i64::MAX,
        (Sort::Held, Some(holder)) => match holder.granted_at_ms {
            Some(granted) => granted,
            None => QUEUED.saturating_add(holder.joined_at_ms),
        },
        // The due time gives the same order as the overdue time, but does not change over time.
        (Sort::Overdue, Some(holder)) => holder.due_at_ms().unwrap_or(i64::MAX),
    }
}

pub(crate) fn searched(lock: &LockInfo, holder: Option<&QueueEntry>) -> String {
    let mut text = lock_name(&lock.path);
    if let Some(holder) = holder {
        let metadata = holder.metadata.as_ref();
        let texts = metadata.map(|it| [it.label.as_deref(), it.host.as_deref(), leader_data(it)]);
        for part in texts.into_iter().flatten().flatten() {
            text.push('\n');
            text.push_str(part);
        }
        let pid = metadata.and_then(|it| it.pid);
        text.extend(pid.map(|pid| format!("\n{pid}")));
        text.push_str(&format!("\n{}\n{}", holder.owner, holder.fencing_token));
    }
    text.to_lowercase()
}
