//! The guardian: owns the session and the command.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions};
use lockkeeper_store::{BootInstant, Clock};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;

use super::acquire::{Acquired, Goal, HELD, held_with};
use super::channel::{
    Command, End, Incoming, Order, Orders, Over, Report, Running, asynchronous, inherited,
    receive_files, send_files, spawn_self, write_reports,
};
use super::deadline::Deadlines;
use super::held::{AnyGuard, Held};
use super::signals::Signals;
use super::tree::{Tree, adopt_orphans, reap};
use super::{REAPER, Run};
use crate::exit::Failure;
use crate::locks::table::duration;

/// Time limit for closing a session if we need no confirmation, for example after a loss.
const SHORT_GOODBYE: Duration = Duration::from_secs(1);

/// Time limit for the confirmation of a release. Long enough for a restart of the server, but no longer, because the
/// user waits for the command's status.
const GOODBYE: Duration = Duration::from_secs(5);

const BEFORE_NEXT_TERM: Duration = Duration::from_secs(1);

const TIME_TO_START: Duration = Duration::from_secs(10);

const SHORTEST_TO_ANSWER: Duration = Duration::from_secs(1);

/// Additional time, after the grace period, for the reaper to kill the command.
const LATE: Duration = Duration::from_millis(500);

pub(super) fn run(run: Run) -> ExitCode {
    match start(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::output::print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn start(run: Run) -> io::Result<()> {
    // Read this first, because the parent changes when the front ends.
    let front = std::os::unix::process::parent_id();
    let socket = inherited()?;
    let Some(files) = receive_files(&socket)? else {
        return Ok(());
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()?.block_on(async {
        // Handle these signals so that they do not end us. A service manager sends them to every process, but only the
        // front acts on them.
        let _deaf = Signals::listen(&[Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM])?;
        let (orders, writer) = asynchronous(socket)?.into_split();
        let (reports, newest) = watch::channel(Report::default());
        // Write in a separate task, because a stopped front does not read.
        let writing = tokio::spawn(write_reports(writer, newest));
        let mut guardian = Guardian {
            clock: Clock::system(),
            run,
            front,
            files,
            orders: Incoming::new(orders),
            reports,
            answered: 0,
            has_connected: false,
            told_to_end: None,
        };
        let end = guardian.work().await;
        let end = match end {
            Ok(end) => end,
            Err(failure) => End {
                status: failure.status(),
                // Do not report a loss again, because we reported it when we asked the command to end.
                message: (!matches!(failure, Failure::Lost(_))).then(|| failure.to_string()),
            },
        };
        guardian
            .reports
            .send_modify(|report| report.end = Some(end));
        drop(guardian);
        let _ = writing.await;
        Ok(())
    })
}

struct Guardian {
    clock: Clock,
    run: Run,
    front: u32,
    /// Files for the reaper: the front's stdin, stdout and stderr for the command, and a socket to the front.
    files: [OwnedFd; 4],
    orders: Incoming,
    reports: watch::Sender<Report>,
    answered: u64,
    has_connected: bool,
    /// The last SIGINT or SIGTERM that the user has sent to the command. A candidate does not campaign again after this
    /// signal.
    told_to_end: Option<Signal>,
}

#[derive(Clone, Debug)]
enum Cause {
    Done(u8),
    Lost(String),
    Abandoned,
    /// The front was stopped before the grant and has not answered it.
    Unanswered,
}

impl Guardian {
    async fn work(&mut self) -> Result<End, Failure> {
        let goal = self.run.goal()?;
        let mut number = 1;
        loop {
            let Some(end) = self.once(&goal, number).await.transpose() else {
                if let Some(end) = self.answer_to(number).await {
                    return Ok(end);
                }
                number += 1;
                continue;
            };
            let goes_on = match &end {
                // The candidate must not campaign again after the user has asked it to end, even if the lock was lost
                // while the command was ending.
                _ if self.told_to_end.is_some() => false,
                Err(Failure::Lost(_) | Failure::NotAcquired(_)) => self.run.is_election,
                // A candidate that has never reached the store gives up, because the user has probably made a mistake.
                Err(Failure::Unreachable(_)) => self.run.is_election && self.has_connected,
                _ => false,
            };
            if !goes_on {
                return end;
            }
            if let Err(Failure::Unreachable(reason) | Failure::NotAcquired(reason)) = end {
                self.note(reason);
            }
            number += 1;
            tokio::select! {
                () = self.clock.sleep(BEFORE_NEXT_TERM) => (),
                signal = given_up(&mut self.orders) => return Ok(abandoned(signal)),
            }
        }
    }

    /// Waits until a stopped front continues and answers the grant. Returns an [`End`] if the front ends or the user
    /// gives up.
    async fn answer_to(&mut self, number: u64) -> Option<End> {
        while self.answered < number {
            match self.orders.next().await {
                Some(Order::Execute(granted)) => self.answered = granted,
                Some(Order::Signal(number)) if ending(number).is_some() => {
                    return Some(abandoned(ending(number)));
                }
                Some(_) => {}
                None => return Some(abandoned(None)),
            }
        }
        None
    }

    /// Runs the command once, under the grant with this number. Returns `None` if the front does not answer the grant.
    async fn once(&mut self, goal: &Goal, number: u64) -> Result<Option<End>, Failure> {
        let Some((client, acquired)) = self.acquire(goal).await? else {
            return Ok(Some(abandoned(self.told_to_end)));
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
                // Silent by default, because cron would mail any output.
                let message = self.run.target.verbose.then(|| {
                    format!(
                        "{paths} has already run in this period: the run ended {since_end} ago, and the next run is due in {due_in}"
                    )
                });
                return Ok(Some(End { status: 0, message }));
            }
        };
        let outcome = self.command(goal, held.guard(), number).await;
        // No process of the command is left here, so the lock may be released.
        match outcome {
            Ok(Cause::Done(status)) => {
                match held {
                    // Record only a successful run, so that the next caller repeats a failed job.
                    Held::Job(run) if status == 0 => {
                        if let Err(reason) = self.finish(&client, run).await {
                            return Ok(Some(unrecorded(&reason)));
                        }
                    }
                    held => self.release(&client, held).await,
                }
                Ok(Some(End {
                    status,
                    message: None,
                }))
            }
            Ok(Cause::Abandoned) => {
                self.release(&client, held).await;
                Ok(Some(abandoned(None)))
            }
            Ok(Cause::Unanswered) => {
                self.release(&client, held).await;
                Ok(None)
            }
            Ok(Cause::Lost(reason)) => {
                self.give_up(&client, held).await;
                Err(Failure::Lost(reason))
            }
            Err(failure) => {
                self.give_up(&client, held).await;
                Err(failure)
            }
        }
    }

    /// Connects and waits for the lock. Returns `None` if the front ends or the user gives up first.
    async fn acquire(&mut self, goal: &Goal) -> Result<Option<(Client, Acquired)>, Failure> {
        let is_shown = self.files[2].is_terminal() && !self.run.quiet;
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

    async fn command(
        &mut self,
        goal: &Goal,
        held: &dyn AnyGuard,
        number: u64,
    ) -> Result<Cause, Failure> {
        // Become the parent of the command's processes if the reaper dies.
        adopt_orphans()?;
        reap(|_, _| ());
        let grace = self.run.grace.as_millis().to_string();
        let arguments = [REAPER.into(), number.to_string().into(), grace.into()].into_iter();
        let arguments = arguments.chain(self.run.command.iter().cloned());
        let (child, socket) = spawn_self(arguments, |command| {
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
        let reaper = Pid::from_child(&child);
        // An error means that the reaper was killed, which we detect below.
        let _ = send_files(&socket, &self.files.each_ref().map(AsFd::as_fd));
        let (reports, orders) = asynchronous(socket)?.into_split();
        let answer_by = self.clock.now().after(TIME_TO_START);
        let mut watch = Watch {
            number,
            guardian: self,
            held,
            reaper,
            reports: Incoming::new(reports),
            orders: Some(Orders::new(orders)),
            command: None,
            known_lease: None,
            has_executed: false,
            answer_by,
            ending: None,
            look_at: BootInstant::default(),
        };
        let cause = watch.until_over().await;
        self.reports.send_modify(|report| report.command = None);
        cause
    }

    /// Records a successful run of a job. After an error, we do not know whether the run is recorded.
    async fn finish(&self, client: &Client, run: lockkeeper::Run) -> Result<(), String> {
        let session_timeout = run.guard().session().timeout();
        // Keep trying for the session timeout, because no other client can hold the lock before the session has ended.
        let longest = session_timeout.unwrap_or(GOODBYE).max(GOODBYE);
        let finished = tokio::select! {
            finished = run.finish() => finished.map_err(|error| error.to_string()),
            () = self.clock.sleep(longest) => Err("the store does not answer".into()),
        };
        self.close_soon(client).await;
        finished
    }

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
        self.note(text);
        self.close_soon(client).await;
    }

    fn note(&self, text: String) {
        if !self.run.quiet {
            self.reports.send_modify(|report| report.note(text));
        }
    }

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

    async fn close_within(&self, client: &Client, time: Duration) {
        tokio::select! {
            _ = client.close() => (),
            () = self.clock.sleep(time) => (),
        }
    }
}

/// Returns the [`End`] of a run that the user has given up. The front uses the status only if `signal` arrived when the
/// command had just ended. Otherwise the front has exited, or knows the status itself.
fn abandoned(signal: Option<Signal>) -> End {
    let status = signal.and_then(|signal| u8::try_from(128 + signal.as_raw()).ok());
    End {
        status: status.unwrap_or(1),
        message: None,
    }
}

/// Waits until the front ends, or returns the signal with which the user asks the command to end. Ignores other orders,
/// which are for a command that has just ended. Cancel safe.
async fn given_up(orders: &mut Incoming) -> Option<Signal> {
    loop {
        match orders.next().await? {
            Order::Signal(number) if ending(number).is_some() => return ending(number),
            _ => {}
        }
    }
}

/// Returns the signal with this number if it asks a program to end. Ignores SIGHUP and SIGQUIT, because they have other
/// meanings for some programs.
fn ending(number: i32) -> Option<Signal> {
    [Signal::INT, Signal::TERM]
        .into_iter()
        .find(|signal| signal.as_raw() == number)
}

fn unrecorded(reason: &str) -> End {
    let failure = Failure::Lost(format!(
        "the command has succeeded, but its run may not be recorded: {reason}"
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

struct Watch<'a> {
    number: u64,
    guardian: &'a mut Guardian,
    held: &'a dyn AnyGuard,
    reaper: Pid,
    reports: Incoming,
    orders: Option<Orders>,
    command: Option<Command>,
    known_lease: Option<Deadlines>,
    has_executed: bool,
    answer_by: BootInstant,
    ending: Option<Ending>,
    look_at: BootInstant,
}

struct Ending {
    cause: Cause,
    kill_at: BootInstant,
}

impl Watch<'_> {
    async fn until_over(&mut self) -> Result<Cause, Failure> {
        let clock = self.guardian.clock.clone();
        let held = self.held;
        let mut lost = held.lost();
        let (mut is_lost, mut is_abandoned) = (false, false);
        loop {
            let next_look = self.next_look();
            tokio::select! {
                biased;
                () = clock.sleep_until(next_look) => {
                    if self.look() {
                        return self.without_reaper("the process that watches the command does not end it").await;
                    }
                }
                reason = &mut lost, if !is_lost => {
                    is_lost = true;
                    self.end(Cause::Lost(reason.to_string()));
                }
                command = self.reports.next() => match command {
                    Some(command) => {
                        if let Some(over) = self.see(command) {
                            return Ok(self.cause(over));
                        }
                    }
                    None => return self.without_reaper("the process that watches the command has died").await,
                },
                order = self.guardian.orders.next(), if !is_abandoned => match order {
                    Some(order) => self.obey(order),
                    None => {
                        is_abandoned = true;
                        self.end(Cause::Abandoned);
                    }
                },
                () = Orders::written(&mut self.orders) => (),
            }
        }
    }

    fn see(&mut self, command: Command) -> Option<Over> {
        if command.over.is_some() {
            return command.over;
        }
        let guardian = &mut self.guardian;
        guardian
            .reports
            .send_modify(|report| report.stops = command.stops);
        if self.command.is_none() {
            let deadlines = deadlines(self.held);
            let running = Running {
                group: command.group,
                cgroup: command.cgroup.clone(),
                deadlines,
            };
            guardian.reports.send_modify(|report| {
                report.granted = self.number;
                report.command = Some(running);
            });
            let timeout = self.held.session().timeout().unwrap_or_default();
            let time = SHORTEST_TO_ANSWER.max(timeout / 10);
            self.answer_by = guardian.clock.now().after(time);
        }
        self.command = Some(command);
        None
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Execute(number) => {
                self.guardian.answered = number;
                if number == self.number && self.ending.is_none() && !self.has_executed {
                    self.has_executed = true;
                    self.order(order);
                }
            }
            Order::Signal(number) => {
                self.guardian.told_to_end = ending(number).or(self.guardian.told_to_end);
                self.order(order);
            }
            Order::Lease(_) | Order::End => {}
        }
    }

    fn order(&mut self, order: Order) {
        if let Some(orders) = &mut self.orders {
            orders.send(order);
        }
    }

    fn end(&mut self, cause: Cause) {
        if let Some(ending) = &mut self.ending {
            // If the lock is lost while the command is already ending, report the loss as the cause.
            if matches!(
                (&ending.cause, &cause),
                (Cause::Abandoned | Cause::Unanswered, Cause::Lost(_))
            ) {
                ending.cause = cause;
            }
            return;
        }
        self.order(Order::End);
        if let Cause::Lost(reason) = &cause {
            let text = format!("the lock was lost: {reason}; ending the command");
            let reports = &self.guardian.reports;
            reports.send_modify(|report| report.note(text));
        }
        let kill_at = self
            .guardian
            .clock
            .now()
            .after(self.guardian.run.grace + LATE);
        self.ending = Some(Ending { cause, kill_at });
    }

    /// Returns the time of the next [`look`](Self::look). Only a renewed lease postpones this time.
    fn next_look(&self) -> BootInstant {
        let act_at = match (&self.ending, deadlines(self.held)) {
            (Some(_), _) => self.kill_at(),
            (None, Some(deadlines)) => deadlines.terminate(),
            (None, None) => self.look_at,
        };
        let act_at = match self.has_executed || self.ending.is_some() {
            true => act_at,
            false => act_at.min(self.answer_by),
        };
        act_at.min(self.look_at)
    }

    /// Returns the time at which we kill the command in place of the reaper. This time is always before the lease ends.
    fn kill_at(&self) -> BootInstant {
        let ending = self.ending.as_ref().map(|ending| ending.kill_at);
        let asked = ending.unwrap_or(BootInstant::from_nanos(u64::MAX));
        deadlines(self.held).map_or(asked, |deadlines| asked.min(deadlines.kill_by_others()))
    }

    /// Sends a renewed lease to reaper and front, and ends the command if the lease is about to end or a time limit has
    /// passed. Returns `true` if the reaper has failed to end the command.
    fn look(&mut self) -> bool {
        let deadlines = deadlines(self.held);
        if let (Some(lease), true) = (deadlines, self.known_lease != deadlines) {
            self.known_lease = deadlines;
            self.order(Order::Lease(lease));
            self.guardian.reports.send_if_modified(|report| {
                report.command.as_mut().is_some_and(|running| {
                    running.deadlines = deadlines;
                    true
                })
            });
        }
        let now = self.guardian.clock.now();
        self.look_at = now.after(deadlines.map_or(Duration::from_secs(60), |it| it.interval()));
        if deadlines.is_some_and(|deadlines| now >= deadlines.terminate()) {
            self.end(Cause::Lost(
                "the store was not heard from for too long".into(),
            ));
        }
        if !self.has_executed && now >= self.answer_by {
            self.end(match self.command {
                Some(_) => Cause::Unanswered,
                None => Cause::Lost("the command could not be started in time".into()),
            });
        }
        self.ending.is_some() && now >= self.kill_at()
    }

    fn cause(&mut self, over: Over) -> Cause {
        let reason = match (self.ending.take(), over) {
            (Some(ending), _) => return ending.cause,
            (None, Over::Done(status)) if self.held.is_held() => return Cause::Done(status),
            (None, Over::Done(_)) => "it was taken away, or its session has expired",
            (None, Over::Asked | Over::Unheard) => "the guardian process did not renew it in time",
        };
        self.lost(reason)
    }

    fn lost(&self, reason: &str) -> Cause {
        let text = format!("the lock was lost: {reason}; the command was ended");
        let reports = &self.guardian.reports;
        reports.send_modify(|report| report.note(text));
        Cause::Lost(reason.to_owned())
    }

    async fn without_reaper(&mut self, reason: &str) -> Result<Cause, Failure> {
        // The pid cannot have been reused, because we have not waited for this child yet.
        let _ = kill_process(self.reaper, Signal::KILL);
        if let (Some(command), Some(group)) = (&self.command, self.group())
            && self.has_executed
        {
            let tree = Tree::known(group, command.cgroup.clone(), Vec::new());
            tree.end(&self.guardian.clock).await;
        }
        match self.ending.take() {
            Some(ending) => Ok(ending.cause),
            None if self.has_executed => Ok(self.lost(reason)),
            None => Err(Failure::Other(reason.to_owned())),
        }
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(self.command.as_ref()?.group)
    }
}
