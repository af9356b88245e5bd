//! The number of permits: stored once, the same for all, and changed while others hold and wait.

use lockkeeper::testing::RequestKind;
use lockkeeper_store::LARGEST_REQUEST_BYTES;
use testkit::on_every_backend;

use super::*;

on_every_backend! {
    async fn the_number_is_stored_at_the_first_use(env: Env) {
        let world = World::new(env).await;
        let semaphore = Semaphore::new(&world.client().await, QUOTA, 4).unwrap();
        assert_eq!(children(&world.observing().await, "/quota").await, Vec::<String>::new());
        assert_eq!(semaphore.permits().await, Ok(4));
        let other = Semaphore::open(&world.client().await, QUOTA).unwrap();
        assert_eq!(other.permits().await, Ok(4));
        assert_eq!(other.available().await, Ok(4));
    }

    async fn a_client_that_states_another_number_is_refused(env: Env) {
        let ground = Ground::new(env, 3).await;
        let other = Semaphore::new(&ground.client().await, QUOTA, 5).unwrap();
        let differ = LockError::PermitsMismatch { path: path(QUOTA), stated: 5, stored: 3 };
        assert_eq!(other.acquire().await.unwrap_err(), differ);
        assert_eq!(other.try_acquire().await.unwrap_err(), differ);
        assert_eq!(other.available().await.unwrap_err(), differ);
        ground.until_waiting(0).await;
        assert_eq!(ground.observing_semaphore().permits().await, Ok(3));

        // Unless it asks to change the number.
        other.set_permits(5).await.unwrap();
        assert_eq!(other.acquire_many(5).await.unwrap().count(), 5);
        assert_eq!(ground.observing_semaphore().permits().await, Ok(5));
    }

    async fn a_client_that_has_agreed_once_follows_later_changes(env: Env) {
        let ground = Ground::new(env, 2).await;
        let client = ground.client().await;
        let agreed = ground.semaphore_of(&client);
        agreed.acquire().await.unwrap().release().await.unwrap();
        ground.observing_semaphore().set_permits(6).await.unwrap();
        assert_eq!(agreed.acquire_many(6).await.unwrap().count(), 6);
        let late = ground.semaphore_of(&client);
        let differ = LockError::PermitsMismatch { path: path(QUOTA), stated: 2, stored: 6 };
        assert_eq!(late.acquire().await.unwrap_err(), differ);
        ground.observing_semaphore().set_permits(2).await.unwrap();
        assert_eq!(late.permits().await, Ok(2), "they agree again");
    }

    async fn many_that_come_first_at_once_agree(env: Env) {
        let world = World::new(env).await;
        let mut uses = Vec::new();
        for _ in 0..8 {
            let semaphore = Semaphore::new(&world.client().await, QUOTA, 2).unwrap();
            uses.push(use_once::<1>(semaphore));
        }
        for used in uses {
            used.await.unwrap();
        }
    }

    async fn without_a_number_there_is_no_semaphore_to_open(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let none = LockError::NoPermits { path: path(QUOTA) };
        let opened = Semaphore::open(&client, QUOTA).unwrap();
        assert_eq!(opened.acquire().await.unwrap_err(), none);
        assert_eq!(opened.permits().await.unwrap_err(), none);
        opened.set_permits(1).await.unwrap();
        assert!(opened.acquire().await.unwrap().is_held());
    }

    async fn foreign_data_is_no_number(env: Env) {
        let ground = Ground::new(env, 2).await;
        let session = ground.observing().await;
        session.set_data(&path(PERMITS), "10.0.0.1", None).await.unwrap();
        let foreign =
            LockError::InvalidPermitsData { path: path(PERMITS), found: "10.0.0.1".to_owned() };
        assert_eq!(ground.observing_semaphore().acquire().await.unwrap_err(), foreign);
    }

    async fn a_number_that_stands_in_much_data_grants_permits(env: Env) {
        let ground = Ground::new(env, 1).await;
        let session = ground.observing().await;
        let others = "x".repeat(LARGEST_REQUEST_BYTES - 300);
        let data = format!(r#"{{"v":1,"permits":1,"others":"{others}"}}"#);
        session.set_data(&path(PERMITS), data, None).await.unwrap();
        let semaphore = ground.semaphore().await;
        let held = semaphore.acquire().await.unwrap();
        let next = ground.queue_up(&ground.semaphore().await, 1).await;
        held.release().await.unwrap();
        permitted(next).await.release().await.unwrap();
    }

    // CURATOR-75
    async fn waiters_get_the_permits_that_a_higher_number_allows(env: Env) {
        let ground = Ground::new(env, 1).await;
        let _holder = ground.hold(1).await;
        let mut waiting = Vec::new();
        for _ in 0..3 {
            waiting.push(ground.queue_up(&ground.semaphore().await, 1).await);
        }
        ground.observing_semaphore().set_permits(3).await.unwrap();
        let last = waiting.pop().unwrap();
        let mut held = Vec::new();
        for request in waiting {
            held.push(permitted(request).await);
        }
        assert!(!last.is_finished());
        assert_eq!(ground.held().await, 3);
        ground.observing_semaphore().set_permits(4).await.unwrap();
        held.push(permitted(last).await);
        assert!(held.iter().all(|permit| permit.is_held()));
    }

    async fn a_lower_number_revokes_nothing_and_grants_nothing_until_enough_is_back(env: Env) {
        let ground = Ground::new(env, 4).await;
        let mut held = [ground.hold(1).await, ground.hold(3).await];
        ground.observing_semaphore().set_permits(2).await.unwrap();
        assert!(held.iter().all(|permit| permit.is_held()));
        assert_eq!(ground.observing_semaphore().available().await, Ok(0));
        let request = ground.queue_up(&ground.semaphore().await, 1).await;
        let [one, three] = &mut held;
        let back = three.split(2).unwrap();
        back.release().await.unwrap();
        assert!(ground.observing_semaphore().try_acquire().await.unwrap().is_none());
        assert!(!request.is_finished());
        assert_eq!((ground.held().await, one.is_held()), (2, true));
        let [one, _three] = held;
        one.release().await.unwrap();
        assert!(permitted(request).await.is_held());
    }

    async fn a_head_that_waits_for_more_than_the_lowered_number_fails(env: Env) {
        let ground = Ground::new(env, 3).await;
        let holder = ground.hold(1).await;
        let head = ground.queue_up(&ground.semaphore().await, 3).await;
        let next = ground.queue_up(&ground.semaphore().await, 3).await;
        let small = ground.queue_up(&ground.semaphore().await, 1).await;
        ground.observing_semaphore().set_permits(2).await.unwrap();
        let too_many = LockError::TooManyPermits { path: path(QUOTA), wanted: 3, total: 2 };
        assert_eq!(denied(head).await, too_many);
        assert_eq!(denied(next).await, too_many, "its turn came");
        assert!(permitted(small).await.is_held() && holder.is_held());
        ground.until_waiting(0).await;
    }

    async fn a_semaphore_of_zero_permits_refuses_every_request(env: Env) {
        let ground = Ground::new(env, 1).await;
        let _holder = ground.hold(1).await;
        let waiting = ground.queue_up(&ground.semaphore().await, 1).await;
        ground.observing_semaphore().set_permits(0).await.unwrap();
        let none = LockError::TooManyPermits { path: path(QUOTA), wanted: 1, total: 0 };
        assert_eq!(denied(waiting).await, none);
        assert_eq!(ground.semaphore().await.acquire().await.unwrap_err(), none);
        ground.observing_semaphore().set_permits(2).await.unwrap();
        assert!(ground.hold(1).await.is_held());
    }

    async fn a_change_is_seen_through_lost_requests_and_replies(env: Env) {
        let ground = Ground::new(env, 1).await;
        let semaphore = ground.semaphore().await;
        ground.lose_request(semaphore.client(), RequestKind::SetData);
        ground.lose_reply(semaphore.client(), RequestKind::SetData);
        semaphore.set_permits(7).await.unwrap();
        assert_eq!(ground.observing_semaphore().permits().await, Ok(7));
    }

    async fn the_first_use_is_seen_through_lost_requests_and_replies(env: Env) {
        let world = World::new(env).await;
        for (round, on) in [RequestKind::GetChildren, RequestKind::MultiRead, RequestKind::Create].into_iter().enumerate() {
            let client = world.client().await;
            let semaphore = Semaphore::new(&client, format!("{QUOTA}-{round}"), 2).unwrap();
            for _ in 0..2 {
                world.lose_request(&client, on);
                world.lose_reply(&client, on);
            }
            let _permit = semaphore.acquire().await.unwrap();
            assert_eq!(semaphore.available().await, Ok(1));
        }
    }

    async fn the_number_outlives_its_parents_containers(env: Env) {
        let ground = Ground::new(env, 3).await;
        let semaphore = ground.semaphore().await;
        semaphore.acquire().await.unwrap().release().await.unwrap();
        let session = ground.observing().await;
        for container in [LOCKS, LEASES] {
            // The server may have removed it already.
            let _ = session.delete(&path(container), None).await;
        }
        let permit = semaphore.acquire_many(2).await.unwrap();
        assert_eq!((permit.count(), semaphore.available().await), (2, Ok(1)));
    }

    // Found here: the new number has the old one's version.
    async fn a_number_that_was_stored_anew_counts_for_all(env: Env) {
        let ground = Ground::new(env, 3).await;
        let old = ground.semaphore().await;
        old.acquire().await.unwrap().release().await.unwrap();
        ground.revoke(&path(PERMITS)).await;
        let new = Semaphore::new(&ground.client().await, QUOTA, 1).unwrap();
        assert_eq!(new.permits().await, Ok(1));
        let refused = LockError::TooManyPermits { path: path(QUOTA), wanted: 2, total: 1 };
        assert_eq!(old.acquire_many(2).await.unwrap_err(), refused);
        let _only = old.acquire().await.unwrap();
        assert!(old.try_acquire().await.unwrap().is_none());
        assert!(new.try_acquire().await.unwrap().is_none());
        let waiting = ground.queue_up(&old, 1).await;
        ground.until_held(1).await;
        assert!(!waiting.is_finished());
    }

    async fn a_deleted_number_is_stored_again_by_a_client_that_stated_it(env: Env) {
        let ground = Ground::new(env, 2).await;
        let stated = ground.semaphore_of(&ground.client().await);
        let opened = ground.semaphore().await;
        let holder = stated.acquire_many(2).await.unwrap();
        let (first, second) =
            (ground.queue_up(&stated, 1).await, ground.queue_up(&opened, 1).await);
        ground.revoke(&path(PERMITS)).await;
        holder.release().await.unwrap();
        let first = permitted(first).await;
        assert_eq!(ground.observing_semaphore().permits().await, Ok(2));
        assert!(permitted(second).await.is_held() && first.is_held());
    }
}
