//! [`select`]: waits for the first of two futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Runs two futures until one is done, and drops both.
pub(crate) async fn select(left: impl Future, right: impl Future) {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| {
        let left = left.as_mut().poll(context).is_ready();
        match left || right.as_mut().poll(context).is_ready() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}
