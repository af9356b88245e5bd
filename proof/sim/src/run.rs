//! One run: a server, its clients and their faults, determined by a seed.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use lockkeeper::testing::simulate_process;
use lockkeeper::{Client, ConnectOptions};
use lockkeeper_store::simulation::{self, Disk, Ensemble, ServerHost, Time};
use testkit::recipe::Recipe;
use tokio::runtime::Builder;
use tokio::task::{JoinSet, LocalSet};

use crate::client_tasks::{ClientTasks, Work};
use crate::faults::{Operator, calm};
use crate::filler::Filler;
use crate::history::History;
use crate::in_memory;
use crate::members::ensemble_options;
use crate::memory::Memory;
use crate::observers::Observers;
use crate::resource::Resource;
use crate::watchman::Watchman;
use crate::world::{Random, SERVER, StoreKind, Tally, Terms, World, drifting};

pub(crate) struct Outcome {
    pub(crate) violation: Option<String>,
    pub(crate) story: Vec<String>,
    pub(crate) tally: Tally,
}

/// Time limit, in virtual time, for everything to finish once the faults have ended.
const PATIENCE: Duration = Duration::from_secs(2_000);

/// Size of a run. Each value is an upper limit of what the seed draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) clients: u64,
    pub(crate) turns: u64,
    /// Length of the time with faults, in seconds.
    pub(crate) faults_s: u64,
    /// Minimum number of operations. Until then the tasks continue, and usually the faults.
    pub(crate) operations: u64,
    /// The kind of servers, drawn unless set.
    pub(crate) store: Option<StoreKind>,
    pub(crate) sabotage: Option<Sabotage>,
}

/// A mistake of the first task, which shows that a check can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests make mistakes"))]
pub(crate) enum Sabotage {
    /// It waits for the lock of another resource.
    WrongLock,
    /// It leaves an entry in the queue.
    LeavesAnEntry,
    /// It never releases.
    NeverLetsGo,
    /// It acknowledges a write that was not made.
    InventsAWrite,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            clients: u64::MAX,
            turns: u64::MAX,
            faults_s: u64::MAX,
            operations: LEAST_OPERATIONS,
            store: None,
            sabotage: None,
        }
    }

    /// Returns smaller plans, which may fail as well.
    fn smaller(self, largest: Self) -> impl Iterator<Item = Self> {
        let now = Self {
            clients: self.clients.min(largest.clients),
            turns: self.turns.min(largest.turns),
            faults_s: self.faults_s.min(largest.faults_s),
            ..self
        };
        [
            Self {
                operations: now.operations / 2,
                ..now
            },
            Self {
                clients: now.clients / 2,
                ..now
            },
            Self {
                turns: now.turns / 2,
                ..now
            },
            Self {
                faults_s: now.faults_s / 2,
                ..now
            },
            Self {
                clients: now.clients.saturating_sub(1),
                ..now
            },
            Self {
                turns: now.turns.saturating_sub(1),
                ..now
            },
            Self {
                faults_s: now.faults_s * 3 / 4,
                ..now
            },
        ]
        .into_iter()
        .filter(move |plan| *plan != now && plan.clients > 0 && plan.turns > 0)
    }

    /// Returns the smallest failing plan found, starting from a failing one.
    pub(crate) fn shrunk(self) -> Self {
        let mut smallest = self;
        while let Some(smaller) = smallest
            .smaller(MOST)
            .find(|plan| run(*plan).violation.is_some())
        {
            smallest = smaller;
        }
        smallest
    }
}

/// Minimum number of operations of a run.
pub(crate) const LEAST_OPERATIONS: u64 = 500;

/// The maximum that a seed draws.
const MOST: Plan = Plan {
    seed: 0,
    clients: 5,
    turns: 39,
    faults_s: 119,
    operations: LEAST_OPERATIONS,
    store: None,
    sabotage: None,
};

thread_local! {
    /// The first panic of a run. Panics of tasks do not propagate.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Records panics of runs instead of printing them.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_RUNNING.get() {
                return print(panic);
            }
            PANIC.with_borrow_mut(|first| {
                first.get_or_insert_with(|| panic.to_string());
            });
        }));
    });
}

pub(crate) fn run(plan: Plan) -> Outcome {
    simulate_process();
    note_panics();
    PANIC.take();
    IS_RUNNING.set(true);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("a runtime without IO needs nothing of the system");
    let mut world = None;
    // Everything that the panic unwinds through is dropped. Only the world is used afterwards.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let local = LocalSet::new();
        local.block_on(&runtime, async {
            let simulation = Simulation::new(plan);
            world = Some(simulation.world.clone());
            simulation.run().await;
        });
    }));
    IS_RUNNING.set(false);
    let panic = PANIC.take();
    let Some(world) = world else {
        return Outcome {
            violation: panic,
            story: Vec::new(),
            tally: Tally::default(),
        };
    };
    if let Some(panic) = panic {
        world.violate(format_args!("panic: {panic}"));
    }
    Outcome {
        violation: world.violation(),
        story: world.story(),
        tally: world.tally(),
    }
}

struct Simulation {
    plan: Plan,
    world: World,
    random: Random,
    operator: Operator,
    history: Rc<History>,
}

impl Simulation {
    fn new(plan: Plan) -> Self {
        let mut random = Random(plan.seed);
        let time = Time::new();
        let network = simulation::network(random.next(), calm(), &time);
        let terms = Terms::draw(&mut random, plan.store);
        let memory = plan.store == Some(StoreKind::Memory);
        let memory = memory.then(|| Memory::draw(&mut random, &time));
        let medium = (time.clone(), network.clone(), memory);
        let world = World::new(medium, terms, plan.operations);
        if !world.clocks_keep_margin() {
            world.count("clocks beyond the margin");
        }
        let clock = drifting(&world, &mut random);
        let disk = Disk::default();
        let host = ServerHost::new(SERVER, &network, &disk, &clock, &time, random.next());
        let ensemble = ensemble(&world, &mut random);
        let crews = 0..random.within(2..6).min(plan.clients);
        let recipes = match world.memory() {
            Some(_) => in_memory::draw_recipes(&mut random),
            None => {
                let count = random.within(1..4);
                (0..count).map(|_| Recipe::draw(&mut random)).collect()
            }
        };
        let resources = recipes.into_iter().enumerate().map(|(number, recipe)| {
            let path = format!("/lock-{number}");
            world.tell(format_args!("{path} is a {recipe:?}"));
            Rc::new(Resource::new(&world, &path, recipe))
        });
        let resources: Vec<_> = resources.collect();
        let history = Rc::new(History::new(&world));
        let operator = Operator {
            world: world.clone(),
            random: random.fork(),
            host,
            ensemble,
            crews: crews
                .map(|number| Rc::new(ClientTasks::new(&world, number)))
                .collect(),
            resources,
            history: history.clone(),
            backup: None,
            changes_options: random.once_in(2),
            longest_s: 0,
            least_longest_s: 0,
        };
        Self {
            plan,
            world,
            random,
            operator,
            history,
        }
    }

    async fn run(mut self) {
        self.operator.start().await;
        let faults_s = self.random.within(10..120).min(self.plan.faults_s);
        let mut crews = self.crews();
        let resources = self.operator.resources.clone();
        let ensemble = self.operator.ensemble.clone();
        let watchman = self.watchman();
        let observers = self.observers();
        let filler = self.filler(Duration::from_secs(faults_s));
        let Self {
            world,
            operator,
            history,
            ..
        } = self;
        let work = async {
            let operating = operator.run(Duration::from_secs(faults_s));
            // It keeps the server running.
            let _operator = operating.await;
            world.time().sync();
            let mut clients = Vec::new();
            let done = async {
                while let Some(client) = crews.join_next().await {
                    clients.extend(client.ok());
                }
            };
            if tokio::time::timeout(PATIENCE, done).await.is_err() {
                world.violate("progress: somebody still waits long after all faults have ended");
                return;
            }
            history.check();
            if let Some(client) = inspector(&world).await {
                if let Some(observers) = observers
                    && let Err(error) = observers.check(&client).await
                {
                    world.violate(format_args!("error: an observed leader got {error:?}"));
                }
                for resource in &resources {
                    check_empty(&world, &client, resource).await;
                    resource.register.check_all_watches(&client).await;
                }
                check_stranger(&world, &client).await;
            }
            if let Some(filler) = filler {
                filler.check().await;
            }
            if let Some(watchman) = watchman {
                watchman.check().await;
            }
            for client in clients {
                let _ = client.close().await;
            }
        };
        tokio::select! {
            biased;
            () = work => {}
            () = world.violated() => {}
        }
        summarize(&world, ensemble.as_ref());
    }

    /// Starts a warden in some of the runs.
    fn watchman(&mut self) -> Option<Watchman> {
        let is_there = self.world.holders_are_removed() || self.random.once_in(3);
        let (resources, random) = (&self.operator.resources, self.random.fork());
        let is_there = is_there && self.world.memory().is_none();
        is_there.then(|| Watchman::start(&self.world, resources, random))
    }

    /// Starts observers of all elections in a run in memory.
    fn observers(&mut self) -> Option<Observers> {
        self.world.memory()?;
        let (resources, random) = (&self.operator.resources, &mut self.random);
        Some(Observers::start(&self.world, resources, random))
    }

    /// Starts a client that fills the store during the faults if the store is small.
    fn filler(&mut self, length: Duration) -> Option<Filler> {
        let random = self.random.fork();
        self.world.max_bytes()?;
        Some(Filler::start(&self.world, random, length))
    }

    fn crews(&mut self) -> JoinSet<Client> {
        let mut crews = JoinSet::new();
        for tasks in self.operator.crews.clone() {
            let work = Work {
                random: self.random.fork(),
                resources: self.operator.resources.clone(),
                history: self.history.clone(),
                turns: self.plan.turns,
                sabotage: self.plan.sabotage.filter(|_| crews.is_empty()),
            };
            crews.spawn_local(tasks.run(work));
        }
        crews
    }
}

/// Connects a client that checks what is left once all faults have ended. A restored or copied store keeps new
/// sessions waiting for the longest timeout.
async fn inspector(world: &World) -> Option<Client> {
    if let Some(memory) = world.memory() {
        return Some(memory.inspector().await);
    }
    let clock = world.time().clock(0);
    let limit = world.time().elapsed() + Duration::from_secs(120);
    let servers = world.servers(&mut Random(0));
    loop {
        let (network, options) = (world.network(), ConnectOptions::new());
        match simulation::connect(network, ("inspector", &servers), &clock, options).await {
            Ok(client) => return Some(client),
            Err(error) if world.time().elapsed() > limit => {
                world.violate(format_args!("progress: nobody can connect: {error}"));
                return None;
            }
            Err(_) => {}
        }
    }
}

/// Fails unless the queues become empty in time. Clean-ups may still be in progress, and abandoned sessions last until
/// their timeout.
async fn check_empty(world: &World, client: &Client, resource: &Resource) {
    let limit = world.time().elapsed() + Duration::from_secs(120);
    for path in resource.recipe.queues(&resource.path) {
        loop {
            let names = match client.session().await {
                Ok(session) => session.get_children(&path.parse().expect("a path")).await,
                Err(error) => Err(error),
            };
            match names {
                Ok((names, _)) if names.is_empty() => break,
                Err(lockkeeper::Error::NoNode { .. }) => break,
                left if world.time().elapsed() > limit => {
                    // Leave out the names, which contain random ids.
                    let left = left.map(|(names, _)| names.len());
                    let left = left.map_or("is out of reach".to_owned(), |left| {
                        format!("has {left} entries")
                    });
                    return world.violate(format_args!("left behind: {path} {left}"));
                }
                _ => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }
}

/// Fails unless a stranger who only knows the id of a session is refused and does not disturb its owner (invariant
/// 14).
async fn check_stranger(world: &World, client: &Client) {
    // ZooKeeper closes the owner's connection, and a store in memory has none.
    if world.is_ensemble() || world.memory().is_some() {
        return;
    }
    let Ok(session) = client.session().await else {
        return;
    };
    let mut states = session.states();
    let hosts = ("stranger", SERVER);
    if let Ok(is_admitted) = simulation::intrude(world.network(), hosts, session.id()).await {
        world.count("strangers refused");
        if is_admitted {
            world.violate("strangers: a wrong password opens a session");
        }
    }
    let seconds = Duration::from_secs(1);
    if tokio::time::timeout(seconds, states.next()).await.is_ok() {
        world.violate("strangers: a wrong password disturbs the session's owner");
    }
}

fn ensemble(world: &World, random: &mut Random) -> Option<Ensemble> {
    let options = ensemble_options(world, random)?;
    let clocks = world
        .hosts()
        .into_iter()
        .map(|host| (host, drifting(world, random)));
    let (members, seed) = (clocks.collect(), random.next());
    let (network, time) = (world.network(), world.time());
    Some(Ensemble::start(network, time, members, &options, seed))
}

fn summarize(world: &World, ensemble: Option<&Ensemble>) {
    let counts = world.network().counts();
    if let Some(ensemble) = ensemble {
        let counts = ensemble.counts();
        for (what, by) in [
            ("ensemble: elections", counts.elections),
            ("ensemble: proposals lost", counts.proposals_lost),
            ("ensemble: sessions expired", counts.sessions_expired),
            ("ensemble: sessions moved", counts.sessions_moved),
            (
                "ensemble: writes of moved sessions",
                counts.writes_of_moved_sessions,
            ),
        ] {
            world.count_many(what, by);
        }
    }
    for (what, by) in [
        ("network: connections", counts.connections),
        ("network: refused", counts.refused),
        ("network: pieces", counts.pieces),
        ("network: pieces lost", counts.lost),
        ("network: writes split", counts.split),
        ("network: connections cut", counts.cut),
        ("network: pieces held", counts.held),
        ("virtual seconds", world.time().elapsed().as_secs()),
    ] {
        world.count_many(what, by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{EXPECTED, EXPECTED_IN_MEMORY};

    fn small(seed: u64) -> Plan {
        Plan {
            turns: 8,
            faults_s: 30,
            operations: 0,
            ..Plan::new(seed)
        }
    }

    fn in_memory(seed: u64) -> Plan {
        Plan {
            store: Some(StoreKind::Memory),
            ..small(seed)
        }
    }

    /// Runs `seeds` seeds, or `full` with `LOCKKEEPER_FULL`. Fails unless all keep the promises and together show
    /// everything in `expected`.
    fn check((seeds, full): (u64, u64), plan: fn(u64) -> Plan, expected: &[&'static str]) {
        let seeds = match std::env::var_os("LOCKKEEPER_FULL") {
            Some(_) => full,
            None => seeds,
        };
        let mut total = Tally::default();
        for seed in 0..seeds {
            let outcome = run(plan(seed));
            let story = outcome.story.join("\n");
            assert_eq!(outcome.violation, None, "seed {seed}:\n{story}");
            total.add(&outcome.tally);
        }
        assert_eq!(total.missing(expected), Vec::<&str>::new(), "{total}");
    }

    #[test]
    fn no_seed_breaks_a_promise_and_each_fault_happens() {
        check((200, 600), small, &EXPECTED);
    }

    #[test]
    fn no_seed_breaks_a_promise_in_memory() {
        check((400, 4_000), in_memory, &EXPECTED_IN_MEMORY);
    }

    #[test]
    fn a_seed_tells_the_same_story_again() {
        let plans = (0..10).map(small).chain((0..20).map(in_memory));
        for plan in plans {
            let (first, second) = (run(plan), run(plan));
            assert_eq!(first.story, second.story, "{plan:?}");
            assert_eq!(first.tally, second.tally, "{plan:?}");
        }
    }

    fn caught(sabotage: Sabotage) -> (Plan, String) {
        let plans = (0..40).map(|seed| Plan {
            sabotage: Some(sabotage),
            ..small(seed)
        });
        let mut violations = plans.filter_map(|plan| Some((plan, run(plan).violation?)));
        violations.next().expect("some seed notices")
    }

    #[test]
    fn a_run_has_no_fewer_operations_than_it_is_to_have() {
        let plan = |operations| Plan {
            operations,
            ..small(0)
        };
        let short = run(plan(0)).tally.operations();
        let long = run(plan(2 * short));
        assert_eq!(long.violation, None);
        assert!(long.tally.operations() >= 2 * short);
    }

    #[test]
    fn a_mistake_is_caught_by_the_check_that_is_meant_for_it() {
        for (sabotage, check) in [
            (Sabotage::WrongLock, "exclusion: "),
            (Sabotage::LeavesAnEntry, "left behind: "),
            (Sabotage::NeverLetsGo, "progress: "),
            (Sabotage::InventsAWrite, "linearizability: "),
        ] {
            let (_, violation) = caught(sabotage);
            assert!(violation.starts_with(check), "{sabotage:?}: {violation}");
        }
    }

    #[test]
    fn a_failing_run_is_shrunk() {
        let (plan, _) = caught(Sabotage::LeavesAnEntry);
        let shrunk = plan.shrunk();
        assert!(run(shrunk).violation.is_some());
        assert_eq!((shrunk.clients, shrunk.turns), (1, 1), "{shrunk:?}");
    }

    #[test]
    fn a_story_does_not_depend_on_the_process_that_tells_it() {
        run(small(0));
        let runtime = Builder::new_current_thread().build().unwrap();
        let client = runtime.block_on(lockkeeper::Store::memory().connect());
        let mutex = lockkeeper::Mutex::new(&client.unwrap(), "/lock").unwrap();
        let guard = runtime.block_on(mutex.lock()).unwrap();
        let metadata = guard.metadata();
        let host = metadata.host.as_deref();
        assert_eq!((host, metadata.pid), (Some("simulated"), Some(1)));
    }
}
