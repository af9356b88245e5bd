//! [`LockMetrics`]: totals of all locks that a server follows. No metric has a label per lock.
//!
//! A scrape reads the totals of the board and sends no request to the store.

use std::sync::{Arc, Weak};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntCounter, IntGauge, Registry};

use super::board::Figures;
use super::shared::Shared;

pub(super) struct LockMetrics {
    /// Weak, because a strong reference would keep the client that follows the locks alive, and a drain would wait for
    /// the session of this client.
    shared: Weak<Shared>,
    held: IntGauge,
    waiters: IntGauge,
    hand_overs: IntCounter,
    oldest_hold: Gauge,
}

impl LockMetrics {
    pub(super) fn register(shared: &Arc<Shared>, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(Self::new(Arc::downgrade(shared))?))
    }

    fn new(shared: Weak<Shared>) -> prometheus::Result<Self> {
        Ok(Self {
            shared,
            held: IntGauge::new("lockkeeper_server_locks_held", "Locks that are held.")?,
            waiters: IntGauge::new(
                "lockkeeper_server_lock_waiters",
                "Waiters in the queues of all locks.",
            )?,
            hand_overs: IntCounter::new(
                "lockkeeper_server_lock_hand_overs_total",
                "Observed hand-overs to the next holder. Several hand-overs between two reads of a lock count as one.",
            )?,
            oldest_hold: Gauge::new(
                "lockkeeper_server_oldest_hold_seconds",
                "Longest time since the grant of a lock that is still held. 0 if no time of a grant is known.",
            )?,
        })
    }

    fn families(&self, figures: &Figures) -> Vec<MetricFamily> {
        self.held.set(figures.held as i64);
        self.waiters.set(figures.waiters as i64);
        self.hand_overs.reset();
        self.hand_overs.inc_by(figures.hand_overs);
        self.oldest_hold.set(figures.oldest_hold_ms as f64 / 1e3);
        let mut families = self.held.collect();
        families.extend(self.waiters.collect());
        families.extend(self.hand_overs.collect());
        families.extend(self.oldest_hold.collect());
        families
    }
}

impl Collector for LockMetrics {
    fn desc(&self) -> Vec<&Desc> {
        let mut descs = self.held.desc();
        descs.extend(self.waiters.desc());
        descs.extend(self.hand_overs.desc());
        descs.extend(self.oldest_hold.desc());
        descs
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(shared) = self.shared.upgrade() else {
            return Vec::new();
        };
        let figures = shared.board.lock().figures(shared.now_ms());
        // Until the locks have been read, return no metrics, because 0 would be wrong.
        figures.map_or_else(Vec::new, |figures| self.families(&figures))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn the_guide_has_every_metric_of_the_locks() {
        let metrics = LockMetrics::new(Weak::new()).unwrap();
        let mut table = "\n| metric | type | labels | |\n|---|---|---|---|\n".to_owned();
        for family in metrics.families(&Figures::default()) {
            let kind = format!("{:?}", family.get_field_type()).to_lowercase();
            let (name, help) = (family.name(), family.help());
            writeln!(table, "| `{name}` | {kind} |  | {help} |").unwrap();
        }
        let guide = include_str!("../../../docs/server-reference.md");
        let guide = guide.split("<!-- lock metrics -->").nth(1);
        let guide = guide.expect("the mark of the locks' metrics");
        assert!(
            guide == table,
            "docs/server-reference.md should have:\n{table}"
        );
    }
}
