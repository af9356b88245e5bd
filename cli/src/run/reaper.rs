//! The reaper: the parent of the command. Only the reaper can be certain that no process of the command is left.
//!
//! On Linux, the reaper is a *subreaper*, so orphaned processes of the command become its children and cannot escape.
//! The reaper starts no other process, so the command is over when the kernel reports no children. The reaper ends the
//! command at the guardian's request or death, and in any case before the end of the lease that was reported last.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper_store::{BootInstant, Clock};
use rustix::process::{Pid, Signal, WaitStatus, getpid};
use tokio::sync::watch;

use super::LAUNCHER;
use super::channel::{
    Command, Incoming, Order, Over, asynchronous, inherited, receive_files, send_files, spawn_self,
    write_reports,
};
use super::deadline::{Deadlines, Overslept};
use super::signals::Signals;
use super::tree::{Children, KILL_AGAIN, Tree, adopt_orphans, reap};

/// Time for a stopped front to receive the last report. The front needs this report only if the guardian dies.
const TIME_TO_TELL_FRONT: Duration = Duration::from_secs(1);

pub(crate) fn reaper(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::output::print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn start(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let mut number = || arguments.next()?.to_str()?.parse().ok();
    let (Some(granted), Some(grace)) = (number(), number()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let guardian = inherited()?;
    let Some([stdin, stdout, stderr, front]) = receive_files(&guardian)? else {
        return Ok(());
    };
    adopt_orphans()?;
    let own = getpid().as_raw_pid().to_string();
    // Spawn before handling any signal, so that the command ignores the same signals as our caller, including SIGCHLD.
    let (child, launcher) = spawn_self(
        [LAUNCHER.into(), own.into()].into_iter().chain(arguments),
        |_| (),
    )?;
    let tree = Tree::of_new(Pid::from_child(&child))?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()?.block_on(async {
        let _deaf = Signals::listen(&[Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM])?;
        let signals = Signals::listen(&[Signal::CHILD])?;
        let (orders, to_guardian) = asynchronous(guardian)?.into_split();
        let (_from_front, to_front) = asynchronous(front.into())?.into_split();
        let (reports, mut newest) = watch::channel(Command {
            granted,
            group: tree.group().as_raw_pid(),
            cgroup: tree.cgroup(),
            stops: (0, 0),
            over: None,
        });
        newest.mark_changed();
        let told_front = tokio::spawn(write_reports(to_front, newest.clone()));
        let told_guardian = tokio::spawn(write_reports(to_guardian, newest));
        let mut reaper = Reaper {
            clock: Clock::system(),
            grace: Duration::from_millis(grace),
            tree,
            launcher: Some((launcher, [stdin, stdout, stderr])),
            status: None,
            lease: None,
            overslept: Overslept::default(),
            ending: None,
            look_at: BootInstant::default(),
            kill_again_at: BootInstant::default(),
            reports,
        };
        let over = reaper.until_over(Incoming::new(orders), signals).await;
        reaper
            .reports
            .send_modify(|command| command.over = Some(over));
        drop(reaper);
        let _ = told_guardian.await;
        let _ = tokio::time::timeout(TIME_TO_TELL_FRONT, told_front).await;
        Ok(())
    })
}

struct Reaper {
    clock: Clock,
    grace: Duration,
    tree: Tree,
    /// The socket to the launcher, and the open files of the command. `None` once the command may execute or has to
    /// end.
    launcher: Option<(UnixStream, [OwnedFd; 3])>,
    status: Option<WaitStatus>,
    /// `None` for a session without a timeout.
    lease: Option<Deadlines>,
    overslept: Overslept,
    ending: Option<Ending>,
    look_at: BootInstant,
    kill_again_at: BootInstant,
    reports: watch::Sender<Command>,
}

struct Ending {
    over: Over,
    kill_at: BootInstant,
}

impl Reaper {
    async fn until_over(&mut self, mut orders: Incoming, mut signals: Signals) -> Over {
        let clock = self.clock.clone();
        let mut has_guardian = true;
        loop {
            let children = self.reap();
            if let (Some(status), None) = (self.status, &self.ending) {
                self.end(Over::Done(exit_status(status)));
            }
            if let (Some(ending), true) = (&self.ending, self.tree.is_empty(&children)) {
                return ending.over;
            }
            let next_look = self.next_look();
            tokio::select! {
                biased;
                // Poll the timer first, so that a flood of signals or orders cannot delay it.
                () = clock.sleep_until(next_look) => self.look(),
                order = orders.next(), if has_guardian => match order {
                    Some(order) => self.obey(order),
                    None => {
                        has_guardian = false;
                        self.without_guardian();
                    }
                },
                // Poll the signals last, because a command can cause any number of them.
                _ = signals.next() => (),
                () = tokio::task::yield_now(), if matches!(children, Children::PerhapsMore) => (),
            }
        }
    }

    fn reap(&mut self) -> Children {
        let (group, mut changes) = (self.tree.group(), Vec::new());
        let children = reap(|pid, status| {
            if pid == group {
                changes.push(status);
            }
        });
        for status in changes {
            match status.stopping_signal() {
                Some(signal) => self.reports.send_modify(|command| {
                    command.stops = (command.stops.0 + 1, signal);
                }),
                None => self.status = Some(status),
            }
        }
        children
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Execute(_) => {
                if let (Some((launcher, files)), None) = (self.launcher.take(), &self.ending) {
                    let _ = send_files(&launcher, &files.each_ref().map(AsFd::as_fd));
                }
            }
            Order::Signal(number) => {
                // After the end of the first process, its number may belong to another group, so send no more signals.
                if let (Some(signal), None) = (Signal::from_named_raw(number), self.status) {
                    self.tree.signal_group(signal);
                }
            }
            Order::Lease(deadlines) => self.lease = Some(deadlines),
            Order::End => self.end(Over::Asked),
        }
    }

    fn without_guardian(&mut self) {
        self.end(Over::Unheard);
        if let (Some(ending), None) = (&mut self.ending, self.lease) {
            // Without a lease, the store was embedded in the guardian and has ended with it. Kill the command
            // immediately, because another client may already hold the lock.
            ending.kill_at = self.clock.now();
        }
    }

    fn end(&mut self, over: Over) {
        if self.ending.is_some() {
            return;
        }
        // Dropping the socket ends a launcher that has not become the command yet.
        self.launcher = None;
        self.tree.signal(Signal::TERM);
        // Continue stopped processes, because they could not handle SIGTERM otherwise.
        self.tree.signal(Signal::CONT);
        self.look_at = self.clock.now();
        let kill_at = self.look_at.after(self.grace);
        self.ending = Some(Ending { over, kill_at });
    }

    fn next_look(&self) -> BootInstant {
        match (&self.ending, self.lease) {
            (Some(_), _) => self.kill_at().max(self.kill_again_at).min(self.look_at),
            (None, Some(lease)) => self.overslept.due(lease.terminate_by_reaper()),
            (None, None) => BootInstant::from_nanos(u64::MAX),
        }
    }

    /// Returns the time at which the command is killed. This time is always before the lease ends (invariant 6).
    fn kill_at(&self) -> BootInstant {
        let ending = self.ending.as_ref().map(|ending| ending.kill_at);
        let asked = ending.unwrap_or(BootInstant::from_nanos(u64::MAX));
        self.lease.map_or(asked, |lease| asked.min(lease.kill()))
    }

    fn look(&mut self) {
        let now = self.clock.now();
        if let (Some(lease), None) = (self.lease, &self.ending) {
            match self.overslept.is_new(lease.terminate_by_reaper(), now) {
                true => return,
                false => self.end(Over::Unheard),
            }
        }
        if self.ending.is_some() && now >= self.kill_at().max(self.kill_again_at) {
            self.tree.kill();
            self.kill_again_at = now.after(KILL_AGAIN);
        }
        // Look again even without SIGCHLD, because a child created by `clone` without an exit signal ends silently.
        self.look_at = now.after(Duration::from_secs(1));
    }
}

fn exit_status(status: WaitStatus) -> u8 {
    let status = match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => status,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    u8::try_from(status).unwrap_or(1)
}
