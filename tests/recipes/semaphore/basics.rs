//! Acquiring permits: in order, several together, in time, or not at all.

use std::time::Duration;

use lockkeeper::testing::RequestKind;
use lockkeeper::{
    Election, Error, LockError, LockEvent, LockOptions, LostReason, Mutex, PreviousHolder, RwLock,
    Semaphore, lock_all, lock_events, try_lock_many,
};
use lockkeeper_store::CreateMode;
use testkit::{on_every_backend, on_every_znode_store};

use super::*;

const SHORT: Duration = Duration::from_millis(30);

on_every_backend! {
    async fn as_many_hold_as_there_are_permits(env: Env) {
        let ground = Ground::new(env, 3).await;
        let mut held = Vec::new();
        for free in [2, 1, 0] {
            held.push(ground.hold(1).await);
            assert_eq!(ground.observing_semaphore().available().await, Ok(free));
        }
        assert!(held.iter().all(|permit| permit.is_held() && permit.count() == 1));
        assert!(held.is_sorted_by_key(|permit| permit.fencing_token()));
        let next = ground.queue_up(&ground.semaphore().await, 1).await;
        assert!(!next.is_finished());
        held.remove(1).release().await.unwrap();
        permitted(next).await.release().await.unwrap();
        drop(held);
        ground.until_held(0).await;
    }

    async fn grants_come_in_the_order_of_queueing(env: Env) {
        let ground = Ground::new(env, 2).await;
        let semaphores = [ground.semaphore().await, ground.semaphore().await];
        let mut held = vec![ground.hold(1).await, ground.hold(1).await];
        let mut waiting = Vec::new();
        for turn in 0..8 {
            waiting.push(ground.queue_up(&semaphores[turn % 2], 1).await);
        }
        let mut tokens = Vec::new();
        for (turn, request) in waiting.into_iter().enumerate() {
            assert!(!request.is_finished());
            held.remove(turn % 2).release().await.unwrap();
            let permit = permitted(request).await;
            tokens.push(permit.fencing_token());
            held.push(permit);
        }
        assert!(tokens.is_sorted());
    }

    async fn several_are_granted_at_once_and_in_order(env: Env) {
        let ground = Ground::new(env, 4).await;
        let (first, second) = (ground.hold(2).await, ground.hold(2).await);
        let large = ground.queue_up(&ground.semaphore().await, 3).await;
        let small = ground.queue_up(&ground.semaphore().await, 1).await;
        first.release().await.unwrap();
        ground.until_held(2).await;
        assert_eq!(ground.observing_semaphore().available().await, Ok(2));
        // Two are free, but the small request waits behind the large one, which takes none of them yet.
        assert_eq!(ground.waiters().await.len(), 2);
        assert!(!large.is_finished() && !small.is_finished());
        second.release().await.unwrap();
        let large = permitted(large).await;
        assert_eq!(large.count(), 3);
        let small = permitted(small).await;
        assert_eq!((ground.held().await, small.is_held()), (4, true));
    }

    async fn a_request_that_finds_free_permits_does_not_pass_one_that_waits_for_more(env: Env) {
        let ground = Ground::new(env, 3).await;
        let holder = ground.hold(2).await;
        let large = ground.queue_up(&ground.semaphore().await, 2).await;
        let semaphore = ground.semaphore().await;
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        // It is queued although a permit is free.
        let small = ground.queue_up(&semaphore, 1).await;
        ground.until_waiting(2).await;
        holder.release().await.unwrap();
        let (large, small) = (permitted(large).await, permitted(small).await);
        assert!(large.is_held() && small.is_held());
    }

    async fn two_that_each_want_all_do_not_wait_for_each_other(env: Env) {
        let ground = Ground::new(env, 2).await;
        let mut uses = Vec::new();
        for _ in 0..6 {
            uses.push(use_once::<2>(ground.semaphore().await));
        }
        for used in uses {
            used.await.unwrap();
        }
        ground.until_held(0).await;
    }

    async fn permits_are_given_back_one_by_one_or_together(env: Env) {
        let ground = Ground::new(env, 5).await;
        let mut all = ground.hold(5).await;
        let one = all.split(1).unwrap();
        let two = all.split(2).unwrap();
        assert_eq!([all.count(), one.count(), two.count()], [2, 1, 2]);
        assert_eq!(all.fencing_token(), one.fencing_token());
        for none in [0, 2, 3] {
            assert!(all.split(none).is_none());
        }
        assert_eq!(all.count(), 2);
        one.release().await.unwrap();
        assert_eq!(ground.held().await, 4);
        drop(two);
        ground.until_held(2).await;
        assert!(all.is_held());
        all.release().await.unwrap();
        assert_eq!(ground.held().await, 0);
    }

    async fn invalid_requests_are_refused_at_once(env: Env) {
        let ground = Ground::new(env, 2).await;
        let semaphore = ground.semaphore().await;
        let nothing = semaphore.acquire_many(0).await.unwrap_err();
        assert!(matches!(nothing, LockError::Store(Error::BadArguments(_))), "{nothing}");
        assert!(semaphore.try_acquire_many(0).await.is_err());
        let too_many = LockError::TooManyPermits { path: path(QUOTA), wanted: 3, total: 2 };
        let _holder = ground.hold(2).await;
        let _waiter = ground.queue_up(&ground.semaphore().await, 1).await;
        assert_eq!(semaphore.acquire_many(3).await.unwrap_err(), too_many);
        assert_eq!(semaphore.try_acquire_many(3).await.unwrap_err(), too_many);
        ground.until_waiting(1).await;
    }

    async fn a_grant_too_large_for_one_request_is_refused_before_it_joins_the_queue(env: Env) {
        let ground = Ground::new(env, 100_000).await;
        let semaphore = ground.semaphore().await;
        for permits in [100_000, u32::MAX] {
            semaphore.set_permits(permits).await.unwrap();
            let before = ground.traffic_of(semaphore.client());
            let refused = semaphore.acquire_many(permits).await.unwrap_err();
            assert!(matches!(refused, LockError::Store(Error::TooLarge { .. })), "{refused}");
            assert!(semaphore.try_acquire_many(permits).await.is_err());
            let cost = ground.traffic_of(semaphore.client()) - before;
            assert_eq!(cost.requests(RequestKind::Enqueue), 0);
        }
    }

    async fn a_timed_out_wait_leaves_nothing(env: Env) {
        let ground = Ground::new(env, 1).await;
        let holder = ground.hold(1).await;
        let at_the_head = ground.semaphore().await;
        let refusal = at_the_head.acquire_timeout(SHORT).await.unwrap_err();
        assert_timed_out(&refusal, QUOTA, SHORT);
        ground.until_waiting(0).await;
        let head = ground.queue_up(&ground.semaphore().await, 1).await;
        let refusal = ground.semaphore().await.acquire_timeout(SHORT).await.unwrap_err();
        assert_timed_out(&refusal, QUOTA, SHORT);
        ground.until_waiting(1).await;
        holder.release().await.unwrap();
        permitted(head).await.release().await.unwrap();
        ground.until_swept(&at_the_head, 0).await;
    }

    async fn a_try_acquires_free_permits_and_does_not_overtake(env: Env) {
        let ground = Ground::new(env, 3).await;
        let semaphore = ground.semaphore().await;
        let two = semaphore.try_acquire_many(2).await.unwrap().unwrap();
        assert!(semaphore.try_acquire_many(2).await.unwrap().is_none());
        let waiting = ground.queue_up(&ground.semaphore().await, 2).await;
        assert!(semaphore.try_acquire().await.unwrap().is_none(), "one is free, but awaited");
        waiting.abort();
        ground.until_waiting(0).await;
        let one = semaphore.try_acquire().await.unwrap().unwrap();
        assert_eq!((two.count(), one.count()), (2, 1));
    }

    async fn a_try_in_vain_costs_one_read_and_no_write(env: Env) {
        let ground = Ground::new(env, 1).await;
        let _holder = ground.hold(1).await;
        let semaphore = ground.semaphore().await;
        let before = ground.traffic_of(semaphore.client());
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        let cost = ground.traffic_of(semaphore.client()) - before;
        assert_eq!((cost.requests(RequestKind::Any), cost.requests(RequestKind::MultiRead)), (1, 1));
    }

    async fn the_layout_is_curators(env: Env) {
        let ground = Ground::new(env, 2).await;
        let _holder = ground.hold(2).await;
        let _waiter = ground.queue_up(&ground.semaphore().await, 1).await;
        let session = ground.observing().await;
        let mut names = children(&session, QUOTA).await;
        names.sort();
        assert_eq!(names, ["leases", "locks", "permits"]);
        let (data, _) = session.get_data(&path(PERMITS)).await.unwrap();
        assert_eq!(data, r#"{"v":1,"permits":2}"#);
        let mut leases = children(&session, LEASES).await;
        leases.sort();
        for (index, lease) in leases.iter().enumerate() {
            let (uuid, number) = lease.strip_prefix("_c_").unwrap().split_once("-lease-").unwrap();
            assert_eq!((uuid.len(), number.len()), (36, 10));
            assert_eq!(number.parse(), Ok(index));
        }
        let waiter = children(&session, LOCKS).await.remove(0);
        assert!(waiter.starts_with("_c_") && waiter.contains("-lock-"), "{waiter}");
    }

    async fn waiters_and_holders_are_listed_with_their_metadata(env: Env) {
        let ground = Ground::new(env, 2).await;
        let options = |label: &str| LockOptions::new().label(label);
        let semaphore = ground.semaphore().await;
        let holder = semaphore.acquire_with(2, options("holder")).await.unwrap();
        let _waiter = ground.queue_up_with(&semaphore, 1, options("waiter")).await;
        let holders = semaphore.holders().await.unwrap();
        assert_eq!(holders.iter().map(|lease| lease.sequence).collect::<Vec<_>>(), [0, 1]);
        for lease in &holders {
            assert_eq!(lease.metadata.as_ref().unwrap(), &holder.metadata());
            assert_eq!((lease.fencing_token, lease.owner), (holder.fencing_token(), holder.session().id()));
        }
        let waiters = semaphore.waiters().await.unwrap();
        assert_eq!(waiters[0].metadata.as_ref().unwrap().label.as_deref(), Some("waiter"));
    }

    async fn a_queue_limit_counts_waiters(env: Env) {
        let ground = Ground::new(env, 1).await;
        let _holder = ground.hold(1).await;
        let limited = || LockOptions::new().queue_limit(0);
        let _head = ground.queue_up_with(&ground.semaphore().await, 1, limited()).await;
        let refused = ground.semaphore().await.acquire_with(1, limited()).await.unwrap_err();
        assert_eq!(refused, LockError::QueueFull { path: path(LOCKS), ahead: 1, limit: 0 });
        ground.until_waiting(1).await;
    }

    async fn events_tell_the_wait_and_the_holding(env: Env) {
        let ground = Ground::new(env, 2).await;
        let (sink, mut events) = lock_events();
        let semaphore = ground.semaphore().await;
        let holder = ground.hold(2).await;
        let before = ground.queue_up(&ground.semaphore().await, 2).await;
        let request =
            ground.queue_up_with(&semaphore, 2, LockOptions::new().events(sink)).await;
        assert!(matches!(events.next().await, Some(LockEvent::Queued { position: 1, .. })));
        holder.release().await.unwrap();
        let before = permitted(before).await;
        assert!(matches!(events.next().await, Some(LockEvent::Advanced { position: 0 })));
        before.release().await.unwrap();
        let mut permit = permitted(request).await;
        let Some(LockEvent::Acquired { fencing_token: token, previous, .. }) = events.next().await else {
            panic!("it was granted");
        };
        assert_eq!((token, previous), (permit.fencing_token(), PreviousHolder::Unknown));
        let part = permit.split(1).unwrap();
        part.release().await.unwrap();
        permit.release().await.unwrap();
        assert!(matches!(events.next().await, Some(LockEvent::Released)));
        assert!(events.next().await.is_none());
    }

    async fn a_permit_that_is_taken_away_is_lost(env: Env) {
        let ground = Ground::new(env, 3).await;
        let permit = ground.hold(3).await;
        let last = permit.paths().last().unwrap().clone();
        let lost = async { permit.lost().await };
        let taken = async { ground.revoke(&last).await };
        assert_eq!(tokio::join!(lost, taken).0, LostReason::Revoked);
        assert!(!permit.is_held());
        let forever = std::future::pending::<()>();
        assert_eq!(permit.protect(forever).await, Err(LostReason::Revoked));
        assert_eq!(permit.release().await, Err(LostReason::Revoked.into()));
        ground.until_held(0).await;
    }

    async fn a_path_of_another_recipe_is_refused(env: Env) {
        let ground = Ground::new(env, 1).await;
        let client = ground.client().await;
        let _mutex = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
        let semaphore = Semaphore::new(&client, LOCK, 1).unwrap();
        let refused = semaphore.acquire().await.unwrap_err();
        let LockError::WrongKind { path: at, expected, kind, .. } = &refused else {
            panic!("{refused}");
        };
        assert_eq!((at.as_str(), *expected, *kind), (LOCK, "semaphore", "a mutex"));
        assert!(matches!(semaphore.set_permits(2).await, Err(LockError::WrongKind { .. })));
    }

    async fn the_path_of_a_semaphore_is_refused_to_every_other_recipe(env: Env) {
        let ground = Ground::new(env, 1).await;
        let permit = ground.hold(1).await;
        let client = ground.client().await;
        let is_refused = |error: LockError| {
            let LockError::WrongKind { path: at, found, kind, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!((at.as_str(), *kind), (QUOTA, "a semaphore"));
            assert!(["locks", "leases"].contains(&found.as_str()), "{found}");
        };
        let mutex = Mutex::new(&client, QUOTA).unwrap();
        is_refused(mutex.lock().await.unwrap_err());
        is_refused(mutex.try_lock().await.unwrap_err());
        is_refused(mutex.lock_with(LockOptions::new().queue_limit(3)).await.unwrap_err());
        is_refused(lock_all(&client, [QUOTA]).await.unwrap_err());
        is_refused(try_lock_many(&client, [QUOTA]).await.unwrap_err());
        let both = RwLock::new(&client, QUOTA).unwrap();
        is_refused(both.read().await.unwrap_err());
        is_refused(both.write().await.unwrap_err());
        is_refused(Election::new(&client, QUOTA).unwrap().campaign("one").await.unwrap_err());
        permit.release().await.unwrap();
        ground.hold(1).await.release().await.unwrap();
    }
}

on_every_znode_store! {
    async fn more_than_one_request_can_carry_is_refused(env: Env) {
        let ground = Ground::new(env, 100_000).await;
        let semaphore = ground.semaphore().await;
        let refused = semaphore.acquire_many(100_000).await.unwrap_err();
        assert!(matches!(refused, LockError::Store(Error::TooLarge { .. })), "{refused}");
        ground.until_swept(&semaphore, 0).await;
        let many = semaphore.acquire_many(1_000).await.unwrap();
        assert_eq!(ground.observing_semaphore().available().await, Ok(99_000));
        many.release().await.unwrap();
        ground.until_swept(&semaphore, 0).await;
    }

    async fn every_child_among_the_leases_counts(env: Env) {
        let ground = Ground::new(env, 2).await;
        ground.hold(1).await.release().await.unwrap();
        ground.make(LEASES).await;
        let session = ground.observing().await;
        let mut foreign = Vec::new();
        for name in ["_c_x-lease-", "lease"] {
            let lease = path(&format!("{LEASES}/{name}"));
            let mode = CreateMode::EphemeralSequential;
            foreign.push(session.create(&lease, "10.0.0.1", mode).await.unwrap().0);
        }
        assert_eq!(ground.observing_semaphore().available().await, Ok(0));
        let request = ground.queue_up(&ground.semaphore().await, 1).await;
        session.delete(&foreign[1], None).await.unwrap();
        let permit = permitted(request).await;
        assert!(permit.is_held());
        let holders = ground.observing_semaphore().holders().await.unwrap();
        assert_eq!(holders.len(), 2);
        assert_eq!((holders[0].metadata.is_none(), holders[1].fencing_token), (true, permit.fencing_token()));
    }
}
