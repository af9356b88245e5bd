//! The readers of a read-write lock (`rwlock-read`). In w2 they share it, so a separate loop counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::lock::Lock;
use crate::figures::{Row, Times, WriteTimes};
use crate::rounds::Contender;
use crate::workloads::{Case, Relayed, Workload};

/// Returns true for a workload with readers. They do not wait for each other, so there is no hand-over.
pub(crate) fn have(workload: Workload) -> bool {
    matches!(workload, Workload::W1 | Workload::W2 | Workload::W4)
}

pub(crate) fn contender<L: Relayed>(
    system: &str,
    url: &str,
    case: Case,
    locks: Vec<L>,
) -> Contender {
    if case.workload != Workload::W2 {
        return Contender::of(system, url, case, locks);
    }
    let locks: Arc<[L]> = locks.into();
    Contender::new(system, url, move |time| reads(locks.clone(), time))
}

async fn read<L: Lock>(lock: &L) {
    let guard = lock.lock().await.expect("granted");
    L::unlock(guard).await.expect("released");
}

/// All readers acquire and release as fast as they can, sharing the lock all the time.
async fn reads<L: Lock>(locks: Arc<[L]>, time: Duration) -> Row {
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let readers: Vec<_> = locks
        .iter()
        .map(|lock| {
            let (lock, stop) = (lock.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut cycles, mut done) = (Times::default(), 0u64);
                while !stop.load(Relaxed) {
                    // Read the clock only now and then, because it costs as much as a free lock of tokio's.
                    let begun = Instant::now();
                    read(&lock).await;
                    cycles.push(begun.elapsed());
                    for _ in 0..BETWEEN {
                        read(&lock).await;
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

/// Number of reads between two timed ones.
const BETWEEN: u64 = 15;
