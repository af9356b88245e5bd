//! [`Time`]: the clocks of all hosts, which follow the runtime's paused time, each at its own rate.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::runtime::clock::{BootInstant, Clock};
use crate::runtime::future::select;

/// The time of a simulation. A clone is the same.
#[derive(Clone, Debug)]
pub struct Time(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    hosts: Mutex<Vec<Host>>,
    /// Nanoseconds since the start up to which all running clocks have been moved.
    synced: AtomicU64,
}

/// [`Inner::synced`] of clocks that have to be looked at again: one has been added, stopped or let go on.
const NEVER: u64 = u64::MAX;

/// The clock of a host.
#[derive(Clone, Debug)]
struct Host {
    clock: Clock,
    /// Its moment at the start.
    zero: BootInstant,
    /// Nanoseconds that it counts for each million of the runtime's.
    rate: u64,
    /// Nothing runs there: no timer is due, and no time passes that anybody could see.
    is_stopped: bool,
}

impl Host {
    /// Returns the time by which its clock is behind, after so much of the runtime's.
    fn behind(&self, elapsed: Duration) -> Duration {
        let since_zero = scaled(elapsed, self.rate);
        let now = self.zero.as_nanos().wrapping_add(since_zero);
        BootInstant::from_nanos(now).since(self.clock.now())
    }
}

const MILLION: u64 = 1_000_000;

impl Time {
    /// Starts the time, on the current runtime, which is paused.
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

    /// Creates the clock of a host, which gains so many microseconds in a second.
    pub fn clock(&self, drift_ppm: i64) -> Clock {
        let clock = Clock::new_virtual();
        let zero = clock.now();
        let rate = 1_000_000_i64
            .saturating_add(drift_ppm)
            .max(1)
            .cast_unsigned();
        // As if it had run from the start: the dates of all hosts agree, but for their drift.
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

    /// Moves all clocks to the present.
    pub fn sync(&self) {
        let elapsed = self.0.start.elapsed();
        // Most of what happens, happens at a moment at which something else has happened.
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(NEVER - 1);
        if self.0.synced.swap(nanos, Ordering::Relaxed) == nanos {
            return;
        }
        // Cloned: what a clock wakes may create another one.
        let hosts = self.0.hosts.lock().clone();
        for host in hosts.iter().filter(|host| !host.is_stopped) {
            let behind = host.behind(elapsed);
            if !behind.is_zero() {
                host.clock.advance(behind);
            }
        }
    }

    /// Stops all that runs by a clock, until [`go_on`](Self::go_on). Its network has to be stopped apart.
    pub fn stop(&self, clock: &Clock) {
        self.sync();
        self.set_stopped(clock, true);
    }

    /// Lets it go on: all timers that have been due meanwhile are due now. Time in which a machine `was_suspended` does
    /// not count as time awake.
    pub fn go_on(&self, clock: &Clock, was_suspended: bool) {
        let behind = self.set_stopped(clock, false);
        match was_suspended {
            true => clock.suspend(behind),
            false => clock.stall(behind),
        }
    }

    /// Returns true if nothing runs by this clock.
    pub fn is_stopped(&self, clock: &Clock) -> bool {
        let hosts = self.0.hosts.lock();
        hosts
            .iter()
            .any(|host| host.is_stopped && host.clock.is(clock))
    }

    /// Returns the time by which the clock is behind.
    fn set_stopped(&self, clock: &Clock, is_stopped: bool) -> Duration {
        let elapsed = self.elapsed();
        self.0.synced.store(NEVER, Ordering::Relaxed);
        let mut hosts = self.0.hosts.lock();
        let host = hosts.iter_mut().find(|host| host.clock.is(clock));
        let host = host.expect("a clock of this time");
        host.is_stopped = is_stopped;
        host.behind(elapsed)
    }

    /// Moves the clocks whenever a timer is due.
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
        // Clocks that are made later are looked at within a second.
        let idle = Instant::now() + Duration::from_secs(1);
        due.min().map_or(idle, |due| due.min(idle))
    }
}

/// Returns the nanoseconds of a time on a clock of this rate.
fn scaled(time: Duration, rate: u64) -> u64 {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    // In two parts, so that neither product is too large: a rate is below two million.
    let (millions, rest) = (nanos / MILLION, nanos % MILLION);
    millions * rate + rest * rate / MILLION
}
