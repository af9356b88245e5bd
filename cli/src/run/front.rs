//! The front: the process that the user has started.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper_store::{BootInstant, Clock};
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::channel::{
    Command, Incoming, Order, Orders, Report, Running, asynchronous, send_files, spawn_self,
    standard_files,
};
use super::deadline::Overslept;
use super::messages::Messages;
use super::signals::Signals;
use super::terminal::Terminal;
use super::tree::{Tree, adopt_orphans, can_be_ended, children};
use crate::exit::Failure;

pub(super) fn run(guardian: &str, grace: Duration, quiet: bool) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let status = runtime.and_then(|runtime| {
        runtime.block_on(async { Ok(Front::start(guardian, grace, quiet)?.work().await) })
    });
    match status {
        Ok(status) => ExitCode::from(status),
        Err(error) => Failure::from(error).report(),
    }
}

/// Time for the guardian to report the end of its command. A long wait does no harm, because no process of the command
/// is left.
const TIME_TO_REPORT_END: Duration = Duration::from_secs(5);

/// Additional time, after the grace period, for the reaper to kill the command of a dead guardian.
const TIME_TO_REAP: Duration = Duration::from_millis(500);

struct Front {
    clock: Clock,
    grace: Duration,
    guardian: Pid,
    /// Children that this process has inherited from a shell that called `exec`.
    others: Vec<Pid>,
    signals: Signals,
    reports: Incoming,
    commands: Option<Incoming>,
    /// `None` once the user has given up. Dropping the orders informs the guardian.
    orders: Option<Orders>,
    terminal: Option<Terminal>,
    messages: Messages,
    seen: Report,
    command: Option<(Command, BootInstant)>,
    cancelled: Option<Signal>,
    shows_wait: bool,
    overslept: Overslept,
}

impl Front {
    fn start(guardian: &str, grace: Duration, quiet: bool) -> io::Result<Self> {
        let signals = Signals::listen(&[
            Signal::HUP,
            Signal::INT,
            Signal::QUIT,
            Signal::TERM,
            Signal::USR1,
            Signal::USR2,
            Signal::TSTP,
            Signal::CONT,
        ])?;
        can_be_ended()?;
        let others = children();
        let arguments = std::env::args_os().skip(2);
        let arguments = [guardian.into()].into_iter().chain(arguments);
        let (child, socket) = spawn_self(arguments, |command| {
            command.stdout(std::process::Stdio::null());
        })?;
        let (commands, for_reapers) = UnixStream::pair()?;
        let [stdin, stdout, stderr] = standard_files();
        send_files(&socket, &[stdin, stdout, stderr, for_reapers.as_fd()])?;
        let (reports, orders) = asynchronous(socket)?.into_split();
        let (commands, _) = asynchronous(commands)?.into_split();
        Ok(Self {
            clock: Clock::system(),
            grace,
            guardian: Pid::from_child(&child),
            others,
            signals,
            reports: Incoming::new(reports),
            commands: Some(Incoming::new(commands)),
            orders: Some(Orders::new(orders)),
            terminal: Terminal::open(),
            messages: Messages::start()?,
            seen: Report::default(),
            command: None,
            cancelled: None,
            shows_wait: io::stderr().is_terminal() && !quiet,
            overslept: Overslept::default(),
        })
    }

    async fn work(mut self) -> u8 {
        let ended = self.until_ended().await;
        self.take_back_terminal();
        let status = match (self.cancelled, ended) {
            (Some(signal), _) => status_of(signal),
            (None, Ok(status)) => status,
            (None, Err(failure)) => {
                self.messages.say(&failure.to_string());
                failure.status()
            }
        };
        let told_to_end = async { while !is_end(self.signals.next().await) {} };
        // The terminal may block our output indefinitely, so a signal also ends the wait.
        tokio::select! {
            biased;
            () = self.messages.written() => (),
            () = told_to_end => (),
        }
        status
    }

    async fn until_ended(&mut self) -> Result<u8, Failure> {
        let clock = self.clock.clone();
        loop {
            let due = self.due();
            let act_at = due.map(|due| self.overslept.due(due));
            tokio::select! {
                biased;
                // A pending report may contain a renewed lease, so poll the reports before the deadline.
                report = self.reports.next::<Report>() => {
                    let Some(report) = report else {
                        return self.without_guardian("the guardian process has died").await;
                    };
                    if let Some(status) = self.see(report) {
                        return Ok(status);
                    }
                }
                command = next_command(&mut self.commands) => self.see_command(command),
                signal = self.signals.next() => {
                    if let Some(status) = self.signal(signal) {
                        return Ok(status);
                    }
                }
                () = Orders::written(&mut self.orders) => {}
                () = clock.sleep_until(act_at.unwrap_or_default()), if act_at.is_some() => {
                    if !self.overslept.is_new(due.unwrap_or_default(), clock.now()) {
                        let _ = kill_process(self.guardian, Signal::KILL);
                        return self.without_guardian("the guardian process did not renew it").await;
                    }
                }
            }
        }
    }

    fn see(&mut self, report: Report) -> Option<u8> {
        let before = std::mem::replace(&mut self.seen, report);
        let report = &self.seen;
        for note in report.notes_after(before.noted) {
            self.messages.say(note);
        }
        if self.shows_wait && before.waiting != report.waiting {
            self.messages.show_wait(report.waiting.as_ref());
        }
        if report.command.is_none() {
            self.take_back_terminal();
        }
        if before.granted != self.seen.granted {
            self.granted();
        }
        if self.seen.stops.0 != before.stops.0 {
            self.stopped();
        }
        let end = self.seen.end.take()?;
        if let Some(message) = &end.message {
            self.messages.say(message);
        }
        Some(end.status)
    }

    fn granted(&mut self) {
        if self.cancelled.is_some() {
            return;
        }
        if let Some(group) = self.seen.command.as_ref().and_then(group) {
            if adopt_orphans().is_err() {
                return;
            }
            if let Some(terminal) = &mut self.terminal {
                terminal.lend_at_once(group);
            }
        }
        // Let the command execute only now, because from here on we can end the command without the guardian.
        self.order(Order::Execute(self.seen.granted));
    }

    fn see_command(&mut self, command: Option<Command>) {
        match command {
            Some(command) => self.command = Some((command, self.clock.now())),
            None => self.commands = None,
        }
    }

    fn order(&mut self, order: Order) {
        if let Some(orders) = &mut self.orders {
            orders.send(order);
        }
    }

    fn take_back_terminal(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
    }

    fn signal(&mut self, signal: Signal) -> Option<u8> {
        let group = self.seen.command.as_ref().and_then(group);
        match (signal, group) {
            (Signal::CONT, Some(group)) => {
                if let Some(terminal) = &mut self.terminal {
                    terminal.lend_at_once(group);
                }
                self.order(Order::Signal(signal.as_raw()));
            }
            (_, Some(_)) => self.order(Order::Signal(signal.as_raw())),
            (Signal::CONT | Signal::USR1 | Signal::USR2, None) => {}
            (Signal::TSTP, None) => stop_self(),
            // The second signal ends this process immediately. The guardian gives up the lock on its own.
            (_, None) if self.cancelled.is_some() => return Some(status_of(signal)),
            (_, None) => {
                self.cancelled = Some(signal);
                self.orders = None;
            }
        }
        None
    }

    fn stopped(&mut self) {
        let Some(group) = self.seen.command.as_ref().and_then(group) else {
            return;
        };
        let Some(terminal) = &mut self.terminal else {
            return;
        };
        let by = self.seen.stops.1;
        let wants_terminal = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&by);
        if wants_terminal && terminal.lend(group) {
            self.order(Order::Signal(Signal::CONT.as_raw()));
            return;
        }
        terminal.take_back();
        // The shell sees only this process, so we stop in place of the command. When the shell continues us, we forward
        // SIGCONT to the command.
        stop_self();
    }

    fn due(&self) -> Option<BootInstant> {
        let act_at = self.seen.command.as_ref()?.deadlines?.kill_by_others();
        Some(match self.over_since() {
            Some(over) => act_at.max(over.after(TIME_TO_REPORT_END)),
            None => act_at,
        })
    }

    fn over_since(&self) -> Option<BootInstant> {
        let (command, since) = self.command.as_ref()?;
        let is_over = command.granted == self.seen.granted && command.over.is_some();
        is_over.then_some(*since)
    }

    async fn without_guardian(&mut self, reason: &str) -> Result<u8, Failure> {
        let Some(running) = self.seen.command.clone() else {
            return Err(Failure::Other(reason.to_owned()));
        };
        let mut kill_at = self.clock.now().after(self.grace + TIME_TO_REAP);
        if let Some(deadlines) = running.deadlines {
            kill_at = kill_at.min(deadlines.kill_by_others());
        }
        // The reaper ends the command and then exits.
        while self.over_since().is_none() && self.commands.is_some() {
            tokio::select! {
                command = next_command(&mut self.commands) => self.see_command(command),
                () = self.clock.sleep_until(kill_at) => break,
            }
        }
        if let (None, Some(group)) = (self.over_since(), group(&running)) {
            let tree = Tree::known(group, running.cgroup, self.others.clone());
            tree.end(&self.clock).await;
        }
        Err(Failure::Lost(format!(
            "the lock was lost: {reason}; the command was ended"
        )))
    }
}

async fn next_command(commands: &mut Option<Incoming>) -> Option<Command> {
    match commands {
        Some(commands) => commands.next().await,
        None => std::future::pending().await,
    }
}

fn group(running: &Running) -> Option<Pid> {
    Pid::from_raw(running.group)
}

fn is_end(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
}

fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(1)
}

fn stop_self() {
    let _ = kill_process(getpid(), Signal::STOP);
}
