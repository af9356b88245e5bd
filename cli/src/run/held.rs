//! [`Held`]: a held lock of any kind.

use std::future::Future;
use std::pin::Pin;

use lockkeeper::{Deadline, FencingToken, LockError, LockGuard, LostReason, Session};

pub(super) trait AnyGuard {
    fn token(&self) -> FencingToken;
    fn is_held(&self) -> bool;
    fn held_until(&self) -> Option<Deadline>;
    fn session(&self) -> &Session;
    fn lost(&self) -> Pin<Box<dyn Future<Output = LostReason> + '_>>;
    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), LockError>>>>;
}

impl<G: LockGuard> AnyGuard for G {
    fn token(&self) -> FencingToken {
        self.fencing_token()
    }

    fn is_held(&self) -> bool {
        LockGuard::is_held(self)
    }

    fn held_until(&self) -> Option<Deadline> {
        LockGuard::held_until(self)
    }

    fn session(&self) -> &Session {
        LockGuard::session(self)
    }

    fn lost(&self) -> Pin<Box<dyn Future<Output = LostReason> + '_>> {
        Box::pin(LockGuard::lost(self))
    }

    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), LockError>>>> {
        Box::pin(LockGuard::release(*self))
    }
}

pub(super) enum Held {
    Lock(Box<dyn AnyGuard>),
    Job(lockkeeper::Run),
}

impl Held {
    pub(super) fn of(guard: impl LockGuard) -> Self {
        Self::Lock(Box::new(guard))
    }

    pub(super) fn guard(&self) -> &dyn AnyGuard {
        match self {
            Self::Lock(guard) => &**guard,
            Self::Job(run) => run.guard(),
        }
    }

    /// Releases the lock. Does not record a job's run.
    pub(super) async fn release(self) -> Result<(), LockError> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Job(run) => run.release().await,
        }
    }
}
