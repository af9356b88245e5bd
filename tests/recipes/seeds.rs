//! Thousands of runs with faults by plan, in virtual time, on one thread: a seed decides all.
//!
//! A run that fails prints its seed, and `LOCKKEEPER_SEED=n` replays it alone.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_executor::block_on;
use lockkeeper::testing::{Plan, TestStore, seeds};
use lockkeeper::{
    Client, Clock, ConnectOptions, FencingGate, FencingToken, Guard, LockError, LockOptions, Mutex,
    Store, StoreOptions,
};

use lockkeeper_store::Connector;

use crate::common::{LOCK, children};
use crate::support::{report, rounds};
use crate::unindexed::Unindexed;

/// A kind of store that each seed is run on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// The store says who is ahead; else it only lists names, as a ZooKeeper server does.
    is_indexed: bool,
    /// Only committed writes prove that a session lives; else any answer does, as of one server.
    is_ensemble: bool,
}

impl Setting {
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

    /// A fresh store, and the same behind faults by a plan of the seed's.
    pub(crate) fn store(self, seed: u64, random: &mut Random) -> (Store, TestStore) {
        let options = StoreOptions::new().clock(Clock::new_virtual());
        let base = Store::memory_with(options);
        let connector: Arc<dyn Connector> = match self.is_indexed {
            true => base.connector(),
            false => Arc::new(Unindexed(base.connector())),
        };
        let store = TestStore::wrapping(connector, "memory:seeds", plan(seed, random));
        if self.is_ensemble {
            store.prove_by_quorum();
        }
        (base, store)
    }

    /// Says of a run that fails what it ran on, beside its seed.
    pub(crate) fn told(self) -> Told {
        Told(self)
    }
}

/// Prints the setting of a run when that panics.
pub(crate) struct Told(Setting);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it ran on {:?}", self.0);
        }
    }
}

/// So many runs, or as many as there is time for: each seed on each kind of store.
pub(crate) fn runs(count: u64) -> impl Iterator<Item = (u64, Setting)> {
    let seeds = rounds(count / Setting::ALL.len() as u64).zip(seeds(u64::MAX));
    seeds.flat_map(|(_, seed)| Setting::ALL.map(|setting| (seed, setting)))
}

/// The first so many of all runs.
pub(crate) fn first_runs(count: usize) -> impl Iterator<Item = (u64, Setting)> {
    let each = |seed| Setting::ALL.map(|setting| (seed, setting));
    (0..).flat_map(each).take(count)
}

#[test]
fn no_seed_breaks_the_lock() {
    let start = Instant::now();
    let mut total = Tally::default();
    for (seed, setting) in runs(2_000) {
        total.add(run(seed, setting));
    }
    report(format_args!(
        "{} seeds in {:.1?}: {} grants, {} of them lost, {} late writes refused",
        total.seeds,
        start.elapsed(),
        total.grants,
        total.lost,
        total.refused
    ));
    assert!(total.grants > total.seeds, "the runs did something");
}

/// Sessions have random ids, entries random names: none of that may sway a run.
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

/// No wait, hold and recovery of all contenders together takes longer, once the faults have ended.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1_000);

/// One run: some contenders under faults, then without, until all have come to their ends.
fn run(seed: u64, setting: Setting) -> Tally {
    let mut random = Random(seed);
    let (base, store) = setting.store(seed, &mut random);
    let (clock, _told) = (store.clock().clone(), setting.told());
    let resource = Rc::new(Resource::default());
    let clients: Vec<_> = (0..random.within(2..6))
        .map(|_| client(&store, &mut random))
        .collect();

    let mut executor = Executor::default();
    for client in &clients {
        for _ in 0..random.within(1..4) {
            let worker = Worker {
                mutex: Mutex::new(client, LOCK).unwrap(),
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
    Tally {
        seeds: 1,
        ..resource.tally.get()
    }
}

/// Runs all tasks to their ends, under faults for so long, then without, and lets clean-up end.
pub(crate) fn run_out(
    store: &TestStore,
    executor: &mut Executor,
    faults_for: Duration,
    check: impl Fn(),
) {
    let clock = store.clock();
    let faults_end = clock.now().after(faults_for);
    let mut healed = false;
    while executor.run_until_stalled() {
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

/// Sees that nobody is left in a queue.
pub(crate) fn nothing_is_left(base: &Store, at: &str) {
    let observer = block_on(base.connect()).unwrap();
    let left = block_on(async { children(&observer.session().await.unwrap(), at).await });
    assert_eq!(left, Vec::<String>::new(), "{at}: an entry is left behind");
}

/// A plan of the seed's own: each kind of fault never, seldom or often.
pub(crate) fn plan(seed: u64, random: &mut Random) -> Plan {
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

pub(crate) fn client(store: &TestStore, random: &mut Random) -> Client {
    let timeout = Duration::from_millis(random.within(1_000..12_000));
    let options = ConnectOptions::new().session_timeout(timeout);
    block_on(store.client_with(options)).unwrap()
}

/// What the lock protects. It checks tokens, and that no two believe to hold at the same moment.
#[derive(Default)]
struct Resource {
    gate: RefCell<FencingGate>,
    holders: RefCell<Vec<Rc<Guard>>>,
    newest_grant: Cell<Option<FencingToken>>,
    tally: Cell<Tally>,
}

impl Resource {
    fn count(&self, one: Tally) {
        let mut tally = self.tally.get();
        tally.add(one);
        self.tally.set(tally);
    }

    fn granted(&self, guard: &Guard) {
        self.count(Tally {
            grants: 1,
            ..Tally::default()
        });
        assert!(guard.is_held(), "granted when it is lost already");
        let token = guard.fencing_token();
        assert!(
            self.newest_grant.get() < Some(token),
            "the tokens of grants go backwards"
        );
        self.newest_grant.set(Some(token));
        assert!(
            !self.is_held(),
            "another still believes to hold when the lock is granted"
        );
    }

    fn is_held(&self) -> bool {
        self.holders.borrow().iter().any(|guard| guard.is_held())
    }

    fn check(&self) {
        let held = self
            .holders
            .borrow()
            .iter()
            .filter(|guard| guard.is_held())
            .count();
        assert!(held <= 1, "{held} believe to hold at the same moment");
    }

    fn enter(&self, guard: Guard) -> Rc<Guard> {
        let guard = Rc::new(guard);
        self.holders.borrow_mut().push(guard.clone());
        self.check();
        guard
    }

    /// A write, with the token checked; those who believe to hold must not be refused.
    fn write(&self, guard: &Guard) {
        let held = guard.is_held();
        let admitted = self.gate.borrow_mut().admit(guard.fencing_token());
        assert!(
            admitted.is_ok() || !held,
            "a holder is refused: {}",
            admitted.unwrap_err()
        );
        self.count(Tally {
            refused: u64::from(admitted.is_err()),
            ..Tally::default()
        });
    }

    fn leave(&self, guard: Rc<Guard>) -> Guard {
        self.holders
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &guard));
        let lost = u64::from(!guard.is_held());
        self.count(Tally {
            lost,
            ..Tally::default()
        });
        Rc::into_inner(guard).expect("nobody else has it")
    }
}

/// One contender, which tries its luck in different ways.
struct Worker {
    mutex: Mutex,
    clock: Clock,
    resource: Rc<Resource>,
    random: Random,
}

impl Worker {
    async fn work(mut self) {
        for _ in 0..self.random.within(2..8) {
            self.rest(2_000).await;
            match self.contend().await {
                Ok(Some(guard)) => self.hold(guard).await,
                Ok(None) | Err(LockError::Timeout { .. }) => {}
                Err(error) if error.is_session_end() => {}
                Err(error) => panic!("{error}"),
            }
        }
        // The last one waits for as long as it takes: nobody is forgotten.
        loop {
            match self.mutex.lock().await {
                Ok(guard) => return self.hold(guard).await,
                Err(error) => assert!(error.is_session_end(), "{error}"),
            }
        }
    }

    async fn contend(&mut self) -> Result<Option<Guard>, LockError> {
        let limit = Duration::from_millis(self.random.within(0..10_000));
        match self.random.within(0..6) {
            0 => self.mutex.try_lock().await,
            1 => self.mutex.try_lock_with(LockOptions::new().synced()).await,
            2 => self.mutex.lock_timeout(limit).await.map(Some),
            3 => {
                let (mutex, sleep) = (self.mutex.clone(), self.clock.sleep(limit));
                or_cancelled(async move { mutex.lock().await }, sleep).await
            }
            _ => self.mutex.lock().await.map(Some),
        }
    }

    async fn hold(&mut self, guard: Guard) {
        self.resource.granted(&guard);
        if self.random.within(0..4) == 0 {
            let _ = guard.keep_alive().await;
        }
        let guard = self.resource.enter(guard);
        self.resource.write(&guard);
        let longest = if self.random.within(0..8) == 0 {
            40_000
        } else {
            1_500
        };
        if self.random.within(0..3) == 0 {
            let work = self
                .clock
                .sleep(Duration::from_millis(self.random.within(0..longest)));
            let _ = guard.protect(work).await;
        } else {
            self.rest(longest).await;
        }
        // Also when the lock is lost: then it is the token that protects the resource.
        self.resource.write(&guard);
        let guard = self.resource.leave(guard);
        match self.random.within(0..3) {
            0 => drop(guard),
            1 => drop(guard.release()),
            _ => drop(guard.release().await),
        }
    }

    async fn rest(&mut self, longest_ms: u64) {
        let length = Duration::from_millis(self.random.within(0..longest_ms));
        self.clock.sleep(length).await;
    }
}

/// What a wait comes to, unless it is cancelled before.
pub(crate) async fn or_cancelled<T, E>(
    wait: impl Future<Output = Result<T, E>>,
    cancel: impl Future<Output = ()>,
) -> Result<Option<T>, E> {
    let (mut wait, mut cancel) = (std::pin::pin!(wait), std::pin::pin!(cancel));
    std::future::poll_fn(|context| match wait.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(outcome.map(Some)),
        Poll::Pending => cancel.as_mut().poll(context).map(|()| Ok(None)),
    })
    .await
}

/// Runs tasks on this thread, always in the same order.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: Vec<(Arc<Woken>, Task)>,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Executor {
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.tasks
            .push((Arc::new(Woken(AtomicBool::new(true))), Box::pin(task)));
    }

    /// Runs until all tasks wait. Whether any is left.
    pub(crate) fn run_until_stalled(&mut self) -> bool {
        let mut any = true;
        while any {
            any = false;
            self.tasks.retain_mut(|(woken, task)| {
                if !woken.0.swap(false, Ordering::AcqRel) {
                    return true;
                }
                any = true;
                let waker = Waker::from(woken.clone());
                task.as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            });
        }
        !self.tasks.is_empty()
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }
}
