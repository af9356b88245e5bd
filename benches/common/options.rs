//! Options that the benchmarks share. Each benchmark's own stand in its `args.rs`.

use std::time::Duration;

use clap::{Args, ValueEnum};

/// The time of a measurement.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Timing {
    /// Time to measure each system in each case
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Number of alternating rounds in that time; the report has their medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// `cargo bench` passes this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Timing {
    /// Returns the time of one round.
    pub(crate) fn round(self) -> Duration {
        self.seconds / self.rounds
    }
}

/// Options of the servers that a benchmark starts.
#[derive(Clone, Debug, Args)]
pub(crate) struct Serving {
    /// Data of the `lockkeeper serve` that is started: memory, or a folder, in which it gets its own
    #[arg(long, default_value = "memory")]
    pub(crate) data: String,
    /// Durability of a store in a folder, and of a ZooKeeper, which syncs unless it is none
    #[arg(long, value_enum, default_value = "fsync")]
    pub(crate) durability: Durability,
}

/// Durability of a store: see `lockkeeper_store::Durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    Fsync,
    DelayedRestart,
    None,
}

/// Returns the name of a value, as the command line has it.
pub(crate) fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is hidden");
    value.get_name().to_owned()
}

/// Parses a number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

/// Parses a number of at least 1.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("{text:?} is no whole number from 1")),
    }
}
