//! [`TestStore`]: a fresh store for one test, with virtual time and faults.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::{Faults, Plan, Traffic};
use crate::backend::{ConnectOptions, Connector};
use crate::client::connect::{Client, connector};
use crate::client::target::Target;
use crate::engine::{Store, StoreOptions};
use crate::model::error::{Error, Result, TargetError};
use crate::runtime::clock::{BootInstant, Clock};

/// A store for one test, with faults on command. It dereferences to [`Faults`], which provides the commands.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper_store::{SessionState, testing::TestStore};
///
/// let store = TestStore::new();
/// let client = store.client().await?;
/// let session = client.session().await?;
/// store.expire(&client).await?;
/// assert_eq!(session.state(), SessionState::Expired);
/// # Ok::<(), lockkeeper_store::Error>(()) }).unwrap();
/// ```
///
/// If a test panics while a store with a plan exists, the plan's seed is printed.
pub struct TestStore {
    faults: Faults,
    target: String,
}

impl TestStore {
    /// Returns a fresh store in memory with a virtual clock. Faults occur only on command.
    #[expect(
        clippy::new_without_default,
        reason = "it opens a store, which no caller expects of a default"
    )]
    pub fn new() -> Self {
        Self::with_plan(Plan::calm())
    }

    /// Returns a fresh store in memory with a virtual clock and the faults of a plan.
    pub fn with_plan(plan: Plan) -> Self {
        Self::in_memory(Clock::new_virtual(), plan)
    }

    /// Returns a fresh store in memory with the system's clock.
    pub fn system_time() -> Self {
        Self::in_memory(Clock::system(), Plan::calm())
    }

    fn in_memory(clock: Clock, plan: Plan) -> Self {
        let store = Store::memory_with(StoreOptions::new().clock(clock));
        Self::wrapping(store.connector(), "memory:test", plan)
    }

    /// Returns the store at a URL, for example a real ZooKeeper, with faults on the client's side.
    ///
    /// # Errors
    /// [`Error::Target`] for an invalid URL.
    pub fn over<T>(target: T, plan: Plan) -> Result<Self>
    where
        T: TryInto<Target>,
        T::Error: Into<TargetError>,
    {
        let target = target
            .try_into()
            .map_err(|error| Error::Target(error.into()))?;
        Ok(Self::wrapping(
            connector(&target)?,
            &target.to_string(),
            plan,
        ))
    }

    /// Wraps any store. `target` is the store's name in errors.
    pub fn wrapping(connector: Arc<dyn Connector>, target: &str, plan: Plan) -> Self {
        Self {
            faults: Faults::over(connector, plan),
            target: target.to_owned(),
        }
    }

    /// Opens a client with a new session.
    ///
    /// # Errors
    /// The errors of [`connect`](crate::connect()).
    pub async fn client(&self) -> Result<Client> {
        self.client_with(ConnectOptions::new()).await
    }

    /// Opens a client with these options and a new session.
    ///
    /// # Errors
    /// The errors of [`connect_with`](crate::connect_with).
    pub async fn client_with(&self, options: ConnectOptions) -> Result<Client> {
        self.faults.connect(&self.target, options).await
    }

    /// Returns the fault wrapper.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the clock of the store and all its sessions.
    pub fn clock(&self) -> &Clock {
        Connector::clock(&self.faults)
    }

    /// Lets time pass. A virtual clock moves from timer to timer, and the tasks that each timer wakes run before the
    /// clock moves on ([`settle`](Self::settle)). With the system's clock, this call waits in real time.
    pub async fn advance(&self, by: Duration) {
        let clock = self.clock();
        if !clock.is_virtual() {
            return clock.sleep(by).await;
        }
        let end = clock.now().after(by);
        self.settle().await;
        while let Some(next) = clock.next_timer().filter(|next| *next <= end) {
            clock.advance(next.since(clock.now()));
            self.settle().await;
        }
        clock.advance(end.since(clock.now()));
        self.settle().await;
    }

    /// Yields to other tasks until the store has no more requests, replies, events and timers to handle. If the
    /// executor is single-threaded, all ready tasks have run by then.
    pub async fn settle(&self) {
        let mut quiet = Quiet::new(self);
        while !quiet.turn(self) {
            yield_now().await;
        }
    }

    /// Runs `work`, and moves the virtual clock to the next timer whenever nothing else happens. `work` may spawn tasks
    /// only if the executor is single-threaded.
    ///
    /// # Panics
    /// If `work` has not ended after a day of virtual time.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let clock = self.clock().clone();
        if !clock.is_virtual() {
            return work.await;
        }
        let limit = clock.now().after(LONGEST_RUN);
        let mut work = pin!(work);
        let mut quiet = Quiet::new(self);
        loop {
            let polled = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context)));
            if let Poll::Ready(done) = polled.await {
                return done;
            }
            if !quiet.turn(self) {
                yield_now().await;
                continue;
            }
            quiet = Quiet::new(self);
            match clock.next_timer() {
                Some(next) => {
                    assert!(
                        next <= limit,
                        "the work has not ended after {LONGEST_RUN:?}"
                    );
                    clock.advance(next.since(clock.now()));
                }
                // Nothing in this store can wake `work`, so wait until something else wakes this task.
                None => wait_for_wake().await,
            }
        }
    }
}

impl Deref for TestStore {
    type Target = Faults;

    fn deref(&self) -> &Faults {
        &self.faults
    }
}

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestStore").field(&self.faults).finish()
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        let seed = self.plan().seed();
        if std::thread::panicking() && seed != 0 {
            eprintln!("the faults came from seed {seed}: run again with {SEED_VARIABLE}={seed}");
        }
    }
}

/// Returns the seeds to test with: 1 to `count`, or only the seed in the environment variable `LOCKKEEPER_SEED`.
///
/// # Panics
/// If `LOCKKEEPER_SEED` is not a number.
pub fn seeds(count: u64) -> impl Iterator<Item = u64> {
    match std::env::var(SEED_VARIABLE) {
        Err(_) => 1..=count,
        Ok(text) => {
            let seed = text
                .parse()
                .unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text} is no number"));
            seed..=seed
        }
    }
}

const SEED_VARIABLE: &str = "LOCKKEEPER_SEED";

const LONGEST_RUN: Duration = Duration::from_secs(24 * 60 * 60);

struct Quiet {
    turns: u32,
    seen: (Traffic, Option<BootInstant>),
}

/// Number of quiet turns after which we assume that nothing happens until the clock moves. One turn is not enough,
/// because a task may wake another task without traffic, and the executor may poll that task last.
const QUIET_TURNS: u32 = 32;

impl Quiet {
    fn new(store: &TestStore) -> Self {
        Self {
            turns: 0,
            seen: Self::look(store),
        }
    }

    fn look(store: &TestStore) -> (Traffic, Option<BootInstant>) {
        (store.traffic(), store.clock().next_timer())
    }

    fn turn(&mut self, store: &TestStore) -> bool {
        let seen = Self::look(store);
        self.turns = if seen == self.seen { self.turns + 1 } else { 0 };
        self.seen = seen;
        self.turns > QUIET_TURNS
    }
}

async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn wait_for_wake() {
    let mut waited = false;
    std::future::poll_fn(|_| {
        if std::mem::replace(&mut waited, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
