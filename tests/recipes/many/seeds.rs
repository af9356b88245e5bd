//! Batches under faults by plan, in virtual time, on one thread: a seed decides all. A run that fails
//! prints its seed, and `LOCKKEEPER_SEED=n` replays it alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use lockkeeper::{Clock, FencingGate, FencingToken, Guard, LockPath, lock_each, try_lock_many};

use super::*;
use crate::seeds::{
    Executor, Random, Setting, client, first_runs, nothing_is_left, or_cancelled, run_out, runs,
};
use crate::support::report;

/// So many locks are there in all.
const LOCKS: u64 = 5;

#[test]
fn no_seed_breaks_a_lock_or_lets_batches_deadlock() {
    let start = Instant::now();
    let mut total = Tally::default();
    for (seed, setting) in runs(1_000) {
        total.add(run(seed, setting));
    }
    report(format_args!(
        "{} seeds in {:.1?}: {} locks granted, {} of them lost, {} late writes refused",
        total.seeds,
        start.elapsed(),
        total.grants,
        total.lost,
        total.refused,
    ));
    assert!(total.grants > total.seeds, "the runs did something");
}

#[test]
fn a_seed_replays() {
    for (seed, setting) in first_runs(50) {
        let outcome = run(seed, setting);
        assert_eq!(outcome, run(seed, setting), "seed {seed}, {setting:?}");
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    seeds: u64,
    grants: u64,
    lost: u64,
    refused: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.grants += other.grants;
        self.lost += other.lost;
        self.refused += other.refused;
    }
}

/// One run: some who lock several things at once under faults, then without, until all have come to
/// their ends. If any two of them waited for each other, the run would not.
fn run(seed: u64, setting: Setting) -> Tally {
    let mut random = Random(seed);
    let (base, store) = setting.store(seed, &mut random);
    let (clock, _told) = (store.clock().clone(), setting.told());
    let resources = Rc::new(Resources::default());
    let mut executor = Executor::default();
    for _ in 0..random.within(2..6) {
        let client = client(&store, &mut random);
        for _ in 0..random.within(1..4) {
            let worker = Worker {
                client: client.clone(),
                clock: clock.clone(),
                resources: resources.clone(),
                random: Random(random.next()),
            };
            executor.spawn(worker.work());
        }
    }
    let faults_for = Duration::from_secs(random.within(5..90));
    run_out(&store, &mut executor, faults_for, || resources.check());
    for lock in 0..LOCKS {
        nothing_is_left(&base, &name(lock));
    }
    Tally {
        seeds: 1,
        ..resources.tally.get()
    }
}

fn name(lock: u64) -> String {
    format!("/seeds/{lock}")
}

/// What the locks protect. Each checks tokens, and that no two believe to hold it at the same moment.
#[derive(Default)]
struct Resources {
    each: [Resource; LOCKS as usize],
    tally: Cell<Tally>,
}

#[derive(Default)]
struct Resource {
    gate: RefCell<FencingGate>,
    holders: RefCell<Vec<Rc<Guard>>>,
    newest: Cell<Option<FencingToken>>,
}

type Held = (usize, Rc<Guard>);

impl Resources {
    fn count(&self, one: Tally) {
        let mut tally = self.tally.get();
        tally.add(one);
        self.tally.set(tally);
    }

    fn check(&self) {
        for resource in &self.each {
            let holders = resource.holders.borrow();
            let held = holders.iter().filter(|guard| guard.is_held()).count();
            assert!(held <= 1, "{held} believe to hold at the same moment");
        }
    }

    fn enter(&self, (key, guard): (LockPath, Guard)) -> Held {
        let index: usize = key.as_znode().name().parse().unwrap();
        let resource = &self.each[index];
        let token = guard.fencing_token();
        assert!(resource.newest.get() < Some(token), "tokens go backwards");
        resource.newest.set(Some(token));
        let guard = Rc::new(guard);
        resource.holders.borrow_mut().push(guard.clone());
        self.check();
        self.count(Tally {
            grants: 1,
            ..Tally::default()
        });
        (index, guard)
    }

    /// A write, with the token checked; those who believe to hold must not be refused.
    fn write(&self, (index, guard): &Held) {
        let held = guard.is_held();
        let admitted = self.each[*index]
            .gate
            .borrow_mut()
            .admit(guard.fencing_token());
        assert!(admitted.is_ok() || !held, "a holder is refused");
        self.count(Tally {
            refused: u64::from(admitted.is_err()),
            ..Tally::default()
        });
    }

    fn leave(&self, (index, guard): Held) -> Guard {
        let mut holders = self.each[index].holders.borrow_mut();
        holders.retain(|other| !Rc::ptr_eq(other, &guard));
        self.count(Tally {
            lost: u64::from(!guard.is_held()),
            ..Tally::default()
        });
        Rc::into_inner(guard).expect("nobody else has it")
    }
}

/// One who locks several things at once, in different ways.
struct Worker {
    client: Client,
    clock: Clock,
    resources: Rc<Resources>,
    random: Random,
}

impl Worker {
    async fn work(mut self) {
        for _ in 0..self.random.within(2..6) {
            self.rest(2_000).await;
            match self.contend().await {
                Ok(guards) => self.hold(guards).await,
                Err(LockError::Timeout { .. }) => {}
                Err(error) if error.is_session_end() => {}
                Err(error) => panic!("{error}"),
            }
        }
        // The last one waits for as long as it takes: nobody is forgotten.
        loop {
            let keys = self.some_keys();
            match lock_all(&self.client, keys).await {
                Ok(guard) => return self.hold(guard.into_guards()).await,
                Err(error) => assert!(error.is_session_end(), "{error}"),
            }
        }
    }

    /// Some of the locks, in any order.
    fn some_keys(&mut self) -> Vec<String> {
        let mut locks: Vec<_> = (0..LOCKS).collect();
        for index in (1..locks.len()).rev() {
            locks.swap(index, self.random.within(0..index as u64 + 1) as usize);
        }
        locks.truncate(self.random.within(1..LOCKS) as usize);
        locks.into_iter().map(name).collect()
    }

    async fn contend(&mut self) -> Result<Vec<(LockPath, Guard)>, LockError> {
        let (client, keys) = (self.client.clone(), self.some_keys());
        let limit = Duration::from_millis(self.random.within(0..10_000));
        let guard = match self.random.within(0..7) {
            0 | 1 => {
                let taken = try_lock_many(&client, keys).await?.acquired;
                assert!(taken.iter().all(|(_, guard)| guard.is_held()));
                return Ok(taken);
            }
            2 => {
                let options = LockOptions::new().timeout(limit);
                lock_all_with(&client, keys, options).await?
            }
            3 => {
                let wait = async move { lock_all(&client, keys).await };
                match or_cancelled(wait, self.clock.sleep(limit)).await? {
                    Some(guard) => guard,
                    None => return Ok(Vec::new()),
                }
            }
            4 => {
                self.one_by_one(&client, keys).await?;
                return Ok(Vec::new());
            }
            _ => lock_all(&client, keys).await?,
        };
        assert!(guard.is_held(), "granted when it is lost already");
        Ok(guard.into_guards())
    }

    /// Works at each as it is granted, and may go before the last.
    async fn one_by_one(&mut self, client: &Client, keys: Vec<String>) -> Result<(), LockError> {
        let mut each = lock_each(client, keys)?;
        while let Some(granted) = each.next().await {
            self.hold(vec![granted?]).await;
            if self.random.within(0..4) == 0 {
                break;
            }
        }
        Ok(())
    }

    async fn hold(&mut self, guards: Vec<(LockPath, Guard)>) {
        let held: Vec<_> = guards
            .into_iter()
            .map(|granted| self.resources.enter(granted))
            .collect();
        held.iter().for_each(|held| self.resources.write(held));
        let longest = if self.random.within(0..8) == 0 {
            40_000
        } else {
            1_500
        };
        self.rest(longest).await;
        // Also when they are lost: then it is the token that protects the resources.
        held.iter().for_each(|held| self.resources.write(held));
        for held in held {
            let guard = self.resources.leave(held);
            match self.random.within(0..3) {
                0 => drop(guard),
                1 => drop(guard.release()),
                _ => drop(guard.release().await),
            }
        }
    }

    async fn rest(&mut self, longest_ms: u64) {
        let length = Duration::from_millis(self.random.within(0..longest_ms));
        self.clock.sleep(length).await;
    }
}
