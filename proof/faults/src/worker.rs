//! A worker: a process with one client and several tasks that contend for locks and use registers.

mod contender;
mod reporter;
pub(crate) mod user;

use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use lockkeeper::{Client, ConnectOptions, connect_with};
use testkit::Random;
use testkit::contender::CONTENDERS;

use self::contender::Contender;
pub(crate) use self::reporter::Reporter;
use self::user::User;
use crate::report::Report;

/// Options of a worker.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Options {
    /// The store.
    pub(crate) url: String,
    /// Seed of what it does.
    #[arg(long)]
    pub(crate) seed: u64,
    /// Number that makes its values unique.
    #[arg(long)]
    pub(crate) number: u64,
    /// Moment of CLOCK_MONOTONIC at which the run began, in nanoseconds.
    #[arg(long)]
    pub(crate) began: u64,
    /// Timeout of its session, in milliseconds.
    #[arg(long)]
    pub(crate) timeout: u64,
    /// Tick of the ensemble, in milliseconds; without it the store is a single server.
    #[arg(long)]
    pub(crate) tick: Option<u64>,
    /// A mistake to make.
    #[arg(long = "break")]
    pub(crate) mistake: Option<Mistake>,
}

/// Mistakes that the checks must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mistake {
    /// Takes another lock than the one that guards the resource.
    WrongLock,
    /// Believes to hold although the guard is lost.
    IgnoresLoss,
    /// Believes to hold after the release.
    HoldsAfterRelease,
    /// Acknowledges writes that it has not made.
    InventsAWrite,
    /// Leaves an entry in a queue behind.
    LeavesAnEntry,
    /// Never releases.
    NeverLetsGo,
}

impl Mistake {
    pub(crate) fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.expect("no mistake is hidden").get_name().to_owned()
    }
}

const USERS: usize = 2;

/// Number of tasks. Each reports [`Report::Done`] once.
pub(crate) const TASKS: usize = CONTENDERS.len() + USERS;

/// Runs a worker until its stdin ends. It reports on stdout.
pub(crate) fn run(options: &Options) {
    let print = |report: &Report| {
        use std::io::Write;
        // A single write, so that a killed process prints whole lines or nothing.
        let line = report.to_line();
        if std::io::stdout().write_all(line.as_bytes()).is_err() {
            std::process::exit(0);
        }
    };
    let reporter = Arc::new(Reporter::new(print));
    let heard = reporter.clone();
    std::thread::spawn(move || listen(&heard));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime can be made").block_on(async {
        let client = connected(options).await;
        reporter.report(&Report::Ready);
        work(&client, options, &reporter).await;
        std::future::pending::<()>().await;
    });
}

/// Reads the parent's messages. The process ends with its stdin, and therefore with its parent.
fn listen(reporter: &Reporter) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["used", grant, answer] => {
                let grant = grant.parse().expect("the parent repeats a number");
                reporter.used(grant, answer == "admitted");
            }
            ["finish"] => reporter.finish(),
            _ => panic!("the parent says {line:?}"),
        }
    }
    std::process::exit(0);
}

pub(crate) fn connect_options(timeout: u64, tick: Option<u64>) -> ConnectOptions {
    let options = ConnectOptions::new()
        .session_timeout(Duration::from_millis(timeout))
        .connect_timeout(Duration::from_secs(10));
    match tick {
        Some(tick) => options.ensemble_tick(Duration::from_millis(tick)),
        None => options,
    }
}

/// Connects, and retries because the worker may be started during a fault.
async fn connected(options: &Options) -> Client {
    loop {
        let connect = connect_options(options.timeout, options.tick);
        match connect_with(options.url.as_str(), connect).await {
            Ok(client) => return client,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

pub(crate) async fn work(client: &Client, options: &Options, reporter: &Arc<Reporter>) {
    let mut random = Random(options.seed);
    let mut tasks = Vec::new();
    for keys in CONTENDERS {
        let contender = Contender {
            client: client.clone(),
            keys,
            random: random.fork(),
            reporter: reporter.clone(),
            longest_hold: Duration::from_millis(2 * options.timeout),
            mistake: options.mistake,
        };
        tasks.push(tokio::spawn(contender.compete()));
    }
    for _ in 0..USERS {
        let user = User {
            client: client.clone(),
            random: random.fork(),
            reporter: reporter.clone(),
            number: options.number,
            began: options.began,
            is_ensemble: options.tick.is_some(),
            mistake: options.mistake,
        };
        tasks.push(tokio::spawn(user.use_registers()));
    }
    for task in tasks {
        if let Err(error) = task.await {
            let text = format!("a panic: {error}");
            reporter.report(&Report::Failed { text });
        }
        reporter.report(&Report::Done);
    }
}

#[cfg(test)]
mod tests;
