//! A failure half way, at any lock, leaves nothing anywhere. A lost answer is not a failure.

use lockkeeper::{LostReason, Mutex};
use lockkeeper_store::CreateMode;
use testkit::{on_every_backend, on_every_znode_store};

use super::*;

/// Every answer that can be lost while free locks are granted.
const LOSSES: [Losses; 8] = [
    (&[RequestKind::Multi], &[]),
    (&[], &[RequestKind::Multi]),
    (&[RequestKind::MultiRead], &[RequestKind::Multi]),
    (&[], &[RequestKind::Multi, RequestKind::MultiRead]),
    (&[], &[RequestKind::Multi, RequestKind::Delete]),
    (&[RequestKind::GetPredecessor], &[]),
    (&[], &[RequestKind::GetPredecessor]),
    (&[], &[RequestKind::MultiRead]),
];

on_every_backend! {
    async fn a_lost_answer_at_any_step_is_made_up_for(env: Env) {
        let world = World::new(env).await;
        for losses in LOSSES {
            let client = unlucky(&world, losses).await;
            let guard = lock_all(&client, KEYS).await.unwrap();
            assert!(guard.is_held());
            assert_eq!(world.standing().await, 3, "one place in each queue, after {losses:?}");
            guard.release().await.unwrap();
            world.until_nothing_is_left(&client).await;
        }
    }

    async fn a_lost_answer_while_the_queues_are_made_is_made_up_for(env: Env) {
        let world = World::new(env).await;
        for (number, on) in [RequestKind::Create, RequestKind::MultiRead, RequestKind::Multi].into_iter().enumerate() {
            let client = world.client().await;
            world.lose_reply(&client, on);
            let keys = ["a", "b"].map(|key| format!("/fresh/{number}/{key}"));
            let guard = lock_all(&client, &keys).await.unwrap();
            guard.release().await.unwrap();
            for key in &keys {
                assert!(children(&world.observing().await, key).await.is_empty());
            }
        }
    }

    async fn one_lock_is_of_another_kind(env: Env) {
        let world = World::new(env).await;
        for key in KEYS {
            world.make(key).await;
        }
        let session = world.observing().await;
        let stranger = path(KEYS[2]).join("_c_x-latch-").unwrap();
        let mode = CreateMode::EphemeralSequential;
        session.create(&stranger, "", mode).await.unwrap();
        let client = world.client().await;
        let refusal = lock_all(&client, KEYS).await.unwrap_err();
        assert!(matches!(refusal, LockError::WrongKind { .. }), "{refusal}");
        assert!(refusal.to_string().contains(KEYS[2]), "{refusal}");
        world.until_each(&KEYS[..2], 0).await;
        world.until_each(&KEYS[2..], 1).await;
    }

    async fn one_lock_comes_too_late(env: Env) {
        let world = World::new(env).await;
        let holder = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = holder.lock().await.unwrap();
        let client = world.client().await;
        let refusal = timed_out_in_queue(Duration::from_millis(50), async |limit| {
            lock_all_with(&client, KEYS, LockOptions::new().timeout(limit)).await
        }).await;
        assert!(matches!(&refusal, LockError::Timeout { path, .. } if path.as_str() == KEYS[1]), "{refusal}");
        world.until_each(&[KEYS[0], KEYS[2]], 0).await;
        world.until_each(&[KEYS[1]], 1).await;
        assert!(holder.is_held());
    }

    async fn one_queue_is_full(env: Env) {
        let world = World::new(env).await;
        let mutex = Mutex::new(&world.client().await, KEYS[2]).unwrap();
        let holder = mutex.lock().await.unwrap();
        let client = world.client().await;
        let options = LockOptions::new().queue_limit(0);
        let refusal = lock_all_with(&client, KEYS, options).await.unwrap_err();
        assert_eq!(refusal, LockError::QueueFull { path: path(KEYS[2]), ahead: 1, limit: 0 });
        world.until_each(&KEYS[..2], 0).await;
        assert!(holder.is_held());
    }

    async fn one_place_is_taken_away_while_another_is_waited_for(env: Env) {
        let world = World::new(env).await;
        let holder = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = holder.lock().await.unwrap();
        let client = world.client().await;
        let waiting = world.queue_up_all(&client, &KEYS).await;
        // The batch is first there and has seen it.
        until_idle(&world, &client).await;
        let session = world.observing().await;
        let first = children(&session, KEYS[0]).await.remove(0);
        world.revoke(&path(KEYS[0]).join(&first).unwrap()).await;
        holder.release().await.unwrap();
        let refusal = all_refused(waiting).await;
        assert!(matches!(refusal, LockError::EntryDeleted { .. }), "{refusal}");
        assert!(refusal.to_string().contains(KEYS[0]), "{refusal}");
        world.until_nothing_is_left(&client).await;
    }

    async fn the_session_ends_while_one_is_waited_for(env: Env) {
        let world = World::new(env).await;
        let holder = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = holder.lock().await.unwrap();
        let client = world.client().await;
        let waiting = world.queue_up_all(&client, &KEYS).await;
        let behind = world.queue_up_all(&world.client().await, &KEYS[..1]).await;
        world.expire(&client).await.unwrap();
        assert!(all_refused(waiting).await.is_session_end());
        let behind = all_granted(behind).await;
        world.until_each(&KEYS[..2], 1).await;
        world.until_each(&KEYS[2..], 0).await;
        assert!(holder.is_held() && behind.is_held());
    }

    async fn a_session_that_fell_silent_while_it_waited_does_not_believe_too_early(env: Env) {
        let world = World::new(env).await;
        let holder = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = holder.lock().await.unwrap();
        let client = world.client().await;
        let waiting = world.queue_up_all(&client, &KEYS).await;
        until_idle(&world, &client).await;
        world.disconnect(&client);
        holder.release().await.unwrap();
        world.reconnect(&client);
        let guard = all_granted(waiting).await;
        assert!(guard.is_held());
        world.expire(&client).await.unwrap();
        assert_eq!(guard.lost().await, LostReason::SessionExpired);
    }
}

on_every_znode_store! {
    async fn one_lock_is_below_an_ephemeral_node(env: Env) {
        let world = World::new(env).await;
        world.make("/many").await;
        let session = world.observing().await;
        session.create(&path(KEYS[1]), "", CreateMode::Ephemeral).await.unwrap();
        let client = world.client().await;
        let refusal = lock_all(&client, KEYS).await.unwrap_err();
        assert!(
            matches!(refusal, LockError::Store(Error::NoChildrenForEphemerals { .. })),
            "{refusal}"
        );
        assert_eq!(world.standing().await, 0);
    }
}

async fn until_idle(world: &World, client: &Client) {
    let session = client.current_session();
    loop {
        let before = world.traffic_of(client);
        session.exists(&path("/")).await.unwrap();
        tokio::task::yield_now().await;
        let between = world.traffic_of(client) - before;
        if (between.requests(RequestKind::Any), between.replies) == (1, 1) {
            return;
        }
    }
}

/// In virtual time. A timeout restarted at the second lock would end after 16 seconds.
#[tokio::test]
async fn the_timeout_is_given_in_full_to_each_lock() {
    let seconds = Duration::from_secs;
    let clock = lockkeeper::Clock::new_virtual();
    let options = lockkeeper::StoreOptions::new().clock(clock.clone());
    let store = lockkeeper::Store::memory_with(options);
    let (client, other) = (
        store.connect().await.unwrap(),
        store.connect().await.unwrap(),
    );
    let [a, b] = [KEYS[0], KEYS[1]].map(|key| Mutex::new(&other, key).unwrap());
    let (a, b) = (a.lock().await.unwrap(), b.lock().await.unwrap());
    let options = LockOptions::new().timeout(seconds(10));
    let mut wait = std::pin::pin!(lock_all_with(&client, [KEYS[0], KEYS[1]], options));
    assert!(polled(wait.as_mut(), 1).await.is_none());
    clock.advance(seconds(6));
    a.release().await.unwrap();
    assert!(polled(wait.as_mut(), 1).await.is_none());
    clock.advance(seconds(3));
    assert!(polled(wait.as_mut(), 1).await.is_none());
    clock.advance(seconds(1));
    let outcome = polled(wait.as_mut(), 1).await;
    let outcome = outcome.expect("ten seconds are over").unwrap_err();
    let (path, after) = (path(KEYS[1]), seconds(10));
    assert_eq!(
        outcome,
        LockError::Timeout {
            path,
            after,
            ahead: Some(1)
        }
    );
    assert!(b.is_held());
}
