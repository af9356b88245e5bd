//! Our semaphore and Curator's InterProcessSemaphoreV2.

use std::time::Duration;

use lockkeeper::{LockError, Permit, Semaphore};
use tokio::task::JoinHandle;

use super::{curator, curator_for};
use crate::common::*;
use crate::peer::{As, Contender, Inside, Process, beside_others, enter};

const QUOTA: &str = "/quota";
const WAITING: &str = "/quota/locks";
const HELD: &str = "/quota/leases";

async fn ours(world: &World, permits: u32) -> Semaphore {
    Semaphore::new(&world.client().await, QUOTA, permits).unwrap()
}

async fn theirs(process: &Process, name: &str, permits: u32) -> Contender {
    process
        .contender(name, "semaphore", &format!("{QUOTA} {permits}"))
        .await
}

/// Starts a wait, and returns once its entry is in the queue.
async fn queue_up(
    world: &World,
    semaphore: &Semaphore,
    count: u32,
) -> JoinHandle<Result<Permit, LockError>> {
    let semaphore = semaphore.clone();
    let wait = async move { semaphore.acquire_many(count).await };
    world.queue_up_at(WAITING, wait).await
}

async fn enter_as_one_of(world: &World, permits: usize, permit: &Permit) -> Inside {
    let lease = permit.paths().next().unwrap();
    enter(world, As::OneOf(permits), lease, permit.fencing_token()).await
}

async fn until_leases(world: &World, count: usize) {
    until(&world.observing().await, HELD, |names| names.len() == count).await;
}

beside_others! {
    async fn both_count_the_same_permits_and_stand_in_one_queue(world: World) {
        let process = curator(&world);
        let semaphore = ours(&world, 2).await;
        let one = semaphore.acquire().await.unwrap();
        let inside = enter_as_one_of(&world, 2, &one).await;
        let mut two = theirs(&process, "two", 2).await;
        let lease = two.acquire().await;
        assert_eq!(semaphore.available().await.unwrap(), 0);
        let holders = semaphore.holders().await.unwrap();
        let foreign = |name: &str| {
            let found = holders.iter().find(|entry| entry.path.name() == name);
            found.unwrap().metadata.is_none()
        };
        assert!(foreign(&lease));
        assert!(!foreign(one.paths().next().unwrap().name()));

        let third = queue_up(&world, &semaphore, 1).await;
        let mut fourth = theirs(&process, "fourth", 2).await;
        fourth.queue_up_in(&world, WAITING).await;
        let fifth = queue_up(&world, &ours(&world, 2).await, 1).await;

        two.release().await;
        let third = third.await.unwrap().unwrap();
        let third_inside = enter_as_one_of(&world, 2, &third).await;
        assert!(!fifth.is_finished());
        inside.leave().await;
        one.release().await.unwrap();
        fourth.until_held().await;
        assert!(!fifth.is_finished());
        fourth.release().await;
        let fifth = fifth.await.unwrap().unwrap();
        enter_as_one_of(&world, 2, &fifth).await.leave().await;
        third_inside.leave().await;
        third.release().await.unwrap();
        fifth.release().await.unwrap();
        until_leases(&world, 0).await;
    }

    async fn the_number_is_never_exceeded(world: World) {
        const PERMITS: u32 = 3;
        const EACH: usize = 25;
        let process = curator(&world);
        let cycles = async || {
            let semaphore = ours(&world, PERMITS).await;
            for _ in 0..EACH {
                let permit = semaphore.acquire().await.unwrap();
                let inside = enter_as_one_of(&world, PERMITS as usize, &permit).await;
                inside.leave().await;
                permit.release().await.unwrap();
            }
        };
        let mut one = theirs(&process, "one", PERMITS).await;
        let mut two = theirs(&process, "two", PERMITS).await;
        let mut three = theirs(&process, "three", PERMITS).await;
        tokio::join!(
            cycles(),
            cycles(),
            cycles(),
            one.cycles(EACH),
            two.cycles(EACH),
            three.cycles(EACH),
        );
        until_leases(&world, 0).await;
    }

    async fn a_large_request_of_ours_is_not_starved_by_curators_behind_it(world: World) {
        let process = curator(&world);
        let mut first = theirs(&process, "first", 2).await;
        first.acquire().await;
        let semaphore = ours(&world, 2).await;
        let both = queue_up(&world, &semaphore, 2).await;
        let mut behind = theirs(&process, "behind", 2).await;
        behind.queue_up_in(&world, WAITING).await;
        // The free permit is reserved for the head of the queue.
        assert_eq!(semaphore.available().await.unwrap(), 1);
        first.release().await;
        let both = both.await.unwrap().unwrap();
        assert_eq!(both.count(), 2);
        let inside = enter_as_one_of(&world, 1, &both).await;
        inside.leave().await;
        both.release().await.unwrap();
        behind.until_held().await;
        behind.release().await;
    }

    async fn the_permits_of_a_dead_curator_come_back(world: World) {
        let mortal = curator_for(&world, Duration::from_secs(4));
        let mut holder = theirs(&mortal, "holder", 2).await;
        holder.send("acquire 2");
        holder.until_held().await;
        let semaphore = ours(&world, 2).await;
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        let waiter = queue_up(&world, &semaphore, 2).await;
        mortal.kill();
        let permit = waiter.await.unwrap().unwrap();
        permit.release().await.unwrap();
    }
}
