//! [`Meter`]: metrics of one wait or hold. Does nothing unless metrics were registered.

#[cfg(feature = "metrics")]
pub(crate) use counting::{Meter, is_counted};
#[cfg(not(feature = "metrics"))]
pub(crate) use nothing::{Meter, is_counted};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Timeout,
    Cancelled,
    Taken,
    Failed,
}

#[cfg(feature = "metrics")]
mod counting {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use lockkeeper_store::{BootInstant, Clock};
    use parking_lot::Mutex;
    use prometheus::{HistogramVec, IntGaugeVec};

    use super::Outcome;
    use crate::events::{LockEvent, PreviousHolder};
    use crate::metrics::{METRICS, is_registered};
    use crate::names::Kind;

    /// The meter of one wait or hold. `None` if the wait or hold started before the metrics were registered.
    #[derive(Clone)]
    pub(crate) struct Meter(Option<Arc<Measured>>);

    #[inline]
    pub(crate) fn is_counted() -> bool {
        is_registered()
    }

    struct Measured {
        kind: Mutex<Kind>,
        clock: Clock,
        since: BootInstant,
        is_hold: bool,
        is_over: AtomicBool,
    }

    impl Meter {
        pub(crate) fn of_wait(kind: Kind, clock: &Clock) -> Self {
            Self::new(kind, clock, false)
        }

        pub(crate) fn of_hold(kind: Kind, clock: &Clock) -> Self {
            Self::new(kind, clock, true)
        }

        #[inline]
        fn new(kind: Kind, clock: &Clock, is_hold: bool) -> Self {
            Self(is_counted().then(|| Measured::begin(kind, clock, is_hold)))
        }

        #[inline]
        pub(crate) fn see(&self, event: &LockEvent) {
            if let Some(measured) = &self.0 {
                measured.see(event);
            }
        }

        #[inline]
        pub(crate) fn gave_up(&self, outcome: Outcome) {
            if let Some(measured) = &self.0 {
                measured.gave_up(outcome);
            }
        }
    }

    impl Measured {
        #[cold]
        fn begin(kind: Kind, clock: &Clock, is_hold: bool) -> Arc<Self> {
            let measured = Self {
                kind: Mutex::new(kind),
                clock: clock.clone(),
                since: clock.now(),
                is_hold,
                is_over: AtomicBool::new(false),
            };
            measured.gauge().with_label_values(&[kind.role()]).inc();
            Arc::new(measured)
        }

        fn see(&self, event: &LockEvent) {
            let role = self.kind.lock().role();
            match event {
                LockEvent::Acquired { previous, .. } => {
                    self.end(Some(&METRICS.wait));
                    if *previous != PreviousHolder::Free {
                        METRICS.hand_overs.with_label_values(&[role]).inc();
                    }
                }
                LockEvent::Released => self.end(Some(&METRICS.hold)),
                LockEvent::Lost { reason } => {
                    self.end(Some(&METRICS.hold));
                    METRICS.lost(role, *reason);
                }
                LockEvent::RevocationRequested { .. } => {
                    METRICS.revocations.with_label_values(&[role]).inc();
                }
                LockEvent::Upgraded { .. } => self.convert(Kind::Write),
                LockEvent::Downgraded => self.convert(Kind::Read),
                _ => {}
            }
        }

        fn convert(&self, to: Kind) {
            let mut kind = self.kind.lock();
            if !self.is_over.load(Ordering::Acquire) {
                self.gauge().with_label_values(&[kind.role()]).dec();
                self.gauge().with_label_values(&[to.role()]).inc();
                *kind = to;
            }
        }

        fn gave_up(&self, outcome: Outcome) {
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            self.end(None);
            let outcome = match outcome {
                Outcome::Timeout => "timeout",
                Outcome::Cancelled => "cancelled",
                Outcome::Taken => "taken",
                Outcome::Failed => "failed",
            };
            let labels = [self.kind.lock().role(), outcome];
            METRICS.waits_ended.with_label_values(&labels).inc();
        }

        fn gauge(&self) -> &'static IntGaugeVec {
            match self.is_hold {
                true => &METRICS.held,
                false => &METRICS.waiters,
            }
        }

        fn end(&self, histogram: Option<&HistogramVec>) {
            let kind = self.kind.lock();
            if self.is_over.swap(true, Ordering::AcqRel) {
                return;
            }
            let role = &[kind.role()];
            self.gauge().with_label_values(role).dec();
            if let Some(histogram) = histogram {
                let took = self.clock.now().since(self.since);
                histogram
                    .with_label_values(role)
                    .observe(took.as_secs_f64());
            }
        }
    }

    impl Drop for Measured {
        fn drop(&mut self) {
            // A release that finds no znode reports no event, so record the end of the hold here.
            let histogram = self.is_hold.then_some(&METRICS.hold);
            self.end(histogram);
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod nothing {
    use lockkeeper_store::Clock;

    use super::Outcome;
    use crate::events::LockEvent;
    use crate::names::Kind;

    #[derive(Clone)]
    pub(crate) struct Meter;

    #[inline]
    pub(crate) fn is_counted() -> bool {
        false
    }

    impl Meter {
        #[inline]
        pub(crate) fn of_wait(_: Kind, _: &Clock) -> Self {
            Self
        }

        #[inline]
        pub(crate) fn of_hold(_: Kind, _: &Clock) -> Self {
            Self
        }

        #[inline]
        pub(crate) fn see(&self, _: &LockEvent) {}

        #[inline]
        pub(crate) fn gave_up(&self, _: Outcome) {}
    }
}
