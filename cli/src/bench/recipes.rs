//! A common interface of the recipes.

use std::future::Future;

use lockkeeper::{
    Client, Election, Guard, Leadership, LockError, LockGuard, LockPath, Mutex, Permit, ReadGuard,
    RwLock, Semaphore, WriteGuard, ZnodePath,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Read,
    Write,
}

pub trait BenchLock: Clone + Send + Sync + 'static {
    type Held: LockGuard;

    /// Number of znodes below a queue's path in addition to the contenders' entries.
    const PARENTS: usize = 0;

    fn new(client: &Client, path: LockPath) -> Self;

    fn queues(&self) -> Vec<&ZnodePath>;

    fn take(&self, side: Side) -> impl Future<Output = Result<Self::Held, LockError>> + Send;

    fn share(_side: Side) -> u32 {
        WHOLE
    }
}

/// The share of a client that holds the whole lock and excludes all others.
pub const WHOLE: u32 = 1 << 20;

pub fn token(held: &impl LockGuard) -> i64 {
    held.fencing_token().as_i64()
}

impl BenchLock for Mutex {
    type Held = Guard;

    fn new(client: &Client, path: LockPath) -> Self {
        Self::new(client, path).expect("a valid path")
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        vec![self.path()]
    }

    async fn take(&self, _side: Side) -> Result<Guard, LockError> {
        self.lock().await
    }
}

impl BenchLock for RwLock {
    type Held = Guard;

    fn new(client: &Client, path: LockPath) -> Self {
        Self::new(client, path).expect("a valid path")
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        vec![self.path()]
    }

    async fn take(&self, side: Side) -> Result<Guard, LockError> {
        match side {
            Side::Read => self.read().await.map(ReadGuard::into_guard),
            Side::Write => self.write().await.map(WriteGuard::into_guard),
        }
    }

    fn share(side: Side) -> u32 {
        match side {
            Side::Read => 1,
            Side::Write => WHOLE,
        }
    }
}

#[derive(Clone)]
pub struct Permits<const COUNT: u32>(Semaphore);

impl<const COUNT: u32> BenchLock for Permits<COUNT> {
    type Held = Permit;

    // The znodes `locks`, `leases` and `permits`.
    const PARENTS: usize = 3;

    fn new(client: &Client, path: LockPath) -> Self {
        Self(Semaphore::new(client, path, COUNT).expect("a valid path"))
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        vec![self.0.path()]
    }

    async fn take(&self, _side: Side) -> Result<Permit, LockError> {
        self.0.acquire().await
    }

    fn share(_side: Side) -> u32 {
        WHOLE / COUNT
    }
}

impl BenchLock for Election {
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
