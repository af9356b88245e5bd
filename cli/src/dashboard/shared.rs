//! [`Shared`]: the one feed of all viewers, and what comes of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Semaphore, mpsc, watch};

use super::board::Board;
use crate::live::{Feed, News};

/// Limit of viewers: of streams of events.
pub(crate) const MAX_VIEWERS: usize = 64;

/// Number of news that wait for the board.
const QUEUE: usize = 64;

/// A pause after a reading of a queue, in multiples of its duration: readers of long queues get a fifth of a core
/// together.
const PAUSE_FACTOR: u32 = 4;

/// A reading counts as no longer than this, so that one stall of the store does not delay the next for long.
const LONGEST_READING: Duration = Duration::from_millis(500);

/// State that all viewers share.
pub(super) struct Shared {
    pub(super) feed: Feed,
    pub(super) board: Mutex<Board>,
    /// Tells the viewers of each change of the board.
    pub(super) changed: watch::Sender<()>,
    pub(super) viewers: Arc<Semaphore>,
    /// Moment before which no queue is read.
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

    /// Keeps the board, for as long as it is polled.
    pub(super) async fn run(&self) {
        let (to, mut news) = mpsc::channel(QUEUE);
        let apply = async {
            while let Some(news) = news.recv().await {
                // The times of a row are counted from the moment at which it is shown.
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

    /// Returns the date of the store's client.
    pub(super) fn now_ms(&self) -> i64 {
        self.feed.client().clock().unix_ms()
    }

    /// Reads a queue, one of all viewers at a time.
    pub(super) async fn read<T>(&self, reading: impl Future<Output = T>) -> T {
        let next = self.next_reading.lock().await;
        tokio::time::sleep_until((*next).into()).await;
        let _turn = Turn {
            begun: Instant::now(),
            next,
        };
        reading.await
    }
}

/// A reading. Its end sets the next one's time, also if it is dropped midway: a client that connects again and again
/// reads no more often.
struct Turn<'a> {
    begun: Instant,
    next: MutexGuard<'a, Instant>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let took = self.begun.elapsed().min(LONGEST_READING);
        *self.next = Instant::now() + PAUSE_FACTOR * took;
    }
}
