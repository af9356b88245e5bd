//! The semaphore as a lock: with a single permit a hand-over is one as of a mutex, and what it costs
//! more is the grant's own transaction. Beside tokio's semaphore, which is fair as well.

use lockkeeper::{Permit, Semaphore};
use tokio::sync::SemaphorePermit;

use crate::systems::{Lock, Place};
use crate::workloads::{Case, Workload};

/// A handle to a semaphore of one permit.
#[derive(Clone)]
pub(crate) struct Quota {
    semaphore: Semaphore,
    place: Place,
}

impl Quota {
    pub(crate) fn new(semaphore: Semaphore, place: Place) -> Self {
        Self { semaphore, place }
    }
}

/// The znodes `locks`, `leases` and `permits`.
const PARENTS: usize = 3;

impl Lock for Quota {
    type Guard = Permit;

    async fn lock(&self) -> Permit {
        self.semaphore.acquire().await.expect("granted")
    }

    async fn unlock(permit: Permit) {
        permit.release().await.expect("released");
    }

    fn token(permit: &Permit) -> Option<i64> {
        Some(permit.fencing_token().as_i64())
    }

    async fn settled(&self, queued: usize) {
        let below = queued + PARENTS;
        self.place.settled(self.semaphore.path(), below).await;
    }

    async fn settled_again(&self) {
        self.place.settled_again().await;
    }
}

/// tokio's semaphore of one permit.
#[derive(Clone)]
pub(crate) struct TokioQuota(&'static tokio::sync::Semaphore);

impl TokioQuota {
    /// The handles that a case needs, leaked as those of the mutex.
    pub(crate) fn many(case: &Case) -> Vec<Self> {
        let new = || Self(Box::leak(Box::new(tokio::sync::Semaphore::new(1))));
        match case.workload {
            Workload::W4 => (0..case.n).map(|_| new()).collect(),
            _ => vec![new(); case.clients],
        }
    }
}

impl Lock for TokioQuota {
    type Guard = SemaphorePermit<'static>;

    async fn lock(&self) -> Self::Guard {
        self.0.acquire().await.expect("it is never closed")
    }

    async fn unlock(permit: Self::Guard) {
        drop(permit);
    }

    fn token(_permit: &Self::Guard) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) {}

    async fn settled_again(&self) {}
}
