//! Tasks and random numbers that a seed decides.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

/// Single-threaded executor that polls woken tasks always in the same order.
#[derive(Default)]
pub(super) struct Executor {
    tasks: Vec<(Arc<Woken>, Task)>,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Executor {
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.tasks
            .push((Arc::new(Woken(AtomicBool::new(true))), Box::pin(task)));
    }

    /// Runs until all tasks wait. Returns true if any is left.
    pub(super) fn run_until_stalled(&mut self) -> bool {
        let mut any = true;
        while any {
            any = false;
            self.tasks.retain_mut(|(woken, task)| {
                if !woken.0.swap(false, Ordering::AcqRel) {
                    return true;
                }
                any = true;
                let waker = Waker::from(woken.clone());
                task.as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            });
        }
        !self.tasks.is_empty()
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }
}
