//! Options that the benchmarks share. Each benchmark has its own in `args.rs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::echo::EchoFloor;

/// The time of a measurement.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Timing {
    /// Time to measure each system in each case
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Number of alternating rounds in that time. The report has their medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Time that each system runs unmeasured before its first round
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    pub(crate) warm_up: Duration,
    /// `cargo bench` passes this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Timing {
    pub(crate) fn round(self) -> Duration {
        self.seconds / self.rounds
    }

    /// Returns the time for each part of the floor in a round.
    pub(crate) fn floor(self) -> Duration {
        (self.round() / 8).clamp(Duration::from_millis(20), Duration::from_millis(200))
    }
}

/// Options of the servers that a benchmark starts.
#[derive(Clone, Debug, Args)]
pub(crate) struct Serving {
    /// Data of the `lockkeeper serve` that is started: memory, or a folder, in which it gets its own
    #[arg(long, default_value = "memory")]
    pub(crate) data: String,
    /// Command whose `serve` is measured [default: a release build of this repository's]
    #[arg(long, value_name = "PATH")]
    pub(crate) server: Option<PathBuf>,
    /// Durability of a store in a folder. A ZooKeeper syncs unless it is none
    #[arg(long, value_enum, default_value = "fsync")]
    pub(crate) durability: Durability,
    /// Threads of each started server, including the echo server [default: half of the cores, at most 4]
    #[arg(long, value_name = "N", value_parser = count)]
    server_threads: Option<usize>,
    /// The --busy-poll option of the `lockkeeper serve` that is started: 0 for none [default: its own]
    #[arg(long, value_name = "DURATION")]
    pub(crate) busy_poll: Option<String>,
    /// Keep the cores from sleeping, by a process that runs only on idle cores
    #[arg(long)]
    pub(crate) keep_awake: bool,
}

impl Serving {
    /// Returns the same options for a store in a temporary folder.
    pub(crate) fn on_disk(&self) -> Self {
        Self {
            data: std::env::temp_dir().to_string_lossy().into_owned(),
            durability: Durability::Fsync,
            ..self.clone()
        }
    }

    pub(crate) fn server_threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        self.server_threads.unwrap_or((cores / 2).clamp(1, 4))
    }

    /// Starts the floor of served figures. Exits on failure.
    pub(crate) fn echo_floor(&self) -> EchoFloor {
        EchoFloor::start(self.server_threads(), self.keep_awake).unwrap_or_else(|error| {
            eprintln!("the echo server: {error}");
            std::process::exit(1);
        })
    }
}

/// See `lockkeeper_store::Durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    Fsync,
    DelayedRestart,
    None,
}

/// Returns a value's name on the command line.
pub(crate) fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is hidden");
    value.get_name().to_owned()
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

pub(crate) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("{text:?} is no whole number from 1")),
    }
}
