//! [`Histogram`]: a lock-free histogram of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets for request and sync times, from 100 µs (a disk with its own cache) to 10 s (a failing disk).
pub(crate) const LATENCY_BOUNDS_NS: [u64; 16] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    /// Inclusive upper bounds in nanoseconds, ascending.
    bounds: &'static [u64; N],
    counts: [AtomicU64; N],
    beyond: AtomicU64,
    sum_ns: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "server", feature = "metrics")),
    allow(dead_code, reason = "what a server tells")
)]
pub(crate) struct Distribution {
    /// Upper bounds, each with the cumulative count of durations up to it.
    pub(crate) buckets: Vec<(Duration, u64)>,
    pub(crate) count: u64,
    pub(crate) sum: Duration,
}

impl<const N: usize> Histogram<N> {
    pub(crate) fn new(bounds: &'static [u64; N]) -> Self {
        Self {
            bounds,
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            beyond: AtomicU64::new(0),
            sum_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn add(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds.iter().position(|bound| ns <= *bound);
        let count = bucket.map_or(&self.beyond, |bucket| &self.counts[bucket]);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a snapshot. Its total matches its buckets, even while other threads add durations.
    #[cfg_attr(
        not(all(feature = "server", feature = "metrics")),
        allow(dead_code, reason = "what a server tells")
    )]
    pub(crate) fn read(&self) -> Distribution {
        let mut count = 0;
        let mut up_to = |counted: &AtomicU64| {
            count += counted.load(Ordering::Relaxed);
            count
        };
        let buckets = self.bounds.iter().zip(&self.counts);
        let buckets =
            buckets.map(|(bound, counted)| (Duration::from_nanos(*bound), up_to(counted)));
        let buckets = buckets.collect();
        Distribution {
            buckets,
            count: up_to(&self.beyond),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_every_bucket_that_it_fits() {
        let histogram = Histogram::new(&[10, 100, 1_000]);
        for ns in [0, 10, 11, 100, 1_001, 5_000] {
            histogram.add(Duration::from_nanos(ns));
        }
        let read = histogram.read();
        let of = |ns| Duration::from_nanos(ns);
        assert_eq!(read.buckets, [(of(10), 2), (of(100), 4), (of(1_000), 4)]);
        assert_eq!((read.count, read.sum), (6, of(6_122)));
    }
}
