//! Holding a lock: tokens, release, loss and the guard's reports.

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper::testing::{RequestKind, TestStore};
use lockkeeper::{
    ConnectOptions, Election, FencingGate, Guard, LockError, LockMetadata, LockOptions, LostReason,
    Mutex, RwLock, Semaphore, Store, lock_all_with, try_lock_all_with,
};
use serde_json::Value;
use testkit::on_every_backend;

use crate::common::*;
use crate::harness::costs::quiet;

/// Timeout of a session that should expire. Long enough that it does not do so by accident on a busy machine.
const BRIEF: Duration = Duration::from_secs(2);

async fn lost(release: impl Future<Output = Result<(), LockError>>) -> LostReason {
    match release.await {
        Err(LockError::Lost(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

on_every_backend! {
    async fn dropping_a_guard_releases_the_lock(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        let waiter = world.queue_up(&world.mutex().await).await;
        drop(guard);
        drop(granted(waiter).await);
        world.until_swept(&mutex).await;
    }

    async fn a_confirmed_release_is_done(env: Env) {
        let world = World::new(env).await;
        let guard = world.mutex().await.lock().await.unwrap();
        guard.release().await.unwrap();
        assert!(world.children().await.is_empty());
    }

    async fn a_release_goes_on_when_its_future_is_dropped(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        drop(mutex.lock().await.unwrap().release());
        world.until_swept(&mutex).await;
        world.disconnect(mutex.client());
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { polled(mutex.lock().await.unwrap().release(), 1).await }
        });
        world.reconnect(mutex.client());
        waiting.await.unwrap();
        world.until_swept(&mutex).await;
    }

    async fn another_task_may_release(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        tokio::spawn(async move { guard.release().await }).await.unwrap().unwrap();
        world.until_swept(&mutex).await;
    }

    async fn the_release_of_an_expired_lock_says_so(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        world.expire(mutex.client()).await.unwrap();
        assert_eq!(lost(guard.release()).await, LostReason::SessionExpired);
    }

    async fn the_release_of_a_closed_lock_says_so(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        mutex.client().close().await.unwrap();
        assert_eq!(lost(guard.release()).await, LostReason::SessionClosed);
    }

    async fn the_release_of_a_revoked_lock_says_so(env: Env) {
        let world = World::new(env).await;
        let first = world.mutex().await.lock().await.unwrap();
        world.revoke(first.path()).await;
        // Another client holds the lock now and must not be disturbed.
        let second = world.mutex().await.lock().await.unwrap();
        assert_eq!(lost(first.release()).await, LostReason::Revoked);
        world.until_count(1).await;
        second.release().await.unwrap();
    }

    async fn the_loss_is_told(env: Env) {
        let world = World::new(env).await;
        let (expired, closed, revoked) =
            (world.mutex().await, world.mutex().await, world.mutex().await);

        let guard = expired.lock().await.unwrap();
        world.expire(expired.client()).await.unwrap();
        assert_eq!(guard.lost().await, LostReason::SessionExpired);
        assert!(!guard.is_held());

        let guard = closed.lock().await.unwrap();
        let closing = closed.client().close();
        closing.await.unwrap();
        assert_eq!(guard.lost().await, LostReason::SessionClosed);
        assert!(!guard.is_held());

        let guard = revoked.lock().await.unwrap();
        let (reason, ()) = tokio::join!(guard.lost(), world.revoke(guard.path()));
        assert_eq!(reason, LostReason::Revoked);
        assert!(!guard.is_held());
    }

    async fn nothing_is_held_from_the_closing_on(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        // Called but not awaited: once others may hold the lock soon, it no longer counts as held.
        let closing = guard.session().close();
        assert!(!guard.is_held());
        closing.await.unwrap();
        world.until_count(0).await;
    }

    async fn a_lost_lock_stays_lost(env: Env) {
        let world = World::new(env).await;
        let mutex = Mutex::new(&world.client_for(BRIEF).await, LOCK).unwrap();
        let guard = mutex.lock().await.unwrap();
        world.disconnect(mutex.client());
        assert_eq!(guard.lost().await, LostReason::LeaseExpired);
        assert!(guard.held_until().unwrap().has_passed());
        // The session may survive, but its lock is released nevertheless.
        world.reconnect(mutex.client());
        let next = world.mutex().await.lock().await.unwrap();
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, LostReason::LeaseExpired);
        assert!(next.fencing_token() > guard.fencing_token());
        assert_eq!(lost(guard.release()).await, LostReason::LeaseExpired);
        assert!(next.is_held());
    }

    async fn protect_runs_while_the_lock_is_held(env: Env) {
        let world = World::new(env).await;
        let guard = world.mutex().await.lock().await.unwrap();
        assert_eq!(guard.protect(async { 7 }).await, Ok(7));
        assert!(guard.is_held());

        let (alive, mut dropped) = tokio::sync::oneshot::channel::<()>();
        let work = async {
            let _alive = alive;
            pending::<()>().await;
        };
        let (outcome, ()) = tokio::join!(guard.protect(work), world.revoke(guard.path()));
        assert_eq!(outcome, Err(LostReason::Revoked));
        assert!(dropped.try_recv().is_err(), "the work is dropped with the lock");
    }

    async fn keep_alive_is_written_into_the_entry(env: Env) {
        let world = World::new(env).await;
        let guard = world.mutex().await.lock().await.unwrap();
        assert_eq!(guard.metadata().kept_alive, None);
        for times in 1..=3 {
            guard.keep_alive().await.unwrap();
            let (data, _) = world.observing().await.get_data(guard.path()).await.unwrap();
            assert_eq!(LockMetadata::parse(&data).unwrap().kept_alive, Some(times));
            assert_eq!(guard.metadata().kept_alive, Some(times));
        }
    }

    async fn keep_alive_of_a_holder_lets_nobody_in(env: Env) {
        let world = World::new(env).await;
        let guard = world.mutex().await.lock().await.unwrap();
        let mutex = world.mutex().await;
        let waiter = world.queue_up(&mutex).await;
        let session = mutex.client().current_session();
        let watching = quiet(&world, &session).await;
        guard.keep_alive().await.unwrap();
        // With an index, the waiter does not see this event.
        while !world.env.has_index() && world.traffic_of(&session).events == watching.events {
            session.exists(&path(LOCK)).await.unwrap();
        }
        quiet(&world, &session).await;
        assert!(guard.is_held() && !waiter.is_finished());
        guard.release().await.unwrap();
        drop(granted(waiter).await);
    }

    async fn a_field_is_read_as_it_was_given_or_refused(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let deep = (0..200).fold(Value::Null, |inner, _| Value::from(vec![inner]));
        let fields = [
            ("team", Value::from("blue")),
            ("share", Value::from(31.245_270_191_439_438)),
            ("greatest", Value::from(u64::MAX)),
            ("deep", deep),
            ("v", Value::from(2)),
            ("label", Value::from(7)),
            ("queued_at_ms", Value::from("yesterday")),
            ("kept_alive", Value::from(u64::MAX)),
            ("revocation", Value::Null),
        ];
        for (name, value) in fields {
            let options = LockOptions::new().field(name, value.clone());
            match mutex.lock_with(options).await {
                Ok(guard) => {
                    let entry = lockkeeper::queue(mutex.client(), LOCK).await.unwrap().remove(0);
                    let read = entry.metadata.expect("our own entries are understood");
                    assert_eq!(read.other.get(name), Some(&value));
                    guard.release().await.unwrap();
                }
                Err(refusal) => assert!(refusal.to_string().contains(name), "{refusal}"),
            }
            assert!(world.children().await.is_empty());
        }
    }

    async fn every_call_refuses_a_field_of_our_own_before_it_looks_at_the_lock(env: Env) {
        let world = World::new(env).await;
        let _holder = world.mutex().await.lock().await.unwrap();
        let client = world.client().await;
        let session = client.current_session();
        let before = quiet(&world, &session).await;
        let options = || LockOptions::new().label("x").field("label", "y");
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let refusals = [
            mutex.try_lock_with(options()).await.map(drop),
            mutex.lock_with(options()).await.map(drop),
            RwLock::new(&client, "/other").unwrap().try_read_with(options()).await.map(drop),
            Semaphore::new(&client, "/quota", 1).unwrap().try_acquire_with(1, options()).await.map(drop),
            Election::new(&client, "/jobs").unwrap().try_campaign_with("node", options()).await.map(drop),
            lock_all_with(&client, [LOCK, "/other"], options()).await.map(drop),
            try_lock_all_with(&client, [LOCK, "/other"], options()).await.map(drop),
        ];
        for refusal in refusals {
            let name = "label".to_owned();
            assert_eq!(refusal, Err(LockError::InvalidField { name }));
        }
        let sent = quiet(&world, &session).await - before;
        assert_eq!(sent.requests(RequestKind::Any), sent.requests(RequestKind::Exists));
    }

    async fn keep_alive_of_a_lost_lock_says_so(env: Env) {
        let world = World::new(env).await;
        let (revoked, expired) = (world.mutex().await, world.mutex().await);
        let guard = revoked.lock().await.unwrap();
        world.revoke(guard.path()).await;
        let refusal = guard.keep_alive().await;
        assert_eq!(refusal, Err(LockError::Lost(LostReason::Revoked)));
        assert!(!guard.is_held());

        let guard = expired.lock().await.unwrap();
        world.expire(expired.client()).await.unwrap();
        let refusal = guard.keep_alive().await;
        assert_eq!(refusal, Err(LockError::Lost(LostReason::SessionExpired)));
    }

    async fn tokens_grow_over_sessions_and_new_parents(env: Env) {
        let world = World::new(env).await;
        let mut gate = FencingGate::default();
        let mut newest = None;
        for round in 0..6 {
            let mutex = world.mutex().await;
            let guard = mutex.lock().await.unwrap();
            assert!(newest < Some(guard.fencing_token()));
            newest = Some(guard.fencing_token());
            gate.admit(guard.fencing_token()).unwrap();
            guard.release().await.unwrap();
            if round % 2 == 0 {
                // Numbers restart under a new parent. The server may have removed it already.
                let _ = world.observing().await.delete(&path(LOCK), None).await;
            }
        }
    }

    async fn held_until_moves_on_while_the_session_lives(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        let before = guard.held_until().unwrap();
        assert!(before.remaining() <= LONG);
        world.observing().await.exists(&path(LOCK)).await.unwrap();
        // Any answer of the store renews the proof.
        guard.session().exists(&path(LOCK)).await.unwrap();
        assert!(guard.held_until().unwrap().moment() > before.moment());
        assert!(guard.is_held());
    }
}

#[tokio::test]
async fn an_idle_holder_is_kept_proven() {
    let store = TestStore::new();
    let options = ConnectOptions::new().session_timeout(Duration::from_secs(10));
    let client = store.client_with(options).await.unwrap();
    let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
    for _ in 0..100 {
        store.advance(Duration::from_secs(7)).await;
        assert!(guard.is_held());
        assert!(guard.held_until().unwrap().remaining() >= Duration::from_secs(5));
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_session_of_this_process_has_no_end_unless_asked_for() {
    let guard = Mutex::new(&Store::memory().connect().await.unwrap(), LOCK)
        .unwrap()
        .lock()
        .await
        .unwrap();
    assert!(guard.held_until().is_none());
    assert!(guard.is_held());
}

#[tokio::test]
async fn tokens_grow_over_restarts_of_the_program() {
    async fn token() -> lockkeeper::FencingToken {
        // A restarted program has a new store that knows nothing of the last one.
        let client = Store::memory().connect().await.unwrap();
        let guard: Guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
        guard.fencing_token()
    }
    let first = token().await;
    // Tokens start above the clock's milliseconds.
    let later = lockkeeper::Clock::system();
    later.sleep(Duration::from_millis(20)).await;
    assert!(first < token().await);
}

#[tokio::test]
async fn foreign_metadata_is_none() {
    let client = Store::memory().connect().await.unwrap();
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let guard = mutex.lock().await.unwrap();
    let session = client.session().await.unwrap();
    session
        .set_data(guard.path(), Bytes::from_static(b"10.0.0.1"), None)
        .await
        .unwrap();
    let entry = lockkeeper::queue(&client, LOCK).await.unwrap().remove(0);
    assert_eq!(entry.metadata, None);
    assert_eq!(entry.data, "10.0.0.1");
    assert_eq!(entry.owner, session.id());
}

mod removal {
    use lockkeeper::testing::{Plan, RequestKind};
    use lockkeeper::{
        Client, Clock, ReentrantMutex, RwLock, Semaphore, StoreOptions, ZnodePath, lock_all,
    };

    use tracing::Level;

    use super::*;
    use testkit::Log;

    /// Fails instead of asking forever. Events arrive before later replies, so each round trip of the holder's session
    /// shows which events have been delivered.
    async fn until_noticed(client: &Client, is_held: impl Fn() -> bool) {
        let session = client.current_session();
        let noticed = async {
            while is_held() {
                session.exists(&path(LOCK)).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let limit = Duration::from_secs(10);
        let noticed = tokio::time::timeout(limit, noticed).await;
        noticed.expect("nobody tells the holder");
    }

    on_every_backend! {
        async fn a_holder_that_only_asks_learns_of_it(env: Env) {
            let world = World::new(env).await;
            let mutex = world.mutex().await;
            let guard = mutex.lock().await.unwrap();
            assert!(guard.is_held());
            world.revoke(guard.path()).await;
            until_noticed(mutex.client(), || guard.is_held()).await;
            assert_eq!(lost(guard.release()).await, LostReason::Revoked);
        }

        async fn so_does_the_holder_of_any_recipe(env: Env) {
            let world = World::new(env).await;
            let client = world.client().await;

            let lock = RwLock::new(&client, "/lock/report").unwrap();
            let reader = lock.read().await.unwrap();
            world.revoke(reader.path()).await;
            until_noticed(&client, || reader.is_held()).await;
            let writer = lock.write().await.unwrap();
            world.revoke(writer.path()).await;
            until_noticed(&client, || writer.is_held()).await;
            let downgraded = lock.write().await.unwrap().downgrade().await.unwrap();
            world.revoke(downgraded.path()).await;
            until_noticed(&client, || downgraded.is_held()).await;

            let semaphore = Semaphore::new(&client, "/quota", 2).unwrap();
            let permit = semaphore.acquire_many(2).await.unwrap();
            world.revoke(permit.paths().next().unwrap()).await;
            until_noticed(&client, || permit.is_held()).await;

            let guards = lock_all(&client, ["/batch/a", "/batch/b"]).await.unwrap();
            let entries = lockkeeper::queue(&world.observer, "/batch/b").await.unwrap();
            world.revoke(&entries[0].path).await;
            until_noticed(&client, || guards.is_held()).await;

            let reentrant = ReentrantMutex::new(&client, LOCK).unwrap();
            let owner = reentrant.owner();
            let guard = owner.lock().await.unwrap();
            let entries = lockkeeper::queue(&world.observer, LOCK).await.unwrap();
            world.revoke(&entries[0].path).await;
            until_noticed(&client, || guard.is_held()).await;
        }

        async fn in_the_stores_own_process_it_is_known_at_once(env: Env) {
            if !env.is_embedded() {
                return;
            }
            let client = env.client().await;
            let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
            assert!(guard.is_held());
            env.session().await.delete(guard.path(), None).await.unwrap();
            assert!(!guard.is_held());
            assert!(!guard.is_held(), "it stays lost");
            assert_eq!(guard.lost().await, LostReason::Revoked);
        }
    }

    const TIMEOUT: Duration = Duration::from_secs(15);

    async fn held() -> (TestStore, Client, Guard, ZnodePath) {
        let base = Store::memory_with(StoreOptions::new().clock(Clock::new_virtual()));
        let store = TestStore::wrapping(base.connector(), "memory:removal", Plan::calm());
        let options = ConnectOptions::new().session_timeout(TIMEOUT);
        let client = store.client_with(options).await.unwrap();
        let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
        let entry = guard.path().clone();
        (store, client, guard, entry)
    }

    #[tokio::test]
    async fn a_holder_that_does_not_ask_learns_of_it_within_a_third_of_the_timeout() {
        let (store, _client, guard, entry) = held().await;
        let other = store
            .client_with(ConnectOptions::new().session_timeout(TIMEOUT))
            .await
            .unwrap();
        other.current_session().delete(&entry, None).await.unwrap();
        store.advance(TIMEOUT / 3 + Duration::from_secs(1)).await;
        assert!(!guard.is_held(), "the first time that it is asked");
    }

    /// And not only a third of the timeout later, when the guard's monitor looks next.
    #[tokio::test]
    async fn a_loss_that_its_holder_awaits_is_logged_at_once() {
        let log = Log::of_thread(Level::WARN);
        let (_store, client, guard, entry) = held().await;
        client.current_session().delete(&entry, None).await.unwrap();
        assert_eq!(guard.lost().await, LostReason::Revoked);
        let lost = log.next("a lock was lost").await;
        assert_eq!(lost.field("path"), entry.as_str());
    }

    #[tokio::test]
    async fn a_short_hold_asks_for_nothing() {
        let (store, client, guard, _) = held().await;
        let before = store.traffic_of(&client);
        store.advance(TIMEOUT / 4).await;
        guard.release().await.unwrap();
        let cost = store.traffic_of(&client) - before;
        assert_eq!(
            (
                cost.requests(RequestKind::Any),
                cost.requests(RequestKind::Delete)
            ),
            (1, 1)
        );
    }
}
