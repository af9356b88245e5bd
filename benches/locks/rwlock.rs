//! The read-write lock, beside tokio's as the floor. As a lock (`rwlock-write`) a writer takes part in
//! the common workloads; and so many readers at once (`rwlock-read`) read again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockkeeper::{RwLock, WriteGuard};

use crate::figures::{Row, Times};
use crate::rounds::Contender;
use crate::systems::{Keeper, Lock, Place};
use crate::workloads::{Case, Workload};

/// Returns the cases of concurrent readers.
pub(crate) fn cases_of_readers() -> Vec<Case> {
    let of = |clients| Case {
        clients,
        ..Case::new(Workload::W2)
    };
    [1, 8, 64].map(of).to_vec()
}

pub(crate) async fn writers(system: &str, keeper: &Keeper, url: &str, case: Case) -> Contender {
    Contender::of(system, url, case, handles(keeper, &case).await)
}

pub(crate) fn tokio_writers(case: Case) -> Contender {
    Contender::of("tokio", "", case, TokioRwLock::many(&case))
}

pub(crate) async fn readers(system: &str, keeper: &Keeper, url: &str, case: Case) -> Contender {
    let locks: Arc<[_]> = handles(keeper, &case).await.into();
    Contender::new(system, url, move |time| reads(locks.clone(), time))
}

pub(crate) fn tokio_readers(case: Case) -> Contender {
    let locks: Arc<[_]> = TokioRwLock::many(&case).into();
    Contender::new("tokio", "", move |time| reads(locks.clone(), time))
}

async fn handles(keeper: &Keeper, case: &Case) -> Vec<Ours> {
    let handle = |client: &_, path, place| Ours {
        lock: RwLock::new(client, path).expect("a valid path"),
        place,
    };
    keeper.handles(case, handle).await
}

/// A lock that readers share.
trait Shared: Clone + Send + Sync + 'static {
    fn read(&self) -> impl Future<Output = ()> + Send;
}

/// Each reader reads and lets go, as fast as it can. All of them share the lock all the time.
async fn reads<L: Shared>(locks: Arc<[L]>, time: Duration) -> Row {
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let readers: Vec<_> = locks
        .iter()
        .map(|lock| {
            let (lock, stop) = (lock.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut cycles, mut done) = (Times::default(), 0u64);
                while !stop.load(Relaxed) {
                    // A clock read now and then only: it costs as much as a free lock of tokio's.
                    let begun = Instant::now();
                    lock.read().await;
                    cycles.push(begun.elapsed());
                    for _ in 0..BETWEEN {
                        lock.read().await;
                    }
                    done += 1 + BETWEEN;
                    tokio::task::yield_now().await;
                }
                (cycles, done)
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    stop.store(true, Relaxed);
    let (mut cycles, mut total) = (Times::default(), 0);
    for reader in readers {
        let (of_one, done) = reader.await.expect("a reader ends well");
        cycles.append(of_one);
        total += done;
    }
    let mut row = Row::new();
    let per_s = total as f64 / start.elapsed().as_secs_f64();
    row.insert("cycles_per_s".into(), per_s);
    cycles.write(&mut row, "cycle");
    row
}

/// Number of reads between two that are timed.
const BETWEEN: u64 = 15;

/// A handle to Lockkeeper's lock.
#[derive(Clone)]
struct Ours {
    lock: RwLock,
    place: Place,
}

impl Shared for Ours {
    async fn read(&self) {
        let guard = self.lock.read().await.expect("granted");
        guard.release().await.expect("released");
    }
}

impl Lock for Ours {
    type Guard = WriteGuard;

    async fn lock(&self) -> WriteGuard {
        self.lock.write().await.expect("granted")
    }

    async fn unlock(guard: WriteGuard) {
        guard.release().await.expect("released");
    }

    fn token(guard: &WriteGuard) -> Option<i64> {
        Some(guard.fencing_token().as_i64())
    }

    async fn settled(&self, queued: usize) {
        self.place.settled(self.lock.path(), queued).await;
    }

    async fn settled_again(&self) {
        self.place.settled_again().await;
    }
}

/// tokio's read-write lock, which is fair as well; nothing of it outlives the process.
#[derive(Clone)]
struct TokioRwLock(&'static tokio::sync::RwLock<()>);

impl TokioRwLock {
    /// The handles that a case needs. The locks are leaked: their guards borrow them.
    fn many(case: &Case) -> Vec<Self> {
        let new = || Self(Box::leak(Box::default()));
        match case.workload {
            Workload::W4 => (0..case.n).map(|_| new()).collect(),
            _ => vec![new(); case.clients],
        }
    }
}

impl Shared for TokioRwLock {
    async fn read(&self) {
        drop(self.0.read().await);
    }
}

impl Lock for TokioRwLock {
    type Guard = tokio::sync::RwLockWriteGuard<'static, ()>;

    async fn lock(&self) -> Self::Guard {
        self.0.write().await
    }

    async fn unlock(guard: Self::Guard) {
        drop(guard);
    }

    fn token(_guard: &Self::Guard) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) {}

    async fn settled_again(&self) {}
}
