//! [`BackupMetrics`]: the metrics of the scheduled backups.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{Gauge, IntCounterVec, IntGauge, Opts, Registry};

use super::folder::{Made, Reason};

#[derive(Clone, Debug)]
pub(super) struct BackupMetrics {
    interval: Gauge,
    newest: Gauge,
    count: IntGauge,
    bytes: IntGauge,
    failures: IntCounterVec,
}

impl BackupMetrics {
    pub(super) fn new(every: Duration) -> prometheus::Result<Self> {
        let failures = Opts::new(
            "lockkeeper_backup_failures_total",
            "Backups that could not be made, and old ones that could not be removed.",
        );
        let metrics = Self {
            interval: Gauge::new(
                "lockkeeper_backup_interval_seconds",
                "Interval of the backups (--backup-every).",
            )?,
            newest: Gauge::new(
                "lockkeeper_backup_timestamp_seconds",
                "Time of the newest backup, in seconds since the epoch. 0 before the first backup.",
            )?,
            count: IntGauge::new(
                "lockkeeper_backups",
                "Backups of this store in the folder after this server's last backup. 0 before its first backup.",
            )?,
            bytes: IntGauge::new(
                "lockkeeper_backup_bytes",
                "Size of this server's last backup. 0 before its first backup.",
            )?,
            failures: IntCounterVec::new(failures, &["reason"])?,
        };
        metrics.interval.set(every.as_secs_f64());
        // Export each label from the start, because Prometheus computes no increase for the first sample of a time
        // series.
        for reason in Reason::ALL {
            metrics.failures.with_label_values(&[reason.name()]);
        }
        Ok(metrics)
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.interval.clone()))?;
        registry.register(Box::new(self.newest.clone()))?;
        registry.register(Box::new(self.count.clone()))?;
        registry.register(Box::new(self.bytes.clone()))?;
        registry.register(Box::new(self.failures.clone()))
    }

    pub(super) fn found(&self, newest: Option<SystemTime>) {
        let since_1970 = newest.and_then(|newest| newest.duration_since(UNIX_EPOCH).ok());
        self.newest
            .set(since_1970.map_or(0.0, |since| since.as_secs_f64()));
    }

    pub(super) fn made(&self, made: &Made) {
        self.found(Some(made.at));
        self.bytes.set(made.summary.bytes as i64);
        match &made.kept {
            Ok(count) => self.count.set(*count as i64),
            Err(failure) => self.failed(failure.reason),
        }
    }

    pub(super) fn failed(&self, reason: Reason) {
        self.failures.with_label_values(&[reason.name()]).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn the_guide_has_every_metric_of_the_backups() {
        let registry = Registry::new();
        let metrics = BackupMetrics::new(Duration::from_secs(1)).unwrap();
        metrics.register(&registry).unwrap();
        let mut table = "\n| metric | type | labels | |\n|---|---|---|---|\n".to_owned();
        for family in registry.gather() {
            let kind = format!("{:?}", family.get_field_type()).to_lowercase();
            let labels = family.get_metric().iter().flat_map(|it| it.get_label());
            let values: Vec<_> = labels.map(|label| format!("`{}`", label.value())).collect();
            let labels = match values.is_empty() {
                true => String::new(),
                false => format!("`reason`: {}", values.join(", ")),
            };
            let (name, help) = (family.name(), family.help());
            writeln!(table, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
        }
        let guide = include_str!("../../../../docs/server-reference.md");
        let guide = guide.split("<!-- backup metrics -->").nth(1);
        let guide = guide.expect("the mark of the backups' metrics");
        assert!(
            guide == table,
            "docs/server-reference.md should have:\n{table}"
        );
    }
}
