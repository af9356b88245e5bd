//! [`Store`]: the locks that `top` shows, the queue that is open, and what is done to a holder.

use std::time::{Duration, Instant};

use lockkeeper::{Client, Error, Revoker, ZnodePath, lock_queue};
use tokio::sync::mpsc::Sender;

use super::state::{Input, Revocation};
use crate::live::Feed;
use crate::locks::described;
use crate::locks::names::{escaped, lock_name};
use crate::revoke;

/// Pause between two readings of an open queue.
const PAUSE: Duration = Duration::from_secs(1);

/// An open queue is left in peace for this many times as long as it took to be read.
const PAUSE_FACTOR: u32 = 10;

/// The store that is watched.
#[derive(Clone)]
pub(super) struct Store {
    feed: Feed,
    tell: Sender<Input>,
}

impl Store {
    pub(super) fn new(feed: Feed, tell: Sender<Input>) -> Self {
        Self { feed, tell }
    }

    pub(super) fn client(&self) -> Client {
        self.feed.client()
    }

    /// Nobody listens any more when the command ends.
    async fn tell(&self, input: Input) {
        let _ = self.tell.send(input).await;
    }

    /// Tells of the locks, for as long as it is polled.
    pub(super) async fn watch(self) {
        self.feed.watch(self.tell).await;
    }

    /// Tells of the queue of a lock, for as long as it is polled.
    pub(super) async fn watch_queue(self, lock: ZnodePath) {
        loop {
            let began = Instant::now();
            let queue = match lock_queue(&self.feed.client(), &lock).await {
                // The line of the connection tells of these.
                Err(Error::ConnectionLoss | Error::SessionExpired { .. }) => None,
                queue => Some(queue.map_err(|error| error.to_string())),
            };
            if let Some(queue) = queue {
                let lock = lock.clone();
                self.tell(Input::Queue { lock, queue }).await;
            }
            let took = began.elapsed();
            tokio::time::sleep(PAUSE.max(took * PAUSE_FACTOR)).await;
        }
    }

    /// Asks the holder that was confirmed, or takes the lock from it; from nobody else.
    pub(super) async fn revoke(self, revocation: Revocation) {
        let holder = &revocation.holder;
        let revoker = Revoker::new(&self.feed.client()).by(revoke::user("top"));
        let (reached, did) = match revocation.force {
            true => (
                revoke::take(&revoker, std::slice::from_ref(holder)).await,
                "removed",
            ),
            false => (revoke::ask_entry(&revoker, holder).await, "asked"),
        };
        let name = escaped(&lock_name(&revocation.lock));
        let text = match reached {
            Ok(reached) if reached.is_empty() => {
                format!("{name}: that holder has already left: nothing was done")
            }
            Ok(_) => format!("{name}: {did} {}", described(holder)),
            Err(error) => format!("{name}: {}", escaped(&error.to_string())),
        };
        self.tell(Input::Done(text)).await;
    }
}
