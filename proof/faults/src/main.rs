//! Injects faults into real servers while several processes use their locks, and checks the promises.
//!
//! `serve` tests `lockkeeper serve` under kill -9, SIGSTOP, a full disk and failed syncs. `ensemble` tests three
//! ZooKeeper servers or etcd members whose leader or followers are killed, stopped, cut off or run out of disk space. The workers are
//! this program, started again. They report each grant with its token and the times at which the guard believed that
//! it held, and each call on a register. The seed determines the faults and the workers' choices, but not the
//! machine's scheduling. `soak` injects only client churn, and checks for an hour that nothing grows.

mod checks;
mod disk;
mod ensemble;
mod figures;
mod foreign;
mod plan;
mod programs;
mod report;
mod run;
mod served;
mod soak;
mod time;
mod worker;
mod workers;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};
use testkit::{TempFolder, with_death_signal};
use tokio::runtime::Runtime;

use crate::checks::Belief;
use crate::ensemble::Ensemble;
use crate::foreign::Foreign;
use crate::programs::{Version, own_program};
use crate::run::{Plan, Run, System, TIMEOUT_MS};
use crate::served::Served;
use crate::worker::Mistake;
use crate::workers::Kind;

/// Hurts real servers while several processes use their locks, and checks the promises.
#[derive(Parser)]
enum Command {
    /// `lockkeeper serve` and clients by lockkeeper://
    Serve(Common),
    /// Three ZooKeeper servers and clients by zookeeper://, or three etcd members and clients by etcd://
    Ensemble {
        #[command(flatten)]
        common: Common,
        /// Version of ZooKeeper: Debian's 3.8, or 3.9 by the jars that proof/faults/zookeeper-3.9.sh fetches.
        #[arg(long, default_value = "3.8")]
        version: Version,
        /// Members of Debian's etcd instead.
        #[arg(long, conflicts_with = "version")]
        etcd: bool,
    },
    /// `lockkeeper serve` and stores in a process under mixed load: memory, descriptors, tasks and disk must not grow
    Soak(soak::Options),
    #[command(hide = true)]
    Worker(worker::Options),
    #[command(hide = true)]
    Load(soak::load::Options),
}

#[derive(Args, Clone)]
struct Common {
    /// Time in which faults happen.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Seed of the faults, and of what the workers want.
    #[arg(long)]
    seed: Option<u64>,
    /// Mounts nothing: a full disk is a limit of files' sizes then, as where the system refuses to mount.
    #[arg(long)]
    without_mounts: bool,
    /// Has the workers make a mistake, which must be noticed.
    #[arg(long = "break")]
    mistake: Option<Mistake>,
}

/// Number of worker processes with this library's client.
const WORKERS: usize = 3;

const ALL_WORKERS: usize = WORKERS + Foreign::COUNT;

fn main() -> ExitCode {
    let command = Command::parse();
    let outcome = match command {
        Command::Worker(options) => {
            worker::run(&options);
            return ExitCode::SUCCESS;
        }
        Command::Load(options) => {
            soak::load::run(&options);
            return ExitCode::SUCCESS;
        }
        Command::Soak(options) => soak::run(&options),
        Command::Serve(common) => serve(&common),
        Command::Ensemble {
            common,
            version,
            etcd,
        } => ensemble(&common, (!etcd).then_some(version)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn serve(common: &Common) -> Result<bool, String> {
    if !common.without_mounts {
        disk::enter_namespace();
    }
    let program = programs::lockkeeper()?;
    let folder = TempFolder::short();
    let runtime = runtime();
    let foreign = Foreign::all(folder.path());
    let system = Served::start(program, folder.path(), ALL_WORKERS, runtime.handle())
        .map_err(|error| format!("the server does not start: {error}"))?;
    let hosts: Vec<_> = (0..ALL_WORKERS)
        .map(|worker| system.hosts(worker))
        .collect();
    start(system, "lockkeeper", &hosts, foreign, common, &runtime)
}

/// Runs faults on ZooKeepers of this version, or without a version on etcds.
fn ensemble(common: &Common, version: Option<Version>) -> Result<bool, String> {
    if !common.without_mounts {
        disk::enter_namespace();
    }
    let folder = TempFolder::short();
    let runtime = runtime();
    let minutes = (common.minutes * 32.0) as u64;
    let (scheme, started, foreign) = match version {
        // The servers never remove old logs here.
        Some(version) => {
            let class_path = programs::zookeeper(version)?;
            let path = folder.path();
            let started = Ensemble::zookeeper(&class_path, path, ALL_WORKERS, 128 + minutes);
            ("zookeeper", started, Foreign::all(path))
        }
        // etcd reserves two segments of 64 MB for its log.
        None => {
            let started = Ensemble::etcd(folder.path(), WORKERS, 256 + minutes);
            ("etcd", started, Vec::new())
        }
    };
    let system = started.map_err(|error| format!("the servers do not start: {error}"))?;
    let workers = WORKERS + foreign.len();
    let hosts: Vec<_> = (0..workers).map(|worker| system.hosts(worker)).collect();
    start(system, scheme, &hosts, foreign, common, &runtime)
}

/// Runs faults on a system. `hosts` has an entry per worker. The last ones are for third-party clients.
fn start(
    mut system: impl System,
    scheme: &str,
    hosts: &[String],
    foreign: Vec<Foreign>,
    common: &Common,
    runtime: &Runtime,
) -> Result<bool, String> {
    let limit = Duration::from_secs(60);
    if !workers::waited(limit, || system.is_well()) {
        return Err(format!("the servers do not start: {}", system.logs()));
    }
    let seed = common.seed.unwrap_or_else(|| time::now() % 1_000_000);
    println!("faults by --seed {seed}");
    let began = time::now();
    let own = hosts[..WORKERS].iter().map(|hosts| {
        let url = format!("{scheme}://{hosts}");
        own_worker(url, seed, began, system.tick(), common.mistake)
    });
    let others = foreign.into_iter().zip(&hosts[WORKERS..]);
    let others = others.map(|(foreign, hosts)| foreign.worker(hosts.clone(), seed));
    let kinds = own.chain(others).collect();
    let plan = Plan {
        seed,
        length: Duration::from_secs_f64(common.minutes * 60.0),
    };
    let run = Run::start(system, kinds, plan, began, runtime.handle().clone())?;
    Ok(run.carry_out())
}

fn own_worker(
    url: String,
    seed: u64,
    began: u64,
    tick: Option<u64>,
    mistake: Option<Mistake>,
) -> Kind {
    let command = move |number: usize, life: u32| {
        let mut command = with_death_signal(own_program());
        let unique = number as u64 * 1_000 + u64::from(life);
        command
            .args(["worker", &url])
            .args(["--seed", &(seed ^ (unique << 32)).to_string()])
            .args(["--number", &unique.to_string()])
            .args(["--began", &began.to_string()])
            .args(["--timeout", &TIMEOUT_MS.to_string()]);
        if let Some(tick) = tick {
            command.args(["--tick", &tick.to_string()]);
        }
        if let Some(mistake) = mistake {
            command.args(["--break", &mistake.name()]);
        }
        command
    };
    Kind {
        belief: Belief::Promised,
        tasks: worker::TASKS,
        command: Box::new(command),
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.expect("a runtime can be made")
}
