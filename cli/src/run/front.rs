//! The front: the process that the user has started.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper_store::{BootInstant, Clock};
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::channel::{
    Incoming, Order, Orders, Report, Running, Waiting, send_files, spawn_self, standard_files,
};
use super::signals::Signals;
use super::terminal::Terminal;
use super::tree::{Children, KILL_AGAIN, Tree, adopt_orphans, children, reap};
use crate::exit::Failure;
use crate::local::LocalStore;

/// Starts the guardian with the arguments of this process, and ends with the status of the command.
pub(super) fn run(guardian: &str, grace: Duration, store: Option<LocalStore>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let status = runtime.and_then(|runtime| {
        runtime.block_on(async { Ok(Front::start(guardian, grace, store)?.work().await) })
    });
    match status {
        Ok(Ok(status)) => ExitCode::from(status),
        Ok(Err(failure)) => failure.report(),
        Err(error) => Failure::from(error).report(),
    }
}

/// Lateness that tells that this process was stopped.
const LATE: Duration = Duration::from_millis(100);

/// Time for a report that the guardian could not write while this process was stopped.
const TIME_TO_REPORT: Duration = Duration::from_millis(200);

/// Time for the guardian to report the end of its command. Nothing is left to be ended meanwhile, so it may be long: on a
/// busy machine the guardian has no turn for some of it.
const TIME_TO_REPORT_END: Duration = Duration::from_secs(5);

struct Front {
    clock: Clock,
    grace: Duration,
    guardian: Pid,
    /// Children of this process that it has not started: of a shell that was replaced by it.
    others: Vec<Pid>,
    /// The user's own store, if the lock is in it.
    store: Option<LocalStore>,
    signals: Signals,
    reports: Incoming,
    /// `None` once the guardian was told that the user has given up.
    orders: Option<Orders>,
    terminal: Option<Terminal>,
    seen: Report,
    /// The signal by which the user has given up.
    cancelled: Option<Signal>,
    /// True once the command was asked to end, for the guardian that has not done it.
    has_asked: bool,
    shows_wait: bool,
    /// The moment to act at which this process was stopped.
    overslept: Option<BootInstant>,
    not_before: BootInstant,
    /// The moment until which the guardian may report that its command has ended, once this process has seen that.
    report_by: Option<BootInstant>,
}

impl Front {
    fn start(guardian: &str, grace: Duration, store: Option<LocalStore>) -> io::Result<Self> {
        let signals = Signals::listen(&[
            Signal::HUP,
            Signal::INT,
            Signal::QUIT,
            Signal::TERM,
            Signal::USR1,
            Signal::USR2,
            Signal::TSTP,
            Signal::CONT,
            Signal::CHILD,
        ])?;
        // If the guardian is killed, its children come here.
        adopt_orphans()?;
        let others = children();
        let arguments = std::env::args_os().skip(2);
        let arguments = [guardian.into()].into_iter().chain(arguments);
        let (child, socket) = spawn_self(arguments, |command| {
            command.stdout(std::process::Stdio::null());
        })?;
        send_files(&socket, &standard_files())?;
        socket.set_nonblocking(true)?;
        let (reports, orders) = tokio::net::UnixStream::from_std(socket)?.into_split();
        Ok(Self {
            clock: Clock::system(),
            grace,
            guardian: Pid::from_child(&child),
            others,
            store,
            signals,
            reports: Incoming::new(reports),
            orders: Some(Orders::new(orders)),
            terminal: Terminal::open(),
            seen: Report::default(),
            cancelled: None,
            has_asked: false,
            shows_wait: io::stderr().is_terminal(),
            overslept: None,
            not_before: BootInstant::default(),
            report_by: None,
        })
    }

    async fn work(mut self) -> Result<u8, Failure> {
        let clock = self.clock.clone();
        loop {
            let due = self.due().map(|due| due.max(self.not_before));
            tokio::select! {
                biased;
                // First: a report that has come may say that the lease was renewed.
                report = self.reports.next::<Report>() => {
                    let Some(report) = report else {
                        return self.without_guardian("its guardian process has died").await;
                    };
                    if let Some(status) = self.see(report) {
                        return status;
                    }
                }
                signal = self.signals.next() => {
                    if let Some(status) = self.signal(signal) {
                        return Ok(status);
                    }
                }
                () = Orders::written(&mut self.orders) => {}
                () = clock.sleep_until(due.unwrap_or_default()), if due.is_some() => {
                    if !self.was_asleep() && !self.awaits_report() && self.is_past_asking() {
                        return self.instead_of_guardian().await;
                    }
                }
            }
        }
    }

    /// Takes in a report. Returns the status with which this process ends, if it was the last.
    fn see(&mut self, report: Report) -> Option<Result<u8, Failure>> {
        let before = std::mem::replace(&mut self.seen, report);
        let report = &self.seen;
        for note in report.notes_after(before.noted) {
            say(note);
        }
        if self.shows_wait && before.waiting != report.waiting {
            show_wait(report.waiting.as_ref());
        }
        let number = |report: &Report| report.command.as_ref().map(|running| running.number);
        if number(&before) != number(report) {
            self.changed_command();
        }
        if self.seen.stops.0 != before.stops.0 {
            self.stopped();
        }
        let end = self.seen.end.take()?;
        self.take_back_terminal();
        if let Some(message) = &end.message {
            say(message);
        }
        Some(Ok(match self.cancelled {
            Some(signal) => status_of(signal),
            None => end.status,
        }))
    }

    fn changed_command(&mut self) {
        self.has_asked = false;
        self.report_by = None;
        self.take_back_terminal();
        let Some(running) = self.seen.command.clone() else {
            return;
        };
        if self.cancelled.is_some() {
            return;
        }
        if let (Some(terminal), Some(group)) = (&mut self.terminal, group(&running)) {
            terminal.lend_at_once(group);
        }
        // From now on this process can end the command by itself, so it may be executed.
        self.order(Order::Execute(running.number));
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

    /// Passes a signal on. Returns a status if this process ends by it.
    fn signal(&mut self, signal: Signal) -> Option<u8> {
        let group = self.seen.command.as_ref().and_then(group);
        match (signal, group) {
            (Signal::CHILD, _) => {}
            (Signal::CONT, Some(group)) => {
                if let Some(terminal) = &mut self.terminal {
                    terminal.lend_at_once(group);
                }
                self.order(Order::Signal(signal.as_raw()));
            }
            (_, Some(_)) => self.order(Order::Signal(signal.as_raw())),
            (Signal::CONT | Signal::USR1 | Signal::USR2, None) => {}
            (Signal::TSTP, None) => stop_self(),
            // The second one: the guardian gives the lock up by itself.
            (_, None) if self.cancelled.is_some() => return Some(status_of(signal)),
            (_, None) => {
                self.cancelled = Some(signal);
                self.orders = None;
            }
        }
        None
    }

    /// The command was stopped: by Ctrl-Z, or because it wants the terminal.
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
        // The shell sees this process alone, and continues it. Then SIGCONT goes on to the command.
        stop_self();
    }

    /// Returns the moment at which the front acts if the guardian says nothing.
    fn due(&self) -> Option<BootInstant> {
        let deadlines = self.seen.command.as_ref()?.deadlines?;
        Some(match self.has_asked {
            false => deadlines.terminate_by_front(),
            true => deadlines.kill(),
        })
    }

    /// Returns true, once, if this process itself was stopped when it should have acted: the guardian may have had no room
    /// for its newest report, and gets time to write it.
    fn was_asleep(&mut self) -> bool {
        let (due, now) = (self.due(), self.clock.now());
        if due == self.overslept || due.is_none_or(|due| now.since(due) < LATE) {
            return false;
        }
        self.overslept = due;
        self.not_before = now.after(TIME_TO_REPORT);
        true
    }

    /// Returns true if the command has ended, and the guardian has some time left to say so.
    fn awaits_report(&mut self) -> bool {
        let has_ended = self
            .tree()
            .is_some_and(|tree| tree.has_ended(self.guardian));
        if !has_ended {
            return false;
        }
        let now = self.clock.now();
        let report_by = *self.report_by.get_or_insert(now.after(TIME_TO_REPORT_END));
        self.not_before = now.after(KILL_AGAIN);
        now < report_by
    }

    /// The lease runs out, and the guardian has not said that it was renewed. Asks the command to end; returns true if
    /// it is to be killed.
    fn is_past_asking(&mut self) -> bool {
        if !self.has_asked {
            self.has_asked = true;
            if let Some(tree) = self.tree() {
                tree.signal_group(Signal::TERM);
                tree.signal_group(Signal::CONT);
            }
            return false;
        }
        true
    }

    /// Kills the command of a guardian that was stopped.
    async fn instead_of_guardian(mut self) -> Result<u8, Failure> {
        // First the guardian: its children become this process's, and it starts no more of them.
        let _ = kill_process(self.guardian, Signal::KILL);
        if let Some(tree) = self.tree() {
            tree.kill();
        }
        self.without_guardian("its guardian process did not renew it")
            .await
    }

    /// Ends the command whose guardian is dead.
    async fn without_guardian(&mut self, reason: &str) -> Result<u8, Failure> {
        let failure = match &self.seen.command {
            Some(_) => Failure::Lost(format!(
                "the lock was lost: {reason}; the command was ended"
            )),
            None => Failure::Other(reason.to_owned()),
        };
        let running = self.seen.command.clone();
        let tree = self.tree().unwrap_or_else(|| {
            // The launcher of a command that this process was not told of. It has not become the command.
            Tree::known(getpid(), None, self.others.clone(), self.store.clone())
        });
        let deadlines = running.and_then(|running| running.deadlines);
        let mut kill_at = self.clock.now().after(self.grace);
        if let Some(deadlines) = deadlines {
            kill_at = kill_at.min(deadlines.kill());
        }
        tree.signal(Signal::TERM);
        tree.signal(Signal::CONT);
        let mut is_guardian_left = true;
        loop {
            let children = reap(|pid, _| is_guardian_left &= pid != self.guardian);
            // A debugger may keep the guardian's end to itself.
            let is_traced = is_guardian_left && matches!(children, Children::Some);
            if tree.is_empty(&children) || is_traced && tree.has_ended(self.guardian) {
                break;
            }
            let now = self.clock.now();
            if now >= kill_at {
                tree.kill();
                kill_at = now.after(KILL_AGAIN);
            }
            tokio::select! {
                () = self.clock.sleep_until(kill_at) => (),
                _ = self.signals.next() => (),
                () = tokio::task::yield_now(), if matches!(children, Children::PerhapsMore) => (),
            }
        }
        self.take_back_terminal();
        match self.cancelled {
            Some(signal) => Ok(status_of(signal)),
            None => Err(failure),
        }
    }

    fn tree(&self) -> Option<Tree> {
        let running = self.seen.command.as_ref()?;
        let (group, cgroup) = (group(running)?, running.cgroup.clone());
        Some(Tree::known(
            group,
            cgroup,
            self.others.clone(),
            self.store.clone(),
        ))
    }
}

fn group(running: &Running) -> Option<Pid> {
    Pid::from_raw(running.group)
}

fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(1)
}

/// Stops this process until it is continued.
fn stop_self() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Prints a line to stderr, whether or not it is read.
fn say(text: &str) {
    // In one write: others may write to the same terminal.
    let _ = io::stderr().write_all(format!("lockkeeper: {text}\n").as_bytes());
}

/// Shows the position on a terminal, in one line that is written over, and removed when the wait is over.
fn show_wait(waiting: Option<&Waiting>) {
    let text = waiting.map_or(String::new(), |waiting| {
        let holder = waiting.holder.as_deref();
        let holder = holder.map_or(String::new(), |holder| format!(", held by {holder}"));
        format!("lockkeeper: waiting, {} ahead{holder}", waiting.ahead)
    });
    let mut stderr = io::stderr();
    let _ = stderr.write_all(format!("\r\x1b[2K{text}").as_bytes());
}
