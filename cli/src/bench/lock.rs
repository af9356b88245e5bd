//! [`Lock`]: the interface of every measured lock, and its implementation by Lockkeeper's recipes.

use std::future::Future;
use std::time::Duration;

use lockkeeper::{Error, LockError, LockGuard, LostReason, Session, ZnodePath};

use super::recipes::{self, BenchLock, Side, WHOLE};

pub trait Lock: Clone + Send + Sync + 'static {
    type Guard: Send + 'static;

    fn lock(&self) -> impl Future<Output = Result<Self::Guard, LockError>> + Send;

    fn unlock(guard: Self::Guard) -> impl Future<Output = Result<(), LockError>> + Send;

    /// Returns the grant's token, or `None` if the measured system has no tokens. Contenders that join the queue later
    /// get higher tokens.
    fn token(guard: &Self::Guard) -> Option<i64>;

    fn share(&self) -> u32 {
        WHOLE
    }

    /// Waits until this many contenders, including holders, are queued and have found their predecessors. All
    /// contenders must have sent their requests before this call.
    fn settled(&self, queued: usize) -> impl Future<Output = Result<(), LockError>> + Send;
}

#[derive(Clone)]
pub struct Ours<S> {
    pub subject: S,
    pub side: Side,
    pub place: Place,
}

impl<S: BenchLock> Lock for Ours<S> {
    type Guard = S::Held;

    async fn lock(&self) -> Result<S::Held, LockError> {
        self.subject.take(self.side).await
    }

    async fn unlock(guard: S::Held) -> Result<(), LockError> {
        let session = guard.session().id();
        guard.release().await.map_err(|error| match error {
            LockError::Lost(LostReason::SessionExpired | LostReason::LeaseExpired) => {
                Error::SessionExpired { session }.into()
            }
            error => error,
        })
    }

    fn token(guard: &S::Held) -> Option<i64> {
        Some(recipes::token(guard))
    }

    fn share(&self) -> u32 {
        S::share(self.side)
    }

    async fn settled(&self, queued: usize) -> Result<(), LockError> {
        for queue in self.subject.queues() {
            self.place.settled(queue, queued + S::PARENTS).await?;
        }
        Ok(())
    }
}

#[derive(Clone)]
pub struct Place {
    observer: Session,
}

/// Time after which we assume that a contender on a remote store has found its predecessor.
pub const REMOTE_PAUSE: Duration = Duration::from_millis(5);

impl Place {
    pub fn new(observer: &Session) -> Self {
        let observer = observer.clone();
        Self { observer }
    }

    async fn pause_if_remote(&self, pause: Duration) {
        if self.observer.timeout().is_some() {
            tokio::time::sleep(pause).await;
        }
    }

    pub async fn settled(&self, queue: &ZnodePath, queued: usize) -> Result<(), Error> {
        self.queued(queue, queued).await?;
        self.pause_if_remote(100 * REMOTE_PAUSE).await;
        Ok(())
    }

    pub async fn queued(&self, queue: &ZnodePath, queued: usize) -> Result<(), Error> {
        loop {
            match self.observer.get_all_children_number(queue).await {
                Ok(count) if count >= queued => return Ok(()),
                Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                // ZooKeeper before 3.6 cannot count a queue's entries, so we rely on the caller's pause.
                Err(Error::Unimplemented { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives one more contender time to find its predecessor. The contender must have sent its request before this
    /// call.
    pub async fn settled_again(&self) {
        self.pause_if_remote(REMOTE_PAUSE).await;
    }
}
