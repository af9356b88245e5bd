//! Cancelled waits leave neither an entry nor a permit behind, at any point and with any lost replies. Other waiters
//! continue when a session ends anywhere.

use lockkeeper::LostReason;
use lockkeeper::testing::RequestKind;
use testkit::on_every_backend;

use super::*;
use crate::harness::cancel::{at_every_point, cancelled_behind};

const LOSSES: [Losses; 13] = [
    (&[], &[]),
    (&[RequestKind::Enqueue], &[]),
    (&[], &[RequestKind::Enqueue]),
    (&[], &[RequestKind::MultiRead, RequestKind::MultiRead]),
    (&[RequestKind::Multi], &[]),
    (&[], &[RequestKind::Multi]),
    (&[], &[RequestKind::Multi, RequestKind::Multi]),
    (&[], &[RequestKind::Multi, RequestKind::Exists]),
    (&[RequestKind::Multi, RequestKind::Delete], &[]),
    (
        &[],
        &[RequestKind::Multi, RequestKind::Delete, RequestKind::Delete],
    ),
    (
        &[],
        &[
            RequestKind::Enqueue,
            RequestKind::Multi,
            RequestKind::Exists,
        ],
    ),
    (&[], &[RequestKind::GetChildren, RequestKind::GetData]),
    (&[RequestKind::GetData], &[RequestKind::GetPredecessor]),
];

async fn contender(ground: &Ground, losses: Losses) -> Semaphore {
    let semaphore = ground.semaphore().await;
    ground.lose(semaphore.client(), losses);
    semaphore
}

async fn given_back(outcome: Option<Result<Permit, LockError>>) -> bool {
    let granted = outcome.is_some();
    if let Some(permit) = outcome {
        permit.unwrap().release().await.unwrap();
    }
    granted
}

/// Waits behind a holder of all permits and `ahead` others that wait for one each, until the holder releases.
async fn behind_a_holder(ground: &Ground, losses: Losses, ahead: usize) {
    at_every_point(async |polls| {
        let holder = ground.hold(3).await;
        let mut others = Vec::new();
        for _ in 0..ahead {
            others.push(ground.queue_up(&ground.semaphore().await, 1).await);
        }
        let semaphore = contender(ground, losses).await;
        let wait = semaphore.acquire_many(2);
        let release = async || holder.release().await.unwrap();
        let outcome = cancelled_behind(wait, polls, ground.until_waiting(ahead + 1), release).await;
        let is_granted = given_back(outcome).await;
        let mut held = Vec::new();
        for other in others {
            held.push(permitted(other).await);
        }
        ground.until_swept(&semaphore, held.len()).await;
        for permit in held {
            permit.release().await.unwrap();
        }
        is_granted
    })
    .await;
}

on_every_backend! {
    async fn at_every_point_with_free_permits(env: Env) {
        let ground = Ground::new(env, 3).await;
        for losses in LOSSES {
            at_every_point(async |polls| {
                let semaphore = contender(&ground, losses).await;
                let is_granted = given_back(polled(semaphore.acquire_many(2), polls).await).await;
                ground.until_swept(&semaphore, 0).await;
                is_granted
            })
            .await;
        }
    }

    async fn at_every_point_at_the_head(env: Env) {
        let ground = Ground::new(env, 3).await;
        for losses in LOSSES {
            behind_a_holder(&ground, losses, 0).await;
        }
    }

    async fn at_every_point_behind_another(env: Env) {
        let ground = Ground::new(env, 3).await;
        for losses in LOSSES {
            behind_a_holder(&ground, losses, 1).await;
        }
    }

    async fn asleep_in_the_queue(env: Env) {
        let ground = Ground::new(env, 2).await;
        let holder = ground.hold(2).await;
        let semaphore = ground.semaphore().await;
        let mut waiting = Vec::new();
        for _ in 0..4 {
            waiting.push(ground.queue_up(&semaphore, 1).await);
        }
        for (left, place) in [(3, 2), (2, 0)] {
            waiting.remove(place).abort();
            ground.until_waiting(left).await;
        }
        holder.release().await.unwrap();
        for request in waiting {
            permitted(request).await.release().await.unwrap();
        }
        ground.until_swept(&semaphore, 0).await;
    }

    async fn while_the_connection_is_broken(env: Env) {
        let ground = Ground::new(env, 1).await;
        let _holder = ground.hold(1).await;
        let semaphore = ground.semaphore().await;
        let request = ground.queue_up(&semaphore, 1).await;
        ground.disconnect(semaphore.client());
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        assert_eq!(ground.waiters().await.len(), 1, "the store has not heard of it");
        ground.reconnect(semaphore.client());
        ground.until_swept(&semaphore, 1).await;
    }

    async fn the_holders_session_expires(env: Env) {
        let ground = Ground::new(env, 3).await;
        let holding = ground.semaphore().await;
        let holder = holding.acquire_many(3).await.unwrap();
        let first = ground.queue_up(&ground.semaphore().await, 2).await;
        let second = ground.queue_up(&ground.semaphore().await, 2).await;
        ground.expire(holding.client()).await.unwrap();
        let next = permitted(first).await;
        assert_eq!(holder.lost().await, LostReason::SessionExpired);
        assert!(!holder.is_held() && next.is_held() && !second.is_finished());
        assert_eq!(holder.release().await, Err(LostReason::SessionExpired.into()));
        next.release().await.unwrap();
        permitted(second).await.release().await.unwrap();
        ground.until_held(0).await;
    }

    async fn the_heads_session_expires(env: Env) {
        let ground = Ground::new(env, 2).await;
        let holder = ground.hold(1).await;
        let semaphore = ground.semaphore().await;
        let head = ground.queue_up(&semaphore, 2).await;
        let next = ground.queue_up(&ground.semaphore().await, 1).await;
        ground.expire(semaphore.client()).await.unwrap();
        assert!(denied(head).await.is_session_end());
        assert!(permitted(next).await.is_held() && holder.is_held());
        ground.until_waiting(0).await;
    }

    async fn a_middle_waiters_session_expires(env: Env) {
        let ground = Ground::new(env, 1).await;
        let holder = ground.hold(1).await;
        let head = ground.queue_up(&ground.semaphore().await, 1).await;
        let semaphore = ground.semaphore().await;
        let middle = ground.queue_up(&semaphore, 1).await;
        let last = ground.queue_up(&ground.semaphore().await, 1).await;
        ground.expire(semaphore.client()).await.unwrap();
        assert!(denied(middle).await.is_session_end());
        ground.until_waiting(2).await;
        holder.release().await.unwrap();
        let next = permitted(head).await;
        assert!(!last.is_finished());
        next.release().await.unwrap();
        permitted(last).await.release().await.unwrap();
        ground.until_held(0).await;
    }

    async fn a_closed_client_gives_all_back(env: Env) {
        let ground = Ground::new(env, 2).await;
        let semaphore = ground.semaphore().await;
        let permit = semaphore.acquire_many(2).await.unwrap();
        let waiting = ground.queue_up(&semaphore, 1).await;
        let other = ground.queue_up(&ground.semaphore().await, 2).await;
        semaphore.client().close().await.unwrap();
        assert!(!permit.is_held());
        assert!(denied(waiting).await.is_session_end());
        assert!(permitted(other).await.is_held());
        assert!(semaphore.acquire().await.is_err());
    }
}
