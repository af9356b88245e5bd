//! [`Tally`]: figures of the tasks of one store.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Default)]
pub(super) struct Tally {
    /// Granted waits, and waits that gave up or were dropped.
    pub(super) grants: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) losses: AtomicU64,
    /// Holders that met another holder or a newer token.
    pub(super) conflicts: AtomicU64,
    pub(super) refused: AtomicU64,
    /// Requests other than locks, and calls interrupted by a cut connection.
    pub(super) ops: AtomicU64,
    pub(super) interrupted: AtomicU64,
    /// Short-lived sessions.
    pub(super) visits: AtomicU64,
    pub(super) events: AtomicU64,
    /// Bytes of large values.
    pub(super) bulk: AtomicU64,
    numbers: AtomicU64,
    contenders: AtomicU64,
    /// Durations of the waits since the last report, in microseconds.
    waits: Mutex<Vec<u32>>,
}

impl Tally {
    pub(super) fn add(&self, counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn granted(&self, waited: Duration) {
        self.add(&self.grants, 1);
        let us = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
        self.waits.lock().unwrap().push(us);
    }

    pub(super) fn contender_begins(&self) {
        self.add(&self.contenders, 1);
    }

    pub(super) fn contender_ends(&self) {
        self.contenders.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn contenders(&self) -> u64 {
        self.contenders.load(Ordering::Relaxed)
    }

    /// Appends ` NAME.FIGURE=VALUE` for each figure.
    pub(super) fn write(&self, name: &str, line: &mut String) {
        for (figure, counter) in [
            ("grants", &self.grants),
            ("cancelled", &self.cancelled),
            ("losses", &self.losses),
            ("conflicts", &self.conflicts),
            ("refused", &self.refused),
            ("ops", &self.ops),
            ("interrupted", &self.interrupted),
            ("visits", &self.visits),
            ("events", &self.events),
            ("bulk", &self.bulk),
        ] {
            let _ = write!(line, " {name}.{figure}={}", counter.load(Ordering::Relaxed));
        }
        let waits = std::mem::take(&mut *self.waits.lock().unwrap());
        if let Some(p99) = percentile(waits, 0.99) {
            let _ = write!(line, " {name}.p99_ms={:.2}", f64::from(p99) / 1e3);
        }
    }
}

fn percentile(mut values: Vec<u32>, share: f64) -> Option<u32> {
    values.sort_unstable();
    let place = (values.len() as f64 * share) as usize;
    values
        .get(place.min(values.len().saturating_sub(1)))
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_leaves_a_share_above_it() {
        assert_eq!(percentile((1..=100).collect(), 0.99), Some(100));
        assert_eq!(percentile((1..=1000).rev().collect(), 0.99), Some(991));
        assert_eq!(percentile(vec![7], 0.99), Some(7));
        assert_eq!(percentile(Vec::new(), 0.99), None);
    }

    #[test]
    fn figures_stand_in_one_line() {
        let tally = Tally::default();
        tally.granted(Duration::from_micros(1_500));
        let mut line = String::new();
        tally.write("file", &mut line);
        assert!(
            line.starts_with(" file.grants=1 file.cancelled=0 "),
            "{line}"
        );
        assert!(line.ends_with(" file.p99_ms=1.50"), "{line}");
    }
}
