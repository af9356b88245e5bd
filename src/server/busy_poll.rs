//! [`BusyPoll`]: keeps a thread of the runtime awake between requests that follow each other closely.
//!
//! Passing a lock to the next client is a chain of single messages. On an idle machine, each receiver's core is asleep,
//! and waking it takes longer than all the work (40 to 50 µs on a virtual machine). So the runtime's thread polls its
//! sockets for a while before it sleeps.
//!
//! Polling keeps a core busy, so the polling window adapts to the requests, like [KVM's halt
//! polling](https://docs.kernel.org/virt/kvm/halt-polling.html). A pause between requests doubles the window if the
//! pause is shorter than the limit. A longer pause sets the window to zero. Polling also stops for a while if another
//! program needs the core.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;

#[derive(Debug)]
pub(super) struct BusyPoll {
    limit: Duration,
    arrivals: AtomicU64,
    /// True while the polling task waits for an arrival. Bytes that arrive just before the flag is set do not wake the
    /// task. Polling then starts with the next arrival.
    is_parked: AtomicBool,
    wake: Notify,
}

/// Upper bound on the limit. With a much longer window, the occasional requests of a single user would keep a core
/// permanently busy.
const MAX_LIMIT: Duration = Duration::from_millis(10);

impl BusyPoll {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit: limit.min(MAX_LIMIT),
            arrivals: AtomicU64::new(0),
            is_parked: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    pub(super) fn is_enabled(&self) -> bool {
        !self.limit.is_zero()
    }

    pub(super) fn arrived(&self) {
        if !self.is_enabled() {
            return;
        }
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        // Avoid a write in the common case, because it would take the cache line from other threads.
        if self.is_parked.load(Ordering::Relaxed) && self.is_parked.swap(false, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Runs forever. The caller must spawn this on the runtime that serves the connections.
    pub(super) async fn run(&self) {
        let mut window = Window::new(self.limit);
        loop {
            let (last, end) = self.poll(window.length).await;
            if end == PollEnd::Contended {
                window.contended(Instant::now());
            }
            self.is_parked.store(true, Ordering::Relaxed);
            self.wake.notified().await;
            let now = Instant::now();
            window.paused(now - last, now);
        }
    }

    async fn poll(&self, window: Duration) -> (Instant, PollEnd) {
        let mut arrivals = self.arrivals.load(Ordering::Relaxed);
        let mut last = Instant::now();
        let mut now = last;
        while now - last < window {
            // Let other programs run, because the client whose next request we expect may need this core.
            std::thread::yield_now();
            let yielded = Instant::now();
            if yielded - now > CONTENDED {
                return (last, PollEnd::Contended);
            }
            // If the only task of a runtime's thread yields, the runtime polls for IO without sleeping.
            yield_now().await;
            now = Instant::now();
            let count = self.arrivals.load(Ordering::Relaxed);
            if count != arrivals {
                (arrivals, last) = (count, now);
            }
        }
        (last, PollEnd::Idle)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollEnd {
    Idle,
    Contended,
}

/// If yielding the core takes longer than this, another program is busy computing. A client that only answers needs the
/// core for less time.
const CONTENDED: Duration = Duration::from_millis(1);

/// Time without polling after a long yield. A program that computes keeps the core for some milliseconds, so polling
/// takes at most a few percent of its time.
const BACKOFF: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Window {
    length: Duration,
    limit: Duration,
    resumes: Option<Instant>,
}

impl Window {
    /// The first window is the limit divided by this number.
    const FIRST: u32 = 8;

    fn new(limit: Duration) -> Self {
        Self {
            length: Duration::ZERO,
            limit,
            resumes: None,
        }
    }

    fn contended(&mut self, now: Instant) {
        self.resumes = Some(now + BACKOFF);
    }

    fn paused(&mut self, pause: Duration, now: Instant) {
        let may_poll = self.resumes.is_none_or(|resumes| now >= resumes);
        self.length = match may_poll && pause <= self.limit {
            true => (2 * self.length).clamp(self.limit / Self::FIRST, self.limit),
            false => Duration::ZERO,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};

    use super::*;

    const LIMIT: Duration = Duration::from_micros(80);
    const LONG: Duration = Duration::from_micros(81);

    #[test]
    fn a_window_grows_while_polling_would_have_helped_and_ends_when_not() {
        let mut window = Window::new(LIMIT);
        let now = Instant::now();
        let mut after = |pause| {
            window.paused(pause, now);
            window.length.as_micros()
        };
        assert_eq!(after(LONG), 0, "the first request after a pause");
        let grown: Vec<_> = (0..5).map(|_| after(LIMIT)).collect();
        assert_eq!(grown, [10, 20, 40, 80, 80]);
        assert_eq!(after(LONG), 0, "one poll in vain is the last");
        assert_eq!(after(Duration::ZERO), 10);
    }

    #[test]
    fn a_core_that_others_need_is_left_to_them_for_a_while() {
        let mut window = Window::new(LIMIT);
        let now = Instant::now();
        window.paused(LIMIT, now);
        window.contended(now);
        let mut at = |now| {
            window.paused(LIMIT, now);
            window.length.as_micros()
        };
        assert_eq!(at(now), 0);
        assert_eq!(at(now + BACKOFF - LIMIT), 0);
        assert_eq!(at(now + BACKOFF), 10);
    }

    fn turn(task: Pin<&mut impl Future<Output = ()>>) -> bool {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let polled = task.poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "it polls for ever");
        woken.0.load(Ordering::Relaxed)
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_server_without_requests_sleeps() {
        let polling = BusyPoll::new(MAX_LIMIT);
        let mut task = pin!(polling.run());
        assert!(!turn(task.as_mut()));
        assert!(polling.is_parked.load(Ordering::Relaxed));
    }

    #[test]
    fn a_server_with_requests_polls_until_they_stop() {
        // The pauses are real time, and the machine may suspend this test for longer than any limit. So the test may
        // retry.
        let polling = BusyPoll::new(MAX_LIMIT);
        let mut task = pin!(polling.run());
        let mut is_polling = turn(task.as_mut());
        while !is_polling {
            polling.arrived();
            is_polling = turn(task.as_mut());
        }
        assert!(!polling.is_parked.load(Ordering::Relaxed));
        while turn(task.as_mut()) {}
        assert!(polling.is_parked.load(Ordering::Relaxed));
    }

    #[test]
    fn requests_far_apart_are_not_polled_for() {
        let polling = BusyPoll::new(Duration::from_nanos(1));
        let mut task = pin!(polling.run());
        for _ in 0..100 {
            assert!(!turn(task.as_mut()));
            polling.arrived();
        }
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let polling = BusyPoll::new(Duration::ZERO);
        polling.arrived();
        assert!(!polling.is_enabled());
        assert_eq!(polling.arrivals.load(Ordering::Relaxed), 0);
    }
}
