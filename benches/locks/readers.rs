//! The readers of a read-write lock (`rwlock-read`): so many at once, on Lockkeeper's and on tokio's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockkeeper::RwLock;

use crate::common::lock::Ours;
use crate::figures::{Row, Times, WriteTimes};
use crate::rounds::Contender;
use crate::tokio_locks::Floor;
use crate::workloads::{Case, Workload};

/// Returns the cases of concurrent readers.
pub(crate) fn cases() -> Vec<Case> {
    let of = |clients| Case {
        clients,
        ..Case::new(Workload::W2)
    };
    [1, 8, 64].map(of).to_vec()
}

/// Returns the readers of a system, one for each handle.
pub(crate) fn beside<L: Shared>(system: &str, url: &str, locks: Vec<L>) -> Contender {
    let locks: Arc<[L]> = locks.into();
    Contender::new(system, url, move |time| reads(locks.clone(), time))
}

/// A lock that readers share.
pub(crate) trait Shared: Clone + Send + Sync + 'static {
    fn read(&self) -> impl Future<Output = ()> + Send;
}

impl Shared for Ours<RwLock> {
    async fn read(&self) {
        let guard = self.subject.read().await.expect("granted");
        guard.release().await.expect("released");
    }
}

impl Shared for Floor<tokio::sync::RwLock<()>> {
    async fn read(&self) {
        drop(self.0.read().await);
    }
}

/// Each reader acquires and releases as fast as it can. All of them share the lock all the time.
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
