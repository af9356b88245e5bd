//! The well-behaved client. It works all the time, measures the latency of each reply, and checks the replies and
//! their order.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testkit::wire::*;

/// Number of cycles in one phase. Each cycle has three requests.
const CYCLES: usize = 500;

/// Minimum number of cycles in a phase that runs out of time. This is enough for percentiles.
const MIN_CYCLES: usize = 50;

/// Returns the time limit of one phase, which is a third of the time that `tests/run` gives the test.
fn share() -> Duration {
    let seconds = std::env::var("LOCKKEEPER_SECONDS");
    let seconds = seconds.ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(u64::MAX)) / 3
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Latency(Vec<Duration>);

impl Latency {
    /// Returns the latency that `permille` of a thousand replies do not exceed.
    pub(crate) fn permille(&self, permille: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted[(sorted.len() - 1) * permille / 1_000]
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

#[derive(Default)]
struct Shared {
    latency: Mutex<Latency>,
    cycles: AtomicUsize,
    is_over: AtomicBool,
}

/// The running client, on a separate thread.
pub(crate) struct Good {
    shared: Arc<Shared>,
    worker: JoinHandle<()>,
}

impl Good {
    pub(crate) fn start(to: SocketAddr) -> Self {
        let shared = Arc::<Shared>::default();
        let its = shared.clone();
        let worker = std::thread::spawn(move || work(to, &its));
        Self { shared, worker }
    }

    /// Measures the latencies of one phase, which starts now. If an attack slows the answers down, the time limit may
    /// reduce the number of measured replies. Returns early if the client has failed, which [`stop`](Self::stop)
    /// reports.
    pub(crate) fn measure(&self) -> Latency {
        std::mem::take(&mut *self.shared.latency.lock().unwrap());
        let (begun, share) = (Instant::now(), share());
        let first = self.shared.cycles.load(SeqCst);
        loop {
            let cycles = self.shared.cycles.load(SeqCst) - first;
            let is_cut = cycles >= MIN_CYCLES && begun.elapsed() >= share;
            if cycles >= CYCLES || is_cut || self.worker.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::take(&mut *self.shared.latency.lock().unwrap())
    }

    /// Closes the client's session. Panics if the client has panicked.
    pub(crate) fn stop(self) {
        self.shared.is_over.store(true, SeqCst);
        if let Err(panic) = self.worker.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

fn work(to: SocketAddr, shared: &Shared) {
    let (mut conn, _) = Conn::new(to);
    let parent = format!("/good-{}", std::process::id());
    let path = format!("{parent}/entry");
    let first = conn.call(op::CREATE, &create(&parent, b"", 0)).unwrap();
    assert!([0, -110].contains(&first.err), "{first:?}");
    let mut call = |op: i32, record: &Out, events: usize| {
        let sent = Instant::now();
        let xid = conn.send(op, record).expect("the server takes a request");
        for _ in 0..events {
            let event = conn.answer().expect("an event comes before the answer");
            assert_eq!(event.xid, EVENT, "{event:?}");
        }
        let answer = conn
            .answer()
            .expect("the session is alive, and its requests answered");
        assert_eq!((answer.xid, answer.err), (xid, 0), "in order, and done");
        shared.latency.lock().unwrap().0.push(sent.elapsed());
    };
    while !shared.is_over.load(SeqCst) {
        call(op::CREATE, &create(&path, b"some data", EPHEMERAL), 0);
        call(op::GET_DATA, &read(&path, true), 0);
        call(op::DELETE, &delete(&path), 1);
        shared.cycles.fetch_add(1, SeqCst);
    }
    call(op::DELETE, &delete(&parent), 0);
    call(op::CLOSE, &Out::new(), 0);
}
