//! Speed of the locks and of their peers, in the same run. One JSON object per line.
//!
//! `cargo bench -p lockkeeper-bench --bench locks -- --url memory:|file:FOLDER|lockkeeper://,lockkeeper+unix://
//! --workload w1,w2`. docs/performance.md explains the measurements.

#[path = "locks/args.rs"]
mod args;
#[path = "common/mod.rs"]
mod common;
#[path = "locks/kill.rs"]
mod kill;
#[path = "locks/local_locks.rs"]
mod local_locks;
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
#[path = "locks/workloads.rs"]
mod workloads;

use std::cell::RefCell;

use args::{Args, Recipe, System};
use common::more_recipes::{Call, Called};
use common::recipes::{Permits, Side};
use common::store_server::StoreServer;
use common::{disk, figures, options, process, report, store_server};
use local_locks::{ByName, LocalLock, Readers, many};
use lockkeeper::{Election, Mutex, RwLock};
use peers::Peers;
use rounds::Contender;
use systems::Keeper;
use testkit::TempFolder;
use workloads::{Case, From, Workload};

fn main() {
    common::echo::help();
    kill::help();
    let args = Args::read();
    peers::runtime(args.threads).block_on(run(args));
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
    for (number, server) in servers.iter().enumerate() {
        let system = match number {
            0 => "lockkeeper",
            _ => scheme(server.url()),
        };
        keepers.push((system, Keeper::connect(server.url()).await));
    }
    let durable = args.has(System::Durable).then(|| args.serving.on_disk());
    let durable = durable.map(|serving| StoreServer::of("lockkeeper://", &serving));
    let durable = durable.and_then(|server| peers::told("lockkeeper-durable", server));
    if let Some(server) = &durable {
        keepers.push(("lockkeeper-durable", Keeper::connect(server.url()).await));
    }
    let file = args.has(System::File).then(TempFolder::short);
    let mut in_process = Vec::new();
    if args.has(System::Memory) {
        in_process.push(("memory", Keeper::connect("memory:").await));
    }
    if let Some(folder) = &file {
        let url = format!("file:{}", folder.path().display());
        in_process.push(("file", Keeper::connect(&url).await));
    }
    let mut peers = Peers::start(&args, server.url()).await;
    let mut w3_of_one = None;
    for case in cases(&args) {
        let mut contenders = Vec::new();
        for &recipe in &args.recipes {
            let mut systems = Vec::new();
            for (system, keeper) in &keepers {
                systems.push(ours(system, keeper, recipe, case).await);
            }
            if !case.workload.is_of_served_stores() {
                for (system, keeper) in &in_process {
                    systems.push(ours(system, keeper, recipe, case).await);
                }
                if args.has(System::Tokio) {
                    systems.push(tokio(recipe, case));
                }
                if args.has(System::AsyncLock) {
                    let locks = many::<async_lock::Mutex<()>>(&case);
                    systems.push(Contender::of("async-lock", "", case, locks));
                }
            }
            let systems = systems.into_iter();
            contenders.extend(systems.map(|system| system.with_recipe(recipe)));
        }
        if case.workload == Workload::W1 && !args.is_in_process() && !args.no_wire {
            contenders.extend(keepers[0].1.raw(case).await);
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

async fn ours(system: &str, keeper: &Keeper, recipe: Recipe, case: Case) -> Contender {
    let url = keeper.url();
    match case.workload {
        Workload::Kill => return kill::contender(system, keeper).await,
        Workload::Bytes => return relay::contender(system, keeper, case).await,
        _ => {}
    }
    match recipe {
        Recipe::Mutex => Contender::of(system, url, case, keeper.locks::<Mutex>(&case).await),
        Recipe::MutexTimeout => called(system, keeper, Call::Timeout, case).await,
        Recipe::MutexWith => called(system, keeper, Call::With, case).await,
        Recipe::MutexTry => called(system, keeper, Call::Try, case).await,
        Recipe::MutexNewName => called(system, keeper, Call::NewName, case).await,
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

/// A mutex, taken by another call than `lock`.
async fn called(system: &str, keeper: &Keeper, call: Call, case: Case) -> Contender {
    let mut locks = keeper.locks::<Called>(&case).await;
    locks.iter_mut().for_each(|lock| lock.subject.call = call);
    Contender::of(system, keeper.url(), case, locks)
}

/// Tokio's lock of the same kind, as the floor. With a timeout, a map of locks by name, as a user would write it.
fn tokio(recipe: Recipe, case: Case) -> Contender {
    fn of<L: LocalLock>(case: Case) -> Contender {
        Contender::of("tokio", "", case, many::<L>(&case))
    }
    match recipe {
        Recipe::RwLockRead => readers::contender("tokio", "", case, many::<Readers>(&case)),
        Recipe::RwLockWrite => of::<tokio::sync::RwLock<()>>(case),
        Recipe::Semaphore => of::<tokio::sync::Semaphore>(case),
        Recipe::MutexTimeout => of::<ByName>(case),
        _ => of::<tokio::sync::Mutex<()>>(case),
    }
}

fn cases(args: &Args) -> Vec<Case> {
    let mut cases = cases_of_locks(args, args.is_in_process());
    if args.recipes.contains(&Recipe::RwLockRead) {
        cases.retain(|case| readers::have(case.workload));
    }
    cases
}

fn cases_of_locks(args: &Args, in_process: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for &workload in &args.workloads {
        let case = Case::new(workload);
        match workload {
            Workload::W1 => cases.push(case),
            Workload::W2 => {
                let clients = chosen_or(&args.clients, &[2, 8, 64, 512]);
                cases.extend(clients.iter().map(|&clients| Case { clients, ..case }));
            }
            Workload::W3 => {
                let queued = match in_process {
                    true => chosen_or(&args.n, &[1, 100, 1_000, 100_000]),
                    false => chosen_or(&args.n, &[1, 100, 1_000]),
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
            Workload::Bytes => {
                let queued = chosen_or(&args.n, &[1, 100, 1_000]);
                cases.extend(queued.iter().map(|&n| Case {
                    n,
                    clients: 3,
                    ..case
                }));
            }
            Workload::W4 => {
                let keys = chosen_or(&args.n, &[10_000]);
                cases.extend(keys.iter().map(|&n| Case {
                    n,
                    clients: 2,
                    ..case
                }));
            }
        }
    }
    cases
}

fn chosen_or<'a>(chosen: &'a [usize], usual: &'a [usize]) -> &'a [usize] {
    if chosen.is_empty() { usual } else { chosen }
}
