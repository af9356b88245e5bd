//! `lockkeeper bench`: runs the benchmark workloads on any store.
//!
//! A run writes only below one new znode ([`Folder`]), and removes this znode at the end, even if the run is
//! interrupted.

mod folder;
mod heading;
mod holder;
mod measure;
mod report;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use lockkeeper::{Client, LockPath};

use crate::exit::Failure;
use crate::serve::signals::{Action, Signals};
use crate::target::Target;

use folder::Folder;
use heading::{Heading, Server};
pub(crate) use holder::{HOLDER, HolderCommand};
use measure::Run;
use report::Report;

/// The arguments of `bench`.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// Workloads to measure, in this order [default: all]
    #[arg(value_enum, value_name = "WORKLOAD")]
    workloads: Vec<Workload>,
    /// Number of clients that contend for one lock, each with its own session
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// Number of locks in the workload `keys`
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keys: u32,
    /// Time to measure each workload, in seconds
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Unmeasured time before each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    warm_up: Duration,
    /// Prefix of the new znode's path. A random number is appended. The parent znode must exist
    #[arg(long, value_name = "PATH", default_value = "/lockkeeper-bench")]
    prefix: String,
    /// Number of threads of this command
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Prints one JSON object per line of output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// One client sends `exists`, which the server answers immediately. Shows the network's share of the other times
    RoundTrip,
    /// One client sends `set`. Shows how long the store takes to persist a change
    Write,
    /// One client acquires and releases a free lock
    Acquire,
    /// All clients contend for one lock, which passes from client to client in the order of arrival
    HandOver,
    /// Two clients lock many keys, up to 256 at the same time
    Keys,
    /// All clients contend for a semaphore with three permits
    Semaphore,
    /// All clients contend for a read-write lock. Every eighth client writes, the others read
    #[value(name = "rwlock")]
    RwLock,
    /// Kills a process that holds the lock, and measures the time until the next client has it. Runs at least once,
    /// which may take a session timeout
    Expiry,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text
        .parse()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number).ok());
    let bounds = Duration::from_millis(10)..=Duration::from_secs(3_600);
    time.filter(|time| bounds.contains(time))
        .ok_or_else(|| "a number of seconds from 0.01 to 3600 is expected".into())
}

impl Bench {
    pub(crate) fn run(self) -> ExitCode {
        let mut runtime = match self.threads {
            1 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        let runtime = runtime.worker_threads(self.threads as usize).enable_all();
        let done = runtime.build().map_err(Failure::from);
        crate::exit::ended(done.and_then(|runtime| runtime.block_on(self.bench())))
    }

    async fn bench(self) -> Result<(), Failure> {
        let mut signals = Signals::listen()?;
        let keeper = tokio::select! {
            client = self.target.connect_to_any() => client?,
            interruption = interrupted(&mut signals) => return Err(interruption),
        };
        let (server, run) = tokio::select! {
            connected = self.connect(&keeper) => connected?,
            interruption = interrupted(&mut signals) => return Err(interruption),
        };
        let folder = Folder::create(&keeper, &self.prefix).await?;
        let done = tokio::select! {
            done = self.measure(&run, server, &folder) => done,
            interruption = interrupted(&mut signals) => Err(interruption),
        };
        let removed = tokio::select! {
            removed = async {
                // End the run before removing the folder. A recipe creates missing parents, so a client that is still
                // running could create the folder again.
                run.end().await;
                folder.remove(&keeper).await
            } => removed.map_err(|error| error.to_string()),
            interruption = interrupted_again(&mut signals) => Err(interruption.to_string()),
        };
        let left = |why| format!("{} could not be removed: {why}", folder.path());
        match (done, removed) {
            (done, Ok(())) => done,
            (Ok(()), Err(why)) => Err(Failure::Other(left(why))),
            (Err(failure), Err(why)) => {
                crate::output::print_error(left(why));
                Err(failure)
            }
        }
    }

    /// Asks the server for its version before connecting the clients, which may use up all of the server's connections.
    async fn connect<'a>(
        &'a self,
        keeper: &'a Client,
    ) -> Result<(Option<Server>, Run<'a>), Failure> {
        let server = Server::ask(keeper.target()).await;
        Ok((server, Run::connect(self, keeper).await?))
    }

    async fn measure(
        &self,
        run: &Run<'_>,
        server: Option<Server>,
        folder: &Folder,
    ) -> Result<(), Failure> {
        let folder = LockPath::new(folder.path().as_str())?;
        let round_trip = run.quick_round_trip(&folder).await?;
        let heading = Heading::new(self, run.keeper(), server, &folder, &round_trip).await?;
        let mut report = Report::new(self.json, round_trip.p50_us());
        report.begin(&heading)?;
        run.all(&folder, &mut report).await
    }

    fn workloads(&self) -> Vec<Workload> {
        let chosen = match self.workloads.is_empty() {
            true => Workload::value_variants(),
            false => &self.workloads,
        };
        chosen.to_vec()
    }

    fn patience(&self) -> Duration {
        let unanswered = self.target.session_timeout + self.target.connect_timeout;
        self.warm_up + self.seconds + 2 * unanswered + Duration::from_secs(60)
    }
}

async fn interrupted(signals: &mut Signals) -> Failure {
    let signal = match signals.next().await {
        Action::End(signal) => signal,
        Action::HangUp => "SIGHUP",
    };
    Failure::Other(format!("interrupted by {signal}"))
}

/// Two signals within this time are treated as one, because `timeout` signals both the process and its process group.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

async fn interrupted_again(signals: &mut Signals) -> Failure {
    let first = Instant::now();
    loop {
        let failure = interrupted(signals).await;
        if first.elapsed() >= SAME_SIGNAL {
            return failure;
        }
    }
}

impl Workload {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.expect("no value is hidden").get_name().to_owned()
    }
}
