//! [`Store`]: reads the locks and the open queue, and revokes holders.

use std::time::{Duration, Instant};

use lockkeeper::{Client, Error, Revoker, ZnodePath, lock_queue};
use tokio::sync::mpsc::Sender;

use super::state::{Input, Revocation};
use crate::live::Feed;
use crate::locks::described;
use crate::locks::names::{escaped, lock_name};
use crate::revoke;

const PAUSE: Duration = Duration::from_secs(1);

/// Minimum delay before the next reading, as a multiple of the duration of the last reading.
const PAUSE_FACTOR: u32 = 10;

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

    async fn tell(&self, input: Input) {
        let _ = self.tell.send(input).await;
    }

    pub(super) async fn watch(self) {
        self.feed.watch(self.tell).await;
    }

    pub(super) async fn watch_queue(self, lock: ZnodePath) {
        loop {
            let began = Instant::now();
            let queue = match lock_queue(&self.feed.client(), &lock).await {
                // The status line already reports these errors.
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
