//! [`Shared`]: the feed and board that all viewers share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Semaphore, mpsc, watch};

use super::board::Board;
use crate::live::{Feed, News};

pub(crate) const MAX_VIEWERS: usize = 64;

const QUEUE: usize = 64;

/// After reading a queue, we pause for this many times as long as the reading took, so all readings together use at
/// most a fifth of a core.
const PAUSE_FACTOR: u32 = 4;

/// Longer readings count as this long when we compute the pause, so that a single stall of the store does not delay the
/// next reading for long.
const LONGEST_READING: Duration = Duration::from_millis(500);

pub(super) struct Shared {
    pub(super) feed: Feed,
    pub(super) board: Mutex<Board>,
    pub(super) changed: watch::Sender<()>,
    pub(super) viewers: Arc<Semaphore>,
    next_reading: tokio::sync::Mutex<Instant>,
}

impl Shared {
    pub(super) fn new(feed: Feed, max_bytes: usize) -> Self {
        let now_ms = feed.client().clock().unix_ms();
        Self {
            board: Mutex::new(Board::new(max_bytes, now_ms, Instant::now())),
            feed,
            changed: watch::Sender::new(()),
            viewers: Arc::new(Semaphore::new(MAX_VIEWERS)),
            next_reading: tokio::sync::Mutex::new(Instant::now()),
        }
    }

    pub(super) async fn run(&self) {
        let (to, mut news) = mpsc::channel(QUEUE);
        let apply = async {
            while let Some(news) = news.recv().await {
                // Do not notify viewers of `Heard`, because their pages advance the times of the rows on their own.
                let is_seen = !matches!(news, News::Heard);
                let now_ms = self.now_ms();
                self.board.lock().apply(news, now_ms, Instant::now());
                if is_seen {
                    self.changed.send_replace(());
                }
            }
        };
        tokio::join!(self.feed.clone().watch(to), apply);
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.feed.client().clock().unix_ms()
    }

    pub(super) async fn read<T>(&self, reading: impl Future<Output = T>) -> T {
        let next = self.next_reading.lock().await;
        tokio::time::sleep_until((*next).into()).await;
        let _turn = Reading {
            begun: Instant::now(),
            next,
        };
        reading.await
    }
}

/// A reading in progress. Dropping it sets the earliest time of the next reading, even if the reading was canceled, so
/// a client cannot read more often by reconnecting.
struct Reading<'a> {
    begun: Instant,
    next: MutexGuard<'a, Instant>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let took = self.begun.elapsed().min(LONGEST_READING);
        *self.next = Instant::now() + PAUSE_FACTOR * took;
    }
}
