//! [`Clock`]: real or virtual time for a store and its sessions.

mod ticks;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

#[cfg(feature = "client")]
use crate::runtime::future::select;
use crate::runtime::future::wake;
use crate::runtime::platform;
use crate::runtime::process::is_forked;

pub use ticks::TickPlace;
use ticks::Ticks;

/// A moment on a [`Clock`], in nanoseconds since the clock's zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Creates a moment from nanoseconds since zero.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole milliseconds since zero.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: BootInstant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns this moment plus `by`, saturating.
    pub fn after(self, by: Duration) -> BootInstant {
        Self(self.0.saturating_add(duration_nanos(by)))
    }
}

impl fmt::Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// The clock of a store and its sessions. Clones share it.
///
/// The system clock also counts the time while the machine is suspended (`CLOCK_BOOTTIME` on Linux), so a laptop that
/// sleeps past its session timeout notices this when it wakes up. A virtual clock, for tests, moves only when a test
/// advances it.
///
/// Timers run on a thread owned by the clock, so a busy executor cannot delay them.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    /// `None` for the system clock.
    virtual_now: Option<AtomicU64>,
    /// Part of `virtual_now` that counts as suspended.
    virtual_suspended: AtomicU64,
    timers: Mutex<Timers>,
    changed: Condvar,
    ticks: Mutex<Ticks>,
}

#[derive(Default)]
struct Timers {
    /// End of the timer thread's current wait. `None` if there is no timer.
    wakes_at: Option<BootInstant>,
    due: BTreeMap<(BootInstant, u64), Waker>,
    next_id: u64,
    thread_runs: bool,
    /// Task that moves a virtual clock. A new earliest timer wakes this task.
    #[cfg(feature = "simulation")]
    mover: Option<Waker>,
}

/// Longest wait of the timer thread. Its wait does not count suspended time, so the thread must check the clock
/// regularly.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

impl Clock {
    /// Returns the machine's clock.
    pub fn system() -> Self {
        static SYSTEM: OnceLock<Clock> = OnceLock::new();
        SYSTEM.get_or_init(|| Self::with(None)).clone()
    }

    /// Creates a virtual clock, which advances only in calls to [`advance`](Self::advance), [`stall`](Self::stall) and
    /// [`suspend`](Self::suspend).
    pub fn new_virtual() -> Self {
        Self::with(Some(AtomicU64::new(1_000_000_000)))
    }

    fn with(virtual_now: Option<AtomicU64>) -> Self {
        Self(Arc::new(Inner {
            virtual_now,
            virtual_suspended: AtomicU64::new(0),
            timers: Mutex::default(),
            changed: Condvar::new(),
            ticks: Mutex::default(),
        }))
    }

    /// Returns the current moment.
    pub fn now(&self) -> BootInstant {
        match &self.0.virtual_now {
            None => BootInstant(platform::boot_nanos()),
            Some(now) => BootInstant(now.load(Ordering::Acquire)),
        }
    }

    /// Returns the current moment on a clock that excludes suspended time (`CLOCK_MONOTONIC` on Linux). Do not compare
    /// it with moments from [`now`](Self::now), because the two clocks start at different times.
    pub fn awake(&self) -> BootInstant {
        match &self.0.virtual_now {
            None => BootInstant(platform::awake_nanos()),
            Some(now) => {
                let suspended = self.0.virtual_suspended.load(Ordering::Acquire);
                BootInstant(now.load(Ordering::Acquire).saturating_sub(suspended))
            }
        }
    }

    /// Returns milliseconds since the Unix epoch, at most one system tick (a few ms) old.
    pub fn unix_ms(&self) -> i64 {
        match &self.0.virtual_now {
            None => platform::unix_ms(),
            // The date may start anywhere, but must advance with the clock.
            Some(_) => 1_700_000_000_000 + self.now().as_millis() as i64,
        }
    }

    pub(crate) fn exact_unix_ms(&self) -> i64 {
        match self.is_virtual() {
            true => self.unix_ms(),
            false => {
                let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
                since.map_or(0, |since| since.as_millis() as i64)
            }
        }
    }

    pub(crate) fn block(&self, duration: Duration) {
        if !self.is_virtual() {
            std::thread::sleep(duration);
        }
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns true for a virtual clock.
    pub fn is_virtual(&self) -> bool {
        self.0.virtual_now.is_some()
    }

    /// Waits until `moment`. Cancel safe: dropping the future removes the timer.
    pub fn sleep_until(&self, moment: BootInstant) -> Sleep {
        Sleep {
            clock: self.clone(),
            moment,
            registered: None,
        }
    }

    /// Waits for `duration`, counted from this call.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now().after(duration))
    }

    #[cfg(feature = "client")]
    pub(crate) async fn until<T>(
        &self,
        moment: BootInstant,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut done = None;
        select(async { done = Some(work.await) }, self.sleep_until(moment)).await;
        done
    }

    /// Returns the moment of the earliest pending timer.
    pub fn next_timer(&self) -> Option<BootInstant> {
        let timers = self.0.timers.lock();
        timers.due.first_key_value().map(|((moment, _), _)| *moment)
    }

    /// Moves a virtual clock forward, and wakes each sleeper exactly when its moment is reached.
    ///
    /// # Panics
    /// Panics on the system clock.
    pub fn advance(&self, by: Duration) {
        let now = self
            .0
            .virtual_now
            .as_ref()
            .expect("only a virtual clock can be moved");
        let target = BootInstant(now.load(Ordering::Acquire)).after(by);
        loop {
            // Release the lock before waking, because the woken task may set timers.
            let due = self.0.timers.lock().pop_until(target);
            let Some((moment, waker)) = due else { break };
            // A waker may have advanced the clock further.
            now.fetch_max(moment.0, Ordering::AcqRel);
            wake(waker);
        }
        now.fetch_max(target.0, Ordering::AcqRel);
    }

    /// Moves a virtual clock forward in one jump, as if the process had been stopped. Sleepers wake after the jump.
    ///
    /// # Panics
    /// Panics on the system clock.
    pub fn stall(&self, by: Duration) {
        let now = self.0.virtual_now.as_ref();
        let now = now.expect("only a virtual clock can be moved");
        now.fetch_add(duration_nanos(by), Ordering::AcqRel);
        self.advance(Duration::ZERO);
    }

    /// Moves a virtual clock forward as if the machine had been suspended. Like [`stall`](Self::stall), but
    /// [`awake`](Self::awake) does not advance.
    ///
    /// # Panics
    /// Panics on the system clock.
    pub fn suspend(&self, by: Duration) {
        let suspended = &self.0.virtual_suspended;
        suspended.fetch_add(duration_nanos(by), Ordering::AcqRel);
        self.stall(by);
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn set_mover(&self, waker: &Waker) {
        self.0.timers.lock().mover = Some(waker.clone());
    }

    fn register(&self, moment: BootInstant, waker: &Waker) -> u64 {
        let mut timers = self.0.timers.lock();
        let id = timers.next_id;
        timers.next_id += 1;
        #[cfg(feature = "simulation")]
        let is_first = timers
            .due
            .keys()
            .next()
            .is_none_or(|first| moment < first.0);
        timers.due.insert((moment, id), waker.clone());
        #[cfg(feature = "simulation")]
        if is_first && let Some(mover) = timers.mover.take() {
            // Waking the mover under the lock is safe, because its waker only queues a task.
            mover.wake();
        }
        if !self.is_virtual() {
            if !timers.thread_runs {
                timers.thread_runs = true;
                let clock = self.clone();
                std::thread::Builder::new()
                    .name("lockkeeper-timer".into())
                    .spawn(move || clock.run())
                    .expect("the system refuses a thread");
            }
            // Interrupt the thread's wait only for a timer that is due earlier. Most timers are dropped before they are
            // due, so this saves most of the thread switches.
            if timers.wakes_at.is_none_or(|wakes_at| moment < wakes_at) {
                self.0.changed.notify_one();
            }
        }
        id
    }

    fn run(&self) {
        let mut timers = self.0.timers.lock();
        loop {
            let now = self.now();
            // Wake one task at a time and without the lock, because wakers are user code and may set or drop timers.
            if let Some((_, waker)) = timers.pop_until(now) {
                parking_lot::MutexGuard::unlocked(&mut timers, || wake(waker));
                continue;
            }
            let next = timers
                .due
                .first_key_value()
                .map(|((moment, _), _)| moment.since(now));
            let wait = next.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
            timers.wakes_at = next.map(|_| now.after(wait));
            if next.is_none() {
                self.0.changed.wait(&mut timers);
            } else {
                self.0.changed.wait_for(&mut timers, wait);
            }
        }
    }
}

fn duration_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Timers {
    fn pop_until(&mut self, moment: BootInstant) -> Option<(BootInstant, Waker)> {
        let first = self.due.first_entry()?;
        let due = first.key().0;
        (due <= moment).then(|| (due, first.remove()))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_virtual() {
            "virtual"
        } else {
            "system"
        };
        write!(f, "Clock({kind}, {:?})", self.now())
    }
}

/// The future of [`Clock::sleep_until`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    clock: Clock,
    moment: BootInstant,
    registered: Option<(u64, Waker)>,
}

impl Sleep {
    fn forget(&mut self) {
        // In a forked child the lock may stay locked forever, because its owner may exist only in the parent.
        if let Some((id, _)) = self.registered.take()
            && !is_forked()
        {
            self.clock.0.timers.lock().due.remove(&(self.moment, id));
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.moment {
            self.forget();
            return Poll::Ready(());
        }
        if self
            .registered
            .as_ref()
            .is_none_or(|(_, waker)| !waker.will_wake(context.waker()))
        {
            self.forget();
            let id = self.clock.register(self.moment, context.waker());
            self.registered = Some((id, context.waker().clone()));
            // Check again, because `advance` may have passed `moment` just before we registered. It would then never
            // wake us.
            if self.clock.now() >= self.moment {
                self.forget();
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}

/// A moment on a clock at which something ends.
#[derive(Clone, Debug)]
pub struct Deadline {
    clock: Clock,
    moment: BootInstant,
}

impl Deadline {
    pub(crate) fn new(clock: Clock, moment: BootInstant) -> Self {
        Self { clock, moment }
    }

    /// Returns the time left, or zero once the deadline has passed.
    pub fn remaining(&self) -> Duration {
        self.moment.since(self.clock.now())
    }

    /// Returns true once the deadline has passed.
    pub fn has_passed(&self) -> bool {
        self.clock.now() >= self.moment
    }

    /// Returns the moment at which the deadline passes.
    pub fn moment(&self) -> BootInstant {
        self.moment
    }

    /// Converts the deadline to an [`Instant`] for timers of other libraries. Returns the current instant if the
    /// deadline has passed, and `None` on a virtual clock.
    ///
    /// An [`Instant`] excludes suspended time, but the deadline counts it. Convert the deadline again before each use,
    /// and check [`has_passed`](Self::has_passed) after a wait.
    pub fn to_instant(&self) -> Option<Instant> {
        if self.clock.is_virtual() {
            return None;
        }
        // Read `Instant::now` first, so that the result is never later than the deadline.
        Instant::now().checked_add(self.remaining())
    }
}

/// Shows the time left: `in 3.4s`, or `passed`.
impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remaining() {
            Duration::ZERO => f.write_str("passed"),
            left => write!(f, "in {left:.1?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_sleepers_wake_in_order_of_their_moments() {
        let clock = Clock::new_virtual();
        let woken = Arc::new(Mutex::new(Vec::new()));
        for seconds in [3u64, 1, 2, 9] {
            let (clock, woken) = (clock.clone(), woken.clone());
            crate::spawn_detached(async move {
                clock.sleep(Duration::from_secs(seconds)).await;
                woken.lock().push((seconds, clock.now()));
            });
        }
        let start = clock.now();
        clock.advance(Duration::from_secs(5));
        let at = |seconds| (seconds, start.after(Duration::from_secs(seconds)));
        assert_eq!(*woken.lock(), [at(1), at(2), at(3)]);
        assert_eq!(clock.next_timer(), Some(at(9).1));
    }

    #[test]
    fn a_deadline_is_shown_by_the_time_left_and_converted_on_the_systems_clock() {
        let virtual_clock = Clock::new_virtual();
        let deadline = |clock: &Clock| {
            let moment = clock.now().after(Duration::from_millis(3_400));
            Deadline::new(clock.clone(), moment)
        };
        let end = deadline(&virtual_clock);
        assert_eq!(end.to_string(), "in 3.4s");
        assert_eq!(end.to_instant(), None);
        virtual_clock.advance(Duration::from_secs(4));
        assert_eq!(end.to_string(), "passed");

        let (before, end) = (std::time::Instant::now(), deadline(&Clock::system()));
        let instant = end.to_instant().unwrap();
        assert!(
            instant > before
                && instant <= std::time::Instant::now() + end.remaining() + Duration::from_secs(1)
        );
    }

    #[test]
    fn a_stop_wakes_the_sleepers_at_its_end_and_a_suspension_is_no_time_awake() {
        let clock = Clock::new_virtual();
        let woken = Arc::new(Mutex::new(Vec::new()));
        for seconds in [1, 3] {
            let (sleeper, woken) = (clock.clone(), woken.clone());
            crate::spawn_detached(async move {
                sleeper.sleep(Duration::from_secs(seconds)).await;
                woken.lock().push(sleeper.now());
            });
        }
        let (start, awake) = (clock.now(), clock.awake());
        let second = Duration::from_secs(1);
        clock.stall(2 * second);
        assert_eq!(*woken.lock(), [start.after(2 * second)]);
        assert_eq!(clock.awake(), awake.after(2 * second));
        clock.suspend(2 * second);
        assert_eq!(woken.lock()[1..], [start.after(4 * second)]);
        assert_eq!(clock.awake(), awake.after(2 * second));
    }

    #[test]
    fn a_dropped_sleep_leaves_no_timer() {
        let clock = Clock::new_virtual();
        let mut sleep = Box::pin(clock.sleep(Duration::from_secs(1)));
        assert!(
            sleep
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        assert!(clock.next_timer().is_some());
        drop(sleep);
        assert_eq!(clock.next_timer(), None);
    }

    #[test]
    fn the_system_clock_wakes_its_sleepers() {
        let (send, receive) = std::sync::mpsc::channel();
        crate::spawn_detached(async move {
            Clock::system().sleep(Duration::from_millis(1)).await;
            send.send(()).unwrap();
        });
        receive.recv().unwrap();
    }
}
