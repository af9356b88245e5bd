//! Thousands of runs with faults by plan, in virtual time, on one thread: a seed decides all.
//!
//! A run that fails prints its seed, and `LOCKKEEPER_SEED=n` replays it alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use lockkeeper::{Clock, FencingGate, FencingToken, Guard, LockError};

use super::*;
use crate::seeds::{
    self, Executor, Random, Setting, client, first_runs, nothing_is_left, or_cancelled, run_out,
};
use crate::support::report;

#[test]
fn no_seed_breaks_the_lock() {
    let start = Instant::now();
    let mut total = Tally::default();
    let mut runs = 0;
    for (seed, setting) in seeds::runs(1_000) {
        total.add(run(seed, setting));
        runs += 1;
    }
    report(format_args!(
        "{runs} runs of the read-write lock in {:.1?}: {total:?}",
        start.elapsed()
    ));
    assert!(
        total.writes > runs && total.reads > runs,
        "the runs did something"
    );
    assert!(total.upgrades > 0 && total.refusals > 0 && total.downgrades > 0 && total.lost > 0);
}

/// Sessions have random ids, entries random names: none of that may sway a run.
#[test]
fn a_seed_replays() {
    for (seed, setting) in first_runs(60) {
        let outcome = run(seed, setting);
        assert_eq!(outcome, run(seed, setting), "seed {seed}, {setting:?}");
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    reads: u64,
    writes: u64,
    downgrades: u64,
    upgrades: u64,
    refusals: u64,
    lost: u64,
    late: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.downgrades += other.downgrades;
        self.upgrades += other.upgrades;
        self.refusals += other.refusals;
        self.lost += other.lost;
        self.late += other.late;
    }
}

/// One run: some contenders under faults, then without, until all have come to their ends.
fn run(seed: u64, setting: Setting) -> Tally {
    let mut random = Random(seed);
    let (base, store) = setting.store(seed, &mut random);
    let (clock, _told) = (store.clock().clone(), setting.told());
    let resource = Rc::new(Resource::default());
    let mut executor = Executor::default();
    for _ in 0..random.within(2..6) {
        let client = client(&store, &mut random);
        for _ in 0..random.within(1..4) {
            let worker = Worker {
                lock: lock_of(&client),
                clock: clock.clone(),
                resource: resource.clone(),
                random: Random(random.next()),
            };
            executor.spawn(worker.work());
        }
    }
    let faults_for = Duration::from_secs(random.within(5..90));
    run_out(&store, &mut executor, faults_for, || resource.check());
    nothing_is_left(&base, LOCK);
    resource.tally.get()
}

/// What the lock protects. It checks tokens, and that nobody believes to write beside another.
#[derive(Default)]
struct Resource {
    gate: RefCell<FencingGate>,
    readers: RefCell<Vec<Rc<ReadGuard>>>,
    writers: RefCell<Vec<Rc<WriteGuard>>>,
    newest_writer: Cell<Option<FencingToken>>,
    tally: Cell<Tally>,
}

impl Resource {
    fn count(&self, one: Tally) {
        let mut tally = self.tally.get();
        tally.add(one);
        self.tally.set(tally);
    }

    fn check(&self) {
        let reading = self
            .readers
            .borrow()
            .iter()
            .filter(|guard| guard.is_held())
            .count();
        let writing = self
            .writers
            .borrow()
            .iter()
            .filter(|guard| guard.is_held())
            .count();
        assert!(
            writing == 0 || (writing, reading) == (1, 0),
            "{writing} believe to write and {reading} to read at the same moment"
        );
    }

    fn enter_reader(&self, guard: ReadGuard) -> Rc<ReadGuard> {
        let guard = Rc::new(guard);
        self.readers.borrow_mut().push(guard.clone());
        self.check();
        guard
    }

    fn enter_writer(&self, guard: WriteGuard) -> Rc<WriteGuard> {
        let token = Some(guard.fencing_token());
        assert!(
            self.newest_writer.replace(token) < token,
            "the tokens of writers go backwards"
        );
        let guard = Rc::new(guard);
        self.writers.borrow_mut().push(guard.clone());
        self.check();
        guard
    }

    fn leave_reader(&self, guard: Rc<ReadGuard>) -> ReadGuard {
        self.lost(&guard);
        self.readers
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &guard));
        Rc::into_inner(guard).expect("nobody else has it")
    }

    fn leave_writer(&self, guard: Rc<WriteGuard>) -> WriteGuard {
        self.lost(&guard);
        self.writers
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &guard));
        Rc::into_inner(guard).expect("nobody else has it")
    }

    fn lost(&self, guard: &Guard) {
        let lost = u64::from(!guard.is_held());
        self.count(Tally {
            lost,
            ..Tally::default()
        });
    }

    /// A use with the token checked; those who believe to hold must not be refused.
    fn used(&self, guard: &Guard, side: Side) {
        let held = guard.is_held();
        let token = guard.fencing_token();
        let admitted = match side {
            Read => self.gate.borrow_mut().admit_shared(token),
            Write => self.gate.borrow_mut().admit(token),
        };
        assert!(
            admitted.is_ok() || !held,
            "a holder is refused: {}",
            admitted.unwrap_err()
        );
        let late = u64::from(admitted.is_err());
        self.count(Tally {
            late,
            ..Tally::default()
        });
    }
}

/// One contender, which tries its luck in different ways.
struct Worker {
    lock: RwLock,
    clock: Clock,
    resource: Rc<Resource>,
    random: Random,
}

/// What came of a wait, if anything.
enum Had {
    Reader(ReadGuard),
    Writer(WriteGuard),
}

impl Worker {
    async fn work(mut self) {
        for _ in 0..self.random.within(2..8) {
            self.rest(2_000).await;
            match self.contend().await {
                Ok(Some(had)) => self.hold(had).await,
                Ok(None) | Err(LockError::Timeout { .. }) => {}
                Err(error) if error.is_session_end() => {}
                Err(error) => panic!("{error}"),
            }
        }
        // The last one waits for as long as it takes: nobody is forgotten.
        loop {
            let had = match self.random.within(0..2) {
                0 => self.lock.read().await.map(Had::Reader),
                _ => self.lock.write().await.map(Had::Writer),
            };
            match had {
                Ok(had) => return self.hold(had).await,
                Err(error) => assert!(error.is_session_end(), "{error}"),
            }
        }
    }

    async fn contend(&mut self) -> Result<Option<Had>, LockError> {
        let lock = self.lock.clone();
        let limit = Duration::from_millis(self.random.within(0..10_000));
        let sleep = self.clock.sleep(limit);
        Ok(match self.random.within(0..11) {
            0 => lock.try_read().await?.map(Had::Reader),
            1 => lock
                .try_read_with(LockOptions::new().synced())
                .await?
                .map(Had::Reader),
            2 => lock.try_write().await?.map(Had::Writer),
            3 => Some(Had::Reader(lock.read_timeout(limit).await?)),
            4 => Some(Had::Writer(lock.write_timeout(limit).await?)),
            5 => or_cancelled(lock.read(), sleep).await?.map(Had::Reader),
            6 => or_cancelled(lock.write(), sleep).await?.map(Had::Writer),
            7 | 8 => Some(Had::Writer(lock.write().await?)),
            _ => Some(Had::Reader(lock.read().await?)),
        })
    }

    /// Holds, and converts what is held, some times.
    async fn hold(&mut self, had: Had) {
        let mut had = Some(had);
        for _ in 0..self.random.within(1..4) {
            had = match had {
                Some(Had::Reader(guard)) => self.hold_reader(guard).await,
                Some(Had::Writer(guard)) => self.hold_writer(guard).await,
                None => return,
            };
        }
        match had {
            Some(Had::Reader(guard)) => self.release(guard.into_guard()).await,
            Some(Had::Writer(guard)) => self.release(guard.into_guard()).await,
            None => {}
        }
    }

    async fn hold_reader(&mut self, guard: ReadGuard) -> Option<Had> {
        self.resource.count(Tally {
            reads: 1,
            ..Tally::default()
        });
        let guard = self.resource.enter_reader(guard);
        self.resource.used(&guard, Read);
        self.work_inside().await;
        // Also when the lock is lost: then it is the token that protects the resource.
        self.resource.used(&guard, Read);
        let guard = self.resource.leave_reader(guard);
        if self.random.within(0..2) == 0 {
            return Some(Had::Reader(guard));
        }
        match self.unless_given_up(guard.try_upgrade()).await? {
            Upgrade::Upgraded(guard) => {
                self.resource.count(Tally {
                    upgrades: 1,
                    ..Tally::default()
                });
                assert!(guard.is_held(), "upgraded when it is lost already");
                Some(Had::Writer(guard))
            }
            Upgrade::Refused(guard) => {
                self.resource.count(Tally {
                    refusals: 1,
                    ..Tally::default()
                });
                Some(Had::Reader(guard))
            }
        }
    }

    async fn hold_writer(&mut self, guard: WriteGuard) -> Option<Had> {
        self.resource.count(Tally {
            writes: 1,
            ..Tally::default()
        });
        let guard = self.resource.enter_writer(guard);
        self.resource.used(&guard, Write);
        self.work_inside().await;
        self.resource.used(&guard, Write);
        let guard = self.resource.leave_writer(guard);
        let reader = self.unless_given_up(guard.downgrade()).await?;
        self.resource.count(Tally {
            downgrades: 1,
            ..Tally::default()
        });
        Some(Had::Reader(reader))
    }

    /// The outcome of a conversion, unless it fails or is dropped midway.
    async fn unless_given_up<T>(
        &mut self,
        conversion: impl Future<Output = Result<T, LockError>>,
    ) -> Option<T> {
        let patience = match self.random.within(0..6) {
            0 => Duration::from_millis(self.random.within(0..500)),
            _ => Duration::from_secs(100_000),
        };
        match or_cancelled(conversion, self.clock.sleep(patience)).await {
            Ok(outcome) => outcome,
            Err(LockError::Lost(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    async fn release(&mut self, guard: Guard) {
        match self.random.within(0..3) {
            0 => drop(guard),
            1 => drop(guard.release()),
            _ => drop(guard.release().await),
        }
    }

    async fn work_inside(&mut self) {
        let longest = match self.random.within(0..8) {
            0 => 40_000,
            _ => 1_500,
        };
        self.rest(longest).await;
    }

    async fn rest(&mut self, longest_ms: u64) {
        let length = Duration::from_millis(self.random.within(0..longest_ms));
        self.clock.sleep(length).await;
    }
}
