//! The locks' speed beside that of their peers, in the same run: one JSON object a line.
//!
//! `cargo bench --bench locks -- --url memory:|file:FOLDER|lockkeeper:// --workload w1,w2`;
//! docs/performance.md explains the measurements.

#[path = "locks/args.rs"]
mod args;
#[path = "common/mod.rs"]
mod common;
#[path = "locks/election.rs"]
mod election;
#[path = "locks/many.rs"]
mod many;
#[path = "peers/mod.rs"]
mod peers;
#[path = "locks/rounds.rs"]
mod rounds;
#[path = "locks/rwlock.rs"]
mod rwlock;
#[path = "locks/semaphore.rs"]
mod semaphore;
#[path = "locks/systems.rs"]
mod systems;
#[path = "locks/workloads.rs"]
mod workloads;

use args::{Args, Recipe, System};
use common::store_server::StoreServer;
use common::{disk, figures, options, process, report, store_server};
use peers::Peers;
use rounds::Contender;
use semaphore::TokioQuota;
use systems::{Keeper, TokioLock};
use workloads::{Case, From, Workload};

fn main() {
    let args = Args::read();
    let mut builder = match args.threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder
        .worker_threads(args.threads)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(run(args));
}

async fn run(args: Args) {
    let server = StoreServer::of(&args.url, &args.serving).unwrap_or_else(|fault| {
        eprintln!("{}: {fault}", args.url);
        std::process::exit(1);
    });
    let keeper = Keeper::connect(server.url()).await;
    let memory = match args.has(System::Memory) {
        true => Some(Keeper::connect("memory:").await),
        false => None,
    };
    let mut peers = Peers::start(&args, server.url()).await;
    let mut w3_of_one = None;
    for case in cases(&args) {
        let mut contenders = vec![ours("lockkeeper", &keeper, args.recipe, case).await];
        if let Some(memory) = &memory {
            contenders.push(ours("memory", memory, args.recipe, case).await);
        }
        if args.has(System::Tokio) {
            contenders.push(match args.recipe {
                Recipe::RwLockRead => rwlock::tokio_readers(case),
                Recipe::RwLockWrite => rwlock::tokio_writers(case),
                Recipe::Semaphore => Contender::of("tokio", "", case, TokioQuota::many(&case)),
                _ => Contender::of("tokio", "", case, TokioLock::many(&case)),
            });
        }
        if case.workload == Workload::W1 && !keeper.in_process() {
            contenders.extend(keeper.raw(case).await);
        }
        contenders.extend(peers.contenders(case).await);
        if case.workload == Workload::W1
            && let Some(folder) = server.folder()
        {
            let floor = disk::Floor::make(folder);
            contenders.push(Contender::new("a sync", "", move |time| {
                std::future::ready(floor.round(time / 4))
            }));
        }
        let ours = rounds::measure(&args, case, contenders).await;
        if case.workload == Workload::W3 {
            let p50 = ours["handover_p50_us"];
            match w3_of_one {
                Some((from, one)) if from == case.from => {
                    rounds::ratio(case, "handover_p50_us", "lockkeeper at n = 1", p50 / one);
                }
                _ => w3_of_one = Some((case.from, p50)),
            }
        }
    }
}

/// Our own locks on a store.
async fn ours(system: &str, keeper: &Keeper, recipe: Recipe, case: Case) -> Contender {
    let url = keeper.url();
    match recipe {
        Recipe::Mutex => Contender::of(system, url, case, keeper.locks(&case).await),
        Recipe::LockAll => Contender::of(system, url, case, keeper.pairs(&case).await),
        Recipe::Semaphore => Contender::of(system, url, case, keeper.semaphores(&case).await),
        Recipe::Election => Contender::of(system, url, case, keeper.elections(&case).await),
        Recipe::RwLockRead => rwlock::readers(system, keeper, url, case).await,
        Recipe::RwLockWrite => rwlock::writers(system, keeper, url, case).await,
    }
}

/// Returns the cases to measure, in order.
fn cases(args: &Args) -> Vec<Case> {
    let mut cases = match args.recipe {
        Recipe::RwLockRead => rwlock::cases_of_readers(),
        _ => cases_of_locks(args, args.is_in_process()),
    };
    cases.retain(|case| args.clients.is_none_or(|only| case.clients == only));
    cases.retain(|case| args.n.is_none_or(|only| case.n == only));
    cases
}

fn cases_of_locks(args: &Args, in_process: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for &workload in &args.workloads {
        let case = Case::new(workload);
        match workload {
            Workload::W1 => cases.push(case),
            Workload::W2 => {
                cases.extend([2, 8, 64, 512].map(|clients| Case { clients, ..case }));
            }
            Workload::W3 => {
                let queued: &[usize] = match in_process {
                    true => &[1, 100, 1_000, 100_000],
                    false => &[1, 100, 1_000],
                };
                let froms: &[From] = match in_process {
                    true => &[From::Task, From::Thread],
                    false => &[From::Task],
                };
                for &from in froms {
                    cases.extend(queued.iter().map(|&n| Case {
                        n,
                        clients: 1 + n.min(1_000),
                        from,
                        ..case
                    }));
                }
            }
            Workload::W4 => cases.push(Case {
                n: 10_000,
                clients: 2,
                ..case
            }),
        }
    }
    cases
}
