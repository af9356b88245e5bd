//! The guardian: owns the session and the command.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions};
use lockkeeper_store::{BootInstant, Clock};
use rustix::process::{Pid, Signal, WaitStatus};
use tokio::sync::watch;

use super::acquire::{Acquired, Goal, HELD, held_with};
use super::channel::{
    End, Incoming, Order, Report, Running, inherited, receive_files, send_files, spawn_self,
    write_reports,
};
use super::deadline::Deadlines;
use super::held::{AnyGuard, Held};
use super::signals::Signals;
use super::tree::{Children, KILL_AGAIN, Tree, adopt_orphans, reap};
use super::{LAUNCHER, Run};
use crate::exit::Failure;
use crate::locks::table::duration;

/// Time for the store to confirm what is not needed: after a loss the session ends by its timeout in any case.
const SHORT_GOODBYE: Duration = Duration::from_secs(1);

/// Time for the store to confirm a release: enough for a server that is restarted. Meanwhile the user waits for the status
/// of a command that has ended; without the confirmation the session ends by its timeout.
const GOODBYE: Duration = Duration::from_secs(5);

/// Pause of a candidate after a loss.
const BEFORE_NEXT_TERM: Duration = Duration::from_secs(1);

/// Runs the guardian: its stdin is the socket to the front.
pub(super) fn run(run: Run) -> ExitCode {
    match start(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn start(run: Run) -> io::Result<()> {
    // First of all: when the front has ended, this is another process.
    let front = std::os::unix::process::parent_id();
    let socket = inherited()?;
    let Some(files) = receive_files(&socket)? else {
        return Ok(());
    };
    adopt_orphans()?;
    socket.set_nonblocking(true)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()?.block_on(async {
        // Those that would end it: the front has the user's signals, and a service manager sends them to all.
        let _deaf = Signals::listen(&[Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM])?;
        let signals = Signals::listen(&[Signal::CHILD])?;
        let (orders, writer) = tokio::net::UnixStream::from_std(socket)?.into_split();
        let (reports, newest) = watch::channel(Report::default());
        // A task, since the front may not read for any time.
        let writing = tokio::spawn(write_reports(writer, newest));
        let mut guardian = Guardian {
            clock: Clock::system(),
            run,
            front,
            files,
            orders: Incoming::new(orders),
            reports,
            signals,
            has_connected: false,
            told_to_end: None,
        };
        let end = guardian.work().await;
        let end = match end {
            Ok(end) => end,
            Err(failure) => End {
                status: failure.status(),
                // A loss was told when the command was asked to end.
                message: (!matches!(failure, Failure::Lost(_))).then(|| failure.to_string()),
            },
        };
        guardian
            .reports
            .send_modify(|report| report.end = Some(end));
        drop(guardian);
        // An error: the front has gone.
        let _ = writing.await;
        Ok(())
    })
}

struct Guardian {
    clock: Clock,
    run: Run,
    /// Process id of the front, which others see as the holder.
    front: u32,
    /// The front's stdin, stdout and stderr, for the command.
    files: [OwnedFd; 3],
    orders: Incoming,
    reports: watch::Sender<Report>,
    signals: Signals,
    /// True once the store has been reached.
    has_connected: bool,
    /// The signal by which the user has ended a candidate.
    told_to_end: Option<Signal>,
}

/// Reason for which the command ends.
#[derive(Clone, Debug)]
enum Cause {
    /// Its first process has ended.
    Done,
    Lost(String),
    /// The front has ended.
    Abandoned,
}

impl Guardian {
    async fn work(&mut self) -> Result<End, Failure> {
        let goal = self.run.goal()?;
        let mut number = 1;
        loop {
            let end = self.once(&goal, number).await;
            let goes_on = match &end {
                // Without this a term that is lost while its command ends would be followed by the next.
                _ if self.told_to_end.is_some() => false,
                Err(Failure::Lost(_) | Failure::NotAcquired(_)) => self.run.is_election,
                // A store that was never reached is a mistake of the user's.
                Err(Failure::Unreachable(_)) => self.run.is_election && self.has_connected,
                _ => false,
            };
            if !goes_on {
                return end;
            }
            if let Err(Failure::Unreachable(reason) | Failure::NotAcquired(reason)) = end {
                self.reports.send_modify(|report| report.note(reason));
            }
            number += 1;
            // A store that fails at once is not asked all the time.
            tokio::select! {
                () = self.clock.sleep(BEFORE_NEXT_TERM) => (),
                signal = given_up(&mut self.orders) => return Ok(abandoned(signal)),
            }
        }
    }

    /// Runs the command of this number under the lock, once.
    async fn once(&mut self, goal: &Goal, number: u64) -> Result<End, Failure> {
        let Some((client, acquired)) = self.acquire(goal).await? else {
            return Ok(abandoned(self.told_to_end));
        };
        let paths = goal.paths();
        let held = match acquired {
            Acquired::Held(held) => held,
            Acquired::NotFree => {
                self.close(&client).await;
                return Err(Failure::NotAcquired(format!("{paths} is not free")));
            }
            Acquired::NotDue { since_end, due_in } => {
                self.close(&client).await;
                let (since_end, due_in) = (duration(since_end), duration(due_in));
                return Ok(End {
                    status: 0,
                    message: Some(format!(
                        "{paths} has had its run of this period: it ended {since_end} ago, and the next is due in {due_in}"
                    )),
                });
            }
        };
        let outcome = self.command(goal, held.guard(), number).await;
        // Only now, when no process of the command is left.
        match outcome {
            Ok((Cause::Done, Some(status))) => {
                let status = exit_status(status);
                match held {
                    // A failure is not recorded: the next one that asks runs the job.
                    Held::Job(run) if status == 0 => {
                        if let Err(reason) = self.finish(&client, run).await {
                            return Ok(unrecorded(&reason));
                        }
                    }
                    held => self.release(&client, held).await,
                }
                Ok(End {
                    status,
                    message: None,
                })
            }
            Ok((Cause::Abandoned | Cause::Done, _)) => {
                self.release(&client, held).await;
                Ok(abandoned(None))
            }
            Ok((Cause::Lost(reason), _)) => {
                self.give_up(&client, held).await;
                Err(Failure::Lost(reason))
            }
            Err(failure) => {
                self.give_up(&client, held).await;
                Err(failure)
            }
        }
    }

    /// Connects and waits for the lock; `None` if the front goes meanwhile.
    async fn acquire(&mut self, goal: &Goal) -> Result<Option<(Client, Acquired)>, Failure> {
        let is_shown = self.files[2].is_terminal();
        let (run, reports) = (&self.run, is_shown.then_some(&self.reports));
        let acquired = async {
            let options = ConnectOptions::new().end_with_process(false);
            let client = run.target.connect_with(options).await?;
            let acquired = run.acquire(goal, &client, reports, self.front).await;
            Ok::<_, Failure>((client, acquired))
        };
        let (client, acquired) = tokio::select! {
            biased;
            acquired = acquired => acquired?,
            signal = given_up(&mut self.orders) => {
                self.told_to_end = signal;
                return Ok(None);
            }
        };
        self.has_connected = true;
        match acquired {
            Ok(acquired) => Ok(Some((client, acquired))),
            Err(failure) => {
                self.close(&client).await;
                Err(failure)
            }
        }
    }

    /// Runs the command, until none of its processes is left.
    async fn command(
        &mut self,
        goal: &Goal,
        held: &dyn AnyGuard,
        number: u64,
    ) -> Result<(Cause, Option<WaitStatus>), Failure> {
        let arguments = [LAUNCHER.into()].into_iter();
        let arguments = arguments.chain(self.run.command.iter().cloned());
        let (child, launcher) = spawn_self(arguments, |command| {
            command.env("LOCKKEEPER_TOKEN", held.token().to_string());
            command.env("LOCKKEEPER_LOCK", goal.paths());
            if let Some(all) = held_with(goal, held.session().store_id(), held.token()) {
                command.env(HELD, all);
            }
            match held.held_until() {
                Some(until) => {
                    let left = i64::try_from(until.remaining().as_millis()).unwrap_or(i64::MAX);
                    let until_ms = self.clock.unix_ms().saturating_add(left);
                    command.env("LOCKKEEPER_HELD_UNTIL_MS", until_ms.to_string());
                }
                None => drop(command.env_remove("LOCKKEEPER_HELD_UNTIL_MS")),
            }
        })?;
        let group = Pid::from_child(&child);
        let store = self.run.target.local().ok().flatten();
        let tree = Tree::of_new(group, store);
        let running = Running {
            number,
            group: group.as_raw_pid(),
            cgroup: tree.cgroup(),
            deadlines: deadlines(held),
        };
        self.reports
            .send_modify(|report| report.command = Some(running));
        let mut watch = Watch {
            number,
            guardian: self,
            held,
            tree,
            launcher: Some(launcher),
            status: None,
            ending: None,
            look_at: BootInstant::default(),
            kill_again_at: BootInstant::default(),
        };
        let cause = watch.until_empty().await;
        let status = watch.status;
        drop(watch);
        self.reports.send_modify(|report| report.command = None);
        Ok((cause, status))
    }

    /// Records a run whose command has ended well, and releases its lock.
    ///
    /// # Errors
    /// The run is not known to be recorded: the lock was lost, or the store was away for the session's whole timeout.
    async fn finish(&self, client: &Client, run: lockkeeper::Run) -> Result<(), String> {
        let session_timeout = run.guard().session().timeout();
        // Not shorter: no other client has the turn before the session has ended.
        let longest = session_timeout.unwrap_or(GOODBYE).max(GOODBYE);
        let finished = tokio::select! {
            finished = run.finish() => finished.map_err(|error| error.to_string()),
            () = self.clock.sleep(longest) => Err("the store does not answer".into()),
        };
        self.close_soon(client).await;
        finished
    }

    /// Releases a lock that was held until now.
    async fn release(&self, client: &Client, held: Held) {
        let released = tokio::select! {
            released = held.release() => released.map_err(|error| error.to_string()),
            () = self.clock.sleep(GOODBYE) => Err("the store does not answer".to_owned()),
        };
        let Err(reason) = released else {
            return self.close(client).await;
        };
        let text = format!(
            "the release was not confirmed ({reason}); the lock is free when the session's timeout has passed"
        );
        self.reports.send_modify(|report| report.note(text));
        self.close_soon(client).await;
    }

    /// Leaves a lock that was lost.
    async fn give_up(&self, client: &Client, held: Held) {
        drop(held);
        self.close_soon(client).await;
    }

    async fn close(&self, client: &Client) {
        self.close_within(client, GOODBYE).await;
    }

    async fn close_soon(&self, client: &Client) {
        self.close_within(client, SHORT_GOODBYE).await;
    }

    /// Ends the session, by its timeout if the store does not answer.
    async fn close_within(&self, client: &Client, time: Duration) {
        tokio::select! {
            _ = client.close() => (),
            () = self.clock.sleep(time) => (),
        }
    }
}

/// The end that no front is left to see, or whose status it knows itself; or by a signal that it has passed on to a
/// command that had just ended.
fn abandoned(signal: Option<Signal>) -> End {
    let status = signal.and_then(|signal| u8::try_from(128 + signal.as_raw()).ok());
    End {
        status: status.unwrap_or(1),
        message: None,
    }
}

/// Waits, while no command runs, until the front has ended or has been told to. Orders for a command that had just ended
/// mean nothing else now. Cancel safe.
async fn given_up(orders: &mut Incoming) -> Option<Signal> {
    loop {
        match orders.next().await? {
            Order::Signal(number) if ending(number).is_some() => return ending(number),
            Order::Signal(_) | Order::Execute(_) => {}
        }
    }
}

/// Returns the signal of this number if it asks a program to end. SIGHUP and SIGQUIT mean other things to some.
fn ending(number: i32) -> Option<Signal> {
    [Signal::INT, Signal::TERM]
        .into_iter()
        .find(|signal| signal.as_raw() == number)
}

/// The end of a job that another process will run again.
fn unrecorded(reason: &str) -> End {
    let failure = Failure::Lost(format!(
        "the command has ended well, but its run is not known to be recorded: {reason}"
    ));
    End {
        status: failure.status(),
        message: Some(failure.to_string()),
    }
}

fn deadlines(held: &dyn AnyGuard) -> Option<Deadlines> {
    let (until, timeout) = (held.held_until()?, held.session().timeout()?);
    Some(Deadlines::new(until.moment(), timeout))
}

/// Returns a shell's status of a process that has ended.
fn exit_status(status: WaitStatus) -> u8 {
    let status = match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => status,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    u8::try_from(status).unwrap_or(1)
}

/// The command, while it runs and while it ends.
struct Watch<'a> {
    number: u64,
    guardian: &'a mut Guardian,
    held: &'a dyn AnyGuard,
    tree: Tree,
    /// The socket to the launcher, until the command may be executed.
    launcher: Option<UnixStream>,
    /// Status of the command's first process, once that has ended.
    status: Option<WaitStatus>,
    ending: Option<Ending>,
    /// The next moment to look at the lease, whatever happens in the meantime.
    look_at: BootInstant,
    /// The first moment at which processes may be killed again.
    kill_again_at: BootInstant,
}

/// End of a command, which has been asked for.
struct Ending {
    cause: Cause,
    kill_at: BootInstant,
}

impl Watch<'_> {
    async fn until_empty(&mut self) -> Cause {
        let clock = self.guardian.clock.clone();
        let held = self.held;
        let mut lost = held.lost();
        let (mut is_lost, mut is_abandoned) = (false, false);
        loop {
            let children = self.reap();
            if self.status.is_some() && self.ending.is_none() {
                self.first_process_has_ended();
            }
            if let Some(ending) = &self.ending
                && self.tree.is_empty(&children)
            {
                return ending.cause.clone();
            }
            let next_look = self.next_look();
            tokio::select! {
                biased;
                // First: no flood of signals or orders may hold it up.
                () = clock.sleep_until(next_look) => self.look(),
                reason = &mut lost, if !is_lost => {
                    is_lost = true;
                    self.end(Cause::Lost(reason.to_string()));
                }
                order = self.guardian.orders.next(), if !is_abandoned => match order {
                    Some(order) => self.obey(order),
                    None => {
                        is_abandoned = true;
                        self.end(Cause::Abandoned);
                    }
                },
                // Last, because a command can cause any number of them.
                _ = self.guardian.signals.next() => (),
                () = tokio::task::yield_now(), if matches!(children, Children::PerhapsMore) => (),
            }
        }
    }

    /// Waits for processes that have ended.
    fn reap(&mut self) -> Children {
        let (group, mut changes) = (self.tree.group(), Vec::new());
        let children = reap(|pid, status| {
            if pid == group {
                changes.push(status);
            }
        });
        for status in changes {
            self.changed(status);
        }
        children
    }

    fn changed(&mut self, status: WaitStatus) {
        match status.stopping_signal() {
            Some(signal) => self.guardian.reports.send_modify(|report| {
                report.stops = (report.stops.0 + 1, signal);
            }),
            None => self.status = Some(status),
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            // Of an earlier term: the front does not know this command yet.
            Order::Execute(number) if number != self.number => {}
            Order::Execute(_) => {
                if let (Some(launcher), None) = (self.launcher.take(), &self.ending) {
                    let files: [BorrowedFd<'_>; 3] =
                        self.guardian.files.each_ref().map(AsFd::as_fd);
                    // An error: it was killed, and is waited for.
                    let _ = send_files(&launcher, &files);
                }
            }
            Order::Signal(number) => {
                self.guardian.told_to_end = ending(number).or(self.guardian.told_to_end);
                // Once it has ended the number of its group may be another's.
                if let (Some(signal), None) = (Signal::from_named_raw(number), self.status) {
                    self.tree.signal_group(signal);
                }
            }
        }
    }

    /// Ends what the command has left running in the background.
    fn first_process_has_ended(&mut self) {
        // A loss that has not been told yet.
        let cause = match self.held.is_held() {
            true => Cause::Done,
            false => Cause::Lost("it was taken away, or its session has expired".into()),
        };
        self.end(cause);
    }

    /// Asks the command to end, unless it was asked before.
    fn end(&mut self, cause: Cause) {
        if let Some(ending) = &mut self.ending {
            // A loss counts more than an end that was under way.
            if matches!((&ending.cause, &cause), (Cause::Abandoned, Cause::Lost(_))) {
                ending.cause = cause;
            }
            return;
        }
        // The launcher ends if it has not become the command yet.
        self.launcher = None;
        let grace = self.guardian.run.grace;
        self.tree.signal(Signal::TERM);
        // One that was stopped could not end.
        self.tree.signal(Signal::CONT);
        if let Cause::Lost(reason) = &cause {
            let text = format!("the lock was lost: {reason}; ending the command");
            let reports = &self.guardian.reports;
            reports.send_modify(|report| report.note(text));
        }
        let now = self.guardian.clock.now();
        let kill_at = now.after(grace);
        self.ending = Some(Ending { cause, kill_at });
        self.look_at = now;
    }

    /// Returns the moment at which something is to be done. Only a renewal of the lease moves it back.
    fn next_look(&self) -> BootInstant {
        let act_at = match (&self.ending, deadlines(self.held)) {
            (Some(_), _) => self.kill_at().max(self.kill_again_at),
            (None, Some(deadlines)) => deadlines.terminate(),
            (None, None) => self.look_at,
        };
        act_at.min(self.look_at)
    }

    /// Returns the moment at which the command is killed: whatever happens, before the lease ends (invariant 6).
    fn kill_at(&self) -> BootInstant {
        let ending = self.ending.as_ref().map(|ending| ending.kill_at);
        let asked = ending.unwrap_or(BootInstant::from_nanos(u64::MAX));
        deadlines(self.held).map_or(asked, |deadlines| asked.min(deadlines.kill()))
    }

    /// Tells the front until when the lock is held, and ends or kills the command if it is time to.
    fn look(&mut self) {
        let deadlines = deadlines(self.held);
        self.guardian.reports.send_if_modified(|report| {
            let Some(running) = &mut report.command else {
                return false;
            };
            std::mem::replace(&mut running.deadlines, deadlines) != deadlines
        });
        let now = self.guardian.clock.now();
        self.look_at = now.after(match (deadlines, &self.ending) {
            (Some(deadlines), _) => deadlines.interval(),
            (None, Some(_)) => Duration::from_secs(1),
            (None, None) => Duration::from_secs(60),
        });
        if deadlines.is_some_and(|deadlines| now >= deadlines.terminate()) {
            self.end(Cause::Lost(
                "the store was not heard of for too long".into(),
            ));
        }
        if self.ending.is_some() && now >= self.kill_at().max(self.kill_again_at) {
            self.tree.kill();
            self.kill_again_at = now.after(KILL_AGAIN);
        }
    }
}
