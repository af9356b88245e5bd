//! Small additions to futures: [`BoxFuture`], [`select`] and a timeout.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

#[cfg(any(feature = "client", feature = "zookeeper"))]
use crate::clock::{BootInstant, Clock};

/// A boxed future, for object-safe traits.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Runs two futures until one is done, and drops both.
pub(crate) async fn select(left: impl Future, right: impl Future) {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| {
        // Always in this order, so that runs in virtual time repeat exactly.
        let left = left.as_mut().poll(context).is_ready();
        match left || right.as_mut().poll(context).is_ready() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

/// Runs `work` until `moment`; `None` on timeout.
#[cfg(any(feature = "client", feature = "zookeeper"))]
pub(crate) async fn until<T>(
    clock: &Clock,
    moment: BootInstant,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut done = None;
    select(async { done = Some(work.await) }, clock.sleep_until(moment)).await;
    done
}
