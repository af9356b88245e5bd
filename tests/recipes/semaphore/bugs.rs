//! Known bugs of other semaphores, listed in docs/known-bugs.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::Error;
use lockkeeper::testing::RequestKind;
use testkit::{on_every_backend, on_every_znode_store};

use super::*;

on_every_backend! {
    // kazoo #429, CURATOR-335, CURATOR-462
    async fn a_fault_between_the_lease_and_the_look_at_it_leaks_the_permit(env: Env) {
        let ground = Ground::new(env, 2).await;
        let semaphore = ground.semaphore().await;
        let losses: [&[RequestKind]; 5] = [
            &[RequestKind::Multi],
            &[RequestKind::Multi, RequestKind::Multi],
            &[RequestKind::Multi, RequestKind::Exists],
            &[RequestKind::MultiRead, RequestKind::Multi, RequestKind::Multi, RequestKind::Exists, RequestKind::Exists],
            &[RequestKind::Enqueue, RequestKind::GetChildren, RequestKind::Multi, RequestKind::Exists],
        ];
        for replies in losses {
            for on in replies {
                ground.lose_reply(semaphore.client(), *on);
            }
            let permit = semaphore.acquire_many(2).await.unwrap();
            let mut leases = children(&ground.observing().await, LEASES).await;
            leases.sort();
            let mine: Vec<_> = permit.paths().map(|path| path.name().to_owned()).collect();
            assert_eq!(leases, mine, "{replies:?}");
            permit.release().await.unwrap();
            ground.until_swept(&semaphore, 0).await;
        }
    }

    // As above, cancelled while it looks for the lost reply.
    async fn a_grant_whose_answer_is_lost_is_cancelled_and_leaks_the_permit(env: Env) {
        let ground = Ground::new(env, 1).await;
        for polls in 1..12 {
            let semaphore = ground.semaphore().await;
            ground.delay_replies(semaphore.client(), Duration::from_millis(1));
            for on in [RequestKind::Multi, RequestKind::Multi, RequestKind::Delete] {
                ground.lose_reply(semaphore.client(), on);
            }
            drop(polled(semaphore.acquire(), polls).await);
            ground.until_swept(&semaphore, 0).await;
        }
        assert!(ground.hold(1).await.is_held());
    }

    // Curator's acquire(qty)
    async fn two_that_want_two_of_two_get_one_each_and_wait_for_ever(env: Env) {
        let ground = Ground::new(env, 2).await;
        let pair = [ground.semaphore().await, ground.semaphore().await];
        for _ in 0..20 {
            let uses = pair.clone().map(use_once::<2>);
            for used in uses {
                used.await.unwrap();
            }
        }
    }

    // CURATOR-75
    async fn the_number_changes_while_others_wait(env: Env) {
        let ground = Ground::new(env, 1).await;
        let holder = ground.hold(1).await;
        let semaphore = ground.semaphore().await;
        let large = ground.observing_semaphore();
        large.set_permits(4).await.unwrap();
        let first = ground.hold(2).await;
        let request = ground.queue_up(&semaphore, 2).await;
        for total in [3, 2, 4, 3] {
            large.set_permits(total).await.unwrap();
            assert!(!request.is_finished());
        }
        large.set_permits(5).await.unwrap();
        assert!(permitted(request).await.is_held() && first.is_held() && holder.is_held());
    }

    // CURATOR-376
    async fn a_release_races_with_an_acquire(env: Env) {
        let ground = Ground::new(env, 2).await;
        let inside = Arc::new(AtomicUsize::new(0));
        let mut workers = Vec::new();
        for worker in 0..8 {
            let (semaphore, inside) = (ground.semaphore().await, inside.clone());
            workers.push(tokio::spawn(async move {
                for round in 0..15 {
                    let permit = semaphore.acquire().await.unwrap();
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= 2, "{now} hold 2 permits");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    match (worker + round) % 3 {
                        0 => drop(permit),
                        1 => drop(permit.release()),
                        _ => permit.release().await.unwrap(),
                    }
                }
            }));
        }
        for worker in workers {
            worker.await.unwrap();
        }
        ground.until_waiting(0).await;
        ground.until_held(0).await;
    }

    // CURATOR-376, in the order that forgets the waiter
    async fn a_permit_comes_back_between_the_look_and_the_watch(env: Env) {
        let ground = Ground::new(env, 1).await;
        let holder = ground.hold(1).await;
        let semaphore = ground.semaphore().await;
        // From now on it joins the queue first and looks only then.
        ground.queue_up(&semaphore, 1).await.abort();
        ground.until_waiting(0).await;
        // Its read shows the permit held, but the answer arrives only after the release.
        ground.delay_replies(semaphore.client(), LONG);
        let request = ground.queue_up(&semaphore, 1).await;
        holder.release().await.unwrap();
        ground.heal();
        assert!(permitted(request).await.is_held());
    }

    // CURATOR-595
    async fn the_session_is_lost_and_the_server_comes_back(env: Env) {
        let ground = Ground::new(env, 2).await;
        let semaphore = ground.semaphore().await;
        let permit = semaphore.acquire().await.unwrap();
        let _other = ground.hold(1).await;
        let waiting = ground.queue_up(&semaphore, 1).await;
        ground.expire(semaphore.client()).await.unwrap();
        ground.disconnect(semaphore.client());
        ground.reconnect(semaphore.client());
        assert!(denied(waiting).await.is_session_end());
        assert!(!permit.is_held());
        // The next use opens a session. The old session's permit was returned with its end.
        let permit = semaphore.acquire().await.unwrap();
        assert_eq!(semaphore.available().await, Ok(0));
        permit.release().await.unwrap();
        ground.until_held(1).await;
    }

    // CURATOR-211, CURATOR-307
    async fn my_own_entry_is_deleted_while_i_wait_for_permits(env: Env) {
        let ground = Ground::new(env, 1).await;
        let holder = ground.hold(1).await;
        let head = ground.queue_up(&ground.semaphore().await, 1).await;
        let next = ground.queue_up(&ground.semaphore().await, 1).await;
        let entry = ground.waiters().await.remove(0).path;
        ground.revoke(&entry).await;
        ground.until_waiting(1).await;
        holder.release().await.unwrap();
        assert_eq!(denied(head).await, LockError::EntryDeleted { entry });
        let permit = permitted(next).await;
        ground.until_held(1).await;
        assert!(permit.is_held());
    }

    // ZOOKEEPER-4698
    async fn a_released_permit_is_missed_over_a_reconnection(env: Env) {
        let ground = Ground::new(env, 1).await;
        let holder = ground.hold(1).await;
        let semaphore = ground.semaphore().await;
        let request = ground.queue_up(&semaphore, 1).await;
        // Its own grant may be in flight then, and be executed after the release.
        ground.disconnect(semaphore.client());
        holder.release().await.unwrap();
        ground.reconnect(semaphore.client());
        assert!(permitted(request).await.is_held());
    }

    // CURATOR-724
    async fn the_parents_are_reaped_while_the_client_is_disconnected(env: Env) {
        let ground = Ground::new(env, 1).await;
        let semaphore = ground.semaphore().await;
        semaphore.acquire().await.unwrap().release().await.unwrap();
        ground.disconnect(semaphore.client());
        let waiting = semaphore.clone();
        let request = tokio::spawn(async move { waiting.acquire().await });
        tokio::task::yield_now().await;
        let session = ground.observing().await;
        for parent in [LOCKS, LEASES] {
            // The server may have removed it already.
            let _ = session.delete(&path(parent), None).await;
        }
        ground.reconnect(semaphore.client());
        assert!(permitted(request).await.is_held());
    }

    // Found here: the request that creates the queue used earlier reads, and so did other requests that met it.
}

on_every_znode_store! {
    async fn reads_from_before_the_queues_creation_are_not_believed(env: Env) {
        let reads = match env.is_zookeeper() {
            true => RequestKind::MultiRead,
            // The transaction itself counts the leases.
            false => RequestKind::Multi,
        };
        let world = World::new(env).await;
        // So long a path that every store lets the client create the queue.
        let quota = format!("{QUOTA}-{}", "x".repeat(4 << 10));
        let [locks, leases] = ["locks", "leases"].map(|part| format!("{quota}/{part}"));
        let quota = quota.as_str();
        let other = Semaphore::new(&world.client().await, quota, 2).unwrap();
        assert_eq!(other.permits().await, Ok(2));
        let semaphore = Semaphore::open(&world.client().await, quota).unwrap();
        // Now the client knows whether the store supports conditions.
        semaphore.acquire().await.unwrap().release().await.unwrap();
        for parent in [&locks, &leases] {
            let deleted = world.observing().await.delete(&path(parent), None).await;
            // The store may have removed the empty container before.
            assert!(matches!(deleted, Ok(()) | Err(Error::NoNode { .. })), "{deleted:?}");
        }
        // Its first answer, that the queue is missing, is late. The read next to it sees no lease.
        world.delay_replies(semaphore.client(), LONG);
        let mut late = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire().await }
        });
        let session = semaphore.client().current_session();
        let asked = || world.traffic_of(&session).requests(reads);
        let before = asked();
        while asked() == before {
            tokio::task::yield_now().await;
        }
        let holder = other.acquire_many(2).await.unwrap();
        world.heal();
        let observing = world.observing().await;
        tokio::select! {
            () = until(&observing, &locks, |names| names.len() == 1) => {}
            permit = &mut late => panic!("{permit:?} is granted beside two others"),
        }
        assert_eq!(children(&world.observing().await, &leases).await.len(), 2);
        assert!(!late.is_finished());
        holder.release().await.unwrap();
        assert!(permitted(late).await.is_held());
    }
}
