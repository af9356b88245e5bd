//! Tokio's locks as the floor: they are fair as well, and nothing of them outlives the process.

use std::future::Future;

use lockkeeper::LockError;
use tokio::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit,
};

use crate::common::lock::Lock;
use crate::workloads::{Case, Relayed, Workload};

/// A lock of tokio's, acquired exclusively unless it says otherwise.
pub(crate) trait TokioLock: Sync + Sized + 'static {
    type Guard: Send + 'static;

    fn new() -> Self;

    fn acquire(&'static self) -> impl Future<Output = Self::Guard> + Send;
}

impl TokioLock for Mutex<()> {
    type Guard = MutexGuard<'static, ()>;

    fn new() -> Self {
        Self::default()
    }

    fn acquire(&'static self) -> impl Future<Output = Self::Guard> + Send {
        self.lock()
    }
}

impl TokioLock for RwLock<()> {
    type Guard = RwLockWriteGuard<'static, ()>;

    fn new() -> Self {
        Self::default()
    }

    fn acquire(&'static self) -> impl Future<Output = Self::Guard> + Send {
        self.write()
    }
}

/// A lock that its readers share.
#[derive(Default)]
pub(crate) struct Readers(RwLock<()>);

impl TokioLock for Readers {
    type Guard = RwLockReadGuard<'static, ()>;

    fn new() -> Self {
        Self::default()
    }

    fn acquire(&'static self) -> impl Future<Output = Self::Guard> + Send {
        self.0.read()
    }
}

impl TokioLock for Semaphore {
    type Guard = SemaphorePermit<'static>;

    fn new() -> Self {
        Self::new(1)
    }

    async fn acquire(&'static self) -> Self::Guard {
        self.acquire().await.expect("it is never closed")
    }
}

/// A client's handle. The lock is leaked: its guards borrow it, which costs less than sharing.
pub(crate) struct Floor<L: 'static>(pub(crate) &'static L);

impl<L> Clone for Floor<L> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

/// Returns the handles that a case needs.
pub(crate) fn many<L: TokioLock>(case: &Case) -> Vec<Floor<L>> {
    let new = || Floor(Box::leak(Box::new(L::new())));
    match case.workload {
        Workload::W4 => (0..case.n).map(|_| new()).collect(),
        _ => vec![new(); case.clients],
    }
}

impl<L: TokioLock> Lock for Floor<L> {
    type Guard = L::Guard;

    async fn lock(&self) -> Result<L::Guard, LockError> {
        Ok(self.0.acquire().await)
    }

    async fn unlock(guard: L::Guard) -> Result<(), LockError> {
        drop(guard);
        Ok(())
    }

    fn token(_guard: &L::Guard) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) -> Result<(), LockError> {
        Ok(())
    }
}

impl<L: TokioLock> Relayed for Floor<L> {
    async fn settled_again(&self) {}
}
