//! Tasks that run on one thread, always in the same order.

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
