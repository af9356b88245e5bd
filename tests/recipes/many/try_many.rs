//! `try_lock_many`: takes the free locks, and reports the others.

use lockkeeper::{LockPath, Mutex, TryLockMany, try_lock_many, try_lock_many_with};
use lockkeeper_store::CreateMode;
use testkit::on_every_backend;

use super::*;

fn names<'a>(paths: impl IntoIterator<Item = &'a LockPath>) -> Vec<String> {
    paths.into_iter().map(LockPath::to_string).collect()
}

fn taken(tried: &TryLockMany) -> Vec<String> {
    names(tried.acquired.iter().map(|(path, _)| path))
}

on_every_backend! {
    async fn free_locks_are_acquired_and_held_ones_are_listed(env: Env) {
        let world = World::new(env).await;
        let other = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let held = other.lock().await.unwrap();
        let client = world.client().await;
        let options = LockOptions::new().label("trying");
        let tried = try_lock_many_with(&client, KEYS, options).await.unwrap();
        assert_eq!(taken(&tried), [KEYS[0], KEYS[2]]);
        assert_eq!(names(&tried.contended), [KEYS[1]]);
        let [(_, first), (_, second)] = &tried.acquired[..] else { panic!() };
        assert_eq!(first.fencing_token(), second.fencing_token());
        assert_eq!(first.metadata().label.as_deref(), Some("trying"));
        let mut taken = tried.acquired.into_iter();
        let (_, first) = taken.next().unwrap();
        first.release().await.unwrap();
        let (_, second) = taken.next().unwrap();
        assert!(second.is_held());
        assert_eq!(world.standing().await, 2);
        drop((second, held));
        world.until_each(&KEYS, 0).await;
    }

    async fn nothing_is_free(env: Env) {
        let world = World::new(env).await;
        let holder = lock_all(&world.client().await, KEYS).await.unwrap();
        let tried = try_lock_many(&world.client().await, KEYS).await.unwrap();
        assert!(tried.acquired.is_empty());
        assert_eq!(names(&tried.contended), KEYS);
        assert!(holder.is_held());
    }

    async fn of_two_that_try_at_once_each_lock_goes_to_one(env: Env) {
        let world = World::new(env).await;
        let keys: Vec<_> = (0..20).map(|n| format!("/many/{n}")).collect();
        for key in &keys {
            world.make(key).await;
        }
        for _ in 0..10 {
            let (one, two) = (world.client().await, world.client().await);
            // Both look before either enters.
            world.delay_replies(&one, Duration::from_millis(2));
            world.delay_replies(&two, Duration::from_millis(2));
            let (one, two) = tokio::join!(
                try_lock_many(&one, keys.iter().rev()),
                try_lock_many(&two, &keys)
            );
            let (one, two) = (one.unwrap(), two.unwrap());
            let mut all = [taken(&one), taken(&two)].concat();
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "a lock was given to both");
            assert_eq!(one.acquired.len() + one.contended.len(), 20);
            assert_eq!(two.acquired.len() + two.contended.len(), 20);
            assert_eq!(count, 20, "who is first in one queue is first in all");
            drop((one, two));
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            world.until_each(&keys, 0).await;
        }
    }

    async fn a_try_beside_a_lock_that_is_held_cannot_deadlock(env: Env) {
        let world = World::new(env).await;
        let (one, two) = (world.client().await, world.client().await);
        let a = lock_all(&one, [KEYS[0]]).await.unwrap();
        let b = lock_all(&two, [KEYS[1]]).await.unwrap();
        assert!(try_lock_many(&one, [KEYS[1]]).await.unwrap().acquired.is_empty());
        assert!(try_lock_many(&two, [KEYS[0]]).await.unwrap().acquired.is_empty());
        assert!(a.is_held() && b.is_held());
    }

    async fn invalid_arguments_are_refused(env: Env) {
        let world = World::new(env).await;
        refuses_bad_keys(&world, async |client, keys| try_lock_many(client, keys).await).await;
    }

    async fn a_lock_of_another_kind_is_refused_and_nothing_is_taken(env: Env) {
        let world = World::new(env).await;
        world.make(KEYS[2]).await;
        let session = world.observing().await;
        let stranger = path(KEYS[2]).join("_c_x-__READ__").unwrap();
        let mode = CreateMode::EphemeralSequential;
        session.create(&stranger, "", mode).await.unwrap();
        let client = world.client().await;
        let before = world.traffic_of(&client);
        let refusal = try_lock_many(&client, KEYS).await.unwrap_err();
        assert!(matches!(refusal, LockError::WrongKind { .. }), "{refusal}");
        assert_eq!((world.traffic_of(&client) - before).requests(RequestKind::Multi), 0);
        assert_eq!(world.standing().await, 1);
    }

    async fn a_lost_answer_at_any_step_is_made_up_for(env: Env) {
        let world = World::new(env).await;
        for losses in LOST_IN_A_TRY {
            let client = unlucky(&world, losses).await;
            let tried = try_lock_many(&client, KEYS).await.unwrap();
            assert_eq!(taken(&tried), KEYS);
            assert_eq!(world.standing().await, 3);
            drop(tried);
            world.until_nothing_is_left(&client).await;
        }
    }
}
