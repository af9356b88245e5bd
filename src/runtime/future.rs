//! Futures and the tasks that wait for them. A waker is user code, so it may panic or run a whole task in place.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Poll, Waker};

/// A boxed future, for object-safe traits.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Runs two futures until one completes, and drops both.
pub(crate) async fn select(left: impl Future, right: impl Future) {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| {
        // Poll in a fixed order, so that runs in virtual time repeat exactly.
        let left = left.as_mut().poll(context).is_ready();
        match left || right.as_mut().poll(context).is_ready() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

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
