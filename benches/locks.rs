//! The locks' speed beside that of their peers, in the same run: one JSON object a line.
//!
//! `cargo bench --bench locks -- --url memory:|file:FOLDER|lockkeeper:// --workload w1,w2`;
//! docs/performance.md explains the measurements.

#[path = "locks/args.rs"]
mod args;
#[path = "common/mod.rs"]
mod common;
#[path = "peers/mod.rs"]
mod peers;
#[path = "locks/readers.rs"]
mod readers;
#[path = "locks/rounds.rs"]
mod rounds;
#[path = "locks/systems.rs"]
mod systems;
#[path = "locks/tokio_locks.rs"]
mod tokio_locks;
#[path = "locks/workloads.rs"]
mod workloads;

use std::cell::RefCell;

use args::{Args, Recipe, System};
use common::recipes::Permits;
use common::store_server::StoreServer;
use common::{disk, figures, options, process, report, store_server};
use lockkeeper::{Election, Mutex, RwLock};
use peers::Peers;
use rounds::Contender;
use systems::Keeper;
use tokio_locks::{TokioLock, many};
use workloads::{Case, From, Workload};

fn main() {
    let args = Args::read();
    common::runtime(args.threads).block_on(run(args));
}

async fn run(args: Args) {
    let server = StoreServer::of_or_exit(&args.url, &args.serving);
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
                Recipe::RwLockRead => {
                    readers::beside("tokio", "", many::<tokio::sync::RwLock<()>>(&case))
                }
                Recipe::RwLockWrite => tokio::<tokio::sync::RwLock<()>>(case),
                Recipe::Semaphore => tokio::<tokio::sync::Semaphore>(case),
                _ => tokio::<tokio::sync::Mutex<()>>(case),
            });
        }
        if case.workload == Workload::W1 && !keeper.in_process() {
            contenders.extend(keeper.raw(case).await);
        }
        contenders.extend(peers.contenders(case).await);
        if case.workload == Workload::W1
            && let Some(folder) = server.folder()
        {
            let floor = RefCell::new(disk::Floor::make(folder, disk::Way::Overwrite));
            contenders.push(Contender::new("a sync", "", move |time| {
                std::future::ready(floor.borrow_mut().round(time / 4))
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
        Recipe::Mutex => Contender::of(system, url, case, keeper.locks::<Mutex>(&case).await),
        Recipe::LockAll => Contender::of(system, url, case, keeper.pairs(&case).await),
        Recipe::Semaphore => {
            Contender::of(system, url, case, keeper.locks::<Permits<1>>(&case).await)
        }
        Recipe::Election => Contender::of(system, url, case, keeper.locks::<Election>(&case).await),
        Recipe::RwLockRead => readers::beside(system, url, keeper.locks::<RwLock>(&case).await),
        Recipe::RwLockWrite => {
            Contender::of(system, url, case, keeper.locks::<RwLock>(&case).await)
        }
    }
}

/// Tokio's lock, as the floor.
fn tokio<L: TokioLock>(case: Case) -> Contender {
    Contender::of("tokio", "", case, many::<L>(&case))
}

/// Returns the cases to measure, in order.
fn cases(args: &Args) -> Vec<Case> {
    let mut cases = match args.recipe {
        Recipe::RwLockRead => readers::cases(),
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
