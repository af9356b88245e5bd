//! Thousands of runs with faults by plan, in virtual time, on one thread: a seed decides all. Several
//! tasks share each owner, and enter again while they are inside.
//!
//! A run that fails prints its seed, and `LOCKKEEPER_SEED=n` replays it alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use lockkeeper::{Clock, FencingGate, FencingToken, ReentrantGuard};

use super::*;
use crate::seeds::{
    Executor, Random, Setting, client, first_runs, nothing_is_left, or_cancelled, run_out, runs,
};
use crate::support::report;

#[test]
fn no_seed_lets_two_owners_in() {
    let start = Instant::now();
    let mut total = Tally::default();
    let mut number = 0;
    for (seed, setting) in runs(1_000) {
        total.add(run(seed, setting));
        number += 1;
    }
    report(format_args!(
        "{number} runs of the re-entrant mutex in {:.1?}: {total:?}",
        start.elapsed()
    ));
    assert!(total.holdings > number, "the runs did something");
    assert!(total.again > number && total.lost > 0 && total.refused > 0 && total.late > 0);
}

/// Sessions have random ids, entries random names: none of that may sway a run.
#[test]
fn a_seed_replays() {
    for (seed, setting) in first_runs(30) {
        let outcome = run(seed, setting);
        assert_eq!(outcome, run(seed, setting), "seed {seed}, {setting:?}");
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    /// First entries.
    holdings: u64,
    /// Entries of who had entered already.
    again: u64,
    /// Entries that were lost.
    lost: u64,
    /// Who wanted to enter while guards of a lost holding were left.
    refused: u64,
    /// Writes with an old token.
    late: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.holdings += other.holdings;
        self.again += other.again;
        self.lost += other.lost;
        self.refused += other.refused;
        self.late += other.late;
    }
}

/// One run: some owners under faults, then without, until all of theirs have come to their ends.
fn run(seed: u64, setting: Setting) -> Tally {
    let mut random = Random(seed);
    let (base, store) = setting.store(seed, &mut random);
    let (clock, _told) = (store.clock().clone(), setting.told());
    let resource = Rc::new(Resource::default());
    let mut executor = Executor::default();
    let mut number = 0;
    for _ in 0..random.within(1..4) {
        let mutex = ReentrantMutex::new(&client(&store, &mut random), LOCK).unwrap();
        for _ in 0..random.within(1..3) {
            let owner = mutex.owner();
            number += 1;
            for _ in 0..random.within(1..4) {
                let worker = Worker {
                    owner: owner.clone(),
                    number,
                    clock: clock.clone(),
                    resource: resource.clone(),
                    random: Random(random.next()),
                };
                executor.spawn(worker.work());
            }
        }
    }
    let faults_for = Duration::from_secs(random.within(5..90));
    run_out(&store, &mut executor, faults_for, || resource.check());
    nothing_is_left(&base, LOCK);
    resource.tally.get()
}

/// One entry, of the owner with this number.
struct Inside {
    owner: u64,
    guard: ReentrantGuard,
}

/// What the lock protects. It checks tokens, and that no two owners believe to hold at one moment.
#[derive(Default)]
struct Resource {
    gate: RefCell<FencingGate>,
    inside: RefCell<Vec<Rc<Inside>>>,
    newest: Cell<Option<FencingToken>>,
    tally: Cell<Tally>,
}

impl Resource {
    fn count(&self, one: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        one(&mut tally);
        self.tally.set(tally);
    }

    fn check(&self) {
        let inside = self.inside.borrow();
        let mut holding = inside.iter().filter(|entry| entry.guard.is_held());
        if let Some(one) = holding.next() {
            assert!(
                holding.all(|other| other.owner == one.owner),
                "two owners believe to hold at the same moment"
            );
        }
    }

    fn has_entered(&self, owner: u64) -> bool {
        self.inside
            .borrow()
            .iter()
            .any(|entry| entry.owner == owner)
    }

    fn enter(&self, owner: u64, guard: ReentrantGuard) -> Rc<Inside> {
        assert!(guard.is_held(), "granted when it is lost already");
        let token = guard.fencing_token();
        let is_again = self.has_entered(owner);
        for entry in self.inside.borrow().iter() {
            assert!(
                entry.owner != owner || entry.guard.fencing_token() == token,
                "entered anew beside guards of an older holding"
            );
        }
        if is_again {
            assert_eq!(self.newest.get(), Some(token));
        } else if self.newest.get() != Some(token) {
            assert!(self.newest.get() < Some(token), "tokens go backwards");
            self.newest.set(Some(token));
        }
        self.count(|tally| match is_again {
            true => tally.again += 1,
            false => tally.holdings += 1,
        });
        let entry = Rc::new(Inside { owner, guard });
        self.inside.borrow_mut().push(entry.clone());
        self.check();
        entry
    }

    /// A write, with the token checked; those who believe to hold must not be refused.
    fn write(&self, guard: &ReentrantGuard) {
        let held = guard.is_held();
        let admitted = self.gate.borrow_mut().admit(guard.fencing_token());
        assert!(admitted.is_ok() || !held, "a holder is refused");
        self.count(|tally| tally.late += u64::from(admitted.is_err()));
    }

    fn leave(&self, entry: Rc<Inside>) -> ReentrantGuard {
        self.inside
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &entry));
        let entry = Rc::into_inner(entry).expect("nobody else has it");
        let lost = u64::from(!entry.guard.is_held());
        self.count(|tally| tally.lost += lost);
        entry.guard
    }

    /// A refusal is right only while somebody of the owner's is still inside, under what is lost.
    fn refused(&self, owner: u64) {
        let inside = self.inside.borrow();
        let mut own = inside.iter().filter(|entry| entry.owner == owner);
        assert!(
            own.next().is_some_and(|entry| !entry.guard.is_held()),
            "refused, and nobody is inside"
        );
        self.count(|tally| tally.refused += 1);
    }
}

/// One task of an owner, which tries its luck in different ways.
struct Worker {
    owner: Owner,
    number: u64,
    clock: Clock,
    resource: Rc<Resource>,
    random: Random,
}

impl Worker {
    async fn work(mut self) {
        for _ in 0..self.random.within(2..6) {
            self.rest(2_000).await;
            let outcome = self.contend().await;
            if let Some(guard) = self.entered(outcome) {
                self.hold(guard).await;
            }
        }
        // The last one waits for as long as it takes: nobody is forgotten.
        loop {
            let outcome = self.owner.lock().await.map(Some);
            if let Some(guard) = self.entered(outcome) {
                return self.hold(guard).await;
            }
            self.rest(500).await;
        }
    }

    async fn contend(&mut self) -> Result<Option<ReentrantGuard>, LockError> {
        let limit = Duration::from_millis(self.random.within(0..10_000));
        match self.random.within(0..5) {
            0 => self.owner.try_lock().await,
            1 => self.owner.lock_timeout(limit).await.map(Some),
            2 => or_cancelled(self.owner.lock(), self.clock.sleep(limit)).await,
            _ => self.owner.lock().await.map(Some),
        }
    }

    fn entered(
        &self,
        outcome: Result<Option<ReentrantGuard>, LockError>,
    ) -> Option<ReentrantGuard> {
        match outcome {
            Ok(entered) => return entered,
            Err(LockError::Lost(_)) => self.resource.refused(self.number),
            Err(LockError::Timeout { .. }) => {}
            Err(error) => assert!(error.is_session_end(), "{error}"),
        }
        None
    }

    async fn hold(&mut self, guard: ReentrantGuard) {
        let outer = self.resource.enter(self.number, guard);
        self.resource.write(&outer.guard);
        self.rest_inside().await;
        let mut entries = vec![outer];
        for _ in 0..self.random.within(0..3) {
            let outcome = self.contend().await;
            if let Some(guard) = self.entered(outcome) {
                entries.push(self.resource.enter(self.number, guard));
            }
            self.rest_inside().await;
        }
        while !entries.is_empty() {
            // In any order; also when the lock is lost: then it is the token that protects.
            let next = self.random.within(0..entries.len() as u64) as usize;
            let entry = entries.remove(next);
            self.resource.write(&entry.guard);
            let guard = self.resource.leave(entry);
            match self.random.within(0..3) {
                0 => drop(guard),
                1 => drop(guard.release()),
                _ => drop(guard.release().await),
            }
        }
    }

    async fn rest_inside(&mut self) {
        let longest = if self.random.within(0..8) == 0 {
            40_000
        } else {
            1_500
        };
        self.rest(longest).await;
    }

    async fn rest(&mut self, longest_ms: u64) {
        let length = Duration::from_millis(self.random.within(0..longest_ms));
        self.clock.sleep(length).await;
    }
}
