//! Tests of a team that runs its own distributed lock, before it trusts one: deadlock, starvation,
//! redeployment, processes that are stopped, and high conflict.

mod conflict;
mod deadlock;
mod redeployment;
mod starvation;
mod stopped;

use lockkeeper::{Client, Mutex, queue};

use crate::common::{World, until};

/// The mutex at a path, for a client.
fn mutex(client: &Client, at: &str) -> Mutex {
    Mutex::new(client, at).unwrap()
}

/// Waits until so many stand in a queue, the holder included.
async fn until_queued(world: &World, at: &str, count: usize) {
    until(&world.observing().await, at, |names| names.len() == count).await;
}

/// Waits until nothing is left of a queue.
async fn until_empty(world: &World, at: &str) {
    until_queued(world, at, 0).await;
    assert!(queue(&world.observer, at).await.unwrap().is_empty());
}
