//! A run: workers use a system, one fault follows another, and everything is checked.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper::{Client, connect_with, queue};
use testkit::Proxy;
use testkit::Random;
use testkit::keys::{self, LOCKS, register};
use testkit::linearizable::Call;
use tokio::runtime::Handle;

use crate::checks::{Belief, Checker, Fault, WorkerId};
use crate::figures::tables;
use crate::plan::Deck;
use crate::report::Report;
use crate::time::{nanos, now, seconds};
use crate::worker::{connect_options, user};
use crate::workers::{Kind, Workers, locked, waited};

/// Session timeout of all clients, in milliseconds.
pub(crate) const TIMEOUT_MS: u64 = 3_000;

const RECONNECTION: Duration = Duration::from_secs(2);

const PATIENCE: Duration = Duration::from_secs(90);

/// A running system: servers, and the proxies in front of them.
pub(crate) trait System {
    /// Returns the kinds of faults that it supports.
    fn kinds(&self) -> Vec<&'static str>;

    /// Starts a fault of a kind. Returns a description of the target. An error is a broken promise of the system.
    fn hurt(&mut self, kind: &'static str, random: &mut Random) -> Result<String, String>;

    /// Ends the fault. An error is a broken promise of the system, such as a server that does not start.
    fn heal(&mut self) -> Result<(), String>;

    fn is_well(&mut self) -> bool;

    /// Returns the proxies of a worker, one per server.
    fn proxies(&self, worker: usize) -> &[Proxy];

    /// Returns the URL of the servers without proxies.
    fn url(&self) -> String;

    fn tick(&self) -> Option<u64>;

    fn logs(&self) -> String;
}

const OF_CLIENTS: [&str; 4] = [
    "client killed",
    "client stopped",
    "client cut off",
    "connections reset",
];

pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) length: Duration,
}

pub(crate) struct Run<S> {
    system: S,
    workers: Workers,
    checker: Arc<Mutex<Checker>>,
    random: Random,
    deck: Deck,
    runtime: Handle,
    began: u64,
    faults: Vec<Fault>,
    /// The client that the current fault hits.
    victim: Option<usize>,
    plan: Plan,
}

impl<S: System> Run<S> {
    /// Starts the workers. The error names one that does not start.
    pub(crate) fn start(
        system: S,
        kinds: Vec<Kind>,
        plan: Plan,
        began: u64,
        runtime: Handle,
    ) -> Result<Self, String> {
        let allowance = Duration::from_millis(TIMEOUT_MS) + RECONNECTION;
        let checker = Arc::new(Mutex::new(Checker::new(nanos(allowance))));
        let workers = Workers::start(kinds, checker.clone());
        if !workers.are_ready_within(PATIENCE) {
            return Err(format!("the workers do not connect; {}", system.logs()));
        }
        let kinds = [&system.kinds()[..], &OF_CLIENTS].concat();
        Ok(Self {
            system,
            workers,
            checker,
            random: Random(plan.seed),
            deck: Deck::new(kinds),
            runtime,
            began,
            faults: Vec::new(),
            victim: None,
            plan,
        })
    }

    /// Injects faults until the time is over, and checks everything. Returns `true` if no promise was broken.
    pub(crate) fn carry_out(mut self) -> bool {
        let began = Instant::now();
        let mut is_good = true;
        while is_good && began.elapsed() < self.plan.length {
            is_good = match self.one_fault() {
                Ok(()) => self.check(),
                Err(why) => self.broken(&why),
            };
        }
        is_good = is_good && self.finish();
        let to = now();
        self.workers.end();
        let mut checker = locked(&self.checker);
        let violations = checker.check_all().to_vec();
        for violation in violations.iter().take(10) {
            println!("violation: {violation}");
        }
        print!("{}", tables(&checker, &self.faults, (self.began, to)));
        is_good && violations.is_empty()
    }

    fn say(&self, words: &str) {
        println!("{:>7.1} s  {words}", seconds(now() - self.began));
    }

    /// Returns the pause before the next fault. Once in six times it is so long that no fault explains leases lost at
    /// its end.
    fn calm(&mut self) -> Duration {
        match self.random.once_in(6) {
            true => Duration::from_secs(6) + self.random.below_ms(2_000),
            false => Duration::from_millis(500) + self.random.below_ms(1_500),
        }
    }

    fn one_fault(&mut self) -> Result<(), String> {
        let calm = self.calm();
        std::thread::sleep(calm);
        let kind = self.deck.draw(&mut self.random);
        // Some end before any timeout, others outlast all of them.
        let length = Duration::from_millis(100) + self.random.below_ms(3 * TIMEOUT_MS / 2);
        let from = now();
        let hurt = self.hurt(kind)?;
        self.say(&format!(
            "{kind}: {hurt}, for {:.1} s",
            length.as_secs_f64()
        ));
        std::thread::sleep(length);
        let healed = now();
        self.heal(kind)?;
        if !waited(PATIENCE, || self.system.is_well()) {
            return Err("progress: the servers do not come back".to_owned());
        }
        let to = now();
        self.say(&format!("well again after {:.1} s", seconds(to - healed)));
        let fault = Fault {
            kind,
            from,
            to,
            victim: self.victim.take(),
        };
        locked(&self.checker).fault(fault.clone());
        self.faults.push(fault);
        Ok(())
    }

    fn hurt(&mut self, kind: &'static str) -> Result<String, String> {
        let worker = self.random.within(0..self.workers.count() as u64) as usize;
        match kind {
            "client killed" => self.workers.kill(worker),
            "client stopped" => self.workers.stop(worker),
            "client cut off" => {
                let (there, back) =
                    [(true, true), (true, false), (false, true)][self.random.within(0..3) as usize];
                for proxy in self.system.proxies(worker) {
                    if there {
                        proxy.hold_requests();
                    }
                    if back {
                        proxy.hold_replies();
                    }
                }
            }
            "connections reset" => {
                let all = (0..self.workers.count()).flat_map(|worker| self.system.proxies(worker));
                all.for_each(Proxy::break_off);
                return Ok("all".to_owned());
            }
            _ => return self.system.hurt(kind, &mut self.random),
        }
        self.victim = Some(worker);
        Ok(format!("worker {worker}"))
    }

    fn heal(&mut self, kind: &'static str) -> Result<(), String> {
        let worker = self.victim.unwrap_or_default();
        match kind {
            "client killed" => self.workers.restart(worker),
            "client stopped" => self.workers.resume(worker),
            "client cut off" => self.system.proxies(worker).iter().for_each(Proxy::mend),
            "connections reset" => {}
            _ => return self.system.heal(),
        }
        Ok(())
    }

    /// Returns `false` and prints the context if there is a violation.
    fn check(&mut self) -> bool {
        let wrong = locked(&self.checker).check().map(str::to_owned);
        wrong.is_none_or(|wrong| self.broken(&wrong))
    }

    fn broken(&self, why: &str) -> bool {
        let mut story = String::new();
        let last = self.faults.iter().rev().take(3).rev();
        for fault in last {
            let (from, to) = (
                seconds(fault.from - self.began),
                seconds(fault.to - self.began),
            );
            let _ = writeln!(story, "  {} from {from:.3} to {to:.3}", fault.kind);
        }
        locked(&self.checker).violate(why.to_owned());
        println!("VIOLATION: {why}");
        println!(
            "the run began at {:.6}, by --seed {}",
            seconds(self.began),
            self.plan.seed
        );
        println!("the last faults, from the beginning of the run on:\n{story}");
        println!("the servers say:\n{}", self.system.logs());
        false
    }

    /// Ends the workers' tasks in order, and checks what remains.
    fn finish(&mut self) -> bool {
        self.say("all faults are over: each task finishes its turn");
        let late = self.workers.finish_within(PATIENCE).join(", ");
        let runtime = self.runtime.clone();
        let left = runtime.block_on(async {
            let connect = connect_options(TIMEOUT_MS, self.system.tick());
            let client = connect_with(&self.system.url(), connect).await;
            let client = client.map_err(|error| format!("error: no client connects: {error}"))?;
            self.read_registers(&client).await?;
            no_entry_is_left(&client).await
        });
        if !late.is_empty() {
            let left = left.err().unwrap_or_default();
            return self.broken(&format!("progress: {late} cannot finish\n{left}"));
        }
        if let Err(why) = left {
            return self.broken(&why);
        }
        self.check();
        let wrong = locked(&self.checker).check_all().first().cloned();
        wrong.is_none_or(|wrong| self.broken(&wrong))
    }

    /// Reads each register once more, to see that all acknowledged writes are there.
    async fn read_registers(&self, client: &Client) -> Result<(), String> {
        let session = client.session().await;
        let session = session.map_err(|error| format!("error: no session: {error}"))?;
        let reader = WorkerId {
            number: self.workers.count(),
            life: 0,
            belief: Belief::Promised,
        };
        let keys = locked(&self.checker).registers();
        for (call, key) in keys.into_iter().enumerate() {
            let (call, path, what) = (call as u64, register(&key), Call::Get);
            let at = now();
            let called = Report::Called {
                call,
                key,
                at,
                what,
            };
            locked(&self.checker).hear(reader, called);
            let answer = user::answer(&session, &path, what, self.system.tick().is_some()).await;
            let answer = answer.ok_or("error: a register cannot be read after the last fault")?;
            let at = now();
            locked(&self.checker).hear(reader, Report::Answered { call, at, answer });
        }
        Ok(())
    }
}

pub(crate) async fn no_entry_is_left(client: &Client) -> Result<(), String> {
    let began = Instant::now();
    let mut left = Vec::new();
    while began.elapsed() < Duration::from_millis(5 * TIMEOUT_MS) {
        left.clear();
        for (key, recipe) in LOCKS {
            for path in recipe.queues(&keys::path(key)) {
                let entries = queue(client, path.as_str()).await;
                let entries = entries.map_err(|error| format!("error: {path}: {error}"))?;
                left.extend(entries.iter().map(|entry| format!("{entry:?}")));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(format!("left behind: {}", left.join("\n")))
}
