//! Named stream types, and a channel that a slow reader cannot block.
//!
//! The channel is bounded, and its sender never waits. When the channel is full, it drops new items and counts them
//! (invariant 10). The reader gets this count after all earlier items.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_core::Stream;
use tokio::sync::mpsc;

pub(crate) type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// Declares a public stream with an inherent method `next`, so that users need not import a trait.
macro_rules! named_stream {
    ($(#[$meta:meta])* $name:ident of $item:ty; $(#[$next:meta])*) => {
        $(#[$meta])*
        pub struct $name(pub(crate) $crate::stream::BoxStream<$item>);

        impl $name {
            $(#[$next])*
            pub async fn next(&mut self) -> Option<$item> {
                std::future::poll_fn(|context| self.0.as_mut().poll_next(context)).await
            }
        }

        impl futures_core::Stream for $name {
            type Item = $item;

            fn poll_next(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<$item>> {
                self.0.as_mut().poll_next(context)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}
pub(crate) use named_stream;

const MAX_BACKLOG: usize = 1_024;

pub(crate) trait Lossy: Send + 'static {
    /// Returns the item that reports `count` dropped items.
    fn missed(count: u64) -> Self;
}

pub(crate) fn lossy<T: Lossy>() -> (LossySender<T>, BoxStream<T>) {
    let (sender, mut receiver) = mpsc::channel(MAX_BACKLOG);
    let missed = Arc::new(AtomicU64::new(0));
    let count_missed = missed.clone();
    let items = async_stream::stream! {
        while let Some(item) = receiver.recv().await {
            yield item;
            // The dropped items were sent after the backlog, so report them after it.
            if receiver.is_empty() {
                let count = count_missed.swap(0, Ordering::Relaxed);
                if count > 0 {
                    yield T::missed(count);
                }
            }
        }
    };
    (LossySender { sender, missed }, Box::pin(items))
}

#[derive(Debug)]
pub(crate) struct LossySender<T> {
    sender: mpsc::Sender<T>,
    missed: Arc<AtomicU64>,
}

impl<T> LossySender<T> {
    pub(crate) fn send(&self, item: T) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(item) {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<T> Clone for LossySender<T> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            missed: self.missed.clone(),
        }
    }
}
