//! Locks within a process as the floor: tokio's, which are also fair, and async-lock's mutex.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use lockkeeper::LockError;
use tokio::sync::{
    Mutex, MutexGuard, OwnedMutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore,
    SemaphorePermit,
};

use crate::common::fresh_name;
use crate::common::lock::Lock;
use crate::common::more_recipes::LONG;
use crate::workloads::{Case, Relayed, Workload};

/// A lock within a process, acquired exclusively unless stated otherwise.
pub(crate) trait LocalLock: Sync + Sized + 'static {
    type Guard: Send + 'static;

    fn new() -> Self;

    fn acquire(&'static self) -> impl Future<Output = Self::Guard> + Send;
}

impl LocalLock for Mutex<()> {
    type Guard = MutexGuard<'static, ()>;

    fn new() -> Self {
        Self::default()
    }

    fn acquire(&'static self) -> impl Future<Output = Self::Guard> + Send {
        self.lock()
    }
}

impl LocalLock for RwLock<()> {
    type Guard = RwLockWriteGuard<'static, ()>;

    fn new() -> Self {
        Self::default()
    }

    fn acquire(&'static self) -> impl Future<Output = Self::Guard> + Send {
        self.write()
    }
}

impl LocalLock for async_lock::Mutex<()> {
    type Guard = async_lock::MutexGuard<'static, ()>;

    fn new() -> Self {
        Self::default()
    }

    async fn acquire(&'static self) -> Self::Guard {
        // As in tokio's locks. Otherwise a client that always finds the lock free would starve the others.
        tokio::task::consume_budget().await;
        self.lock().await
    }
}

#[derive(Default)]
pub(crate) struct Readers(RwLock<()>);

impl LocalLock for Readers {
    type Guard = RwLockReadGuard<'static, ()>;

    fn new() -> Self {
        Self::default()
    }

    fn acquire(&'static self) -> impl Future<Output = Self::Guard> + Send {
        self.0.read()
    }
}

impl LocalLock for Semaphore {
    type Guard = SemaphorePermit<'static>;

    fn new() -> Self {
        Self::new(1)
    }

    async fn acquire(&'static self) -> Self::Guard {
        self.acquire().await.expect("it is never closed")
    }
}

/// Mutexes by name, each taken with a timeout, as a program without a store would write it.
pub(crate) struct ByName {
    mutexes: parking_lot::Mutex<HashMap<String, Arc<Mutex<()>>>>,
    name: String,
}

impl LocalLock for ByName {
    type Guard = OwnedMutexGuard<()>;

    fn new() -> Self {
        Self {
            mutexes: Default::default(),
            name: format!("/bench/{}", fresh_name()),
        }
    }

    async fn acquire(&'static self) -> Self::Guard {
        let mutex = {
            let mut mutexes = self.mutexes.lock();
            match mutexes.get(&self.name) {
                Some(mutex) => mutex.clone(),
                None => mutexes.entry(self.name.clone()).or_default().clone(),
            }
        };
        let locked = tokio::time::timeout(LONG, mutex.lock_owned()).await;
        locked.expect("it is granted in time")
    }
}

/// A client's handle. The lock is leaked because its guards borrow it, which costs less than sharing.
pub(crate) struct Floor<L: 'static>(pub(crate) &'static L);

impl<L> Clone for Floor<L> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

pub(crate) fn many<L: LocalLock>(case: &Case) -> Vec<Floor<L>> {
    let new = || Floor(Box::leak(Box::new(L::new())));
    match case.workload {
        Workload::W4 => (0..case.n).map(|_| new()).collect(),
        _ => vec![new(); case.clients],
    }
}

impl<L: LocalLock> Lock for Floor<L> {
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

impl<L: LocalLock> Relayed for Floor<L> {
    async fn settled_again(&self) {}
}
