//! [`Lock`]: the interface of every lock that is measured, and Lockkeeper's recipes behind it. Shared by `lockkeeper bench`
//! and the benchmarks in `benches/`.

use std::future::Future;
use std::time::Duration;

use lockkeeper::{Error, LockError, LockGuard, LostReason, Session, ZnodePath};

use super::recipes::{self, Side, Subject, WHOLE};

/// One client's handle to a lock.
pub trait Lock: Clone + Send + Sync + 'static {
    type Guard: Send + 'static;

    fn lock(&self) -> impl Future<Output = Result<Self::Guard, LockError>> + Send;

    fn unlock(guard: Self::Guard) -> impl Future<Output = Result<(), LockError>> + Send;

    /// A number that grows in the order of arrival, where the system has one.
    fn token(guard: &Self::Guard) -> Option<i64>;

    /// Returns the part of the lock that this handle takes, of [`WHOLE`].
    fn share(&self) -> u32 {
        WHOLE
    }

    /// Waits until so many contenders are in the queue, holders included, and have found their predecessors. Each has
    /// sent its request before.
    fn settled(&self, queued: usize) -> impl Future<Output = Result<(), LockError>> + Send;
}

/// A handle to one of Lockkeeper's recipes.
#[derive(Clone)]
pub struct Ours<S> {
    pub subject: S,
    pub side: Side,
    pub place: Place,
}

impl<S: Subject> Lock for Ours<S> {
    type Guard = S::Held;

    async fn lock(&self) -> Result<S::Held, LockError> {
        self.subject.take(self.side).await
    }

    async fn unlock(guard: S::Held) -> Result<(), LockError> {
        let session = guard.session().id();
        guard.release().await.map_err(|error| match error {
            // The end of the session, as the requests of waiters report it.
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

/// Observer of queues while they are joined.
#[derive(Clone)]
pub struct Place {
    observer: Session,
}

/// Longest time in which a contender on a remote store finds its predecessor.
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

    /// See [`Lock::settled`].
    pub async fn settled(&self, queue: &ZnodePath, queued: usize) -> Result<(), Error> {
        self.queued(queue, queued).await?;
        self.pause_if_remote(100 * REMOTE_PAUSE).await;
        Ok(())
    }

    /// Waits until so many contenders are in the queue, the holder included.
    pub async fn queued(&self, queue: &ZnodePath, queued: usize) -> Result<(), Error> {
        loop {
            match self.observer.get_all_children_number(queue).await {
                Ok(count) if count >= queued => return Ok(()),
                Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                // ZooKeeper before 3.6 does not count them. The pause has to suffice there.
                Err(Error::Unimplemented { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until one more contender, which has sent its request before, is in the queue and waits.
    pub async fn settled_again(&self) {
        self.pause_if_remote(REMOTE_PAUSE).await;
    }
}
