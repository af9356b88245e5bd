//! Clients of a server that is killed (SIGKILL) at random moments, and started again at the same address over the same
//! folder: with the same options, or with others each time.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Lock};
use std::time::{Duration, Instant};

use lockkeeper::{Client, ConnectOptions, FencingGate, FencingToken, Guard, Mutex, connect_with};
use tokio::sync::Notify;
use tokio::task::block_in_place;

use super::server::Terms;
use crate::common::*;
use crate::support::{
    KillPoint, Random, TempFolder, kill_seed, port_of_a_server, report, scaled, within_reason,
};

const TIMEOUT: Duration = Duration::from_secs(4);
const CLIENTS: usize = 3;
const WORKERS: usize = 2;

/// Limits of the moment of a kill: after a start, and in grants.
const START: Duration = Duration::from_millis(300);
const GRANTS: u64 = 60;

/// A counter behind the lock, which admits a token only if it has seen none that is newer.
#[derive(Default)]
struct Checked {
    gate: FencingGate,
    count: u64,
    /// Number of additions that the gate has admitted.
    added: u64,
    newest: Option<FencingToken>,
    holders: Vec<Arc<Guard>>,
}

impl Checked {
    /// Fails if another guard is held at the same moment, or was granted a newer token.
    fn enter(&mut self, guard: Guard) -> Arc<Guard> {
        let guard = Arc::new(guard);
        let before = self.newest.replace(guard.fencing_token());
        assert!(before < self.newest, "the tokens of grants go backwards");
        // This one is asked first: none that is lost is ever held again.
        if guard.is_held() {
            let others = self.holders.iter().filter(|other| other.is_held());
            assert_eq!(others.count(), 0, "two believe to hold");
        }
        self.holders.push(guard.clone());
        guard
    }

    fn leave(&mut self, guard: Arc<Guard>) -> Guard {
        self.holders.retain(|other| !Arc::ptr_eq(other, &guard));
        Arc::into_inner(guard).expect("nobody else has it")
    }

    /// Returns the count, if the token is admitted.
    fn read(&mut self, guard: &Guard) -> Option<u64> {
        let held = guard.is_held();
        let admitted = self.gate.admit(guard.fencing_token());
        assert!(admitted.is_ok() || !held, "a holder is refused");
        admitted.ok().map(|()| self.count)
    }

    fn write(&mut self, guard: &Guard, count: u64) {
        if self.read(guard).is_some() {
            (self.count, self.added) = (count, self.added + 1);
        }
    }
}

/// State that all workers share.
#[derive(Default)]
struct Work {
    checked: Lock<Checked>,
    grants: AtomicU64,
    granted: Notify,
    is_over: AtomicBool,
}

impl Work {
    /// Takes the lock again and again, and once more after the end: no waiter is forgotten.
    async fn contend(&self, mutex: Mutex, mut random: Random) {
        let mut is_last = false;
        while !is_last {
            is_last = self.is_over.load(Ordering::Acquire);
            let guard = match mutex.lock().await {
                Ok(guard) => guard,
                Err(error) => {
                    assert!(error.is_session_end(), "{error}");
                    is_last = false;
                    continue;
                }
            };
            self.hold(guard, &mut random).await;
        }
    }

    async fn hold(&self, guard: Guard, random: &mut Random) {
        let guard = self.checked.lock().unwrap().enter(guard);
        self.grants.fetch_add(1, Ordering::AcqRel);
        self.granted.notify_one();
        let count = self.checked.lock().unwrap().read(&guard);
        if random.below(4) == 0 {
            // Whether it is answered or not: others have the time to break in.
            let _ = guard.keep_alive().await;
        } else {
            tokio::task::yield_now().await;
        }
        if let Some(count) = count {
            self.checked.lock().unwrap().write(&guard, count + 1);
        }
        let guard = self.checked.lock().unwrap().leave(guard);
        let (path, session) = (guard.path().clone(), guard.session().clone());
        match random.below(3) {
            0 => drop(guard),
            1 => drop(guard.release()),
            _ => {
                if guard.release().await.is_ok()
                    && let Ok(stat) = session.exists(&path).await
                {
                    assert_eq!(stat, None, "an acknowledged release is lost");
                }
            }
        }
    }

    /// Waits for so many more grants.
    async fn until_granted(&self, more: u64) {
        let wanted = self.grants.load(Ordering::Acquire) + more;
        while self.grants.load(Ordering::Acquire) < wanted {
            self.granted.notified().await;
        }
    }
}

async fn client(terms: &Terms) -> Client {
    let options = ConnectOptions::new()
        .session_timeout(TIMEOUT)
        .connect_timeout(Duration::from_secs(120));
    let url = format!("lockkeeper://{}", terms.address);
    connect_with(url.as_str(), options).await.unwrap()
}

/// Kills the server so often; `next` chooses the options of each life.
async fn survives(kills: u64, seed: u64, next: impl Fn(&mut Random, &mut Terms)) {
    let (seed, began) = (kill_seed(seed), Instant::now());
    report(format_args!("LOCKKEEPER_KILL_SEED={seed}"));
    let mut random = Random(seed);
    let folder = TempFolder::new("killed");
    let mut terms = Terms {
        folder: folder.path().join("data"),
        address: (Ipv4Addr::LOCALHOST, port_of_a_server()).into(),
        longest_timeout: TIMEOUT,
        max_frame_bytes: None,
        max_in_flight: None,
    };
    let mut server = block_in_place(|| terms.started());
    let work = Arc::new(Work::default());
    let (mut clients, mut workers) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let client = client(&terms).await;
        for _ in 0..WORKERS {
            let (work, dice) = (work.clone(), Random(random.next()));
            let mutex = Mutex::new(&client, LOCK).unwrap();
            workers.push(tokio::spawn(async move { work.contend(mutex, dice).await }));
        }
        let id = client.current_session().id();
        clients.push((client, id));
    }
    for _ in 0..kills {
        match KillPoint::random(&mut random, START, GRANTS) {
            KillPoint::Start(moment) => tokio::time::sleep(moment).await,
            KillPoint::Reports(count) => work.until_granted(count).await,
        }
        block_in_place(|| server.kill());
        next(&mut random, &mut terms);
        server = terms.start();
    }
    block_in_place(|| server.kill());
    let _server = block_in_place(|| terms.started());
    work.is_over.store(true, Ordering::Release);
    for worker in workers {
        worker.await.unwrap();
    }
    // The sessions live: their end removes nothing of what was left behind.
    let observer = client(&terms).await;
    let session = observer.session().await.unwrap();
    until(&session, LOCK, <[String]>::is_empty).await;
    let checked = work.checked.lock().unwrap();
    assert_eq!(checked.count, checked.added, "two were inside");
    let kept = clients
        .iter()
        .filter(|(client, id)| client.current_session().id() == *id);
    report(format_args!(
        "{kills} kills, {} grants, {} of {CLIENTS} sessions went on; {:.1?}",
        work.grants.load(Ordering::Acquire),
        kept.count(),
        began.elapsed()
    ));
}

fn kills() -> u64 {
    scaled(6)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_kill_breaks_the_lock() {
    within_reason(survives(kills(), 1, |_, _| {})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_restart_with_other_options_breaks_the_lock() {
    within_reason(survives(kills(), 2, |random, terms| {
        terms.longest_timeout = [TIMEOUT, TIMEOUT / 2][random.index(2)];
        terms.max_frame_bytes = [None, Some(4 << 10)][random.index(2)];
        terms.max_in_flight = [None, Some(1)][random.index(2)];
    }))
    .await;
}
