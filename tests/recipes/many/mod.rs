//! Several locks at once.

mod all;
mod attempt;
mod cancel;
mod costs;
mod each;
mod half_way;
mod model;
mod seeds;
mod try_all;

use std::time::Duration;

use lockkeeper::testing::RequestKind;
use lockkeeper::{Client, Error, LockError, LockOptions, MultiGuard, lock_all, lock_all_with};
use tokio::task::JoinHandle;

use crate::common::*;

/// The locks of most tests. Their common parent is missing at first.
const KEYS: [&str; 3] = ["/many/a", "/many/b", "/many/c"];

/// A wait for several locks, in a task.
type Waiting = JoinHandle<Result<MultiGuard, LockError>>;

impl World {
    /// Returns the number of entries in the queues of all locks together.
    async fn standing(&self) -> usize {
        let session = self.observing().await;
        let mut standing = 0;
        for key in KEYS {
            standing += children(&session, key).await.len();
        }
        standing
    }

    /// Waits until so many stand in each of these queues.
    async fn until_each(&self, keys: &[&str], count: usize) {
        let session = self.observing().await;
        for key in keys {
            until(&session, key, |names| names.len() == count).await;
        }
    }

    /// Waits until nothing of this client's is in any queue, nor on its way there.
    async fn until_nothing_is_left(&self, client: &Client) {
        until_carried_out(client, &path(KEYS[0])).await;
        self.until_each(&KEYS, 0).await;
    }

    /// Starts to wait for several locks, and returns when the batch stands in the queues.
    async fn queue_up_all(&self, client: &Client, keys: &[&'static str]) -> Waiting {
        self.queue_up_all_with(client, keys, LockOptions::new())
            .await
    }

    async fn queue_up_all_with(
        &self,
        client: &Client,
        keys: &[&'static str],
        options: LockOptions,
    ) -> Waiting {
        let (client, keys, first) = (client.clone(), keys.to_vec(), keys[0]);
        let wait = async move { lock_all_with(&client, keys, options).await };
        self.queue_up_at(first, wait).await
    }
}

async fn all_granted(waiting: Waiting) -> MultiGuard {
    waiting.await.unwrap().unwrap()
}

async fn all_refused(waiting: Waiting) -> LockError {
    waiting.await.unwrap().unwrap_err()
}

/// A client that loses these.
async fn unlucky(world: &World, losses: Losses) -> Client {
    let client = world.client().await;
    world.lose(&client, losses);
    client
}
