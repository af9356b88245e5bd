//! The semaphore.

mod basics;
mod bugs;
mod cancel;
mod change;
mod model;
mod wakes;

use std::ops::Deref;

use lockkeeper::{Client, LockError, LockOptions, Permit, QueueEntry, Semaphore};
use testkit::Env;
use tokio::task::JoinHandle;

use crate::common::*;

/// The semaphore of most tests, and its children.
pub(crate) const QUOTA: &str = "/quota/geocoder";
pub(crate) const LOCKS: &str = "/quota/geocoder/locks";
pub(crate) const LEASES: &str = "/quota/geocoder/leases";
pub(crate) const PERMITS: &str = "/quota/geocoder/permits";

pub(crate) type Request = JoinHandle<Result<Permit, LockError>>;

/// A store with one semaphore, and clients that use it.
pub(crate) struct Ground {
    world: World,
    permits: u32,
}

impl Deref for Ground {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Ground {
    pub(crate) async fn new(env: Env, permits: u32) -> Self {
        let world = World::new(env).await;
        let observing = Semaphore::new(&world.observer, QUOTA, permits).unwrap();
        observing.permits().await.unwrap();
        Self { world, permits }
    }

    pub(crate) fn semaphore_of(&self, client: &Client) -> Semaphore {
        Semaphore::new(client, QUOTA, self.permits).unwrap()
    }

    /// Returns the semaphore for a new client that has used it before.
    pub(crate) async fn semaphore(&self) -> Semaphore {
        let semaphore = Semaphore::open(&self.world.client().await, QUOTA).unwrap();
        semaphore.permits().await.unwrap();
        semaphore
    }

    pub(crate) fn observing_semaphore(&self) -> Semaphore {
        Semaphore::open(&self.world.observer, QUOTA).unwrap()
    }

    pub(crate) async fn hold(&self, count: u32) -> Permit {
        self.semaphore().await.acquire_many(count).await.unwrap()
    }

    /// Starts a wait for permits, and returns once its entry is in the queue.
    pub(crate) async fn queue_up(&self, semaphore: &Semaphore, count: u32) -> Request {
        self.queue_up_with(semaphore, count, LockOptions::new())
            .await
    }

    pub(crate) async fn queue_up_with(
        &self,
        semaphore: &Semaphore,
        count: u32,
        options: LockOptions,
    ) -> Request {
        let semaphore = semaphore.clone();
        let request = async move { semaphore.acquire_with(count, options).await };
        self.world.queue_up_at(LOCKS, request).await
    }

    pub(crate) async fn until_waiting(&self, count: usize) {
        let session = self.world.observing().await;
        until(&session, LOCKS, |names| names.len() == count).await;
    }

    pub(crate) async fn until_held(&self, count: usize) {
        let session = self.world.observing().await;
        until(&session, LEASES, |names| names.len() == count).await;
    }

    pub(crate) async fn waiters(&self) -> Vec<QueueEntry> {
        self.observing_semaphore().waiters().await.unwrap()
    }

    pub(crate) async fn held(&self) -> usize {
        children(&self.world.observing().await, LEASES).await.len()
    }

    /// Waits until this client has nothing in the queue, among the leases or on its way there, while others hold `held`
    /// permits.
    pub(crate) async fn until_swept(&self, semaphore: &Semaphore, held: usize) {
        until_carried_out(semaphore.client(), semaphore.path()).await;
        self.until_waiting(0).await;
        self.until_held(held).await;
    }
}

pub(crate) async fn permitted(request: Request) -> Permit {
    request.await.unwrap().unwrap()
}

pub(crate) async fn denied(request: Request) -> LockError {
    request.await.unwrap().unwrap_err()
}

/// Spawns an acquire and its release, so that the grant does not depend on the test polling for it.
pub(crate) fn use_once<const COUNT: u32>(semaphore: Semaphore) -> JoinHandle<()> {
    tokio::spawn(async move {
        let permit = semaphore.acquire_many(COUNT).await.unwrap();
        permit.release().await.unwrap();
    })
}
