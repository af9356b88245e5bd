//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::options::{Durability, Serving, Timing, count, name};
use crate::recovery::Child;
use crate::report::Line;

/// A workload to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Syncs of the disk itself
    Syncs,
    /// Persistent znodes are created
    Create,
    /// Their data is replaced
    Set,
    /// Data is read, with and without concurrent sets
    Reads,
    /// One set, and many watchers of it
    Fanout,
    /// Sets while a snapshot is made
    Snapshot,
    /// The store is opened again
    Recovery,
}

/// A system that is measured in the same rounds as `file:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum System {
    /// A minimal group commit, with the disk's own syncs
    Sketch,
    None,
}

/// Speed of the store.
#[derive(Clone, Debug, Parser)]
#[command(name = "store")]
pub(crate) struct Args {
    /// memory:, file:FOLDER, lockkeeper://[HOST:PORT], lockkeeper+unix://[PATH] or zookeeper://[HOST:PORT]. Each case
    /// creates a store in FOLDER and removes it. Without a host or a path, the server is started
    #[arg(long, default_value = "memory:", value_parser = url)]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) serving: Serving,
    /// Workloads to measure [default: all]
    #[arg(long = "workload", value_enum, value_delimiter = ',')]
    pub(crate) workloads: Vec<Workload>,
    #[arg(long, value_enum, default_value = "sketch")]
    system: System,
    /// For file:, the bytes of the log's first and largest segment [default: the store's own]
    #[arg(long)]
    pub(crate) segment_bytes: Option<u64>,
    /// Only the cases with this many sessions, each with one request at a time
    #[arg(long, value_delimiter = ',', value_parser = count)]
    clients: Vec<usize>,
    /// For fanout, the number of watchers
    #[arg(long, value_delimiter = ',', value_parser = count, default_values_t = [1, 100, 10_000])]
    pub(crate) watchers: Vec<usize>,
    /// Bytes of data in a znode
    #[arg(long, default_value_t = 100)]
    pub(crate) bytes: usize,
    /// For snapshot and recovery, the number of znodes
    #[arg(long, default_value_t = 1_000_000, value_parser = count)]
    pub(crate) znodes: usize,
    /// For recovery, the number of sessions
    #[arg(long, default_value_t = 100_000, value_parser = count)]
    pub(crate) sessions: usize,
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Threads of the runtime
    #[arg(long, default_value_t = 2, value_parser = count)]
    pub(crate) threads: usize,
    /// Part of a measurement in a separate run of this program, see `recovery`.
    #[arg(long, value_enum, hide = true)]
    pub(crate) child: Option<Child>,
}

impl Args {
    /// Reads the command line. Exits if it is invalid.
    pub(crate) fn read() -> Self {
        let mut args = Self::parse();
        if args.workloads.is_empty() {
            args.workloads = Workload::value_variants().to_vec();
        }
        args
    }

    pub(crate) fn sketch(&self) -> bool {
        self.system == System::Sketch
    }

    /// Returns the requested numbers of clients, or the usual ones.
    pub(crate) fn clients(&self, usual: &[usize]) -> Vec<usize> {
        match &self.clients[..] {
            [] => usual.to_vec(),
            clients => clients.to_vec(),
        }
    }

    pub(crate) fn round(&self) -> Duration {
        self.timing.round()
    }

    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.url.strip_prefix("file:").map(PathBuf::from)
    }

    pub(crate) fn is_served(&self) -> bool {
        !self.url.starts_with("memory:") && !self.url.starts_with("file:")
    }

    pub(crate) fn durability(&self) -> Durability {
        self.serving.durability
    }

    pub(crate) fn line(&self, workload: &str) -> Line {
        let mut line = Line::new("lockkeeper", &self.url, workload).with("threads", self.threads);
        let is_served = self.url.starts_with("lockkeeper");
        if is_served {
            line = line.with("data", self.serving.data.as_str());
        }
        if self.folder().is_some() || is_served && self.serving.data != "memory" {
            line = line.with("durability", name(self.durability()));
        }
        line
    }
}

/// Parses the URL of a store or of a server to start.
fn url(url: &str) -> Result<String, lockkeeper::TargetError> {
    if matches!(url, "lockkeeper://" | "lockkeeper+unix://" | "zookeeper://") {
        return Ok(url.to_owned());
    }
    url.parse::<lockkeeper::Target>().map(|_| url.to_owned())
}
