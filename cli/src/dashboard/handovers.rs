//! [`Handovers`]: counts hand-overs per second for a plot. Does no I/O.

use std::collections::{BTreeSet, VecDeque};

use lockkeeper::{FencingToken, QueueEntry};

pub(super) const SECONDS: usize = 600;

#[derive(Debug)]
pub(super) struct Handovers {
    /// Number of hand-overs in each complete second, oldest first.
    counts: VecDeque<u32>,
    /// The current second, counted from the Unix epoch. `count` is its number of hand-overs so far.
    second: i64,
    count: u32,
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

    pub(super) fn add(&mut self, now_ms: i64, count: usize) {
        self.advance(now_ms);
        self.total = self.total.saturating_add(count as u64);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.count = self.count.saturating_add(count);
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Completes all seconds before this time. If the clock was set back, counting continues at the new time.
    pub(super) fn advance(&mut self, now_ms: i64) {
        let second = now_ms.div_euclid(1_000);
        let passed = usize::try_from(second.saturating_sub(self.second)).unwrap_or(0);
        for _ in 0..passed.min(SECONDS) {
            self.counts.pop_front();
            self.counts.push_back(std::mem::take(&mut self.count));
        }
        self.second = second;
    }

    /// Returns the end of the last complete second, and the counts of all seconds since `known`, or all counts without
    /// `known`. Returns `None` if no second has ended since `known`.
    pub(super) fn since(&self, known: Option<i64>) -> Option<(i64, Vec<u32>)> {
        let missing = match known {
            None => SECONDS,
            Some(known) if known == self.second => return None,
            // The clock was set back, so send all counts again.
            Some(known) if known > self.second => SECONDS,
            Some(known) => usize::try_from(self.second.saturating_sub(known)).unwrap_or(SECONDS),
        };
        let from = SECONDS.saturating_sub(missing);
        Some((self.second, self.counts.range(from..).copied().collect()))
    }
}

pub(super) fn passed(from: &[QueueEntry], to: &[QueueEntry]) -> usize {
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
