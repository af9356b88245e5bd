//! Tests that a team with its own distributed lock would run before trusting ours: deadlock, starvation, redeployment,
//! stopped processes and high contention.

mod conflict;
mod deadlock;
mod redeployment;
mod starvation;
mod stopped;

use lockkeeper::{Client, Mutex, queue};

use crate::common::{World, until};

fn mutex(client: &Client, at: &str) -> Mutex {
    Mutex::new(client, at).unwrap()
}

/// Waits until a queue has `count` entries, including the holder.
async fn until_queued(world: &World, at: &str, count: usize) {
    until(&world.observing().await, at, |names| names.len() == count).await;
}

async fn until_empty(world: &World, at: &str) {
    until_queued(world, at, 0).await;
    assert!(queue(&world.observer, at).await.unwrap().is_empty());
}
