//! Cancelled waits of both sides leave nothing behind. Other waiters continue when a session ends anywhere in the
//! queue.

use lockkeeper::LostReason;
use lockkeeper::testing::RequestKind;
use testkit::on_every_backend;

use super::*;
use crate::harness::cancel::{at_every_point, cancelled_behind};

/// Lost messages of each wait: requests, then replies.
const LOSSES: [Losses; 7] = [
    (&[], &[]),
    (&[RequestKind::Enqueue], &[]),
    (&[], &[RequestKind::Enqueue]),
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
    (&[RequestKind::GetPredecessor], &[RequestKind::Exists]),
    (
        &[],
        &[
            RequestKind::GetPredecessor,
            RequestKind::MultiRead,
            RequestKind::MultiRead,
        ],
    ),
];

async fn contender(world: &World, losses: Losses) -> RwLock {
    let lock = lock(world).await;
    world.lose(lock.client(), losses);
    lock
}

/// Cancels a wait at every point. `holder` holds the lock until the wait has joined the queue.
async fn cancelled_at_every_point(world: &World, side: Side, holder: Option<Side>) {
    for losses in LOSSES {
        at_every_point(async |polls| {
            let held = match holder {
                Some(holder) => Some(take(&super::lock(world).await, holder).await),
                None => None,
            };
            let lock = contender(world, losses).await;
            let wait = take(&lock, side);
            let outcome = match held {
                None => polled(wait, polls).await,
                Some(held) => {
                    let release = async || held.release().await.unwrap();
                    cancelled_behind(wait, polls, world.until_count(2), release).await
                }
            };
            let is_granted = outcome.is_some();
            if let Some(guard) = outcome {
                guard.release().await.unwrap();
            }
            until_carried_out(lock.client(), lock.path()).await;
            world.until_count(0).await;
            is_granted
        })
        .await;
    }
}

on_every_backend! {
    async fn a_free_lock_cancelled_at_every_point(env: Env) {
        let world = World::new(env).await;
        for side in [Read, Write] {
            cancelled_at_every_point(&world, side, None).await;
        }
    }

    async fn a_held_lock_cancelled_at_every_point(env: Env) {
        let world = World::new(env).await;
        for (side, holder) in [(Read, Write), (Write, Read), (Write, Write)] {
            cancelled_at_every_point(&world, side, Some(holder)).await;
        }
    }

    async fn asleep_in_the_queue(env: Env) {
        let world = World::new(env).await;
        let holder = take(&lock(&world).await, Write).await;
        let [one, other, writer, last] = queue_up_all(&world, [Read, Read, Write, Read]).await;
        other.abort();
        world.until_count(4).await;
        writer.abort();
        world.until_count(3).await;
        holder.release().await.unwrap();
        let readers = [granted(one).await, granted(last).await];
        for reader in readers {
            reader.release().await.unwrap();
        }
        world.until_count(0).await;
    }

    async fn the_writers_session_expires_and_the_readers_go_on(env: Env) {
        let world = World::new(env).await;
        let writing = lock(&world).await;
        let writer = take(&writing, Write).await;
        let [one, other, next] = queue_up_all(&world, [Read, Read, Write]).await;
        world.expire(writing.client()).await.unwrap();
        let readers = [granted(one).await, granted(other).await];
        assert_eq!(writer.lost().await, LostReason::SessionExpired);
        assert!(!writer.is_held() && !next.is_finished());
        for reader in readers {
            assert!(reader.is_held());
            reader.release().await.unwrap();
        }
        assert!(granted(next).await.is_held());
    }

    async fn a_readers_session_expires_and_the_writer_waits_for_the_others(env: Env) {
        let world = World::new(env).await;
        let (one, other) = (lock(&world).await, lock(&world).await);
        let (expiring, staying) = (take(&one, Read).await, take(&other, Read).await);
        let [writer] = queue_up_all(&world, [Write]).await;
        world.expire(one.client()).await.unwrap();
        assert_eq!(expiring.lost().await, LostReason::SessionExpired);
        world.until_count(2).await;
        assert!(staying.is_held() && !writer.is_finished());
        staying.release().await.unwrap();
        assert!(granted(writer).await.is_held());
    }

    async fn a_waiting_writers_session_expires_and_the_readers_behind_it_go_on(env: Env) {
        let world = World::new(env).await;
        let holder = take(&lock(&world).await, Read).await;
        let dying = lock(&world).await;
        let writer = queue_up(&world, &dying, Write).await;
        let [one, other, next] = queue_up_all(&world, [Read, Read, Write]).await;
        world.expire(dying.client()).await.unwrap();
        assert!(refused(writer).await.is_session_end());
        let readers = [granted(one).await, granted(other).await];
        assert!(holder.is_held() && !next.is_finished());
        for reader in readers.into_iter().chain([holder]) {
            reader.release().await.unwrap();
        }
        assert!(granted(next).await.is_held());
    }

    async fn a_waiting_readers_session_expires_and_the_other_waiters_go_on(env: Env) {
        let world = World::new(env).await;
        let holder = take(&lock(&world).await, Write).await;
        let dying = lock(&world).await;
        let reader = queue_up(&world, &dying, Read).await;
        let [next, last] = queue_up_all(&world, [Write, Read]).await;
        world.expire(dying.client()).await.unwrap();
        assert!(refused(reader).await.is_session_end());
        world.until_count(3).await;
        assert!(!next.is_finished());
        holder.release().await.unwrap();
        granted(next).await.release().await.unwrap();
        assert!(granted(last).await.is_held());
    }

    async fn the_session_of_a_converted_holder_expires(env: Env) {
        let world = World::new(env).await;
        let (up, down) = (lock(&world).await, lock(&world).await);
        let writer = upgraded(up.read().await.unwrap().try_upgrade().await.unwrap());
        let [next] = queue_up_all(&world, [Write]).await;
        world.expire(up.client()).await.unwrap();
        assert_eq!(writer.lost().await, LostReason::SessionExpired);
        granted(next).await.release().await.unwrap();

        let reader = down.write().await.unwrap().downgrade().await.unwrap();
        let [next] = queue_up_all(&world, [Write]).await;
        world.expire(down.client()).await.unwrap();
        assert_eq!(reader.lost().await, LostReason::SessionExpired);
        assert!(granted(next).await.is_held());
    }
}
