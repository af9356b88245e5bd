//! Recipes that the benchmarks measure beside those of `lockkeeper bench`.

use lockkeeper::{
    Client, Election, Leadership, LockError, LockPath, MultiGuard, ZnodePath, lock_all,
};

use super::recipes::{Side, Subject};

impl Subject for Election {
    type Held = Leadership;

    fn new(client: &Client, path: LockPath) -> Self {
        Self::new(client, path).expect("a valid path")
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        vec![self.path()]
    }

    async fn take(&self, _side: Side) -> Result<Leadership, LockError> {
        self.campaign("bench").await
    }
}

/// Two locks, acquired together by `lock_all`.
#[derive(Clone)]
pub(crate) struct Two {
    client: Client,
    locks: [LockPath; 2],
}

impl Two {
    /// Names the locks in the opposite order.
    pub(crate) fn reverse(&mut self) {
        self.locks.reverse();
    }
}

impl Subject for Two {
    type Held = MultiGuard;

    fn new(client: &Client, path: LockPath) -> Self {
        Self {
            client: client.clone(),
            locks: ["a", "b"].map(|key| path.key(key)),
        }
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        self.locks.iter().map(|lock| lock.as_znode()).collect()
    }

    async fn take(&self, _side: Side) -> Result<MultiGuard, LockError> {
        lock_all(&self.client, &self.locks).await
    }
}
