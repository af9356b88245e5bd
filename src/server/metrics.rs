//! Metrics of a server and its process for Prometheus (feature `metrics`).
//!
//! The metrics are computed when they are gathered, so unused metrics cost nothing. Each label has a fixed set of
//! values.

mod family;
mod process;
mod table;

use std::path::Path;
use std::sync::{Arc, Weak};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Error, Registry};

use self::family::Metric;
pub use self::process::register_process_metrics;
use self::table::METRICS;
use super::admin::process::{FolderFiles, folder_files};
use super::connection_table::Transports;
use super::readiness::ServerMonitor;
use super::request_counters::RequestCounters;
use super::stats::Stats;
use super::{Server, Shared};
use crate::runtime::histogram::Distribution;

impl Server {
    /// Adds the server's metrics to a registry. docs/server-reference.md lists them. The metrics do not keep the server
    /// alive, and disappear from the registry's output when it ends.
    ///
    /// Gathering reads files and briefly takes the server's locks, so gather on a separate thread.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use lockkeeper_store::{Server, ServerOptions, Store};
    ///
    /// let options = ServerOptions::new().listen("127.0.0.1:0".parse()?);
    /// let server = Server::bind(&Store::memory(), options).await?;
    /// let registry = prometheus::Registry::new();
    /// server.register_metrics(&registry)?;
    ///
    /// let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather())?;
    /// assert!(text.contains("lockkeeper_ready 1\n"));
    /// assert!(text.contains("lockkeeper_connections{transport=\"tcp\"} 0\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `AlreadyReg` if the registry contains the metrics of a server already.
    pub fn register_metrics(&self, registry: &Registry) -> Result<(), Error> {
        registry.register(Box::new(ServerCollector {
            server: Arc::downgrade(&self.shared),
            monitor: self.monitor(),
            descs: descs(METRICS)?,
        }))
    }
}

fn descs<T>(metrics: &[Metric<T>]) -> Result<Vec<Desc>, Error> {
    metrics.iter().map(Metric::desc).collect()
}

struct ServerCollector {
    server: Weak<Shared>,
    monitor: ServerMonitor,
    descs: Vec<Desc>,
}

impl Collector for ServerCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Hold the server only while reading it, because the registry must not keep a stopped server's store alive.
        let Some(shared) = self.server.upgrade() else {
            return Vec::new();
        };
        let readings = Readings::read(&shared, self.monitor.check_ready().is_ok());
        drop(shared);
        let families = METRICS.iter().map(|metric| metric.family(&readings));
        families.collect()
    }
}

struct Readings {
    stats: Stats,
    transports: Transports,
    max_connections: u64,
    max_unread_bytes: u64,
    max_unfinished_bytes: u64,
    requests: Arc<RequestCounters>,
    stalls: Option<Distribution>,
    files: Option<FolderFiles>,
    is_ready: bool,
    is_draining: bool,
}

impl Readings {
    fn read(shared: &Shared, is_ready: bool) -> Self {
        let Shared { store, table, .. } = shared;
        let stats = shared.sources.read();
        Self {
            transports: table.by_transport(),
            max_connections: table.max_connections() as u64,
            max_unread_bytes: store.max_unread_bytes() as u64,
            max_unfinished_bytes: shared.limits.unfinished_bytes as u64,
            requests: table.requests.clone(),
            stalls: store.stalls(),
            files: stats
                .has_log()
                .then(|| folder_files(Path::new(store.place()))),
            stats,
            is_ready,
            is_draining: shared.drain.is_on(),
        }
    }
}

#[cfg(test)]
mod tests;
