//! Deterministic simulation: the actors of a [`Scenario`] use a recipe under planned faults, in virtual
//! time, on one thread. The seed decides everything, so a run that fails replays with `LOCKKEEPER_SEED=n`.

mod actor;
mod executor;
mod resource;
#[cfg(all(feature = "file", feature = "server", feature = "client"))]
mod wire;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{AddAssign, Index, Range};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use lockkeeper::testing::{Plan, TestStore, seeds};
use lockkeeper::{Client, Clock, ConnectOptions, Store, StoreOptions};
use lockkeeper_store::Connector;

pub(crate) use actor::{Actor, Contender, compete, or_cancelled};
pub(crate) use resource::{Fenced, Holding, Resource};
#[cfg(all(feature = "file", feature = "server", feature = "client"))]
pub(crate) use wire::simulate_over_a_wire;

pub(crate) use crate::support::Random;

use crate::common::{LOCK, children};
use crate::harness::unindexed::unindexed;
use crate::support::{report, rounds};
use executor::Executor;

/// A recipe's part of a simulation.
pub(crate) trait Scenario {
    /// Length of the time with faults, in seconds.
    const FAULTS_S: Range<u64> = 5..90;

    /// Spawns the actors of one run.
    fn start(simulation: &mut Simulation) -> Self;

    /// Asserts what must hold at every moment.
    fn check(&self);

    /// Returns the znodes that have no children when all actors are done.
    fn queues() -> Vec<String> {
        vec![LOCK.to_owned()]
    }
}

/// Counter of a [`Tally`]: the runs that it sums up.
pub(crate) const RUNS: &str = "runs";

/// Runs a scenario so often, or as often as there is time for: each seed on each kind of store.
pub(crate) fn simulate<S: Scenario>(count: u64) -> Tally {
    let start = Instant::now();
    let mut total = Tally::default();
    let each = rounds(count / StoreKind::ALL.len() as u64);
    for (_, seed) in each.zip(seeds(u64::MAX)) {
        for kind in StoreKind::ALL {
            total += run::<S>(seed, kind);
        }
    }
    let scenario = std::any::type_name::<S>();
    report(format_args!(
        "{scenario}: {total:?} in {:.1?}",
        start.elapsed()
    ));
    total
}

/// Fails unless each of the first runs does the same twice: neither the random ids of sessions nor the random
/// names of entries may sway a run.
pub(crate) fn assert_replays<S: Scenario>(count: usize) {
    let all = (0..).flat_map(|seed| StoreKind::ALL.map(|kind| (seed, kind)));
    for (seed, kind) in all.take(count) {
        let outcome = run::<S>(seed, kind);
        assert_eq!(outcome, run::<S>(seed, kind), "seed {seed}, {kind:?}");
    }
}

fn run<S: Scenario>(seed: u64, kind: StoreKind) -> Tally {
    let _note = FailureNote(kind);
    let (mut simulation, store) = Simulation::planned(seed, kind);
    let scenario = S::start(&mut simulation);
    let faults = Duration::from_secs(simulation.random.within(S::FAULTS_S));
    simulation.run_out(&store, faults, || scenario.check());
    for queue in S::queues() {
        simulation.assert_empty(&queue);
    }
    simulation.counters.add(RUNS, 1);
    simulation.counters.take()
}

/// One run: a store behind faults, and the actors that use it.
pub(crate) struct Simulation {
    /// The store itself, which nothing goes wrong with.
    pub(crate) base: Store,
    pub(crate) random: Random,
    pub(crate) counters: Counters,
    /// Limits of the session timeouts, in milliseconds.
    timeouts_ms: Range<u64>,
    medium: Box<dyn Medium>,
    executor: Executor,
    /// Open until the run is over: the end of a session would hide what its client has left in a queue.
    clients: Vec<Client>,
}

/// The way from the actors to their store, with its faults.
trait Medium {
    fn open(&mut self, options: ConnectOptions) -> Client;

    /// Returns the actors' clock.
    fn clock(&self) -> &Clock;
}

impl Medium for Arc<TestStore> {
    fn open(&mut self, options: ConnectOptions) -> Client {
        block_on(self.client_with(options)).unwrap()
    }

    fn clock(&self) -> &Clock {
        TestStore::clock(self)
    }
}

/// Longest time that all waits, holds and recoveries together take once the faults have ended.
const PATIENCE: Duration = Duration::from_secs(1_000);

impl Simulation {
    /// A run in virtual time, with faults by the seed's plan.
    fn planned(seed: u64, kind: StoreKind) -> (Self, Arc<TestStore>) {
        let mut random = Random(seed);
        let options = StoreOptions::new().clock(Clock::new_virtual());
        let base = Store::memory_with(options);
        let connector: Arc<dyn Connector> = match kind.is_indexed {
            true => base.connector(),
            false => unindexed(base.connector()),
        };
        let store = TestStore::wrapping(connector, "memory:seeds", plan(seed, &mut random));
        if kind.is_ensemble {
            store.prove_by_quorum();
        }
        let store = Arc::new(store);
        let simulation = Self {
            base,
            random,
            counters: Counters::default(),
            timeouts_ms: 1_000..12_000,
            medium: Box::new(store.clone()),
            executor: Executor::default(),
            clients: Vec::new(),
        };
        (simulation, store)
    }

    /// Opens a client with a timeout of the seed's choice.
    pub(crate) fn client(&mut self) -> Client {
        let timeout = Duration::from_millis(self.random.within(self.timeouts_ms.clone()));
        let options = ConnectOptions::new().session_timeout(timeout);
        let client = self.medium.open(options);
        self.clients.push(client.clone());
        client
    }

    /// Opens as many clients as the seed chooses.
    pub(crate) fn clients(&mut self, count: Range<u64>) -> Vec<Client> {
        let count = self.random.within(count);
        (0..count).map(|_| self.client()).collect()
    }

    /// Returns a new actor with its own random generator.
    pub(crate) fn actor(&mut self) -> Actor {
        Actor {
            clock: self.clock(),
            random: Random(self.random.next()),
            counters: self.counters.clone(),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.medium.clock().clone()
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.executor.spawn(task);
    }

    /// Runs all tasks to their ends, under faults for so long, then without, and lets clean-up end.
    fn run_out(&mut self, store: &TestStore, faults: Duration, check: impl Fn()) {
        let clock = store.clock();
        let faults_end = clock.now().after(faults);
        let mut healed = false;
        while self.executor.run_until_stalled() {
            check();
            let next = clock
                .next_timer()
                .expect("a waiter is forgotten: nothing will ever wake it");
            if !healed && next >= faults_end {
                healed = true;
                clock.advance(faults_end.since(clock.now()));
                store.heal();
                continue;
            }
            clock.advance(next.since(clock.now()));
            // The clock alone may have ended a belief, or a session.
            check();
            assert!(
                clock.now() < faults_end.after(PATIENCE),
                "a waiter is forgotten"
            );
        }
        store.heal();
        // The last deletes may still be on their way.
        for _ in 0..10 {
            clock.advance(Duration::from_secs(1));
        }
    }

    fn assert_empty(&self, queue: &str) {
        let observer = block_on(self.base.connect()).unwrap();
        let session = observer.current_session();
        let left = block_on(children(&session, queue));
        assert_eq!(left, Vec::<String>::new(), "{queue}: an entry is left");
    }
}

/// A plan of the seed's own: each kind of fault never, seldom or often.
fn plan(seed: u64, random: &mut Random) -> Plan {
    let ms = Duration::from_millis;
    let mut rate = || [0.0, 0.01, 0.05, 0.15][random.within(0..4) as usize];
    Plan::new(seed)
        .lose_requests(rate())
        .lose_replies(rate())
        .disconnects(rate())
        .expiries(rate() / 3.0)
        .pauses(rate() / 3.0, ms(1)..ms(30_000))
        .delays(rate() * 4.0, ms(0)..ms(2_000))
        .outages(ms(0)..ms(10_000))
        .refusals(rate())
}

/// A kind of store that each seed is run on.
#[derive(Clone, Copy, Debug)]
struct StoreKind {
    /// True if the store returns an entry's predecessor; otherwise it only lists names, as a ZooKeeper server does.
    is_indexed: bool,
    /// True if only committed writes prove that a session lives; else any answer does, as of one server.
    is_ensemble: bool,
}

impl StoreKind {
    const ALL: [Self; 4] = [
        Self::new(true, false),
        Self::new(false, false),
        Self::new(true, true),
        Self::new(false, true),
    ];

    const fn new(is_indexed: bool, is_ensemble: bool) -> Self {
        Self {
            is_indexed,
            is_ensemble,
        }
    }
}

/// Prints the kind of store of a run that panics; the store itself prints its seed.
struct FailureNote(StoreKind);

impl Drop for FailureNote {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it ran on {:?}", self.0);
        }
    }
}

/// Counts of what happened in one run, or in many.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// Fails unless this was counted more than once a run.
    pub(crate) fn assert_more_than_runs(&self, counter: &str) {
        assert!(self[counter] > self[RUNS], "too few {counter}: {self:?}");
    }

    /// Fails unless each of these was counted at all.
    pub(crate) fn assert_some(&self, counters: &[&str]) {
        for counter in counters {
            assert!(self[counter] > 0, "no {counter}: {self:?}");
        }
    }
}

impl Index<&str> for Tally {
    type Output = u64;

    fn index(&self, counter: &str) -> &u64 {
        self.0.get(counter).unwrap_or(&0)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        for (counter, count) in other.0 {
            *self.0.entry(counter).or_default() += count;
        }
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.0).finish()
    }
}

/// The tally of a run under way, shared by its actors.
#[derive(Clone, Default)]
pub(crate) struct Counters {
    tally: Rc<RefCell<Tally>>,
    /// True if sessions live in real time, which passes while the actors work.
    in_real_time: bool,
}

impl Counters {
    #[cfg(all(feature = "file", feature = "server", feature = "client"))]
    fn in_real_time() -> Self {
        Self {
            in_real_time: true,
            ..Self::default()
        }
    }

    pub(crate) fn add(&self, counter: &'static str, count: u64) {
        *self.tally.borrow_mut().0.entry(counter).or_default() += count;
    }

    /// Fails if a guard that was granted just now is lost; in real time its belief may have ended since.
    pub(crate) fn assert_granted(&self, is_held: bool) {
        assert!(
            is_held || self.in_real_time,
            "granted when it is lost already"
        );
    }

    fn take(&self) -> Tally {
        self.tally.take()
    }
}
