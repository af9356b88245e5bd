//! Metrics of the process, under the names that Prometheus recommends.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::proto::MetricType::{COUNTER, GAUGE};
use prometheus::{Error, Registry};
use rustix::time::{ClockId, clock_gettime};

use super::descs;
use super::family::{Metric, Sample, named, one, whole};
use crate::server::admin::process;

/// Adds `lockkeeper_build_info` and the metrics of this process (such as `process_resident_memory_bytes`) to a
/// registry. Call this only if no other library adds the process metrics. Systems other than Linux have only some of
/// them.
///
/// # Errors
/// `AlreadyReg` if the registry contains these metrics already.
pub fn register_process_metrics(registry: &Registry) -> Result<(), Error> {
    let descs = descs(METRICS)?;
    registry.register(Box::new(ProcessCollector { descs }))
}

struct ProcessCollector {
    descs: Vec<Desc>,
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        METRICS.iter().map(|metric| metric.family(&())).collect()
    }
}

pub(super) const METRICS: &[Metric<()>] = &[
    Metric {
        name: "lockkeeper_build_info",
        help: "1, with the version of this program.",
        kind: GAUGE,
        labels: &["version"],
        read: |()| named([(env!("CARGO_PKG_VERSION").to_owned(), 1)]),
    },
    Metric {
        name: "process_cpu_seconds_total",
        help: "Processor time of the process.",
        kind: COUNTER,
        labels: &[],
        read: |()| {
            let time = clock_gettime(ClockId::ProcessCPUTime);
            one(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
        },
    },
    Metric {
        name: "process_open_fds",
        help: "Open files and sockets.",
        kind: GAUGE,
        labels: &[],
        read: |()| known(process::open_files()),
    },
    Metric {
        name: "process_max_fds",
        help: "Limit of open files and sockets.",
        kind: GAUGE,
        labels: &[],
        read: |()| whole(process::max_open_files()),
    },
    Metric {
        name: "process_resident_memory_bytes",
        help: "Resident memory.",
        kind: GAUGE,
        labels: &[],
        read: |()| known(process::resident_bytes()),
    },
    Metric {
        name: "process_start_time_seconds",
        help: "Start of the process, in seconds since the epoch.",
        kind: GAUGE,
        labels: &[],
        read: |()| process::age().map_or_else(Vec::new, |age| one(start(age))),
    },
];

/// Returns no sample for zero, because zero means that the system does not report the value.
fn known(value: u64) -> Vec<Sample> {
    match value {
        0 => Vec::new(),
        value => whole(value),
    }
}

fn start(age: std::time::Duration) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |now| now.saturating_sub(age).as_secs_f64())
}
