//! Runs with faults by plan, in virtual time, on one thread: a seed decides all. The permits change
//! under them. A run that fails prints its seed, and `LOCKKEEPER_SEED=n` replays it alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use lockkeeper::{Clock, Store};

use super::*;
use crate::seeds::{Executor, PATIENCE, Random, Setting, client, first_runs, or_cancelled, runs};
use crate::support::report;

#[test]
fn no_seed_grants_more_permits_than_there_are() {
    let start = Instant::now();
    let mut total = Tally::default();
    for (seed, setting) in runs(1_000) {
        total.add(run(seed, setting));
    }
    report(format_args!(
        "{} seeds in {:.1?}: {} grants of {} permits, {} of them lost",
        total.seeds,
        start.elapsed(),
        total.grants,
        total.permits,
        total.lost,
    ));
    assert!(total.grants > total.seeds && total.permits > total.grants);
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
    permits: u64,
    lost: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.grants += other.grants;
        self.permits += other.permits;
        self.lost += other.lost;
    }
}

/// One run: some who contend for permits under faults, then without, until all have come to their ends.
fn run(seed: u64, setting: Setting) -> Tally {
    let mut random = Random(seed);
    let (base, store) = setting.store(seed, &mut random);
    let (clock, _told) = (store.clock().clone(), setting.told());
    let observer = Observer::of(&base, random.within(1..6) as u32);
    let clients: Vec<_> = (0..random.within(2..6))
        .map(|_| client(&store, &mut random))
        .collect();
    let tally = Rc::new(Cell::new(Tally::default()));

    let mut executor = Executor::default();
    for client in &clients {
        for _ in 0..random.within(1..4) {
            let worker = Worker {
                semaphore: Semaphore::open(client, QUOTA).unwrap(),
                clock: clock.clone(),
                observer: observer.clone(),
                tally: tally.clone(),
                random: Random(random.next()),
            };
            executor.spawn(worker.work());
        }
    }
    if random.within(0..2) == 0 {
        executor.spawn(change(
            observer.clone(),
            clock.clone(),
            Random(random.next()),
        ));
    }
    let faults_end = clock.now().after(Duration::from_secs(random.within(5..90)));
    let mut healed = false;
    while executor.run_until_stalled() {
        observer.check();
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
        observer.check();
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
    for at in [LOCKS, LEASES] {
        let left = block_on(children(&observer.session, at));
        assert_eq!(left, Vec::<String>::new(), "{at}: left behind");
    }
    Tally {
        seeds: 1,
        ..tally.get()
    }
}

/// Who sees the store as it is, without faults, and those who believe to hold.
struct Observer {
    session: lockkeeper::Session,
    semaphore: Semaphore,
    /// The highest number that was stored since the last check.
    highest: Cell<usize>,
    /// How many were held at the last check.
    before: Cell<usize>,
    holders: RefCell<Vec<Rc<Permit>>>,
}

impl Observer {
    fn of(base: &Store, permits: u32) -> Rc<Self> {
        let client = block_on(base.connect()).unwrap();
        let semaphore = Semaphore::new(&client, QUOTA, permits).unwrap();
        assert_eq!(block_on(semaphore.permits()), Ok(permits));
        Rc::new(Self {
            session: client.current_session(),
            semaphore,
            highest: Cell::new(permits as usize),
            before: Cell::new(0),
            holders: RefCell::default(),
        })
    }

    fn set(&self, permits: u32) {
        self.check();
        block_on(self.semaphore.set_permits(permits)).unwrap();
        self.highest.set(permits as usize);
        self.check();
    }

    /// No more are held than there are, but for those that were before the number was lowered; and
    /// whoever believes to hold does.
    fn check(&self) {
        let leases = block_on(children(&self.session, LEASES));
        let allowed = self.highest.get().max(self.before.get());
        assert!(
            leases.len() <= allowed,
            "{} are held of {allowed}",
            leases.len()
        );
        self.before.set(leases.len());
        for permit in self
            .holders
            .borrow()
            .iter()
            .filter(|permit| permit.is_held())
        {
            for path in permit.paths() {
                let stands = leases.iter().any(|lease| lease == path.name());
                assert!(
                    stands,
                    "{path} is believed to be held, and others may have it"
                );
            }
        }
    }
}

/// Changes the number now and then, up and down.
async fn change(observer: Rc<Observer>, clock: Clock, mut random: Random) {
    for _ in 0..random.within(1..12) {
        let wait = Duration::from_millis(random.within(0..5_000));
        clock.sleep(wait).await;
        observer.set(random.within(1..7) as u32);
    }
}

/// One who contends for permits, and tries its luck in different ways.
struct Worker {
    semaphore: Semaphore,
    clock: Clock,
    observer: Rc<Observer>,
    tally: Rc<Cell<Tally>>,
    random: Random,
}

impl Worker {
    async fn work(mut self) {
        for _ in 0..self.random.within(2..8) {
            self.rest(2_000).await;
            match self.contend().await {
                Ok(Some(permit)) => self.hold(permit).await,
                Ok(None) | Err(LockError::Timeout { .. } | LockError::TooManyPermits { .. }) => {}
                Err(error) if error.is_session_end() => {}
                Err(error) => panic!("{error}"),
            }
        }
        // The last one waits for as long as it takes: nobody is forgotten.
        loop {
            match self.semaphore.acquire().await {
                Ok(permit) => return self.hold(permit).await,
                Err(error) => assert!(error.is_session_end(), "{error}"),
            }
        }
    }

    async fn contend(&mut self) -> Result<Option<Permit>, LockError> {
        let limit = Duration::from_millis(self.random.within(0..10_000));
        let count = self.random.within(1..5) as u32;
        match self.random.within(0..5) {
            0 => self.semaphore.try_acquire_many(count).await,
            1 => {
                let options = LockOptions::new().timeout(limit);
                self.semaphore.acquire_with(count, options).await.map(Some)
            }
            2 => {
                let (semaphore, sleep) = (self.semaphore.clone(), self.clock.sleep(limit));
                or_cancelled(async move { semaphore.acquire_many(count).await }, sleep).await
            }
            _ => self.semaphore.acquire_many(count).await.map(Some),
        }
    }

    async fn hold(&mut self, mut permit: Permit) {
        assert!(permit.is_held(), "granted when it is lost already");
        let part = permit.split(1);
        let parts: Vec<_> = part.into_iter().chain([permit]).map(Rc::new).collect();
        self.observer
            .holders
            .borrow_mut()
            .extend(parts.iter().cloned());
        self.observer.check();
        let longest = if self.random.within(0..8) == 0 {
            40_000
        } else {
            1_500
        };
        let mut had = Tally {
            grants: 1,
            ..Tally::default()
        };
        for part in parts {
            had.permits += u64::from(part.count());
            self.rest(longest).await;
            had.lost += u64::from(!part.is_held());
            self.leave(part).await;
        }
        let mut tally = self.tally.get();
        tally.add(had);
        self.tally.set(tally);
    }

    async fn leave(&mut self, permit: Rc<Permit>) {
        self.observer
            .holders
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &permit));
        let permit = Rc::into_inner(permit).expect("nobody else has it");
        match self.random.within(0..3) {
            0 => drop(permit),
            1 => drop(permit.release()),
            _ => drop(permit.release().await),
        }
    }

    async fn rest(&mut self, longest_ms: u64) {
        let length = Duration::from_millis(self.random.within(0..longest_ms));
        self.clock.sleep(length).await;
    }
}
