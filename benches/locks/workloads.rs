//! The workloads and their figures.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::common::lock::{Lock, Ours};
use crate::common::recipes::BenchLock;
use crate::common::workloads::{self, all_asked, count_first_poll};
use crate::figures::{Row, Times, WriteTimes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// One client locks and unlocks.
    W1,
    /// Clients contend for one lock.
    W2,
    /// From a release to the next grant.
    W3,
    /// Like w3, but the holder waits for 5 ms first. By default only for stores in this process
    Cold,
    /// Many keys, a few hundred in flight.
    W4,
    /// From the SIGKILL of a holder's process to the next grant.
    Kill,
    /// Bytes of a hand-over with re-entry, over all connections.
    Bytes,
}

impl Workload {
    /// Returns true for a workload that needs a store in another process.
    pub(crate) fn is_of_served_stores(self) -> bool {
        matches!(self, Self::Kill | Self::Bytes)
    }

    /// Returns true for a workload that runs by default. A served store's w3 pauses before each release anyway, until
    /// the next waiter has found its predecessor.
    pub(crate) fn is_usual(self, in_process: bool) -> bool {
        !self.is_of_served_stores() && (self != Self::Cold || in_process)
    }

    /// Time that a holder waits before each release, after the next contender has queued.
    fn hold(self) -> Option<Duration> {
        (self == Self::Cold).then_some(Duration::from_millis(5))
    }
}

/// Place where the holder of a hand-over runs: in a task like the waiters, or in a thread outside the runtime, whose
/// release has to wake a thread of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Task,
    Thread,
}

impl From {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Thread => "thread",
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) workload: Workload,
    pub(crate) clients: usize,
    /// Number of queued contenders (w3, cold) or of keys (w4).
    pub(crate) n: usize,
    pub(crate) from: From,
}

impl Case {
    pub(crate) fn new(workload: Workload) -> Self {
        Self {
            workload,
            clients: 1,
            n: 1,
            from: From::Task,
        }
    }
}

/// A lock whose hand-overs are measured one by one.
pub(crate) trait Relayed: Lock {
    /// Waits until one more contender, which has already sent its request, is waiting in the queue.
    fn settled_again(&self) -> impl Future<Output = ()> + Send;
}

impl<S: BenchLock> Relayed for Ours<S> {
    async fn settled_again(&self) {
        self.place.settled_again().await;
    }
}

pub(crate) async fn run<L: Relayed>(case: Case, locks: Arc<[L]>, time: Duration) -> Row {
    let in_a_task = match case.workload {
        Workload::W1 => tokio::spawn(uncontended(locks, time)),
        Workload::W2 => tokio::spawn(contended(locks, time)),
        Workload::W3 if case.from == From::Thread => return handed_over(case, locks, time).await,
        Workload::W3 | Workload::Cold => tokio::spawn(handed_over(case, locks, time)),
        Workload::W4 => tokio::spawn(many_keys(locks)),
        Workload::Kill | Workload::Bytes => unreachable!("it is measured elsewhere"),
    };
    in_a_task.await.expect("a round ends well")
}

async fn uncontended<L: Lock>(locks: Arc<[L]>, time: Duration) -> Row {
    let lock = &locks[0];
    let mut row = Row::new();
    row.insert("cycles_per_s".into(), cycles(lock, time / 2).await);
    let measured = workloads::uncontended(lock, time / 2).await;
    let (acquires, releases) = measured.expect("the store answers");
    acquires.write(&mut row, "acquire");
    releases.write(&mut row, "release");
    row
}

/// Returns the cycles per second, without reading the clock within a batch.
async fn cycles<L: Lock>(lock: &L, time: Duration) -> f64 {
    let (mut done, mut batch) = (0u64, 1u64);
    let start = Instant::now();
    loop {
        let begun = start.elapsed();
        if begun >= time {
            return done as f64 / begun.as_secs_f64();
        }
        for _ in 0..batch {
            let guard = lock.lock().await.expect("granted");
            L::unlock(guard).await.expect("released");
        }
        done += batch;
        if start.elapsed() - begun < Duration::from_millis(1) {
            batch *= 2;
        }
    }
}

async fn contended<L: Lock>(locks: Arc<[L]>, time: Duration) -> Row {
    let at_once = || std::future::ready(());
    let measured = workloads::contended(&locks, time, at_once).await;
    let contended = measured.expect("the store answers");
    let grants = contended.grants.iter().copied();
    let mut row = Row::new();
    let mut put = |field: &str, value: usize| row.insert(field.into(), value as f64);
    put("grants_max", grants.clone().max().unwrap_or(0));
    put("grants_min", grants.min().unwrap_or(0));
    put("exclusion_violations", contended.exclusion_violations);
    if let Some(violations) = contended.order_violations {
        put("order_violations", violations);
    }
    let per_s = contended.handovers as f64 / contended.elapsed.as_secs_f64();
    row.insert("handovers_per_s".into(), per_s);
    contended.waits.write(&mut row, "wait");
    row
}

/// The holder releases. The next waiter notes the time of its grant, passes its guard on as the next one to be
/// released, and queues again. So `n` are queued at each release, and are waiting when the holder's own wait starts.
///
/// A grant while another guard is held is a violation of exclusion. If grants follow arrival, each waiter is granted
/// again after `n` hand-overs. Others count as `order_overtakes`, of `order_checked`.
pub(crate) async fn handed_over<L: Relayed>(case: Case, locks: Arc<[L]>, time: Duration) -> Row {
    let mut guard = locks[0].lock().await.expect("granted");
    let asked = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (grants, mut granted) = mpsc::unbounded_channel();
    let (mut order, mut violations) = (Vec::new(), 0usize);
    let waiters: Vec<_> = (0..case.n)
        .map(|waiter| {
            let lock = locks[1 + waiter % (locks.len() - 1)].clone();
            let (asked, stop, grants) = (asked.clone(), stop.clone(), grants.clone());
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    let guard = count_first_poll(lock.lock(), &asked).await;
                    let guard = guard.expect("granted");
                    let now = Instant::now();
                    // After the round the receiver is closed, and the guard is dropped here.
                    let _ = grants.send((guard, now, waiter));
                }
            })
        })
        .collect();
    drop(grants);
    let mut queued = case.n;
    all_asked(&asked, queued).await;
    let settled = locks[0].settled(1 + queued).await;
    settled.expect("the store answers");
    let mut handovers = Times::default();
    let start = Instant::now();
    loop {
        if let Some(hold) = case.workload.hold() {
            tokio::time::sleep(hold).await;
        }
        violations += granted.len();
        let released = Instant::now();
        L::unlock(guard).await.expect("released");
        let (next, at, waiter) = granted.recv().await.expect("a waiter follows");
        handovers.push(at.saturating_duration_since(released));
        order.push(waiter);
        guard = next;
        queued += 1;
        all_asked(&asked, queued).await;
        locks[0].settled_again().await;
        if start.elapsed() >= time {
            break;
        }
    }
    stop.store(true, Relaxed);
    granted.close();
    L::unlock(guard).await.expect("released");
    for waiter in waiters {
        waiter.await.expect("a waiter ends well");
    }
    let mut row = Row::new();
    row.insert("handovers".into(), handovers.count() as f64);
    row.insert("exclusion_violations".into(), violations as f64);
    if case.n > 1 && order.len() > case.n {
        let checked = order.len() - case.n;
        let overtakes = order.iter().zip(&order[case.n..]).filter(|(a, b)| a != b);
        row.insert("order_overtakes".into(), overtakes.count() as f64);
        row.insert("order_checked".into(), checked as f64);
    }
    handovers.write(&mut row, "handover");
    row
}

async fn many_keys<L: Lock>(locks: Arc<[L]>) -> Row {
    let keys = locks.len();
    let measured = workloads::many_keys(locks, None).await;
    let (acquires, time) = measured.expect("the store answers");
    let mut row = Row::new();
    let per_s = keys as f64 / time.as_secs_f64();
    row.insert("cycles_per_s".into(), per_s);
    acquires.write(&mut row, "acquire");
    row
}
