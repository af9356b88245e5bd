//! Waking tasks. A waker is user code, so it may panic or run a whole task in place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes a task. Logs a panic of the waker instead of propagating it, because all sessions of the process share the
/// threads that call wakers.
///
/// The caller must not hold a lock, because the task may run, or be dropped, within this call.
pub fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("a waker panicked, so its task may never be polled again");
    }
}

/// Wakes several tasks in order, even if some of the wakers panic.
pub fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(wake);
}
