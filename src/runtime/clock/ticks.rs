//! Ticks of a [`Clock`]: one timer shared by all tasks that need to be woken only if their wait lasts long.
//!
//! Nearly all such waits end before the tick. Joining and leaving the shared timer costs a third as much as setting and
//! removing a separate timer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use super::{BootInstant, Clock};
use crate::runtime::detached;
use crate::runtime::future::wake;
use crate::runtime::process::is_forked;

/// Longest time until the next tick. A clock without waiters does not tick.
const TICK: Duration = Duration::from_millis(250);

#[derive(Default)]
pub(super) struct Ticks {
    waiting: Slab<Waker>,
    /// Number of ticks so far. All waiters registered under a lower count have been woken.
    count: u64,
    last: BootInstant,
    is_timed: bool,
}

impl Clock {
    /// Waits for the clock's next tick and returns its moment. The tick is at most 250 ms after the first poll.
    ///
    /// All waiters share one timer, so this is much cheaper than a [`sleep`](Self::sleep) that is usually dropped
    /// early. Cancel safe.
    pub fn next_tick(&self) -> impl Future<Output = BootInstant> + Send + '_ {
        NextTick {
            clock: self,
            registered: None,
        }
    }

    /// Waits until `moment`, but sets a timer only after the next tick. This is cheaper than
    /// [`sleep_until`](Self::sleep_until) for waits that are usually dropped before that tick. Cancel safe.
    pub async fn sleep_by_ticks_until(&self, moment: BootInstant) {
        if moment.since(self.now()) > TICK {
            self.next_tick().await;
        }
        self.sleep_until(moment).await;
    }

    /// Wakes `waker` at the clock's next tick, at most 250 ms from now, unless the returned value is dropped before the
    /// tick. This is cheaper than [`next_tick`](Self::next_tick) in a separate task.
    pub fn wake_at_next_tick(&self, waker: Waker) -> TickPlace {
        TickPlace {
            clock: self.clone(),
            place: self.enter_ticks(waker),
        }
    }

    fn enter_ticks(&self, waker: Waker) -> Place {
        let mut ticks = self.0.ticks.lock();
        let place = Place {
            count: ticks.count,
            key: ticks.waiting.insert(waker),
        };
        if !std::mem::replace(&mut ticks.is_timed, true) {
            drop(ticks);
            detached::spawn_detached(self.clone().run_tick());
        }
        place
    }

    fn leave_ticks(&self, place: Place) {
        // In a forked child the lock may stay locked forever, because its owner may exist only in the parent.
        if is_forked() {
            return;
        }
        let mut ticks = self.0.ticks.lock();
        // After the tick, remove nothing, because the key may belong to another waiter.
        let waker = (place.count == ticks.count).then(|| ticks.waiting.remove(place.key));
        drop(ticks);
        drop(waker);
    }

    async fn run_tick(self) {
        self.sleep(TICK).await;
        let now = self.now();
        let waiting = {
            let mut ticks = self.0.ticks.lock();
            ticks.is_timed = false;
            ticks.count += 1;
            ticks.last = now;
            std::mem::take(&mut ticks.waiting)
        };
        // Wake without the lock, because wakers are user code and a woken task may wait for the next tick.
        waiting.into_iter().for_each(|(_, waker)| wake(waker));
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    count: u64,
    key: usize,
}

/// A registration for a clock's next tick, made by [`Clock::wake_at_next_tick`].
#[derive(Debug)]
#[must_use = "dropping it gives the place up"]
pub struct TickPlace {
    clock: Clock,
    place: Place,
}

impl TickPlace {
    /// Returns true once the tick has passed.
    pub fn has_passed(&self) -> bool {
        self.place.count != self.clock.0.ticks.lock().count
    }
}

impl Drop for TickPlace {
    fn drop(&mut self) {
        self.clock.leave_ticks(self.place);
    }
}

struct NextTick<'a> {
    clock: &'a Clock,
    registered: Option<Place>,
}

impl Future for NextTick<'_> {
    type Output = BootInstant;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BootInstant> {
        // Clone the new waker before taking the lock and drop the old one after it, because wakers are user code.
        let waker = context.waker().clone();
        let Some(place) = self.registered else {
            self.registered = Some(self.clock.enter_ticks(waker));
            return Poll::Pending;
        };
        let mut ticks = self.clock.0.ticks.lock();
        if place.count != ticks.count {
            let tick = ticks.last;
            drop(ticks);
            self.registered = None;
            return Poll::Ready(tick);
        }
        let former = std::mem::replace(&mut ticks.waiting[place.key], waker);
        drop(ticks);
        drop(former);
        Poll::Pending
    }
}

impl Drop for NextTick<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.registered {
            self.clock.leave_ticks(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn all_that_wait_share_one_timer_and_one_tick() {
        let clock = Clock::new_virtual();
        let woken = Arc::new(Mutex::new(Vec::new()));
        let start = clock.now();
        for late in [0, 80, 160] {
            clock.advance(start.after(Duration::from_millis(late)).since(clock.now()));
            let (waiter, woken) = (clock.clone(), woken.clone());
            crate::spawn_detached(async move {
                let tick = waiter.next_tick().await;
                woken.lock().push((late, tick));
            });
            assert_eq!(clock.next_timer(), Some(start.after(TICK)));
        }
        clock.advance(TICK);
        let tick = start.after(TICK);
        assert_eq!(*woken.lock(), [(0, tick), (80, tick), (160, tick)]);
        assert_eq!(clock.next_timer(), None, "nothing waits for another");
    }

    #[test]
    fn a_wait_that_is_dropped_leaves_the_list() {
        let clock = Clock::new_virtual();
        let mut waits: Vec<_> = (0..3).map(|_| Box::pin(clock.next_tick())).collect();
        let mut context = Context::from_waker(Waker::noop());
        for wait in &mut waits {
            assert!(wait.as_mut().poll(&mut context).is_pending());
            assert!(wait.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(clock.0.ticks.lock().waiting.len(), 3);
        drop(waits.pop());
        assert_eq!(clock.0.ticks.lock().waiting.len(), 2);
        clock.advance(TICK);
        let mut next = Box::pin(clock.next_tick());
        assert!(next.as_mut().poll(&mut context).is_pending());
        drop(waits.pop());
        assert_eq!(clock.0.ticks.lock().waiting.len(), 1);
        assert!(waits[0].as_mut().poll(&mut context).is_ready());
        clock.advance(TICK);
        assert!(next.as_mut().poll(&mut context).is_ready());
    }
}
