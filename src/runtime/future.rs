//! [`BoxFuture`] and [`select`].

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

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
