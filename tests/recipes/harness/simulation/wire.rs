//! Runs of a scenario over `lockkeeper://`: real connections, which are hurt at bytes that the seed chooses, and real
//! time for the sessions. The actors' own time passes faster.
//!
//! A seed decides what the actors do and where each connection is hurt; the order in which the bytes of several
//! clients arrive is the machine's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_executor::block_on;
use lockkeeper::testing::seeds;
use lockkeeper::{Client, Clock, ConnectOptions, connect_with};
use tokio::runtime::{Builder, Runtime};

use super::{Counters, Medium, RUNS, Random, Scenario, Simulation, Tally};
use crate::common::children;
use crate::support::{FaultProxy, SWEEP, Served, Treatment, report, rounds};

/// Factor by which the actors' time passes faster than the sessions'.
const HASTE: u32 = 40;

/// Pause between two looks at the actors.
const TURN: Duration = Duration::from_millis(1);

/// Longest time of a run. A machine that is busy takes seconds, a waiter that is forgotten for ever.
const PATIENCE: Duration = Duration::from_secs(240);

/// Runs that go on at the same time: most of their time they wait.
const TOGETHER: usize = 6;

/// Connections of a client that are hurt; later ones are not.
const MAX_HURT: u64 = 8;

/// Connections in a row that never answer, after which a session is lost: an attempt lasts a third of its timeout.
const OUTAGE: usize = 5;

/// Limits of the session timeouts, in milliseconds.
const TIMEOUTS_MS: std::ops::Range<u64> = 2_000..6_000;

/// Runs a scenario over hurt connections so often, or as often as there is time for.
pub(crate) fn simulate_over_a_wire<S: Scenario>(count: u64) -> Tally {
    let (start, mut total) = (Instant::now(), Tally::default());
    let batches = rounds(count.div_ceil(TOGETHER as u64));
    let mut seeds = seeds(u64::MAX);
    for _ in batches {
        let batch: Vec<_> = seeds.by_ref().take(TOGETHER).collect();
        std::thread::scope(|scope| {
            let runs = batch.iter().map(|seed| scope.spawn(|| run::<S>(*seed)));
            for run in runs.collect::<Vec<_>>() {
                total += run.join().expect("the panic names its seed");
            }
        });
    }
    let scenario = std::any::type_name::<S>();
    report(format_args!(
        "{scenario} over a wire: {total:?} in {:.1?}",
        start.elapsed()
    ));
    total
}

fn run<S: Scenario>(seed: u64) -> Tally {
    let _note = FailureNote(seed);
    let served = Served::start(SWEEP);
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let connections = Arc::<AtomicU64>::default();
    let wire = Wire {
        connections: connections.clone(),
        runtime: runtime.unwrap(),
        served,
        clock: Clock::new_virtual(),
        random: Random(!seed),
        ways: Vec::new(),
    };
    let mut simulation = Simulation {
        base: wire.served.store().clone(),
        random: Random(seed),
        counters: Counters::in_real_time(),
        timeouts_ms: TIMEOUTS_MS,
        medium: Box::new(wire),
        executor: Default::default(),
        clients: Vec::new(),
    };
    let scenario = S::start(&mut simulation);
    simulation.run_in_real_time(|| scenario.check());
    let connections = connections.load(Ordering::Relaxed);
    simulation.counters.add("connections", connections);
    for queue in S::queues() {
        simulation.wait_until_empty(&queue);
    }
    simulation.counters.add(RUNS, 1);
    simulation.counters.take()
}

/// A served store, and a proxy for each client.
struct Wire {
    runtime: Runtime,
    served: Served,
    /// The actors' clock.
    clock: Clock,
    random: Random,
    ways: Vec<FaultProxy>,
    /// Number of connections so far.
    connections: Arc<AtomicU64>,
}

impl Medium for Wire {
    fn open(&mut self, options: ConnectOptions) -> Client {
        let mut random = Random(self.random.next());
        let hurt = random.below(MAX_HURT) as usize;
        let outage = match random.below(3) {
            0 => OUTAGE,
            _ => 0,
        };
        let connections = self.connections.clone();
        let plan = move |number| {
            connections.fetch_add(1, Ordering::Relaxed);
            match number {
                0 if outage > 0 => Treatment::closed_after(random.within(300..2_000) as usize),
                _ if number <= outage && outage > 0 => Treatment::silent(),
                _ if number < outage + hurt => {
                    let bytes = [600, 6_000][random.index(2)];
                    Treatment::random(&mut random, bytes)
                }
                _ => Treatment::default(),
            }
        };
        let way = FaultProxy::to(self.served.address(), plan);
        let way = self.runtime.block_on(way);
        let url = way.url();
        let connecting = connect_with(url.as_str(), options.connect_timeout(PATIENCE));
        let client = self.runtime.block_on(connecting).unwrap();
        self.ways.push(way);
        client
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl Simulation {
    /// Runs all tasks to their ends.
    fn run_in_real_time(&mut self, check: impl Fn()) {
        let clock = self.medium.clock().clone();
        let start = Instant::now();
        let mut before = start;
        while self.executor.run_until_stalled() {
            check();
            std::thread::sleep(TURN);
            let now = Instant::now();
            clock.advance((now - before) * HASTE);
            before = now;
            assert!(now - start < PATIENCE, "a waiter is forgotten");
        }
    }

    /// Waits for the last deletes. The clients are still open, so nothing else removes an entry.
    fn wait_until_empty(&self, queue: &str) {
        let observer = block_on(self.base.connect()).unwrap();
        let (session, start) = (observer.current_session(), Instant::now());
        loop {
            let left = block_on(children(&session, queue));
            if left.is_empty() {
                return;
            }
            let waited = start.elapsed();
            assert!(waited < PATIENCE, "{queue}: an entry is left: {left:?}");
            std::thread::sleep(TURN);
        }
    }
}

/// Prints the seed of a run that panics.
struct FailureNote(u64);

impl Drop for FailureNote {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("over a wire: to repeat it, set LOCKKEEPER_SEED={}", self.0);
        }
    }
}
