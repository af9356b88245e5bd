//! A batch cancelled at any point leaves nothing in any queue, with and without lost answers.

use lockkeeper::{lock_each, try_lock_many};
use testkit::on_every_backend;

use super::*;
use crate::harness::cancel::{at_every_point, cancelled_behind};

/// Every distinct combination of a lost multi, a lost look after it and a lost clean-up.
const LOSSES: [Losses; 10] = [
    (&[], &[]),
    (&[RequestKind::Multi], &[]),
    (&[], &[RequestKind::Multi]),
    (&[], &[RequestKind::Multi, RequestKind::Delete]),
    (&[], &[RequestKind::Multi, RequestKind::MultiRead]),
    (
        &[],
        &[
            RequestKind::Multi,
            RequestKind::MultiRead,
            RequestKind::Delete,
            RequestKind::Delete,
        ],
    ),
    (&[RequestKind::Delete], &[]),
    (&[], &[RequestKind::Delete]),
    (&[RequestKind::GetPredecessor], &[RequestKind::MultiRead]),
    (&[RequestKind::MultiRead], &[RequestKind::GetPredecessor]),
];

async fn with_losses<T>(
    world: &World,
    attempt: impl AsyncFn(&Client) -> Option<T>,
    holder: impl AsyncFn() -> Option<MultiGuard>,
) {
    for losses in LOSSES {
        at_every_point(async |polls| {
            let holder = holder().await;
            let client = unlucky(world, losses).await;
            let wait = attempt(&client);
            let outcome = match holder {
                None => polled(wait, polls).await,
                Some(holder) => {
                    let release = async || drop(holder);
                    cancelled_behind(wait, polls, world.until_each(&KEYS, 2), release).await
                }
            };
            let is_done = outcome.is_some();
            drop(outcome);
            world.until_nothing_is_left(&client).await;
            is_done
        })
        .await;
    }
}

async fn all(client: &Client) -> Option<MultiGuard> {
    Some(lock_all(client, KEYS).await.unwrap())
}

on_every_backend! {
    async fn at_every_point_of_free_locks(env: Env) {
        let world = World::new(env).await;
        with_losses(&world, all, async || None).await;
    }

    async fn at_every_point_of_held_locks(env: Env) {
        let world = World::new(env).await;
        let other = world.client().await;
        let holder = async || Some(lock_all(&other, KEYS).await.unwrap());
        with_losses(&world, all, holder).await;
    }

    async fn at_every_point_of_a_try(env: Env) {
        let world = World::new(env).await;
        let attempt = async |client: &Client| Some(try_lock_many(client, KEYS).await.unwrap());
        with_losses(&world, attempt, async || None).await;
    }

    async fn at_every_point_of_a_stream(env: Env) {
        let world = World::new(env).await;
        let other = world.client().await;
        let holder = async || Some(lock_all(&other, KEYS).await.unwrap());
        let attempt = async |client: &Client| {
            let mut each = lock_each(client, KEYS).unwrap();
            let mut guards = Vec::new();
            while let Some(granted) = each.next().await {
                guards.push(granted.unwrap());
            }
            assert_eq!(guards.len(), KEYS.len());
            Some(guards)
        };
        with_losses(&world, attempt, holder).await;
    }

    async fn while_the_connection_is_broken(env: Env) {
        let world = World::new(env).await;
        let holder = lock_all(&world.client().await, KEYS).await.unwrap();
        let client = world.client().await;
        let waiting = world.queue_up_all(&client, &KEYS).await;
        world.disconnect(&client);
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert_eq!(world.standing().await, 6, "the store has not heard of it");
        world.reconnect(&client);
        world.until_each(&KEYS, 1).await;
        assert!(holder.is_held());
    }
}
