//! The re-entrant mutex.

mod model;

use std::pin::pin;
use std::time::Duration;

use lockkeeper::testing::RequestKind;
use lockkeeper::{
    Client, LockError, LockOptions, LostReason, Mutex, Owner, ReentrantMutex, lock_events,
};
use testkit::on_every_backend;

use crate::common::*;

impl World {
    async fn owner(&self) -> (Client, Owner) {
        let client = self.client().await;
        let owner = ReentrantMutex::new(&client, LOCK).unwrap().owner();
        (client, owner)
    }
}

on_every_backend! {
    async fn the_owner_enters_again_without_a_request(env: Env) {
        let world = World::new(env).await;
        let (client, owner) = world.owner().await;
        let outer = owner.lock().await.unwrap();
        let before = world.traffic_of(&client);
        let again = owner.clone();
        let inner = [
            again.lock().await.unwrap(),
            again.lock_timeout(Duration::ZERO).await.unwrap(),
            again.try_lock().await.unwrap().unwrap(),
        ];
        assert_eq!((world.traffic_of(&client) - before).requests(RequestKind::Any), 0);
        assert!(inner.iter().all(|guard| guard.fencing_token() == outer.fencing_token()));
        assert_eq!(outer.entries(), 4);
        assert_eq!(world.children().await.len(), 1);
        drop((inner, outer));
        world.until_count(0).await;
    }

    async fn the_lock_is_released_when_the_last_guard_goes(env: Env) {
        let world = World::new(env).await;
        let (_, owner) = world.owner().await;
        let (outer, inner) = (owner.lock().await.unwrap(), owner.lock().await.unwrap());
        let waiter = world.queue_up(&world.mutex().await).await;
        // In the order they were taken, which is not nested.
        outer.release().await.unwrap();
        assert!(inner.is_held() && owner.is_held() && !waiter.is_finished());
        assert_eq!(world.children().await.len(), 2);
        inner.release().await.unwrap();
        assert!(!owner.is_held());
        let other = granted(waiter).await;
        assert!(owner.try_lock().await.unwrap().is_none(), "another holds it now");
        other.release().await.unwrap();
    }

    async fn another_owner_waits_for_all_entries(env: Env) {
        let world = World::new(env).await;
        let (client, one) = world.owner().await;
        let two = ReentrantMutex::new(&client, LOCK).unwrap().owner();
        let first = one.lock().await.unwrap();
        let second = one.lock().await.unwrap();
        assert!(two.try_lock().await.unwrap().is_none());
        let refusal = two.lock_timeout(Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(refusal, LockError::Timeout { .. }), "{refusal}");
        let mut waiting = pin!(two.lock());
        assert!(polled(waiting.as_mut(), 1).await.is_none());
        world.until_count(2).await;
        drop(first);
        assert!(polled(waiting.as_mut(), 1).await.is_none());
        let token = second.fencing_token();
        second.release().await.unwrap();
        assert!(waiting.await.unwrap().fencing_token() > token);
    }

    async fn tasks_of_one_owner_that_race_share_the_first_entry(env: Env) {
        let world = World::new(env).await;
        let (_, owner) = world.owner().await;
        let holder = world.mutex().await.lock().await.unwrap();
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let owner = owner.clone();
                tokio::spawn(async move { owner.lock().await.unwrap() })
            })
            .collect();
        world.until_count(2).await;
        holder.release().await.unwrap();
        let mut guards = Vec::new();
        for task in tasks {
            guards.push(task.await.unwrap());
        }
        assert_eq!(world.children().await.len(), 1, "one place for all");
        assert!(guards.iter().all(|guard| guard.fencing_token() == guards[0].fencing_token()));
        assert_eq!(guards[0].entries(), 5);
    }

    async fn when_the_first_of_them_gives_up_another_goes_on(env: Env) {
        let world = World::new(env).await;
        let (_, owner) = world.owner().await;
        let holder = world.mutex().await.lock().await.unwrap();
        let lock = |owner: Owner| tokio::spawn(async move { owner.lock().await });
        let first = lock(owner.clone());
        world.until_count(2).await;
        let second = lock(owner.clone());
        assert!(owner.try_lock().await.unwrap().is_none(), "it is waited for");
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        holder.release().await.unwrap();
        assert!(second.await.unwrap().unwrap().is_held());
        world.until_count(0).await;
    }

    async fn a_lost_lock_is_not_entered_again_until_all_have_left(env: Env) {
        let world = World::new(env).await;
        let (client, owner) = world.owner().await;
        let (outer, inner) = (owner.lock().await.unwrap(), owner.lock().await.unwrap());
        let token = outer.fencing_token();
        world.expire(&client).await.unwrap();
        assert_eq!(outer.lost().await, LostReason::SessionExpired);
        let lost = LockError::Lost(LostReason::SessionExpired);
        assert_eq!(owner.lock().await.unwrap_err(), lost);
        assert_eq!(owner.try_lock().await.unwrap_err(), lost);
        assert!(!owner.is_held() && !inner.is_held());
        assert_eq!(outer.release().await.unwrap_err(), lost);
        assert_eq!(owner.lock().await.unwrap_err(), lost, "one is still inside");
        assert_eq!(inner.release().await.unwrap_err(), lost);
        let fresh = owner.lock().await.unwrap();
        assert!(fresh.is_held() && fresh.fencing_token() > token);
        assert_eq!(fresh.entries(), 1);
    }

    async fn a_lock_that_was_taken_away_is_not_entered_again(env: Env) {
        let world = World::new(env).await;
        let (_, owner) = world.owner().await;
        let guard = owner.lock().await.unwrap();
        world.revoke(guard.path()).await;
        assert_eq!(guard.lost().await, LostReason::Revoked);
        assert_eq!(owner.lock().await.unwrap_err(), LockError::Lost(LostReason::Revoked));
        drop(guard);
        assert!(owner.lock().await.unwrap().is_held());
    }

    async fn the_terms_are_those_of_the_first_entry(env: Env) {
        let world = World::new(env).await;
        let (_, owner) = world.owner().await;
        let (sink, mut events) = lock_events();
        let options = LockOptions::new().label("first").events(sink);
        let outer = owner.lock_with(options).await.unwrap();
        let inner = owner.lock_with(LockOptions::new().label("second")).await.unwrap();
        assert_eq!(inner.metadata().label.as_deref(), Some("first"));
        outer.keep_alive().await.unwrap();
        inner.keep_alive().await.unwrap();
        let queue = lockkeeper::queue(&world.observer, LOCK).await.unwrap();
        let written = queue[0].metadata.clone().unwrap();
        assert_eq!(written, outer.metadata());
        assert_eq!((written.label.as_deref(), written.kept_alive), (Some("first"), Some(2)));
        assert_eq!(inner.protect(async { 5 }).await, Ok(5));
        drop((outer, inner));
        let mut said = Vec::new();
        while let Some(event) = events.next().await {
            said.push(event.to_string());
        }
        let [acquired, released] = &said[..] else { panic!("{said:?}") };
        assert!(acquired.starts_with("acquired at once"), "{said:?}");
        assert_eq!(released, "released");
    }

    async fn a_wait_that_is_cancelled_at_any_point_leaves_nothing(env: Env) {
        let world = World::new(env).await;
        let losses = [&[][..], &[RequestKind::Enqueue][..], &[RequestKind::Enqueue, RequestKind::Delete][..]];
        let mut points = 0;
        for replies in losses {
            for polls in 1.. {
                let (client, owner) = world.owner().await;
                world.delay_replies(&client, Duration::from_millis(1));
                for on in replies {
                    world.lose_reply(&client, *on);
                }
                let is_done = polled(owner.lock(), polls).await.is_some();
                let mutex = Mutex::new(&client, LOCK).unwrap();
                world.until_swept(&mutex).await;
                if is_done {
                    points += polls;
                    break;
                }
            }
        }
        // If the machine stalls, one may end immediately, which does not matter.
        assert!(points > losses.len(), "there is a point to cancel at");
    }
}

/// Needs no runtime, and guards can move to other threads.
#[test]
fn guards_go_on_other_threads() {
    use futures_executor::block_on;
    let client = block_on(lockkeeper::connect("memory:reentrant-threads")).unwrap();
    let owner = ReentrantMutex::new(&client, LOCK).unwrap().owner();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let owner = owner.clone();
            std::thread::spawn(move || {
                for _ in 0..200 {
                    let outer = block_on(owner.lock()).unwrap();
                    let inner = block_on(owner.lock()).unwrap();
                    assert_eq!(outer.fencing_token(), inner.fencing_token());
                    std::thread::spawn(move || drop(outer)).join().unwrap();
                    assert!(inner.is_held());
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    let queue = block_on(lockkeeper::queue(&client, LOCK)).unwrap();
    assert!(queue.is_empty());
}
