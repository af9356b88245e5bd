//! `lock_all` on two locks as a lock: what two locks cost beside one, and from the release of both to
//! the next grant of both. Every other client names them in the opposite order.

use lockkeeper::{Client, LockPath, MultiGuard, lock_all};

use crate::systems::{Lock, Place};

/// A handle to two locks.
#[derive(Clone)]
pub(crate) struct Two {
    client: Client,
    locks: [LockPath; 2],
    place: Place,
}

impl Two {
    pub(crate) fn new(client: Client, path: &LockPath, is_reversed: bool, place: Place) -> Self {
        let mut locks = ["a", "b"].map(|key| path.key(key));
        if is_reversed {
            locks.reverse();
        }
        Self {
            client,
            locks,
            place,
        }
    }
}

impl Lock for Two {
    type Guard = MultiGuard;

    async fn lock(&self) -> MultiGuard {
        lock_all(&self.client, &self.locks).await.expect("granted")
    }

    async fn unlock(guard: MultiGuard) {
        guard.release().await.expect("released");
    }

    fn token(guard: &MultiGuard) -> Option<i64> {
        Some(guard.fencing_token().as_i64())
    }

    async fn settled(&self, queued: usize) {
        for lock in &self.locks {
            self.place.settled(lock.as_znode(), queued).await;
        }
    }

    async fn settled_again(&self) {
        self.place.settled_again().await;
    }
}
