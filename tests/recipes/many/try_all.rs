//! `try_lock_all`: all of the locks now, or none.

use lockkeeper::{LockEvent, Mutex, lock_events, try_lock_all, try_lock_all_with};
use testkit::on_every_backend;

use super::*;

on_every_backend! {
    async fn all_that_are_free_are_taken_under_one_token(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let options = LockOptions::new().label("trying").synced();
        let guard = try_lock_all_with(&client, KEYS, options).await.unwrap().unwrap();
        assert!(guard.is_held());
        assert_eq!(guard.keys().map(ToString::to_string).collect::<Vec<_>>(), KEYS);
        assert_eq!(guard.metadata().label.as_deref(), Some("trying"));
        assert_eq!(world.standing().await, 3);
        for path in guard.paths() {
            let stat = world.observing().await.exists(path).await.unwrap().unwrap();
            assert_eq!(stat.czxid.0, guard.fencing_token().as_i64());
        }
        guard.release().await.unwrap();
        assert_eq!(world.standing().await, 0);
    }

    async fn one_that_is_held_keeps_all_from_being_taken_and_nothing_is_written(env: Env) {
        let world = World::new(env).await;
        for (index, key) in KEYS.into_iter().enumerate() {
            let holder = Mutex::new(&world.client().await, key).unwrap().lock().await.unwrap();
            let client = world.client().await;
            let before = world.traffic_of(&client);
            assert!(try_lock_all(&client, KEYS).await.unwrap().is_none(), "{index}");
            assert_eq!((world.traffic_of(&client) - before).requests(RequestKind::Multi), 0);
            assert!(holder.is_held());
            assert_eq!(world.standing().await, 1);
            holder.release().await.unwrap();
        }
        let guard = try_lock_all(&world.client().await, KEYS).await.unwrap().unwrap();
        drop(guard);
        world.until_each(&KEYS, 0).await;
    }

    async fn a_lock_that_is_waited_for_is_not_free(env: Env) {
        let world = World::new(env).await;
        let holder = Mutex::new(&world.client().await, KEYS[1]).unwrap().lock().await.unwrap();
        let waiting = world.queue_up_all(&world.client().await, &KEYS[1..]).await;
        holder.release().await.unwrap();
        let next = all_granted(waiting).await;
        assert!(try_lock_all(&world.client().await, KEYS).await.unwrap().is_none());
        next.release().await.unwrap();
    }

    async fn of_two_that_try_at_once_one_has_all_and_the_other_none(env: Env) {
        let world = World::new(env).await;
        for key in KEYS {
            world.make(key).await;
        }
        for round in 0..20 {
            let (one, two) = (world.client().await, world.client().await);
            // Both look before either enters.
            world.delay_replies(&one, Duration::from_millis(2));
            world.delay_replies(&two, Duration::from_millis(2));
            let (sink, mut events) = lock_events();
            let options = LockOptions::new().events(sink.clone());
            // They share only one lock, and the one that is second there is first at another.
            let (one, two) = tokio::join!(
                try_lock_all_with(&one, &KEYS[..2], options.clone()),
                try_lock_all_with(&two, KEYS[1..].iter().rev(), options)
            );
            let (one, two) = (one.unwrap(), two.unwrap());
            assert!(one.is_some() ^ two.is_some(), "round {round}: {one:?} {two:?}");
            let held = [one, two].into_iter().flatten().next().unwrap();
            assert!(held.is_held());
            world.until_each(&KEYS[1..2], 1).await;
            drop(sink);
            held.release().await.unwrap();
            let mut acquired = 0;
            while let Some(event) = events.next().await {
                acquired += usize::from(matches!(event, LockEvent::Acquired { .. }));
            }
            assert_eq!(acquired, 2, "nobody holds a part, not for a moment");
            world.until_each(&KEYS, 0).await;
        }
    }

    async fn a_lost_answer_at_any_step_is_made_up_for(env: Env) {
        let world = World::new(env).await;
        for losses in LOST_IN_A_TRY {
            let client = unlucky(&world, losses).await;
            let guard = try_lock_all(&client, KEYS).await.unwrap().unwrap();
            assert_eq!(world.standing().await, 3);
            drop(guard);
            world.until_nothing_is_left(&client).await;
        }
    }

    async fn a_try_that_is_dropped_at_any_moment_leaves_nothing(env: Env) {
        let world = World::new(env).await;
        for times in 0..12 {
            let client = world.client().await;
            world.delay_replies(&client, Duration::from_millis(1));
            drop(polled(try_lock_all(&client, KEYS), times).await);
            world.until_nothing_is_left(&client).await;
        }
    }

    async fn invalid_arguments_are_refused(env: Env) {
        let world = World::new(env).await;
        refuses_bad_keys(&world, async |client, keys| try_lock_all(client, keys).await).await;
    }

    async fn a_try_ends_with_its_timeout_when_the_store_does_not_answer(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        world.disconnect(&client);
        let limit = Duration::from_millis(50);
        let options = LockOptions::new().timeout(limit);
        let refusal = try_lock_all_with(&client, KEYS, options).await.unwrap_err();
        assert_timed_out(&refusal, KEYS[0], limit);
        world.reconnect(&client);
        world.until_nothing_is_left(&client).await;
    }
}
