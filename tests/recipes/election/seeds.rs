//! Elections in simulation: candidates, and observers beside them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Clock, FencingToken, Role};

use super::*;
use crate::harness::simulation::{
    Actor, Contender, Counters, Fenced, Holding, Random, Resource, Scenario, Simulation,
    assert_replays, compete, or_cancelled, simulate,
};

#[test]
fn no_seed_breaks_the_election() {
    let total = simulate::<Candidates>(500);
    total.assert_more_than_runs("terms");
    total.assert_more_than_runs("seen");
}

#[cfg(all(feature = "file", feature = "server", feature = "client"))]
#[test]
fn no_hurt_connection_breaks_the_election() {
    let total = crate::harness::simulation::simulate_over_a_wire::<Candidates>(6);
    total.assert_more_than_runs("terms");
    total.assert_more_than_runs("connections");
}

#[test]
fn a_seed_replays() {
    assert_replays::<Candidates>(30);
}

/// Data of the last leader, which leads until all observers have seen it.
const LAST: &str = "the last";

/// Candidates and observers of one election.
struct Candidates(Rc<Office>);

impl Scenario for Candidates {
    const FAULTS_S: std::ops::Range<u64> = 5..60;

    fn start(simulation: &mut Simulation) -> Self {
        let clients = simulation.clients(2..5);
        let office = Rc::new(Office::new(&simulation.counters));
        let election = |client| Election::new(client, LOCK).unwrap();
        for client in &clients {
            for _ in 0..simulation.random.within(1..4) {
                office.candidates.set(office.candidates.get() + 1);
                let candidate = Candidate {
                    election: election(client),
                    office: office.clone(),
                    actor: simulation.actor(),
                };
                simulation.spawn(compete(candidate, 1..6));
            }
            office.observers.set(office.observers.get() + 1);
            simulation.spawn(observe(election(client), office.clone()));
        }
        let last = election(&clients[0]);
        let clock = simulation.clock();
        simulation.spawn(lead_last(last, clock, office.clone()));
        Self(office)
    }

    fn check(&self) {
        self.0.terms.check();
        for term in self.0.terms.holders().iter() {
            let epoch = term.leadership.epoch();
            // Twice: where time is real, the belief may end between two looks.
            let before = term.leadership.is_held();
            let is_leader = term.election.state().current() == Role::Leader { epoch };
            let after = term.leadership.is_held();
            assert!(
                is_leader == before || is_leader == after,
                "the state says another thing than the leadership"
            );
        }
    }
}

/// The office that candidates stand for: it checks epochs, and that no two believe to lead.
struct Office {
    terms: Resource<Term>,
    candidates: Cell<u64>,
    observers: Cell<u64>,
    counters: Counters,
}

/// A leadership, and the election that says so.
struct Term {
    leadership: Arc<Leadership>,
    election: Election,
}

impl Holding for Term {
    fn is_held(&self) -> bool {
        self.leadership.is_held()
    }
}

impl Fenced for Term {
    fn fencing_token(&self) -> FencingToken {
        self.leadership.epoch()
    }
}

impl Office {
    fn new(counters: &Counters) -> Self {
        Self {
            terms: Resource::new(counters),
            candidates: Cell::default(),
            observers: Cell::default(),
            counters: counters.clone(),
        }
    }

    fn begin(&self, leadership: Arc<Leadership>, election: &Election) -> Rc<Term> {
        self.counters.add("terms", 1);
        let election = election.clone();
        let term = Term {
            leadership,
            election,
        };
        self.terms.granted(&term);
        let term = self.terms.enter(term);
        self.terms.write(&term);
        term
    }

    fn end(&self, term: Rc<Term>) -> Arc<Leadership> {
        // Also when the leadership is lost: then it is the epoch that protects the resource.
        self.terms.write(&term);
        self.terms.leave(term).leadership
    }
}

/// A candidate that stands for election in different ways.
struct Candidate {
    election: Election,
    office: Rc<Office>,
    actor: Actor,
}

impl Contender for Candidate {
    type Granted = Leadership;

    fn actor(&mut self) -> &mut Actor {
        &mut self.actor
    }

    async fn contend(&mut self) -> Result<Option<Leadership>, LockError> {
        let limit = self.actor.duration(10_000);
        let sleep = self.actor.clock.sleep(limit);
        if self.actor.random.within(0..3) == 0 {
            or_cancelled(self.run(), sleep).await.unwrap();
            return Ok(None);
        }
        let election = &self.election;
        match self.actor.random.within(0..4) {
            0 => election.try_campaign("try").await,
            1 => {
                let campaign = election.campaign_timeout("in time", limit);
                campaign.await.map(Some)
            }
            2 => or_cancelled(election.campaign("maybe"), sleep).await,
            _ => election.campaign("patient").await.map(Some),
        }
    }

    /// Goes on until it has led to the end.
    async fn insist(&mut self) -> Result<Option<Leadership>, LockError> {
        self.run().await.unwrap();
        self.office.candidates.set(self.office.candidates.get() - 1);
        Ok(None)
    }

    async fn hold(&mut self, leadership: Leadership) {
        let leadership = Arc::new(leadership);
        let term = self.office.begin(leadership.clone(), &self.election);
        let longest = self.actor.longest_stay();
        if self.actor.random.within(0..2) == 0 {
            // Refused or not: the term may be over.
            let data = format!("at work in {}", leadership.epoch());
            let _ = leadership.set_data(data).await;
        }
        if self.actor.random.within(0..3) == 0 {
            let length = self.actor.duration(longest);
            let _ = leadership.protect(self.actor.clock.sleep(length)).await;
        } else {
            self.actor.rest(longest).await;
        }
        drop(self.office.end(term));
        let leadership = Arc::into_inner(leadership).expect("nobody else has it");
        self.actor.let_go(leadership, Leadership::resign).await;
    }
}

impl Candidate {
    async fn run(&mut self) -> Result<(), LockError> {
        let (mut random, clock) = (Random(self.actor.random.next()), self.actor.clock.clone());
        let (election, office) = (self.election.clone(), self.office.clone());
        self.election
            .run("running", move |leadership| {
                let term = Running::begin(&office, &election, leadership);
                let longest = [3_000, 40_000][usize::from(random.within(0..4) == 0)];
                let work = clock.sleep(Duration::from_millis(random.within(0..longest)));
                async move {
                    work.await;
                    drop(term);
                }
            })
            .await
    }
}

/// A term at work, until its future is done or dropped.
struct Running {
    office: Rc<Office>,
    term: Option<Rc<Term>>,
}

impl Running {
    fn begin(office: &Rc<Office>, election: &Election, leadership: Arc<Leadership>) -> Self {
        Self {
            term: Some(office.begin(leadership, election)),
            office: office.clone(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking()
            && let Some(term) = self.term.take()
        {
            drop(self.office.end(term));
        }
    }
}

/// Sees the leaders, in the order of their epochs, until the last.
async fn observe(election: Election, office: Rc<Office>) {
    let mut changes = election.observe();
    let mut told: Option<LeaderChange> = None;
    let mut newest = None;
    loop {
        let change = next(&mut changes).await;
        office.counters.add("seen", 1);
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
    office.observers.set(office.observers.get() - 1);
}

/// Leads when all others are done, until all observers have seen it.
async fn lead_last(election: Election, clock: Clock, office: Rc<Office>) {
    let second = Duration::from_secs(1);
    while office.candidates.get() > 0 {
        clock.sleep(second).await;
    }
    let seen = |leadership: Arc<Leadership>| {
        let term = Running::begin(&office, &election, leadership);
        let (clock, office) = (clock.clone(), office.clone());
        async move {
            while office.observers.get() > 0 {
                clock.sleep(second).await;
            }
            drop(term);
        }
    };
    election.run(LAST, seen).await.unwrap();
}
