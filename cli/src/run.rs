//! `lockkeeper run`: runs a command while a lock is held, and never longer.
//!
//! There are four processes. Any of them may be killed or stopped at any moment.
//!
//! - The *front* is the process that the user has started. It owns the terminal, receives the user's signals, and exits
//!   with the command's status.
//! - The *guardian*, a child of the front, owns the session. It waits for the lock, renews the lease, and releases the
//!   lock when no process of the command is left.
//! - The *reaper*, a child of the guardian, is the parent of the command. It ends the command, and knows when all
//!   processes of the command have ended.
//! - The *launcher*, a child of the reaper, becomes the command. First it waits until the front knows the command's
//!   process group, so that the front can end the command if reaper and guardian fail.
//!
//! Sockets connect the processes. When a process dies, the processes connected to it read the end of the stream.
//!
//! - If the front dies, the guardian asks the reaper to end the command and then releases the lock.
//! - If the guardian dies, or stops renewing the lease, the reaper ends the command before the last reported end of the
//!   lease. The session must outlive the guardian (`end_with_process(false)`), so that the lock becomes free only when
//!   the session's timeout has passed. Otherwise the next client could hold the lock while the command still runs.
//! - If the reaper dies or hangs, the guardian kills the command. If the guardian fails as well, the front kills the
//!   command.
//! - If the front does not answer a grant, it has been stopped, and its lock would block all waiters. The guardian then
//!   releases the lock, and joins the queue again when the front continues.

mod acquire;
mod channel;
mod deadline;
mod front;
mod guardian;
mod held;
mod launcher;
mod messages;
mod reaper;
mod signals;
mod terminal;
mod tree;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::exit::Failure;
use crate::target::{Target, lock_path};
use crate::values;

pub(crate) use launcher::launcher;
pub(crate) use reaper::reaper;

use acquire::{Goal, Lock};

pub(crate) const GUARDIAN: &str = "run-guardian";
pub(crate) const REAPER: &str = "run-reaper";
pub(crate) const LAUNCHER: &str = "run-launcher";

/// The arguments of `run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Run {
    /// Name of the lock, or path of its znode
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Gives up if the lock is not acquired in this time. 0s is the same as --try
    #[arg(long, value_name = "DURATION", value_parser = values::timeout)]
    timeout: Option<Duration>,
    /// Gives up immediately if the lock is not free
    #[arg(long = "try", conflicts_with = "timeout")]
    only_if_free: bool,
    /// Takes the lock as one of several readers. Writers of this lock must use --exclusive
    #[arg(long, conflicts_with_all = ["exclusive", "permits", "all"])]
    shared: bool,
    /// Takes the lock as its only writer. Readers of this lock use --shared
    #[arg(long, conflicts_with_all = ["permits", "all"])]
    exclusive: bool,
    /// Takes N of the M permits of a semaphore
    #[arg(long, value_name = "N/M", value_parser = acquire::permits, conflicts_with = "all")]
    permits: Option<(u32, u32)>,
    /// Takes all of these locks in one step
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    all: Vec<String>,
    /// Runs the command at most once per period, counted over all calls with this lock name. Choose a period a little
    /// shorter than cron's interval. After a successful run, other calls in the period exit with 0. Without a URL, only
    /// calls of this user on this machine count
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with_all = ["shared", "exclusive", "permits", "all"])]
    once_per: Option<Duration>,
    /// Prints only errors
    #[arg(long, conflicts_with = "verbose")]
    quiet: bool,
    /// Label that others see for this holder [default: the command's name]
    #[arg(long)]
    label: Option<String>,
    /// Expected run time of the command, shown to others
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    expect: Option<Duration>,
    /// Time between SIGTERM and SIGKILL when the command must end. Shorter if the lock expires earlier
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "10s")]
    grace: Duration,
    #[command(flatten)]
    target: Target,
    /// True for a candidate, which campaigns again after a loss.
    #[arg(skip)]
    is_election: bool,
}

impl Run {
    pub(crate) fn of_election(
        name: String,
        command: Vec<OsString>,
        label: Option<String>,
        grace: Duration,
        quiet: bool,
        target: Target,
    ) -> Self {
        Self {
            name: Some(name),
            command,
            timeout: None,
            only_if_free: false,
            shared: false,
            exclusive: false,
            permits: None,
            all: Vec::new(),
            once_per: None,
            quiet,
            label,
            expect: None,
            grace,
            target,
            is_election: true,
        }
    }

    pub(crate) fn front(self) -> ExitCode {
        self.front_of(GUARDIAN)
    }

    /// Runs the front. The guardian parses the same arguments under the hidden subcommand `guardian`.
    pub(crate) fn front_of(self, guardian: &str) -> ExitCode {
        let checked = self.goal().and_then(|_| self.target.explain());
        let checked = checked.and_then(|()| self.target.check());
        if let Err(failure) = checked {
            return failure.report();
        }
        let is_mistake = self.once_per.is_some() && self.target.is_local();
        if is_mistake && !self.quiet && std::io::stderr().is_terminal() {
            crate::output::print_error(Failure::Other(
                "--once-per without a URL counts only calls of this user on this machine: to count calls of several machines or \
                 users, give the --url of a server"
                    .into(),
            ));
        }
        front::run(guardian, self.grace, self.quiet)
    }

    pub(crate) fn guardian(self) -> ExitCode {
        guardian::run(self)
    }

    fn is_try(&self) -> bool {
        self.only_if_free || self.timeout == Some(Duration::ZERO)
    }

    fn goal(&self) -> Result<Goal, Failure> {
        if !self.all.is_empty() {
            let paths = self.all.iter().map(|name| lock_path(name));
            return Ok(Goal::Lock(Lock::All(paths.collect::<Result<_, _>>()?)));
        }
        let path = lock_path(self.name.as_deref().unwrap_or_default())?;
        if self.is_election {
            return Ok(Goal::Election(path));
        }
        if let Some(period) = self.once_per {
            return Ok(Goal::Job { path, period });
        }
        Ok(Goal::Lock(match self.permits {
            Some((take, of)) => Lock::Permits { path, take, of },
            None if self.shared => Lock::Shared(path),
            None if self.exclusive => Lock::Exclusive(path),
            None => Lock::Mutex(path),
        }))
    }
}
