//! Hundreds contend for a few locks from several threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::{FencingGate, Guard, LockError, Mutex};
use parking_lot::Mutex as Cell;
use testkit::on_every_backend;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use super::{mutex, until_empty};
use crate::common::*;

const PATHS: usize = 5;
const CLIENTS: usize = 20;
const CONTENDERS_EACH: usize = 15;
const ROUNDS: usize = 2;

/// Resource behind one lock. It counts violations but does not prevent them.
#[derive(Default)]
struct Resource {
    inside: AtomicUsize,
    grants: AtomicUsize,
    overlaps: AtomicUsize,
    stale: AtomicUsize,
    gate: Cell<FencingGate>,
}

impl Resource {
    /// Works under the lock, and yields to others in the middle.
    async fn work(&self, guard: &Guard) {
        if self.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        if self.gate.lock().admit(guard.fencing_token()).is_err() {
            self.stale.fetch_add(1, Ordering::SeqCst);
        }
        for _ in 0..5 {
            yield_now().await;
        }
        self.grants.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How a contender behaves. All get the lock in the end.
#[derive(Clone, Copy)]
enum Manner {
    Waits,
    Tries,
    /// Gives up its place twice, and then waits as long as it takes.
    TimesOut,
}

const MANNERS: [Manner; 3] = [Manner::Waits, Manner::Tries, Manner::TimesOut];

impl Manner {
    async fn lock(self, mutex: &Mutex) -> Guard {
        match self {
            Self::Waits => {}
            Self::Tries => {
                if let Some(guard) = mutex.try_lock().await.unwrap() {
                    return guard;
                }
            }
            Self::TimesOut => {
                for _ in 0..2 {
                    match mutex.lock_timeout(Duration::from_millis(2)).await {
                        Ok(guard) => return guard,
                        Err(LockError::Timeout { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
        mutex.lock().await.unwrap()
    }
}

/// A test's own threads. Dropping them waits for nothing.
struct Threads(Option<Runtime>);

impl Threads {
    fn start() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(4).build();
        Self(Some(runtime.unwrap()))
    }

    fn spawn(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        self.0
            .as_ref()
            .expect("it is there until dropped")
            .spawn(work)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

on_every_backend! {
    async fn hundreds_of_contenders_get_in_one_at_a_time(env: Env) {
        let world = World::new(env).await;
        let threads = Threads::start();
        let resources: Vec<_> = (0..PATHS).map(|_| Arc::<Resource>::default()).collect();
        let path_of = |number: usize| format!("/lock/busy/{number}");

        let mut contenders = Vec::new();
        for _ in 0..CLIENTS {
            let client = world.client().await;
            for _ in 0..CONTENDERS_EACH {
                let number = contenders.len();
                let mutex = mutex(&client, &path_of(number % PATHS));
                let resource = resources[number % PATHS].clone();
                let manner = MANNERS[number / PATHS % MANNERS.len()];
                contenders.push(threads.spawn(async move {
                    for _ in 0..ROUNDS {
                        let guard = manner.lock(&mutex).await;
                        resource.work(&guard).await;
                        guard.release().await.unwrap();
                    }
                }));
            }
        }
        for contender in contenders {
            contender.await.unwrap();
        }
        for (number, resource) in resources.iter().enumerate() {
            let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
            assert_eq!(count(&resource.overlaps), 0, "two were inside at {number}");
            assert_eq!(count(&resource.stale), 0, "a later token came before at {number}");
            assert_eq!(count(&resource.grants), CLIENTS * CONTENDERS_EACH * ROUNDS / PATHS);
            until_empty(&world, &path_of(number)).await;
        }
    }
}
