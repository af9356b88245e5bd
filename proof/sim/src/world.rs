//! [`World`]: what the tasks of a run share: time, network, randomness, counts and the log of events.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::Clock;
use lockkeeper_store::simulation::{Network, Servers, Time};
use tokio::sync::Notify;

pub(crate) use testkit::Random;

use crate::memory::Memory;

/// Counts of a run, or of all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub(crate) fn count(&mut self, what: &'static str, by: u64) {
        *self.0.entry(what).or_default() += by;
    }

    fn has(&self, what: &str) -> bool {
        self.0.get(what).is_some_and(|count| *count > 0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, by) in &other.0 {
            self.count(what, *by);
        }
    }

    /// Returns the number of client operations: waits, releases, conversions, reads and writes. Operations on the
    /// znodes of checked histories are not included.
    pub(crate) fn operations(&self) -> u64 {
        let counts = OPERATIONS.iter().filter_map(|what| self.0.get(what));
        counts.sum()
    }
}

/// The counts that are operations. Each grant has its release.
const OPERATIONS: [&str; 10] = [
    "conversions: downgraded",
    "conversions: lost",
    "conversions: refused",
    "conversions: upgraded",
    "grants",
    "register: reads",
    "register: writes acknowledged",
    "register: writes of unknown outcome",
    "register: writes overtaken",
    "waits",
];

/// The faults and kinds of recovery that all runs together must have shown.
#[cfg(test)]
pub(crate) const EXPECTED: [&str; 55] = [
    "backups",
    "batches of locks",
    "budget: requests refused",
    "budget: requests too large",
    "clients without our extension",
    "clocks beyond the margin",
    "conversions: downgraded",
    "conversions: lost",
    "conversions: refused",
    "conversions: upgraded",
    "ensemble: elections",
    "ensemble: proposals lost",
    "ensemble: sessions expired",
    "ensemble: sessions moved",
    "ensemble: writes of moved sessions",
    "fault: backup restored",
    "fault: damaged disk salvaged",
    "fault: client killed",
    "fault: client stopped",
    "fault: server stopped",
    "fault: server moved",
    "fault: connections reset",
    "fault: disk fails",
    "fault: disk without room",
    "fault: member killed",
    "fault: member lags",
    "fault: member stopped",
    "fault: members all killed",
    "fault: members parted",
    "fault: partition",
    "fault: power lost",
    "fault: power lost after the disk failed",
    "fault: power lost within a write",
    "fault: server killed",
    "fault: server restarted",
    "grants that were lost",
    "history: calls of unknown outcome",
    "network: connections cut",
    "network: pieces held",
    "network: pieces lost",
    "network: refused",
    "network: writes split",
    "register: writes of unknown outcome",
    "register: watches fired",
    "register: writes overtaken",
    "semaphore: numbers changed",
    "server starts",
    "strangers refused",
    "waits for more permits than there are",
    "waits given up",
    "waits that ended with their session",
    "waits without a server",
    "warden: overdue holders seen",
    "warden: overdue holders removed",
    "writes refused by their tokens",
];

/// The same for runs in memory.
#[cfg(test)]
pub(crate) const EXPECTED_IN_MEMORY: [&str; 23] = [
    "batches of locks",
    "conversions: downgraded",
    "conversions: dropped",
    "conversions: lost",
    "conversions: refused",
    "conversions: upgraded",
    "grants",
    "grants that were lost",
    "history: calls of unknown outcome",
    "mutexes locked one by one",
    "mutexes tried one by one",
    "observers: changes seen",
    "permits split",
    "re-entries",
    "re-entries refused",
    "register: watches fired",
    "register: writes of unknown outcome",
    "semaphore: numbers changed",
    "terms of a run",
    "waits for more permits than there are",
    "waits given up",
    "waits that ended with their session",
    "writes refused by their tokens",
];

#[cfg(test)]
impl Tally {
    pub(crate) fn missing(&self, expected: &[&'static str]) -> Vec<&'static str> {
        let expected = expected.iter().copied();
        expected.filter(|what| !self.has(what)).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{what:<32} {count:>12}")?;
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct World(Rc<Inner>);

/// Maximum drift of a clock in microseconds per second. Quartz clocks stay below 100.
const DRIFT_PPM: u64 = 500;

/// Drift beyond all margins.
const WILD_DRIFT_PPM: u64 = 300_000;

/// Creates the clock of a host with its own rate. In a run in memory all share one.
pub(crate) fn drifting(world: &World, random: &mut Random) -> Clock {
    if let Some(memory) = world.memory() {
        return memory.clock().clone();
    }
    let most = match world.clocks_keep_margin() {
        true => DRIFT_PPM,
        false => WILD_DRIFT_PPM,
    };
    let drift = random.within(0..2 * most).cast_signed();
    world.time().clock(drift - most.cast_signed())
}

/// Conditions of a run that determine what its checks may require.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// False if clocks drift so far that only tokens protect.
    pub(crate) clocks_keep_margin: bool,
    /// True if a warden removes overdue holders, which may notice it late.
    pub(crate) holders_are_removed: bool,
    /// Limit of the bytes that the store keeps, if a client fills it.
    pub(crate) max_bytes: Option<usize>,
    /// The tick of an ensemble, or `None` for a server.
    pub(crate) ensemble_tick: Option<Duration>,
    /// True if some clients only speak ZooKeeper's protocol.
    pub(crate) some_are_plain: bool,
}

/// The servers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StoreKind {
    /// `lockkeeper serve`.
    Server,
    /// Three ZooKeeper servers.
    Ensemble,
    /// A store in memory, whose sessions are hurt by a plan.
    Memory,
}

impl Terms {
    pub(crate) fn draw(random: &mut Random, store: Option<StoreKind>) -> Self {
        if store == Some(StoreKind::Memory) {
            return Self {
                clocks_keep_margin: true,
                holders_are_removed: false,
                max_bytes: None,
                ensemble_tick: None,
                some_are_plain: false,
            };
        }
        let tick = [200, 500, 1_000][random.within(0..3) as usize];
        let is_ensemble = match store {
            None => random.once_in(4),
            Some(store) => store == StoreKind::Ensemble,
        };
        Self {
            clocks_keep_margin: !random.once_in(10),
            holders_are_removed: random.once_in(6),
            max_bytes: (random.once_in(5) && !is_ensemble).then_some(TIGHT_BYTES),
            ensemble_tick: is_ensemble.then_some(Duration::from_millis(tick)),
            some_are_plain: random.once_in(4),
        }
    }

    pub(crate) fn hosts(self) -> Vec<String> {
        match self.ensemble_tick {
            None => vec![SERVER.to_owned()],
            Some(_) => (0..MEMBERS).map(|member| format!("zk-{member}")).collect(),
        }
    }
}

pub(crate) const SERVER: &str = "server";

const MEMBERS: usize = 3;

/// Limit of a store that must become full. It fits the queues of all clients, and about twenty large znodes.
const TIGHT_BYTES: usize = 256 << 10;

struct Inner {
    terms: Terms,
    least_operations: u64,
    time: Time,
    network: Network,
    memory: Option<Memory>,
    tally: RefCell<Tally>,
    story: RefCell<Vec<String>>,
    violation: RefCell<Option<String>>,
    violated: Notify,
}

impl World {
    pub(crate) fn new(
        (time, network, memory): (Time, Network, Option<Memory>),
        terms: Terms,
        least_operations: u64,
    ) -> Self {
        Self(Rc::new(Inner {
            terms,
            least_operations,
            time,
            network,
            memory,
            tally: RefCell::default(),
            story: RefCell::default(),
            violation: RefCell::default(),
            violated: Notify::new(),
        }))
    }

    pub(crate) fn clocks_keep_margin(&self) -> bool {
        self.0.terms.clocks_keep_margin
    }

    pub(crate) fn holders_are_removed(&self) -> bool {
        self.0.terms.holders_are_removed
    }

    /// Returns `true` for an ensemble, where reads may be stale.
    pub(crate) fn is_ensemble(&self) -> bool {
        self.0.terms.ensemble_tick.is_some()
    }

    pub(crate) fn ensemble_tick(&self) -> Option<Duration> {
        self.0.terms.ensemble_tick
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        self.0.terms.hosts()
    }

    /// Returns the servers as a client connects to them. The client may only speak ZooKeeper's protocol.
    pub(crate) fn servers(&self, random: &mut Random) -> Servers {
        let is_plain = self.0.terms.some_are_plain && random.once_in(2);
        if is_plain && !self.is_ensemble() {
            self.count("clients without our extension");
        }
        Servers {
            hosts: self.hosts(),
            ensemble_tick: self.0.terms.ensemble_tick,
            is_plain,
        }
    }

    pub(crate) fn max_bytes(&self) -> Option<usize> {
        self.0.terms.max_bytes
    }

    /// Returns `true` if the store may have refused a request for lack of room, due to its own limit or its disk. On a
    /// connection without our extension, both have the same error.
    pub(crate) fn can_run_out_of_room(&self) -> bool {
        self.max_bytes().is_some() || self.has_happened("fault: disk without room")
    }

    /// Returns `true` if no two may believe simultaneously that they hold. Otherwise only tokens protect.
    pub(crate) fn beliefs_exclude(&self) -> bool {
        self.clocks_keep_margin() && !self.holders_are_removed()
    }

    pub(crate) fn time(&self) -> &Time {
        &self.0.time
    }

    pub(crate) fn network(&self) -> &Network {
        &self.0.network
    }

    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.0.memory.as_ref()
    }

    pub(crate) fn count(&self, what: &'static str) {
        self.0.tally.borrow_mut().count(what, 1);
    }

    pub(crate) fn count_many(&self, what: &'static str, by: u64) {
        self.0.tally.borrow_mut().count(what, by);
    }

    /// Returns `true` while the run has too few operations.
    pub(crate) fn is_short(&self) -> bool {
        self.0.tally.borrow().operations() < self.0.least_operations
    }

    pub(crate) fn has_happened(&self, what: &str) -> bool {
        self.0.tally.borrow().has(what)
    }

    pub(crate) fn tell(&self, event: impl fmt::Display) {
        let at = self.0.time.elapsed().as_secs_f64();
        self.0.story.borrow_mut().push(format!("{at:>9.3} {event}"));
    }

    /// Records a broken promise, which ends the run.
    pub(crate) fn violate(&self, what: impl fmt::Display) {
        self.tell(format_args!("VIOLATION {what}"));
        let mut violation = self.0.violation.borrow_mut();
        violation.get_or_insert_with(|| what.to_string());
        self.0.violated.notify_one();
    }

    pub(crate) async fn violated(&self) {
        self.0.violated.notified().await;
    }

    pub(crate) fn violation(&self) -> Option<String> {
        self.0.violation.borrow().clone()
    }

    pub(crate) fn story(&self) -> Vec<String> {
        self.0.story.borrow().clone()
    }

    pub(crate) fn tally(&self) -> Tally {
        self.0.tally.borrow().clone()
    }
}
