//! The command line.

use std::path::PathBuf;

use lexopt::prelude::*;
use lockkeeper::Target;

pub(crate) const HELP: &str = "\
Workers post transfers to a ledger file, one at a time, under a fair lock.

  cargo run --release --example ledger -- [OPTIONS]

  --url URL          where the locks are: memory: (default), file:PATH (with --features file),
                     or zookeeper://host:port[/chroot];
                     a chroot that is missing is made
  --workers N        how many workers, each with a session of its own: 1 to 512 (default 8)
  --transfers FILE   what to post: CSV, id,from,to,cents (default examples/data/transfers.csv)
  --accounts FILE    opening balances: CSV, account,cents (default examples/data/accounts.csv)
  --ledger FILE      the ledger; an existing one is gone on with (default: a fresh temporary file)
  --crash N          N workers, fewer than all, are cut off while they hold the lock, each in the
                     middle of a write
  --without-lock     no lock and no token check: see what goes wrong then
  --events all       tell all events, not only those of the first 40 grants
  --quiet            tell no events
  --json             end with the summary as one JSON object on the last line
  --help             this text

Exit status: 0 when all is right, 1 when anything is wrong, 2 for a bad command line.
";

const TRANSFERS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/data/transfers.csv"
);
const ACCOUNTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/accounts.csv");

/// How much is told of the locks' events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    Nothing,
    FirstGrants,
    All,
}

#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) target: Target,
    pub(crate) workers: usize,
    pub(crate) transfers: PathBuf,
    pub(crate) accounts: PathBuf,
    pub(crate) ledger: Option<PathBuf>,
    pub(crate) crash: usize,
    pub(crate) without_lock: bool,
    pub(crate) telling: Telling,
    pub(crate) json: bool,
    pub(crate) help: bool,
}

impl Args {
    /// Reads the command line.
    pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<Self, lexopt::Error> {
        let mut args = Self {
            target: Target::memory(),
            workers: 8,
            transfers: TRANSFERS.into(),
            accounts: ACCOUNTS.into(),
            ledger: None,
            crash: 0,
            without_lock: false,
            telling: Telling::FirstGrants,
            json: false,
            help: false,
        };
        while let Some(option) = parser.next()? {
            match option {
                Long("url") => args.target = parser.value()?.parse()?,
                Long("workers") => args.workers = parser.value()?.parse()?,
                Long("transfers") => args.transfers = parser.value()?.into(),
                Long("accounts") => args.accounts = parser.value()?.into(),
                Long("ledger") => args.ledger = Some(parser.value()?.into()),
                Long("crash") => args.crash = parser.value()?.parse()?,
                Long("without-lock") => args.without_lock = true,
                Long("events") => match parser.value()?.string()?.as_str() {
                    "all" => args.telling = Telling::All,
                    other => return Err(format!("--events takes all, not {other:?}").into()),
                },
                Long("quiet") => args.telling = Telling::Nothing,
                Long("json") => args.json = true,
                Short('h') | Long("help") => args.help = true,
                other => return Err(other.unexpected()),
            }
        }
        args.check()?;
        Ok(args)
    }

    fn check(&self) -> Result<(), String> {
        if !(1..=512).contains(&self.workers) {
            return Err(format!(
                "--workers must be from 1 to 512, not {}",
                self.workers
            ));
        }
        if self.crash >= self.workers {
            return Err(format!(
                "--crash must be below the number of workers, {}: somebody must be left to finish",
                self.workers
            ));
        }
        if self.without_lock && self.crash > 0 {
            return Err("--crash is about holders of the lock: not with --without-lock".into());
        }
        if self.without_lock && self.workers < 2 {
            return Err(
                "--without-lock needs two workers at least: one overlaps with nobody".into(),
            );
        }
        Ok(())
    }
}
