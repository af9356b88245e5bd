//! Waking tasks. A waker is the user's code: it may panic, and it may run a whole task in place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes a task. The panic of a waker is reported by the panic hook and in the log, and goes no further: the threads
/// that call wakers are shared by all sessions of the process.
///
/// Call it without holding a lock: the task may run, or be dropped, in place.
pub fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("a waker panicked; its task may never be polled again");
    }
}

/// Wakes several tasks, in order. One that panics keeps none of the others from being woken.
pub fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(wake);
}
