//! The workloads, the same code for every system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::common::count_first_poll;
use crate::figures::{Row, Times};
use crate::systems::Lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// One client locks and unlocks.
    W1,
    /// Clients contend for one lock.
    W2,
    /// From a release to the next grant.
    W3,
    /// Many keys, a few hundred in flight.
    W4,
    /// From the end of a holder's process, by SIGKILL, to the next grant.
    Kill,
    /// Bytes of a hand-over with re-entry, over all connections.
    Bytes,
}

impl Workload {
    /// Returns true for a workload that only a store of another process has.
    pub(crate) fn is_of_served_stores(self) -> bool {
        matches!(self, Self::Kill | Self::Bytes)
    }
}

/// Place of the holder of a hand-over: a task like the waiters, or a thread outside the runtime. The release of
/// the latter has to wake a thread of the runtime.
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

/// A workload with its numbers.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) workload: Workload,
    /// Number of sessions.
    pub(crate) clients: usize,
    /// Number of queued contenders (w3), or of keys (w4).
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

/// Runs one round.
pub(crate) async fn run<L: Lock>(case: Case, locks: Arc<[L]>, time: Duration) -> Row {
    let in_a_task = match case.workload {
        Workload::W1 => tokio::spawn(uncontended(locks, time)),
        Workload::W2 => tokio::spawn(contended(locks, time)),
        Workload::W3 if case.from == From::Thread => return handed_over(case, locks, time).await,
        Workload::W3 => tokio::spawn(handed_over(case, locks, time)),
        Workload::W4 => tokio::spawn(many_keys(locks)),
        Workload::Kill | Workload::Bytes => unreachable!("it is measured elsewhere"),
    };
    in_a_task.await.expect("a round ends well")
}

async fn uncontended<L: Lock>(locks: Arc<[L]>, time: Duration) -> Row {
    let lock = &locks[0];
    let mut row = Row::new();
    row.insert("cycles_per_s".into(), cycles(lock, time / 2).await);
    let (mut acquires, mut releases) = (Times::default(), Times::default());
    let start = Instant::now();
    while start.elapsed() < time / 2 {
        let asked = Instant::now();
        let guard = lock.lock().await;
        let granted = Instant::now();
        L::unlock(guard).await;
        acquires.push(granted - asked);
        releases.push(granted.elapsed());
    }
    acquires.write(&mut row, "acquire");
    releases.write(&mut row, "release");
    row
}

/// Cycles a second, with no clock read within a batch.
async fn cycles<L: Lock>(lock: &L, time: Duration) -> f64 {
    let (mut done, mut batch) = (0u64, 1u64);
    let start = Instant::now();
    loop {
        let begun = start.elapsed();
        if begun >= time {
            return done as f64 / begun.as_secs_f64();
        }
        for _ in 0..batch {
            L::unlock(lock.lock().await).await;
        }
        done += batch;
        if start.elapsed() - begun < Duration::from_millis(1) {
            batch *= 2;
        }
    }
}

/// Checks of the holders on one another.
#[derive(Default)]
struct Arena {
    stop: AtomicBool,
    held: AtomicBool,
    last_holder: AtomicUsize,
    last_token: AtomicI64,
    handovers: AtomicUsize,
    exclusion_violations: AtomicUsize,
    order_violations: AtomicUsize,
}

// Relaxed: each check concerns one variable, whose exchanges have one order. A stronger ordering would add to the
// time that is measured.
impl Arena {
    fn enter(&self, client: usize, token: Option<i64>) {
        if self.held.swap(true, Relaxed) {
            self.exclusion_violations.fetch_add(1, Relaxed);
        }
        if self.last_holder.swap(client, Relaxed) != client {
            self.handovers.fetch_add(1, Relaxed);
        }
        if let Some(token) = token
            && self.last_token.swap(token, Relaxed) >= token
        {
            self.order_violations.fetch_add(1, Relaxed);
        }
    }

    fn leave(&self) {
        self.held.store(false, Relaxed);
    }
}

async fn contended<L: Lock>(locks: Arc<[L]>, time: Duration) -> Row {
    let arena = Arc::new(Arena::default());
    let asked = Arc::new(AtomicUsize::new(0));
    // Held until all are queued: the first client would otherwise find it free again and again.
    let first = locks[0].lock().await;
    let clients: Vec<_> = (0..locks.len())
        .map(|client| {
            let (lock, arena, asked) = (locks[client].clone(), arena.clone(), asked.clone());
            tokio::spawn(async move {
                let mut waits = Times::default();
                let mut has_tokens = false;
                while !arena.stop.load(Relaxed) {
                    let begun = Instant::now();
                    let guard = count_first_poll(lock.lock(), &asked).await;
                    waits.push(begun.elapsed());
                    let token = L::token(&guard);
                    has_tokens = token.is_some();
                    arena.enter(client, token);
                    arena.leave();
                    L::unlock(guard).await;
                }
                (waits, has_tokens)
            })
        })
        .collect();
    all_asked(&asked, locks.len()).await;
    locks[0].settled(1 + locks.len()).await;
    let start = Instant::now();
    L::unlock(first).await;
    tokio::time::sleep(time).await;
    let elapsed = start.elapsed().as_secs_f64();
    let handovers = arena.handovers.load(Relaxed);
    arena.stop.store(true, Relaxed);
    let mut waits = Times::default();
    let mut grants = Vec::new();
    let mut ordered = false;
    for client in clients {
        let (of_client, has_tokens) = client.await.expect("a client ends well");
        grants.push(of_client.len());
        waits.append(of_client);
        ordered |= has_tokens;
    }
    let mut row = Row::new();
    let mut put = |field: &str, value: usize| row.insert(field.into(), value as f64);
    put("grants_max", grants.iter().copied().max().unwrap_or(0));
    put("grants_min", grants.iter().copied().min().unwrap_or(0));
    put(
        "exclusion_violations",
        arena.exclusion_violations.load(Relaxed),
    );
    if ordered {
        put("order_violations", arena.order_violations.load(Relaxed));
    }
    row.insert("handovers_per_s".into(), handovers as f64 / elapsed);
    waits.write(&mut row, "wait");
    row
}

/// The holder releases; the waiter notes when it is granted the lock, passes its guard on as the next one to be
/// released, and queues again: so `n` are queued at each release.
pub(crate) async fn handed_over<L: Lock>(case: Case, locks: Arc<[L]>, time: Duration) -> Row {
    let mut guard = locks[0].lock().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (grants, mut granted) = mpsc::unbounded_channel();
    let waiters: Vec<_> = (0..case.n)
        .map(|waiter| {
            let lock = locks[1 + waiter % (locks.len() - 1)].clone();
            let (asked, stop, grants) = (asked.clone(), stop.clone(), grants.clone());
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    let guard = count_first_poll(lock.lock(), &asked).await;
                    let now = Instant::now();
                    // After the round the receiver is closed, and the guard is dropped here.
                    let _ = grants.send((guard, now));
                }
            })
        })
        .collect();
    drop(grants);
    let mut queued = case.n;
    all_asked(&asked, queued).await;
    locks[0].settled(1 + queued).await;
    let mut handovers = Times::default();
    let start = Instant::now();
    loop {
        let released = Instant::now();
        L::unlock(guard).await;
        let (next, at) = granted.recv().await.expect("a waiter follows");
        handovers.push(at.saturating_duration_since(released));
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
    L::unlock(guard).await;
    for waiter in waiters {
        waiter.await.expect("a waiter ends well");
    }
    let mut row = Row::new();
    row.insert("handovers".into(), handovers.len() as f64);
    handovers.write(&mut row, "handover");
    row
}

async fn all_asked(asked: &AtomicUsize, count: usize) {
    while asked.load(Relaxed) < count {
        tokio::task::yield_now().await;
    }
}

/// Number of tasks of w4 that hold or request a lock.
const IN_FLIGHT: usize = 256;

/// Locks and unlocks each key once.
async fn many_keys<L: Lock>(locks: Arc<[L]>) -> Row {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (locks, next) = (locks.clone(), next.clone());
            tokio::spawn(async move {
                let mut acquires = Times::default();
                while let Some(lock) = locks.get(next.fetch_add(1, Relaxed)) {
                    let asked = Instant::now();
                    let guard = lock.lock().await;
                    acquires.push(asked.elapsed());
                    L::unlock(guard).await;
                }
                acquires
            })
        })
        .collect();
    let mut acquires = Times::default();
    for task in tasks {
        acquires.append(task.await.expect("a task ends well"));
    }
    let mut row = Row::new();
    let per_s = locks.len() as f64 / start.elapsed().as_secs_f64();
    row.insert("cycles_per_s".into(), per_s);
    acquires.write(&mut row, "acquire");
    row
}
