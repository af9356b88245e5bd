//! Elections under faults by plan, in virtual time, on one thread: a seed decides all. As
//! `crate::seeds`, which has the words; `LOCKKEEPER_SEED=n` replays one alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Clock, FencingGate, FencingToken, Role};

use super::*;
use crate::seeds::{
    Executor, Random, Setting, client, first_runs, nothing_is_left, or_cancelled, run_out, runs,
};
use crate::support::report;

#[test]
fn no_seed_breaks_the_election() {
    let start = Instant::now();
    let mut total = Tally::default();
    for (seed, setting) in runs(500) {
        let tally = run(seed, setting);
        total.seeds += tally.seeds;
        total.terms += tally.terms;
        total.lost += tally.lost;
        total.refused += tally.refused;
        total.seen += tally.seen;
    }
    report(format_args!(
        "{} seeds in {:.1?}: {} terms, {} of them lost, {} late writes refused, {} changes seen",
        total.seeds,
        start.elapsed(),
        total.terms,
        total.lost,
        total.refused,
        total.seen
    ));
    assert!(
        total.terms > total.seeds && total.seen > total.seeds,
        "the runs did something"
    );
}

#[test]
fn a_seed_replays() {
    for (seed, setting) in first_runs(30) {
        let outcome = run(seed, setting);
        assert_eq!(outcome, run(seed, setting), "seed {seed}, {setting:?}");
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    seeds: u64,
    terms: u64,
    lost: u64,
    refused: u64,
    seen: u64,
}

/// What the last leader says, who leads until all observers have seen it.
const LAST: &str = "the last";

/// One run: candidates and observers under faults, then without, until all have come to their ends.
fn run(seed: u64, setting: Setting) -> Tally {
    let mut random = Random(seed);
    let (base, store) = setting.store(seed, &mut random);
    let (clock, _told) = (store.clock().clone(), setting.told());
    let clients: Vec<_> = (0..random.within(2..5))
        .map(|_| client(&store, &mut random))
        .collect();
    let resource = Rc::new(Resource::default());
    let mut executor = Executor::default();
    for client in &clients {
        for _ in 0..random.within(1..4) {
            resource.candidates.set(resource.candidates.get() + 1);
            let candidate = Candidate {
                election: Election::new(client, LOCK).unwrap(),
                clock: clock.clone(),
                resource: resource.clone(),
                random: Random(random.next()),
            };
            executor.spawn(candidate.work());
        }
        resource.observers.set(resource.observers.get() + 1);
        executor.spawn(observe(
            Election::new(client, LOCK).unwrap(),
            resource.clone(),
        ));
    }
    let last = Election::new(&clients[0], LOCK).unwrap();
    executor.spawn(lead_last(last, clock.clone(), resource.clone()));

    let faults_for = Duration::from_secs(random.within(5..60));
    run_out(&store, &mut executor, faults_for, || resource.check());
    nothing_is_left(&base, LOCK);
    Tally {
        seeds: 1,
        ..resource.tally.get()
    }
}

/// What the leader works on. It checks epochs, and that no two believe to lead at the same moment.
#[derive(Default)]
struct Resource {
    gate: RefCell<FencingGate>,
    terms: RefCell<Vec<(Arc<Leadership>, Election)>>,
    newest: Cell<Option<FencingToken>>,
    candidates: Cell<u64>,
    observers: Cell<u64>,
    tally: Cell<Tally>,
}

impl Resource {
    fn count(&self, count: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        count(&mut tally);
        self.tally.set(tally);
    }

    fn check(&self) {
        let terms = self.terms.borrow();
        let held = terms.iter().filter(|(term, _)| term.is_held()).count();
        assert!(held <= 1, "{held} believe to lead at the same moment");
        for (term, election) in terms.iter() {
            let leading = Role::Leader {
                epoch: term.epoch(),
            };
            let says = election.state().current() == leading;
            assert_eq!(
                says,
                term.is_held(),
                "the state says another thing than the leadership"
            );
        }
    }

    fn begin(&self, term: &Arc<Leadership>, election: &Election) {
        self.count(|tally| tally.terms += 1);
        assert!(term.is_held(), "elected when it is lost already");
        assert!(
            self.newest.get() < Some(term.epoch()),
            "epochs go backwards"
        );
        self.newest.set(Some(term.epoch()));
        self.terms
            .borrow_mut()
            .push((term.clone(), election.clone()));
        self.check();
        self.write(term);
    }

    /// A write, with the epoch checked; who believes to lead must not be refused.
    fn write(&self, term: &Leadership) {
        let held = term.is_held();
        let admitted = self.gate.borrow_mut().admit(term.epoch());
        assert!(
            admitted.is_ok() || !held,
            "a leader is refused: {}",
            admitted.unwrap_err()
        );
        self.count(|tally| tally.refused += u64::from(admitted.is_err()));
    }

    fn end(&self, term: &Arc<Leadership>) {
        // Also when the leadership is lost: then it is the epoch that protects the resource.
        self.write(term);
        self.count(|tally| tally.lost += u64::from(!term.is_held()));
        self.forget(term);
    }

    fn forget(&self, term: &Arc<Leadership>) {
        self.terms
            .borrow_mut()
            .retain(|(other, _)| !Arc::ptr_eq(other, term));
    }
}

/// One that stands for election in different ways.
struct Candidate {
    election: Election,
    clock: Clock,
    resource: Rc<Resource>,
    random: Random,
}

impl Candidate {
    async fn work(mut self) {
        for _ in 0..self.random.within(1..6) {
            self.rest(2_000).await;
            let limit = Duration::from_millis(self.random.within(0..10_000));
            if self.random.within(0..3) == 0 {
                let sleep = self.clock.sleep(limit);
                or_cancelled(self.run(), sleep).await.unwrap();
                continue;
            }
            match self.campaign(limit).await {
                Ok(Some(leadership)) => self.lead(leadership).await,
                Ok(None) | Err(LockError::Timeout { .. }) => {}
                Err(error) if error.is_session_end() => {}
                Err(error) => panic!("{error}"),
            }
        }
        // The last one goes on until it has led to the end: nobody is forgotten.
        self.run().await.unwrap();
        self.resource
            .candidates
            .set(self.resource.candidates.get() - 1);
    }

    async fn campaign(&mut self, limit: Duration) -> Result<Option<Leadership>, LockError> {
        match self.random.within(0..4) {
            0 => self.election.try_campaign("try").await,
            1 => self
                .election
                .campaign_timeout("in time", limit)
                .await
                .map(Some),
            2 => {
                let (election, sleep) = (self.election.clone(), self.clock.sleep(limit));
                or_cancelled(async move { election.campaign("maybe").await }, sleep).await
            }
            _ => self.election.campaign("patient").await.map(Some),
        }
    }

    async fn run(&mut self) -> Result<(), LockError> {
        let (mut random, clock) = (Random(self.random.next()), self.clock.clone());
        let (election, resource) = (self.election.clone(), self.resource.clone());
        self.election
            .run("running", move |leadership| {
                let term = Term::begin(&resource, &election, leadership);
                let longest = [3_000, 40_000][usize::from(random.within(0..4) == 0)];
                let work = clock.sleep(Duration::from_millis(random.within(0..longest)));
                async move {
                    work.await;
                    drop(term);
                }
            })
            .await
    }

    async fn lead(&mut self, leadership: Leadership) {
        let term = Arc::new(leadership);
        self.resource.begin(&term, &self.election);
        let longest = if self.random.within(0..8) == 0 {
            40_000
        } else {
            1_500
        };
        if self.random.within(0..2) == 0 {
            // Refused or not: the term may be over.
            let _ = term.set_data(format!("at work in {}", term.epoch())).await;
        }
        if self.random.within(0..3) == 0 {
            let length = Duration::from_millis(self.random.within(0..longest));
            let _ = term.protect(self.clock.sleep(length)).await;
        } else {
            self.rest(longest).await;
        }
        self.resource.end(&term);
        let leadership = Arc::into_inner(term).expect("nobody else has it");
        match self.random.within(0..3) {
            0 => drop(leadership),
            1 => drop(leadership.resign()),
            _ => drop(leadership.resign().await),
        }
    }

    async fn rest(&mut self, longest_ms: u64) {
        let length = Duration::from_millis(self.random.within(0..longest_ms));
        self.clock.sleep(length).await;
    }
}

/// A term at work, until its future is done or dropped.
struct Term {
    resource: Rc<Resource>,
    leadership: Arc<Leadership>,
}

impl Term {
    fn begin(resource: &Rc<Resource>, election: &Election, leadership: Arc<Leadership>) -> Self {
        resource.begin(&leadership, election);
        Self {
            resource: resource.clone(),
            leadership,
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.resource.end(&self.leadership);
    }
}

/// Sees who leads, in the order of their epochs, until the last.
async fn observe(election: Election, resource: Rc<Resource>) {
    let mut changes = election.observe();
    let mut told: Option<LeaderChange> = None;
    let mut newest = None;
    loop {
        let change = next(&mut changes).await;
        resource.count(|tally| tally.seen += 1);
        match &change {
            LeaderChange::Elected(leader) => {
                assert!(newest < Some(leader.epoch), "an older leader is seen");
                newest = Some(leader.epoch);
            }
            LeaderChange::DataChanged(leader) => {
                assert_eq!(
                    newest,
                    Some(leader.epoch),
                    "data of one that was not seen elected"
                );
            }
            _ => assert_ne!(told, Some(LeaderChange::Vacant), "told twice"),
        }
        let data = change.leader().and_then(|leader| leader.data.as_deref());
        if data == Some(LAST) {
            break;
        }
        told = Some(change);
    }
    resource.observers.set(resource.observers.get() - 1);
}

/// Leads when all others are done, until all observers have seen it.
async fn lead_last(election: Election, clock: Clock, resource: Rc<Resource>) {
    let second = Duration::from_secs(1);
    while resource.candidates.get() > 0 {
        clock.sleep(second).await;
    }
    let seen = |leadership: Arc<Leadership>| {
        let term = Term::begin(&resource, &election, leadership);
        let (clock, resource) = (clock.clone(), resource.clone());
        async move {
            while resource.observers.get() > 0 {
                clock.sleep(second).await;
            }
            drop(term);
        }
    };
    election.run(LAST, seen).await.unwrap();
}
