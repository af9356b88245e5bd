//! `lockkeeper elect`: runs a command while this candidate leads, or prints each change of leader.
//!
//! The command runs under the same processes as with `lockkeeper run` (front, guardian, reaper and launcher). After
//! losing the leadership, the guardian campaigns again.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use lockkeeper::{Election, LeaderChange};

use crate::exit::Failure;
use crate::locks::names::escaped;
use crate::run::Run;
use crate::target::{Target, lock_path};
use crate::values;

pub(crate) const GUARDIAN: &str = "elect-guardian";

/// The arguments of `elect`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Elect {
    /// Name of the election, or path of its znode
    name: String,
    /// The command and its arguments
    #[arg(
        last = true,
        required_unless_present = "observe",
        conflicts_with = "observe",
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
    /// Prints the new leader at each change, without being a candidate
    #[arg(long)]
    observe: bool,
    /// Prints only errors, and the leaders of --observe
    #[arg(long)]
    quiet: bool,
    /// Label that others see for this candidate, such as a service's address [default: the command's name]
    #[arg(long)]
    label: Option<String>,
    /// Time between SIGTERM and SIGKILL when the command must end. Shorter if the leadership expires earlier
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "10s")]
    grace: Duration,
    #[command(flatten)]
    target: Target,
}

impl Elect {
    pub(crate) fn front(self) -> ExitCode {
        if self.observe {
            return crate::exit::in_a_store(self.observe());
        }
        self.into_run().front_of(GUARDIAN)
    }

    pub(crate) fn guardian(self) -> ExitCode {
        self.into_run().guardian()
    }

    fn into_run(self) -> Run {
        let Self {
            name,
            command,
            label,
            quiet,
            grace,
            target,
            ..
        } = self;
        Run::of_election(name, command, label, grace, quiet, target)
    }

    async fn observe(self) -> Result<(), Failure> {
        let path = lock_path(&self.name)?;
        let client = self.target.connect().await?;
        let mut changes = Election::new(&client, path)?.observe();
        while let Some(change) = changes.next().await {
            let mut out = io::stdout().lock();
            match out.write_all(line(&change?).as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
        }
        Ok(())
    }
}

/// Returns the line `TOKEN LABEL` for the new leader, or `-` if there is no leader.
fn line(change: &LeaderChange) -> String {
    let Some(leader) = change.leader() else {
        return "-\n".into();
    };
    let data = leader.data.as_deref().unwrap_or_default();
    format!("{} {}\n", leader.epoch, escaped(data))
}
