//! Recipes and calls that `lockkeeper bench` does not measure.

use std::time::Duration;

use lockkeeper::{
    Client, Guard, LockError, LockOptions, LockPath, MultiGuard, Mutex, ZnodePath, lock_all,
};

use super::fresh_number;
use super::recipes::{BenchLock, Side};

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

impl BenchLock for Two {
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

#[derive(Clone, Copy)]
pub(crate) enum Call {
    Timeout,
    With,
    Try,
    /// `lock`, of a mutex with a new name.
    NewName,
}

/// A mutex that is taken by one of these calls.
#[derive(Clone)]
pub(crate) struct Called {
    mutex: Mutex,
    pub(crate) call: Call,
}

/// A timeout that is never reached.
pub(crate) const LONG: Duration = Duration::from_secs(60);

impl BenchLock for Called {
    type Held = Guard;

    fn new(client: &Client, path: LockPath) -> Self {
        Self {
            mutex: Mutex::new(client, path).expect("a valid path"),
            call: Call::With,
        }
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        vec![self.mutex.path()]
    }

    async fn take(&self, _side: Side) -> Result<Guard, LockError> {
        match self.call {
            Call::Timeout => self.mutex.lock_timeout(LONG).await,
            Call::With => self.mutex.lock_with(LockOptions::new()).await,
            Call::Try => Ok(self.mutex.try_lock().await?.expect("it is free")),
            Call::NewName => {
                let name = format!("{}/{}", self.mutex.path(), fresh_number());
                Mutex::new(self.mutex.client(), name)?.lock().await
            }
        }
    }
}
