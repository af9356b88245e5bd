//! A cancelled wait leaves nothing behind, at any point and with any lost replies. Other waiters continue when a
//! session ends anywhere in the queue.

use lockkeeper::testing::RequestKind;
use lockkeeper::{Guard, LockError, LostReason, Mutex};
use testkit::on_every_backend;

use crate::common::*;
use crate::harness::cancel::{at_every_point, cancelled_behind};

/// Every combination of a lost create, a lost list after it and a lost clean-up.
const LOSSES: [Losses; 11] = [
    (&[], &[]),
    (&[RequestKind::Enqueue], &[]),
    (&[], &[RequestKind::Enqueue]),
    (&[], &[RequestKind::Enqueue, RequestKind::Delete]),
    (&[], &[RequestKind::Enqueue, RequestKind::GetChildren]),
    (&[], &[RequestKind::Enqueue, RequestKind::Exists]),
    (
        &[],
        &[
            RequestKind::Enqueue,
            RequestKind::GetChildren,
            RequestKind::Delete,
            RequestKind::Delete,
        ],
    ),
    (&[RequestKind::Delete], &[]),
    (&[], &[RequestKind::Delete]),
    (&[RequestKind::GetPredecessor], &[RequestKind::Exists]),
    (&[], &[RequestKind::GetPredecessor, RequestKind::MultiRead]),
];

async fn contender(world: &World, losses: Losses) -> Mutex {
    let mutex = world.mutex().await;
    world.lose(mutex.client(), losses);
    mutex
}

async fn given_back(outcome: Option<Result<Guard, LockError>>) -> bool {
    let is_granted = outcome.is_some();
    if let Some(guard) = outcome {
        guard.unwrap().release().await.unwrap();
    }
    is_granted
}

on_every_backend! {
    async fn at_every_point_of_a_free_lock(env: Env) {
        let world = World::new(env).await;
        for losses in LOSSES {
            at_every_point(async |polls| {
                let mutex = contender(&world, losses).await;
                let is_granted = given_back(polled(mutex.lock(), polls).await).await;
                world.until_swept(&mutex).await;
                is_granted
            })
            .await;
        }
    }

    async fn at_every_point_of_a_held_lock(env: Env) {
        let world = World::new(env).await;
        for losses in LOSSES {
            at_every_point(async |polls| {
                let holder = world.mutex().await.lock().await.unwrap();
                let mutex = contender(&world, losses).await;
                let release = async || holder.release().await.unwrap();
                let outcome = cancelled_behind(mutex.lock(), polls, world.until_count(2), release).await;
                let is_granted = given_back(outcome).await;
                world.until_swept(&mutex).await;
                is_granted
            })
            .await;
        }
    }

    async fn asleep_in_the_queue(env: Env) {
        let world = World::new(env).await;
        let holder = world.mutex().await.lock().await.unwrap();
        let mutex = world.mutex().await;
        let (first, second) = (world.queue_up(&mutex).await, world.queue_up(&mutex).await);
        let third = world.queue_up(&mutex).await;
        second.abort();
        world.until_count(3).await;
        first.abort();
        world.until_count(2).await;
        holder.release().await.unwrap();
        granted(third).await.release().await.unwrap();
        world.until_swept(&mutex).await;
    }

    async fn while_the_connection_is_broken(env: Env) {
        let world = World::new(env).await;
        let _holder = world.mutex().await.lock().await.unwrap();
        let mutex = world.mutex().await;
        let waiter = world.queue_up(&mutex).await;
        world.disconnect(mutex.client());
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        assert_eq!(world.children().await.len(), 2, "the store has not heard of it");
        world.reconnect(mutex.client());
        world.until_count(1).await;
    }

    async fn the_holders_session_expires(env: Env) {
        let world = World::new(env).await;
        let holding = world.mutex().await;
        let holder = holding.lock().await.unwrap();
        let first = world.queue_up(&world.mutex().await).await;
        let second = world.queue_up(&world.mutex().await).await;
        world.expire(holding.client()).await.unwrap();
        let next = granted(first).await;
        assert_eq!(holder.lost().await, LostReason::SessionExpired);
        assert!(!holder.is_held() && next.is_held() && !second.is_finished());
        next.release().await.unwrap();
        granted(second).await.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn the_first_waiters_session_expires(env: Env) {
        let world = World::new(env).await;
        let holder = world.mutex().await.lock().await.unwrap();
        let mutex = world.mutex().await;
        let first = world.queue_up(&mutex).await;
        let second = world.queue_up(&world.mutex().await).await;
        world.expire(mutex.client()).await.unwrap();
        assert!(refused(first).await.is_session_end());
        world.until_count(2).await;
        assert!(holder.is_held() && !second.is_finished());
        holder.release().await.unwrap();
        granted(second).await.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn a_middle_waiters_session_expires(env: Env) {
        let world = World::new(env).await;
        let holder = world.mutex().await.lock().await.unwrap();
        let first = world.queue_up(&world.mutex().await).await;
        let mutex = world.mutex().await;
        let middle = world.queue_up(&mutex).await;
        let last = world.queue_up(&world.mutex().await).await;
        world.expire(mutex.client()).await.unwrap();
        assert!(refused(middle).await.is_session_end());
        world.until_count(3).await;
        holder.release().await.unwrap();
        let next = granted(first).await;
        assert!(!last.is_finished());
        next.release().await.unwrap();
        granted(last).await.release().await.unwrap();
        world.until_count(0).await;
    }
}
