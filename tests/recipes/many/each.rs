//! `lock_each`: yields each lock as it is granted, and leaves nothing of locks that were not waited for.

use lockkeeper::{LockPath, LostReason, Mutex, lock_each, lock_each_with};
use testkit::on_every_backend;

use super::*;

async fn next(each: &mut lockkeeper::LockEach) -> (String, lockkeeper::Guard) {
    let (key, guard) = each.next().await.unwrap().unwrap();
    (LockPath::to_string(&key), guard)
}

on_every_backend! {
    async fn each_lock_comes_as_it_is_granted(env: Env) {
        let world = World::new(env).await;
        let other = world.client().await;
        let a = Mutex::new(&other, KEYS[0]).unwrap().lock().await.unwrap();
        let b = Mutex::new(&other, KEYS[1]).unwrap().lock().await.unwrap();
        let client = world.client().await;
        let mut each = lock_each(&client, KEYS).unwrap();
        let (key, third) = next(&mut each).await;
        assert_eq!(key, KEYS[2], "the one that is free");
        let release = async {
            b.release().await.unwrap();
            world.until_each(&[KEYS[1]], 1).await;
        };
        let ((key, second), ()) = tokio::join!(next(&mut each), release);
        assert_eq!(key, KEYS[1]);
        third.release().await.unwrap();
        a.release().await.unwrap();
        let (key, first) = next(&mut each).await;
        assert_eq!(key, KEYS[0]);
        assert_eq!(first.fencing_token(), second.fencing_token());
        assert!(each.next().await.is_none());
        assert!(first.is_held() && second.is_held());
        drop((first, second));
        world.until_nothing_is_left(&client).await;
    }

    async fn free_locks_come_in_the_order_of_their_naming(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let mut each = lock_each(&client, [KEYS[1], KEYS[2], KEYS[0]]).unwrap();
        let mut keys = Vec::new();
        let mut guards = Vec::new();
        while let Some(granted) = each.next().await {
            let (key, guard) = granted.unwrap();
            keys.push(key.to_string());
            guards.push(guard);
        }
        assert_eq!(keys, [KEYS[1], KEYS[2], KEYS[0]]);
        assert!(guards.iter().all(|guard| guard.is_held()));
    }

    async fn a_dropped_stream_leaves_only_the_guards_it_has_yielded(env: Env) {
        let world = World::new(env).await;
        let other = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = other.lock().await.unwrap();
        let client = world.client().await;
        let mut each = lock_each(&client, KEYS).unwrap();
        let (key, guard) = next(&mut each).await;
        assert_eq!(key, KEYS[0]);
        drop(each);
        world.until_each(&[KEYS[2]], 0).await;
        world.until_each(&[KEYS[0], KEYS[1]], 1).await;
        assert!(guard.is_held() && holder.is_held());
        guard.release().await.unwrap();
        let mut never = lock_each(&client, KEYS).unwrap();
        assert!(polled(never.next(), 0).await.is_none());
        drop(never);
        assert_eq!(world.standing().await, 1, "it joins when it is polled first");
    }

    async fn streams_in_opposite_orders_never_deadlock(env: Env) {
        let world = World::new(env).await;
        let mut workers = Vec::new();
        for number in 0..6 {
            let client = world.client().await;
            workers.push(tokio::spawn(async move {
                let keys: Vec<_> = match number % 2 {
                    0 => KEYS.to_vec(),
                    _ => KEYS.iter().rev().copied().collect(),
                };
                for round in 0..5 {
                    if (number + round) % 3 == 0 {
                        lock_all(&client, keys.clone()).await.unwrap().release().await.unwrap();
                        continue;
                    }
                    // All guards are kept until the last one is granted.
                    let mut each = lock_each(&client, keys.clone()).unwrap();
                    let mut guards = Vec::new();
                    while let Some(granted) = each.next().await {
                        guards.push(granted.unwrap());
                        tokio::task::yield_now().await;
                    }
                    assert_eq!(guards.len(), 3);
                }
            }));
        }
        for worker in workers {
            worker.await.unwrap();
        }
        world.until_each(&KEYS, 0).await;
    }

    async fn one_timeout_is_for_all(env: Env) {
        let world = World::new(env).await;
        let other = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = other.lock().await.unwrap();
        let client = world.client().await;
        let after = Duration::from_millis(500);
        let options = LockOptions::new().timeout(after);
        let mut each = lock_each_with(&client, KEYS, options).unwrap();
        let (first, second) = (next(&mut each).await, next(&mut each).await);
        assert_eq!((first.0.as_str(), second.0.as_str()), (KEYS[0], KEYS[2]));
        let refusal = each.next().await.unwrap().unwrap_err();
        assert_eq!(refusal, LockError::Timeout { path: path(KEYS[1]), after, ahead: Some(1) });
        assert!(each.next().await.is_none());
        world.until_each(&[KEYS[1]], 1).await;
        assert!(first.1.is_held() && second.1.is_held() && holder.is_held());
    }

    async fn the_end_of_the_session_ends_the_stream(env: Env) {
        let world = World::new(env).await;
        let other = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = other.lock().await.unwrap();
        let client = world.client().await;
        let mut each = lock_each(&client, [KEYS[0], KEYS[1]]).unwrap();
        let (_, guard) = next(&mut each).await;
        world.expire(&client).await.unwrap();
        assert!(each.next().await.unwrap().unwrap_err().is_session_end());
        assert!(each.next().await.is_none());
        assert_eq!(guard.lost().await, LostReason::SessionExpired);
        assert!(holder.is_held());
    }

    async fn invalid_arguments_are_refused_at_once(env: Env) {
        let world = World::new(env).await;
        refuses_bad_keys(&world, async |client, keys| lock_each(client, keys)).await;
    }
}
