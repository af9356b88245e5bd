//! The locks' speed beside that of their peers, in the same run: one JSON object a line.
//!
//! `cargo bench --bench locks -- --url memory:|file:FOLDER|lockkeeper://,lockkeeper+unix:// --workload w1,w2`;
//! docs/performance.md explains the measurements.

#[path = "locks/args.rs"]
mod args;
#[path = "common/mod.rs"]
mod common;
#[path = "locks/kill.rs"]
mod kill;
#[path = "peers/mod.rs"]
mod peers;
#[path = "locks/readers.rs"]
mod readers;
#[path = "locks/relay.rs"]
mod relay;
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
use common::recipes::{Permits, Side};
use common::store_server::StoreServer;
use common::{disk, figures, options, process, report, store_server};
use lockkeeper::{Election, Mutex, RwLock};
use peers::Peers;
use rounds::Contender;
use systems::Keeper;
use tokio_locks::{Readers, TokioLock, many};
use workloads::{Case, From, Workload};

fn main() {
    common::echo::help();
    kill::help();
    let args = Args::read();
    common::runtime(args.threads).block_on(run(args));
}

async fn run(args: Args) {
    let mut servers = vec![StoreServer::of_or_exit(args.url(), &args.serving)];
    for url in &args.urls[1..] {
        let system = scheme(url);
        servers.extend(peers::told(system, StoreServer::of(url, &args.serving)));
    }
    let server = &servers[0];
    let mut floor = (!args.is_in_process()).then(|| args.serving.echo_floor());
    let mut keepers = Vec::new();
    for server in &servers {
        keepers.push(Keeper::connect(server.url()).await);
    }
    let memory = match args.has(System::Memory) {
        true => Some(Keeper::connect("memory:").await),
        false => None,
    };
    let mut peers = Peers::start(&args, server.url()).await;
    let mut w3_of_one = None;
    for case in cases(&args) {
        let mut contenders = Vec::new();
        for &recipe in &args.recipes {
            let mut systems = Vec::new();
            for (number, keeper) in keepers.iter().enumerate() {
                let system = match number {
                    0 => "lockkeeper",
                    _ => scheme(keeper.url()),
                };
                systems.push(ours(system, keeper, recipe, case).await);
            }
            if let Some(memory) = &memory {
                systems.push(ours("memory", memory, recipe, case).await);
            }
            if args.has(System::Tokio) {
                systems.push(tokio(recipe, case));
            }
            let systems = systems.into_iter();
            contenders.extend(systems.map(|system| system.with_recipe(recipe)));
        }
        if case.workload == Workload::W1 && !args.is_in_process() {
            contenders.extend(keepers[0].raw(case).await);
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
        let ours = rounds::measure(&args, case, contenders, floor.as_mut()).await;
        if case.workload == Workload::W3 {
            let p50 = ours["handover_p50_us"];
            match w3_of_one {
                Some((from, one)) if from == case.from => {
                    let to = "lockkeeper at n = 1";
                    rounds::ratio(case, "lockkeeper", "handover_p50_us", to, p50 / one);
                }
                _ => w3_of_one = Some((case.from, p50)),
            }
        }
    }
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or(url)
}

/// Our own locks on a store.
async fn ours(system: &str, keeper: &Keeper, recipe: Recipe, case: Case) -> Contender {
    let url = keeper.url();
    match case.workload {
        Workload::Kill => return kill::contender(system, keeper).await,
        Workload::Bytes => return relay::contender(system, keeper, case).await,
        _ => {}
    }
    match recipe {
        Recipe::Mutex => Contender::of(system, url, case, keeper.locks::<Mutex>(&case).await),
        Recipe::LockAll => Contender::of(system, url, case, keeper.pairs(&case).await),
        Recipe::Semaphore => {
            Contender::of(system, url, case, keeper.locks::<Permits<1>>(&case).await)
        }
        Recipe::Election => Contender::of(system, url, case, keeper.locks::<Election>(&case).await),
        Recipe::RwLockRead => {
            let mut locks = keeper.locks::<RwLock>(&case).await;
            locks.iter_mut().for_each(|lock| lock.side = Side::Read);
            readers::contender(system, url, case, locks)
        }
        Recipe::RwLockWrite => {
            Contender::of(system, url, case, keeper.locks::<RwLock>(&case).await)
        }
    }
}

/// Tokio's lock of the same kind, as the floor.
fn tokio(recipe: Recipe, case: Case) -> Contender {
    fn of<L: TokioLock>(case: Case) -> Contender {
        Contender::of("tokio", "", case, many::<L>(&case))
    }
    match recipe {
        Recipe::RwLockRead => readers::contender("tokio", "", case, many::<Readers>(&case)),
        Recipe::RwLockWrite => of::<tokio::sync::RwLock<()>>(case),
        Recipe::Semaphore => of::<tokio::sync::Semaphore>(case),
        _ => of::<tokio::sync::Mutex<()>>(case),
    }
}

/// Returns the cases to measure, in order.
fn cases(args: &Args) -> Vec<Case> {
    let mut cases = cases_of_locks(args, args.is_in_process());
    if args.recipes.contains(&Recipe::RwLockRead) {
        cases.retain(|case| readers::have(case.workload));
    }
    let is_chosen = |chosen: &[usize], number| chosen.is_empty() || chosen.contains(&number);
    cases.retain(|case| is_chosen(&args.clients, case.clients));
    cases.retain(|case| is_chosen(&args.n, case.n));
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
            Workload::Cold => cases.push(Case { clients: 2, ..case }),
            Workload::Kill => cases.push(case),
            Workload::Bytes => cases.extend([1, 100, 1_000].map(|n| Case {
                n,
                clients: 3,
                ..case
            })),
            Workload::W4 => cases.push(Case {
                n: 10_000,
                clients: 2,
                ..case
            }),
        }
    }
    cases
}
