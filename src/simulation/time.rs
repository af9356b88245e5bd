//! [`Time`]: the clocks of all hosts. Each clock follows the runtime's paused time at its own rate.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::runtime::clock::{BootInstant, Clock};
use crate::runtime::future::select;

/// The time of a simulation. Clones share it.
#[derive(Clone, Debug)]
pub struct Time(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    hosts: Mutex<Vec<Host>>,
    /// Time since the start that all running clocks have reached, in nanoseconds.
    synced: AtomicU64,
}

/// Value of [`Inner::synced`] after a clock was added, stopped or resumed, so that the next sync checks all clocks.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
struct Host {
    clock: Clock,
    zero: BootInstant,
    /// Nanoseconds that this clock advances per million nanoseconds of the runtime.
    rate: u64,
    is_stopped: bool,
}

impl Host {
    fn behind(&self, elapsed: Duration) -> Duration {
        let since_zero = scaled(elapsed, self.rate);
        let now = self.zero.as_nanos().wrapping_add(since_zero);
        BootInstant::from_nanos(now).since(self.clock.now())
    }
}

const MILLION: u64 = 1_000_000;

impl Time {
    /// Starts the time on the current runtime, which must be paused.
    #[expect(clippy::new_without_default, reason = "it spawns a task")]
    pub fn new() -> Self {
        let time = Self(Arc::new(Inner {
            start: Instant::now(),
            hosts: Mutex::default(),
            synced: AtomicU64::new(NEVER),
        }));
        tokio::spawn(time.clone().run());
        time
    }

    /// Creates a host's clock, which gains `drift_ppm` microseconds per second.
    pub fn clock(&self, drift_ppm: i64) -> Clock {
        let clock = Clock::new_virtual();
        let zero = clock.now();
        let rate = 1_000_000_i64
            .saturating_add(drift_ppm)
            .max(1)
            .cast_unsigned();
        // Advance the clock as if it had run from the start, so that the hosts' dates differ only by their drift.
        clock.advance(Duration::from_nanos(scaled(self.0.start.elapsed(), rate)));
        let host = Host {
            clock: clock.clone(),
            zero,
            rate,
            is_stopped: false,
        };
        self.0.hosts.lock().push(host);
        self.0.synced.store(NEVER, Ordering::Relaxed);
        clock
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.start.elapsed()
    }

    /// Advances all clocks to the present.
    pub fn sync(&self) {
        let elapsed = self.0.start.elapsed();
        // Several events often happen at the same moment, and the clocks must advance only for the first of them.
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(NEVER - 1);
        if self.0.synced.swap(nanos, Ordering::Relaxed) == nanos {
            return;
        }
        // Clone the list, because tasks woken by a clock may create another clock, which locks the list.
        let hosts = self.0.hosts.lock().clone();
        for host in hosts.iter().filter(|host| !host.is_stopped) {
            let behind = host.behind(elapsed);
            if !behind.is_zero() {
                host.clock.advance(behind);
            }
        }
    }

    /// Stops a clock and everything that waits for it until [`go_on`](Self::go_on). The host's network continues.
    pub fn stop(&self, clock: &Clock) {
        self.sync();
        self.set_stopped(clock, true);
    }

    /// Resumes a stopped clock. Timers that expired in the meantime are due now. If `was_suspended` is true, the pause
    /// does not count as time awake.
    pub fn go_on(&self, clock: &Clock, was_suspended: bool) {
        let behind = self.set_stopped(clock, false);
        match was_suspended {
            true => clock.suspend(behind),
            false => clock.stall(behind),
        }
    }

    /// Returns true if the clock is stopped.
    pub fn is_stopped(&self, clock: &Clock) -> bool {
        let hosts = self.0.hosts.lock();
        hosts
            .iter()
            .any(|host| host.is_stopped && host.clock.is(clock))
    }

    fn set_stopped(&self, clock: &Clock, is_stopped: bool) -> Duration {
        let elapsed = self.elapsed();
        self.0.synced.store(NEVER, Ordering::Relaxed);
        let mut hosts = self.0.hosts.lock();
        let host = hosts.iter_mut().find(|host| host.clock.is(clock));
        let host = host.expect("a clock of this time");
        host.is_stopped = is_stopped;
        host.behind(elapsed)
    }

    async fn run(self) {
        loop {
            self.sync();
            let next = self.next_timer();
            let mut is_set = false;
            let earlier = poll_fn(|context| {
                if std::mem::replace(&mut is_set, true) {
                    return Poll::Ready(());
                }
                for host in self.0.hosts.lock().iter() {
                    host.clock.set_mover(context.waker());
                }
                Poll::Pending
            });
            select(sleep_until(next), earlier).await;
        }
    }

    fn next_timer(&self) -> Instant {
        let hosts = self.0.hosts.lock();
        let running = hosts.iter().filter(|host| !host.is_stopped);
        let due = running.filter_map(|host| {
            let moment = host.clock.next_timer()?;
            let local = moment.as_nanos().wrapping_sub(host.zero.as_nanos());
            let nanos = u128::from(local) * u128::from(MILLION) / u128::from(host.rate) + 1;
            Some(self.0.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
        });
        // Wake up at least once a second to notice the timers of new clocks.
        let idle = Instant::now() + Duration::from_secs(1);
        due.min().map_or(idle, |due| due.min(idle))
    }
}

fn scaled(time: Duration, rate: u64) -> u64 {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    // Multiply in two parts, because the whole product could overflow.
    let (millions, rest) = (nanos / MILLION, nanos % MILLION);
    millions * rate + rest * rate / MILLION
}
