//! Command line.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use lockkeeper::Target;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data");

/// Workers post transfers to a ledger file, one at a time, under a fair lock.
///
/// Exit status: 0 if all is right, 1 if anything is wrong, 2 for a bad command line.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Store of the locks: memory:, file:PATH, lockkeeper://HOST:PORT or zookeeper://HOST:PORT[/CHROOT]
    #[arg(long, default_value = "memory:")]
    pub(crate) url: Target,
    /// Number of workers, each with its own session
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) workers: u16,
    /// Transfers to post, a CSV file: id,from,to,cents
    #[arg(long, value_name = "FILE", default_value_os_t = PathBuf::from(DATA).join("transfers.csv"))]
    pub(crate) transfers: PathBuf,
    /// Opening balances, a CSV file: account,cents
    #[arg(long, value_name = "FILE", default_value_os_t = PathBuf::from(DATA).join("accounts.csv"))]
    pub(crate) accounts: PathBuf,
    /// The ledger, which is continued if it exists [default: a fresh temporary file]
    #[arg(long, value_name = "FILE")]
    pub(crate) ledger: Option<PathBuf>,
    /// Number of workers, fewer than all, that are cut off in the middle of a write
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) crash: u16,
    /// Use no lock, and check no tokens: shows what goes wrong then
    #[arg(long, conflicts_with = "crash")]
    pub(crate) without_lock: bool,
    /// Print all events, not only those of the first 40 grants
    #[arg(long)]
    pub(crate) all_events: bool,
    /// Print no events
    #[arg(long, conflicts_with = "all_events")]
    pub(crate) quiet: bool,
    /// Print the summary as a JSON object on the last line
    #[arg(long)]
    pub(crate) json: bool,
}

impl Args {
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        let fault = if args.crash >= args.workers {
            "--crash must be below the number of workers: one must be left to finish"
        } else if args.without_lock && args.workers == 1 {
            "--without-lock needs at least two workers: a single one cannot overlap"
        } else {
            return args;
        };
        let mut command = Self::command();
        command.error(ErrorKind::ValueValidation, fault).exit()
    }
}
