//! Several locks in one call.

mod all;

mod cancel;
mod costs;
mod each;
mod half_way;
mod model;
mod try_all;
mod try_many;

use std::fmt;
use std::time::Duration;

use lockkeeper::testing::RequestKind;
use lockkeeper::{Client, Error, LockError, LockOptions, MultiGuard, lock_all, lock_all_with};
use tokio::task::JoinHandle;

use crate::common::*;

/// The locks of most tests. Their common parent does not exist at first.
const KEYS: [&str; 3] = ["/many/a", "/many/b", "/many/c"];

type Waiting = JoinHandle<Result<MultiGuard, LockError>>;

impl World {
    async fn standing(&self) -> usize {
        let session = self.observing().await;
        let mut standing = 0;
        for key in KEYS {
            standing += children(&session, key).await.len();
        }
        standing
    }

    async fn until_each(&self, keys: &[&str], count: usize) {
        let session = self.observing().await;
        for key in keys {
            until(&session, key, |names| names.len() == count).await;
        }
    }

    /// Waits until this client has nothing in any queue or on its way there.
    async fn until_nothing_is_left(&self, client: &Client) {
        until_carried_out(client, &path(KEYS[0])).await;
        self.until_each(&KEYS, 0).await;
    }

    /// Starts a wait for several locks, and returns once the batch is in the queues.
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

/// Checks that a call refuses invalid keys before it sends anything.
async fn refuses_bad_keys<T: fmt::Debug>(
    world: &World,
    call: impl AsyncFn(&Client, Vec<String>) -> Result<T, LockError>,
) {
    let client = world.client().await;
    let before = world.traffic_of(&client);
    let refusal = async |keys: &[&str]| {
        let keys = keys.iter().map(|key| key.to_string()).collect();
        call(&client, keys).await.unwrap_err()
    };
    assert_eq!(refusal(&[]).await, LockError::EmptyKeys);
    let twice = refusal(&["/many/a", "/many/b", "/many/a"]).await;
    assert_eq!(
        twice.to_string(),
        "/many/a is named twice in one batch of locks"
    );
    assert_eq!(
        twice,
        LockError::DuplicateKey {
            path: path("/many/a")
        }
    );
    let invalid = refusal(&["/many/a", "many"]).await;
    assert!(
        matches!(invalid, LockError::Store(Error::InvalidPath { .. })),
        "{invalid}"
    );
    let keys = (0..10_000).map(|n| format!("/many/{n}")).collect();
    let large = call(&client, keys).await.unwrap_err();
    assert!(
        large
            .to_string()
            .contains("over the limit of 1047551 bytes"),
        "{large}"
    );
    assert!(matches!(
        large,
        LockError::BatchTooLarge { keys: 10_000, .. }
    ));
    assert_eq!(
        (world.traffic_of(&client) - before).requests(RequestKind::Any),
        0
    );
}

/// Requests by their lost answers. Each must leave a try for several locks unaffected.
const LOST_IN_A_TRY: [Losses; 5] = [
    (&[], &[RequestKind::MultiRead]),
    (&[RequestKind::MultiRead], &[RequestKind::MultiRead]),
    (&[], &[RequestKind::Multi]),
    (&[RequestKind::Multi], &[]),
    (&[], &[RequestKind::MultiRead, RequestKind::Multi]),
];

async fn unlucky(world: &World, losses: Losses) -> Client {
    let client = world.client().await;
    world.lose(&client, losses);
    client
}
