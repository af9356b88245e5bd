//! The command line.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};

use crate::options::{Serving, Timing, count};
use crate::workloads::Workload;

/// A recipe to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Recipe {
    Mutex,
    /// Of one permit
    Semaphore,
    /// Has no peers
    Election,
    /// Of two locks; has no peers
    LockAll,
    /// By 1, 8 and 64 readers together
    #[value(name = "rwlock-read")]
    RwLockRead,
    #[value(name = "rwlock-write")]
    RwLockWrite,
}

/// A system that runs beside the locks under test, in the same rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum System {
    /// Tokio's locks
    Tokio,
    /// The same locks on memory:
    Memory,
    Redis,
    Postgres,
    /// The same locks on a ZooKeeper
    #[value(name = "zookeeper")]
    ZooKeeper,
    Curator,
    None,
}

/// The locks' speed beside that of their peers.
#[derive(Debug, Parser)]
#[command(name = "locks")]
pub(crate) struct Args {
    /// memory:, file:FOLDER, lockkeeper://[HOST:PORT] or zookeeper://[HOST:PORT]; without a host, the server is started
    #[arg(long, default_value = "memory:")]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) serving: Serving,
    /// Systems to run beside; the servers are started [default: tokio for memory:, memory for file:, and for the
    /// mutex curator on zookeeper:, and redis,postgres,zookeeper,curator on lockkeeper:]
    #[arg(long, value_enum, value_delimiter = ',')]
    system: Vec<System>,
    #[arg(long, value_enum, default_value = "mutex")]
    pub(crate) recipe: Recipe,
    /// Workloads to measure [default: all]
    #[arg(long = "workload", value_enum, value_delimiter = ',')]
    pub(crate) workloads: Vec<Workload>,
    /// Only the cases with so many sessions
    #[arg(long)]
    pub(crate) clients: Option<usize>,
    /// Only the cases with so many queued
    #[arg(long)]
    pub(crate) n: Option<usize>,
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Threads of the runtime
    #[arg(long, default_value_t = 2, value_parser = count)]
    pub(crate) threads: usize,
}

impl Args {
    /// Reads the command line, and ends the program if it is invalid.
    pub(crate) fn read() -> Self {
        let mut args = Self::parse();
        if args.workloads.is_empty() {
            args.workloads = Workload::value_variants().to_vec();
        }
        if args.system.is_empty() {
            args.system = args.usual_systems();
        }
        let is_server =
            |system: &System| !matches!(system, System::Tokio | System::Memory | System::None);
        let fault = if args.recipe != Recipe::Mutex && args.system.iter().any(is_server) {
            "of other servers, the mutex alone is measured"
        } else if args.has(System::Tokio)
            && matches!(args.recipe, Recipe::Election | Recipe::LockAll)
        {
            "this recipe has no peers to run beside"
        } else {
            return args;
        };
        Self::command()
            .error(ErrorKind::ArgumentConflict, fault)
            .exit()
    }

    fn usual_systems(&self) -> Vec<System> {
        match self.recipe {
            _ if self.url.starts_with("file:") => vec![System::Memory],
            Recipe::Election | Recipe::LockAll => vec![],
            _ if self.url.starts_with("memory:") => vec![System::Tokio],
            Recipe::Mutex if self.url.starts_with("lockkeeper:") => {
                vec![
                    System::Redis,
                    System::Postgres,
                    System::ZooKeeper,
                    System::Curator,
                ]
            }
            Recipe::Mutex => vec![System::Curator],
            _ => vec![],
        }
    }

    /// Returns true if the system runs beside.
    pub(crate) fn has(&self, system: System) -> bool {
        self.system.contains(&system)
    }

    /// Returns true if the store runs in this program: then its sessions answer at once.
    pub(crate) fn is_in_process(&self) -> bool {
        self.url.starts_with("memory:") || self.url.starts_with("file:")
    }
}
