//! One run: the server's lives and deaths, and those of the clients.

use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, Session, connect_with};
use lockkeeper_store::{CreateMode, Result};
use testkit::{ChildProcess, KillPoint, Random};

use super::client::{Library, Process};
use super::history::History;
use super::judge;
use super::line::{Answer, Line, Name, Said, Told};
use super::ours::{connected, is_unknown};
use super::server::{Kind, Place};
use crate::common::path;

/// The clients that live as long as the test.
const LIVING: [(&str, Library); 4] = [
    ("ours", Library::Ours),
    ("kazoo-1", Library::Kazoo),
    ("kazoo-2", Library::Kazoo),
    ("curator", Library::Curator),
];

/// Number of writers of each; a client that is to be killed has one.
const WRITERS: usize = 3;

/// The timeout of those that are to be killed. The others have a longer one.
pub(super) const SHORT: Duration = Duration::from_secs(1);

/// A life that ends in its start does so within this time, while the clients come back; the others within so many
/// lines.
const START: Duration = Duration::from_millis(100);
const REPORTS: u64 = 500;

/// In one life of so many it is awaited that the sessions of the dead expire.
const CALM: u64 = 5;

/// Parameters of a run.
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// Number of kills, at least.
    pub(super) kills: u64,
    /// Session timeout of the clients that live as long as the test.
    pub(super) timeout: Duration,
}

/// One run.
pub(super) struct Run {
    pub(super) plan: Plan,
    pub(super) place: Place,
    pub(super) history: History,
    pub(super) dice: Random,
    /// Client by which the test looks at the store.
    pub(super) observer: Client,
    pub(super) living: Vec<Process>,
    /// Killed clients whose ephemeral znodes may still exist.
    pub(super) dead: Vec<Name>,
    /// Number of lines that the clients say in this life of the server once all are at work.
    reports: u64,
    /// Kills of a server that was not ready yet, or just.
    pub(super) early: u64,
}

impl Run {
    /// The server in its first life, and all clients at work.
    pub(super) async fn start(plan: Plan, seed: u64) -> (Self, ChildProcess) {
        let place = Place::new(plan.kind);
        let mut life = place.start();
        place.await_ready(&mut life);
        let options = ConnectOptions::new().session_timeout(plan.timeout);
        let observer = connect_with(place.url().as_str(), options).await.unwrap();
        let mut dice = Random(seed);
        let mut run = Self {
            plan,
            place,
            history: History::new(),
            reports: dice.below(REPORTS),
            dice,
            observer,
            living: Vec::new(),
            dead: Vec::new(),
            early: 0,
        };
        for (znode, data) in [
            ("/lock", ""),
            ("/gate", "0"),
            ("/bell", ""),
            ("/alive", ""),
            ("/work", ""),
        ] {
            run.ask(async |session| {
                session
                    .create(&path(znode), data, CreateMode::Persistent)
                    .await
            })
            .await;
        }
        for (name, library) in LIVING {
            let client = run.client(name, library, run.plan.timeout, WRITERS);
            run.living.push(client);
        }
        (run, life)
    }

    fn client(&self, name: &str, library: Library, timeout: Duration, writers: usize) -> Process {
        let said = self.history.pipe();
        Process::start(name, library, &self.place, timeout, writers, &said)
    }

    /// Returns the store's answer, over however many connections.
    pub(super) async fn ask<T>(&self, request: impl AsyncFn(Session) -> Result<T>) -> T {
        loop {
            match request(connected(&self.observer).await).await {
                Ok(answer) => return answer,
                Err(error) if is_unknown(&error) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// One life of the server that is ready: all work, and then it is killed, and one client too.
    pub(super) async fn live(&mut self, number: u64, life: ChildProcess) {
        let from = self.history.tell(Told::Ready(number)).await;
        let library = match self.dice.below(3) {
            0 => Library::Kazoo,
            _ => Library::Ours,
        };
        let mortal = self.client(&format!("mortal-{number}"), library, SHORT, 1);
        self.all_at_work(from).await;
        let name = mortal.name.clone();
        let is_home = move |line: &Line| match line {
            Line::Client(who, Said::Alive(..)) => (*who == name).then_some(()),
            _ => None,
        };
        self.history.until("a new client", from, is_home).await;
        if number % CALM == CALM - 1 {
            self.bury().await;
        }
        self.history
            .until_length(self.history.len() + self.reports as usize)
            .await;
        // In either order: a client that dies after its server is only missed in the server's next life.
        if self.dice.below(2) == 0 {
            self.die(mortal).await;
            self.kill(number, life).await;
        } else {
            self.kill(number, life).await;
            self.die(mortal).await;
        }
    }

    /// Waits until all clients have written in this life, have heard the bell ring and have their
    /// ephemeral znode, and one of them has had the lock.
    pub(super) async fn all_at_work(&mut self, from: usize) {
        let bell = path("/bell");
        let rung = self
            .ask(async |session| session.set_data(&bell, "", None).await)
            .await
            .version;
        self.history.tell(Told::Rung(rung)).await;
        for (client, _) in LIVING {
            let (mut has_written, mut has_heard, mut is_home) = (false, false, false);
            let works = |line: &Line| {
                if let Line::Client(name, said) = line
                    && name == client
                {
                    match said {
                        Said::Wrote { answer, .. } => {
                            has_written |= matches!(answer, Answer::Done { .. });
                        }
                        Said::Saw(_, version) => has_heard |= *version >= rung,
                        Said::Alive(..) => is_home |= has_heard,
                        _ => {}
                    }
                }
                (has_written && is_home).then_some(())
            };
            self.history.until(client, from, works).await;
        }
        let holds = |line: &Line| matches!(line, Line::Client(_, Said::Held(..))).then_some(());
        self.history.until("a holder", from, holds).await;
    }

    /// Waits until the ephemeral znodes of all dead clients are gone.
    pub(super) async fn bury(&mut self) {
        for name in std::mem::take(&mut self.dead) {
            let znode = path(&format!("/alive/{name}"));
            self.ask(async |session| {
                while let (Some(_), watcher) = session.watch_exists(&znode).await? {
                    watcher.await?;
                }
                Ok(())
            })
            .await;
            self.history.tell(Told::Gone(name)).await;
        }
    }

    async fn die(&mut self, mortal: Process) {
        let name = mortal.kill();
        self.history.tell(Told::Died(name.clone())).await;
        self.dead.push(name);
    }

    pub(super) async fn kill(&mut self, number: u64, mut life: ChildProcess) {
        life.kill();
        self.history.tell(Told::Killed(number)).await;
    }

    /// Returns true if after a kill another client has held the lock than before.
    pub(super) fn has_handed_over_across(&self) -> bool {
        judge::count(&self.history.lines()).hand_overs_across > 0
    }

    /// The next life of the server, once it is ready; now and then one or two are killed before.
    pub(super) async fn next_life(&mut self) -> ChildProcess {
        self.reports = loop {
            match KillPoint::random(&mut self.dice, START, REPORTS) {
                KillPoint::Start(after) => {
                    let mut life = self.place.start();
                    tokio::time::sleep(after).await;
                    life.kill();
                    self.early += 1;
                }
                KillPoint::Reports(count) => break count,
            }
        };
        let mut life = self.place.start();
        self.place.await_ready(&mut life);
        life
    }
}
