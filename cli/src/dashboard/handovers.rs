//! [`Handovers`]: the number of hand-overs in each of the last seconds, for a plot. PURE.

use std::collections::{BTreeSet, VecDeque};

use lockkeeper::{FencingToken, QueueEntry};

/// Number of seconds that are kept.
pub(super) const SECONDS: usize = 600;

/// Hand-overs of the last seconds.
#[derive(Debug)]
pub(super) struct Handovers {
    /// Those of the complete seconds, the oldest first.
    counts: VecDeque<u32>,
    /// The second under way, since the Unix epoch, and its hand-overs so far.
    second: i64,
    count: u32,
    /// All of them.
    total: u64,
}

impl Handovers {
    pub(super) fn new(now_ms: i64) -> Self {
        Self {
            counts: VecDeque::from([0; SECONDS]),
            second: now_ms.div_euclid(1_000),
            count: 0,
            total: 0,
        }
    }

    /// Counts hand-overs that were seen now.
    pub(super) fn add(&mut self, now_ms: i64, count: usize) {
        self.advance(now_ms);
        self.total = self.total.saturating_add(count as u64);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.count = self.count.saturating_add(count);
    }

    /// Returns the number of all hand-overs that were seen.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Completes the seconds before this time. A clock that was set back begins anew at its time.
    pub(super) fn advance(&mut self, now_ms: i64) {
        let second = now_ms.div_euclid(1_000);
        let passed = usize::try_from(second.saturating_sub(self.second)).unwrap_or(0);
        for _ in 0..passed.min(SECONDS) {
            self.counts.pop_front();
            self.counts.push_back(std::mem::take(&mut self.count));
        }
        self.second = second;
    }

    /// Returns the end of the last complete second, and the counts of those behind a second that is known already; of
    /// all kept ones without it. `None` if no further second is complete.
    pub(super) fn since(&self, known: Option<i64>) -> Option<(i64, Vec<u32>)> {
        let missing = match known {
            None => SECONDS,
            Some(known) if known == self.second => return None,
            // The clock was set back.
            Some(known) if known > self.second => SECONDS,
            Some(known) => usize::try_from(self.second.saturating_sub(known)).unwrap_or(SECONDS),
        };
        let from = SECONDS.saturating_sub(missing);
        Some((self.second, self.counts.range(from..).copied().collect()))
    }
}

/// Returns the number of times that a lock has passed from one holder to the next between two readings.
pub(super) fn passed(from: &[QueueEntry], to: &[QueueEntry]) -> usize {
    // Of a mutex, by far the most frequent.
    if let ([from], [to]) = (from, to) {
        return usize::from(from.fencing_token != to.fencing_token);
    }
    let tokens = |of: &[QueueEntry]| -> BTreeSet<FencingToken> {
        of.iter().map(|entry| entry.fencing_token).collect()
    };
    let (from, to) = (tokens(from), tokens(to));
    let (left, came) = (from.difference(&to).count(), to.difference(&from).count());
    left.min(came)
}
