//! Acquiring the mutex: in order, in time, or not at all.

mod model;

use std::time::Duration;

use lockkeeper::testing::{RequestKind, TestStore};
use lockkeeper::{
    Client, ConnectOptions, Error, Guard, LockError, LockOptions, LockPath, LostReason, Mutex,
    queue,
};
use lockkeeper_store::CreateMode;
use testkit::on_every_backend;

use crate::common::*;

const SHORT: Duration = Duration::from_millis(30);

async fn hold(world: &World) -> Guard {
    world.mutex().await.lock().await.unwrap()
}

on_every_backend! {
    async fn grants_come_in_the_order_of_queueing(env: Env) {
        let world = World::new(env).await;
        let mutexes = [world.mutex().await, world.mutex().await, world.mutex().await];
        let mut holder = mutexes[0].lock().await.unwrap();
        let mut waiters = Vec::new();
        for turn in 0..9 {
            waiters.push(world.queue_up(&mutexes[turn % mutexes.len()]).await);
        }
        let arrived = queue(&world.observer, LOCK).await.unwrap();
        let mut granted_tokens = vec![holder.fencing_token()];
        for waiter in waiters {
            assert!(!waiter.is_finished(), "it waits while another holds");
            holder.release().await.unwrap();
            holder = granted(waiter).await;
            granted_tokens.push(holder.fencing_token());
        }
        let arrived: Vec<_> = arrived.iter().map(|entry| entry.fencing_token).collect();
        assert_eq!(granted_tokens, arrived);
        assert!(arrived.is_sorted());
    }

    async fn the_clones_of_a_mutex_are_one(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let holder = mutex.lock().await.unwrap();
        let waiter = world.queue_up(&mutex.clone()).await;
        holder.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        world.until_swept(&mutex).await;
    }

    async fn locks_at_different_paths_are_independent(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let mut guards = Vec::new();
        for name in ["/a", "/a/b", "/deep/er/and/deeper"] {
            guards.push(Mutex::new(&client, name).unwrap().lock().await.unwrap());
        }
        assert!(guards.iter().all(Guard::is_held));
    }

    async fn names_are_curators(env: Env) {
        let world = World::new(env).await;
        let _guard = hold(&world).await;
        let names = world.children().await;
        let (uuid, number) = names[0].strip_prefix("_c_").unwrap().split_once("-lock-").unwrap();
        assert_eq!(uuid.len(), 36);
        // etcd numbers an entry by its create revision.
        assert!(number == "0000000000" || world.env.is_etcd() && number.len() == 10);
    }

    async fn a_timed_out_wait_leaves_nothing(env: Env) {
        let world = World::new(env).await;
        let holder = hold(&world).await;
        let mutex = world.mutex().await;
        let refusal = mutex.lock_timeout(SHORT).await.unwrap_err();
        assert_timed_out(&refusal, LOCK, SHORT);
        world.until_count(1).await;
        holder.release().await.unwrap();
        world.until_swept(&mutex).await;
    }

    async fn a_lock_that_is_free_in_time_is_granted(env: Env) {
        let world = World::new(env).await;
        let holder = hold(&world).await;
        let waiter = world
            .queue_up_with(&world.mutex().await, LockOptions::new().timeout(LONG))
            .await;
        holder.release().await.unwrap();
        assert!(granted(waiter).await.is_held());
    }

    async fn the_deadline_counts_before_the_queue_is_joined(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        world.disconnect(mutex.client());
        let refusal = mutex.lock_timeout(SHORT).await.unwrap_err();
        assert!(matches!(refusal, LockError::Timeout { .. }), "{refusal}");
        world.reconnect(mutex.client());
        world.until_swept(&mutex).await;
    }

    async fn try_lock_takes_a_free_lock(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.try_lock().await.unwrap().unwrap();
        guard.release().await.unwrap();
        let guard = mutex.try_lock_with(LockOptions::new().synced()).await.unwrap().unwrap();
        assert!(guard.is_held());
    }

    async fn try_lock_of_a_held_lock_costs_one_read_and_no_write(env: Env) {
        let world = World::new(env).await;
        let _holder = hold(&world).await;
        let mutex = world.mutex().await;
        let before = world.traffic_of(mutex.client());
        assert!(mutex.try_lock().await.unwrap().is_none());
        let cost = world.traffic_of(mutex.client()) - before;
        assert_eq!((cost.requests(RequestKind::Any), cost.requests(RequestKind::GetQueue)), (1, 1));
    }

    async fn try_lock_synced_of_a_held_lock_writes_nothing(env: Env) {
        let world = World::new(env).await;
        let _holder = hold(&world).await;
        let mutex = world.mutex().await;
        let before = world.traffic_of(mutex.client());
        assert!(mutex.try_lock_with(LockOptions::new().synced()).await.unwrap().is_none());
        let cost = world.traffic_of(mutex.client()) - before;
        let kinds = [RequestKind::Any, RequestKind::Sync, RequestKind::GetQueue].map(|kind| cost.requests(kind));
        assert_eq!(kinds, [2, 1, 1]);
    }

    async fn one_of_many_concurrent_tries_acquires_and_the_others_leave_nothing(env: Env) {
        let world = World::new(env).await;
        let mut tries = Vec::new();
        for _ in 0..12 {
            let mutex = world.mutex().await;
            tries.push(tokio::spawn(async move { mutex.try_lock().await.unwrap() }));
        }
        let mut had = Vec::new();
        for attempt in tries {
            had.extend(attempt.await.unwrap());
        }
        assert_eq!(had.len(), 1);
        world.until_count(1).await;
    }

    async fn metadata_is_written_in_the_create(env: Env) {
        let world = World::new(env).await;
        let options = LockOptions::new()
            .label("billing")
            .reason("monthly run")
            .expected_hold(Duration::from_secs(30))
            .field("team", "blue")
            .backtrace();
        let mutex = world.mutex().await;
        let before = world.traffic_of(mutex.client());
        let guard = mutex.lock_with(options).await.unwrap();
        let written = (world.traffic_of(mutex.client()) - before).requests(RequestKind::SetData);
        assert_eq!(written, 0, "no second step that can fail");

        let entry = queue(&world.observer, LOCK).await.unwrap().remove(0);
        let metadata = entry.metadata.unwrap();
        assert_eq!(metadata, guard.metadata());
        assert_eq!(metadata.v, 1);
        assert_eq!(metadata.label.as_deref(), Some("billing"));
        assert_eq!(metadata.reason.as_deref(), Some("monthly run"));
        assert_eq!(metadata.expected_hold(), Some(Duration::from_secs(30)));
        assert_eq!(metadata.other["team"], "blue");
        assert_eq!(metadata.pid, Some(std::process::id()));
        assert!(metadata.host.is_some() && metadata.queued_at_ms.is_some());
        assert!(metadata.backtrace.unwrap().contains("metadata_is_written_in_the_create"));
        drop(guard);
        let guard = mutex.lock_with(LockOptions::new().pid(7)).await.unwrap();
        assert_eq!(guard.metadata().pid, Some(7), "another process, in whose name it is held");
    }

    async fn a_full_queue_refuses_at_once_and_keeps_nothing(env: Env) {
        let world = World::new(env).await;
        let holder = hold(&world).await;
        let _waiter = world.queue_up(&world.mutex().await).await;
        let mutex = world.mutex().await;
        let refusal = mutex.lock_with(LockOptions::new().queue_limit(1)).await.unwrap_err();
        assert_eq!(refusal, LockError::QueueFull { path: path(LOCK), ahead: 2, limit: 1 });
        world.until_count(2).await;

        let second = world.queue_up_with(&mutex, LockOptions::new().queue_limit(2)).await;
        holder.release().await.unwrap();
        world.until_count(2).await;
        assert!(!second.is_finished(), "it waits behind the first waiter");
    }

    async fn a_queue_limit_holds_when_the_reply_to_the_create_is_lost(env: Env) {
        let world = World::new(env).await;
        let _holder = hold(&world).await;
        let mutex = world.mutex().await;
        world.lose_reply(mutex.client(), RequestKind::Enqueue);
        let refusal = mutex.lock_with(LockOptions::new().queue_limit(0)).await.unwrap_err();
        assert_eq!(refusal, LockError::QueueFull { path: path(LOCK), ahead: 1, limit: 0 });
        world.until_count(1).await;
    }

    async fn a_path_of_another_recipe_is_refused(env: Env) {
        let world = World::new(env).await;
        world.make(LOCK).await;
        let writer = path(&format!("{LOCK}/_c_x__WRIT__"));
        let session = world.observing().await;
        session.create(&writer, "", CreateMode::EphemeralSequential).await.unwrap();
        let mutex = world.mutex().await;
        let refusal = mutex.lock().await.unwrap_err();
        let LockError::WrongKind { path: at, expected, found, kind } = &refusal else {
            panic!("{refusal}");
        };
        assert_eq!((at.as_str(), *expected, *kind), (LOCK, "mutex", "a read-write lock"));
        assert!(found.contains("__WRIT__"));
        assert!(matches!(mutex.try_lock().await, Err(LockError::WrongKind { .. })));
        world.until_count(1).await;
    }

    async fn children_without_a_number_are_ignored(env: Env) {
        let world = World::new(env).await;
        for name in ["config", "README.md", "lock-", "x-12"] {
            world.make(&format!("{LOCK}/{name}")).await;
        }
        let guard = hold(&world).await;
        let waiter = world.queue_up(&world.mutex().await).await;
        guard.release().await.unwrap();
        let _next = granted(waiter).await;
        assert_eq!(queue(&world.observer, LOCK).await.unwrap().len(), 1);
    }

    async fn entries_of_other_libraries_count(env: Env) {
        let world = World::new(env).await;
        world.make(LOCK).await;
        let session = world.observing().await;
        for name in ["2d6f__lock__", "n_", "lock-"] {
            let foreign = path(&format!("{LOCK}/{name}"));
            let (foreign, _) =
                session.create(&foreign, "10.0.0.1", CreateMode::EphemeralSequential).await.unwrap();
            let mutex = world.mutex().await;
            assert!(mutex.try_lock().await.unwrap().is_none(), "{foreign} holds");
            let waiter = world.queue_up(&mutex).await;
            session.delete(&foreign, None).await.unwrap();
            granted(waiter).await.release().await.unwrap();
        }
    }

    async fn any_text_is_a_key(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let tenant = LockPath::new("/lock/tenants").unwrap();
        let mut guards = Vec::new();
        for text in ["EU/4711", "EU%2F4711", "", "..", "zookeeper", "\0", "größe"] {
            guards.push(Mutex::new(&client, tenant.key(text)).unwrap().lock().await.unwrap());
        }
        assert_eq!(guards[0].path().parent().unwrap().as_str(), "/lock/tenants/EU%2F4711");
        let names = children(&world.observing().await, "/lock/tenants").await;
        assert_eq!(names.len(), guards.len(), "no two share a path");
    }

    async fn after_an_expiry_the_client_opens_another_session(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let first = mutex.lock().await.unwrap();
        world.expire(mutex.client()).await.unwrap();
        let reason = first.lost().await;
        assert_eq!(reason, LostReason::SessionExpired);
        let second = mutex.lock().await.unwrap();
        assert_ne!(first.session().id(), second.session().id());
        assert!(!first.is_held() && second.is_held());
        assert!(first.fencing_token() < second.fencing_token());
    }

    async fn a_pending_wait_fails_with_its_session(env: Env) {
        let world = World::new(env).await;
        let holder = hold(&world).await;
        let (expired, closed) = (world.mutex().await, world.mutex().await);
        let waits = [world.queue_up(&expired).await, world.queue_up(&closed).await];
        world.expire(expired.client()).await.unwrap();
        closed.client().close().await.unwrap();
        let [first, second] = waits;
        let refusal = refused(first).await;
        assert!(refusal.is_session_end(), "{refusal}");
        let refusal = refused(second).await;
        assert!(matches!(refusal, LockError::Store(Error::SessionClosed { .. })), "{refusal}");
        world.until_count(1).await;
        assert!(holder.is_held());
    }

    async fn a_closed_client_opens_no_other_session(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        let closing = mutex.client().close();
        closing.await.unwrap();
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, LostReason::SessionClosed);
        world.until_count(0).await;
        for refusal in [mutex.lock().await.unwrap_err(), mutex.try_lock().await.unwrap_err()] {
            assert!(matches!(refusal, LockError::Store(Error::SessionClosed { .. })), "{refusal}");
        }
    }
}

#[test]
fn a_bad_path_is_refused_before_anything_is_sent() {
    let client: Client =
        futures_executor::block_on(lockkeeper::connect("memory:bad-paths")).unwrap();
    for bad in [
        "", "lock", "/", "/a/", "/a//b", "/a/./b", "/a/../b", "/a\0b",
    ] {
        let refusal = Mutex::new(&client, bad).unwrap_err();
        assert!(
            matches!(refusal, Error::InvalidPath { .. }),
            "{bad:?}: {refusal}"
        );
    }
}

#[tokio::test]
async fn one_deadline_holds_over_all_wakes() {
    let store = TestStore::new();
    let mutex = Mutex::new(&store.client().await.unwrap(), LOCK).unwrap();
    let seconds = Duration::from_secs;
    store
        .run(async {
            let _holder = mutex.lock().await.unwrap();
            let between = mutex.clone();
            let between = tokio::spawn(async move { between.lock_timeout(seconds(6)).await });
            tokio::task::yield_now().await;
            let start = store.clock().now();
            // The one ahead leaves after 6 s, which wakes this one but does not restart its timeout.
            let refusal = mutex.lock_timeout(seconds(10)).await.unwrap_err();
            assert!(matches!(refusal, LockError::Timeout { .. }), "{refusal}");
            assert_eq!(store.clock().now().since(start), seconds(10));
            assert!(between.await.unwrap().is_err());
        })
        .await;
}

/// The store reported a clear way over a connection that broke. Until the next connection, the entry may be deleted and
/// others may hold.
#[tokio::test]
async fn an_event_of_an_older_connection_grants_nothing() {
    let store = TestStore::new();
    let options = ConnectOptions::new().session_timeout(LONG);
    let (holder, waiter, other) = (
        store.client_with(options.clone()).await.unwrap(),
        store.client_with(options.clone()).await.unwrap(),
        store.client_with(options).await.unwrap(),
    );
    let lock = |client: &Client| Mutex::new(client, LOCK).unwrap();
    let held = lock(&holder).lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = lock(&waiter);
        async move { mutex.lock().await }
    });
    store.settle().await;
    store.disconnect(&waiter);
    // Clears the way, but the waiter does not hear of it.
    held.release().await.unwrap();
    let session = other.session().await.unwrap();
    let [entry] = &children(&session, LOCK).await[..] else {
        panic!("the waiter alone is in the queue");
    };
    let entry = path(LOCK).join(entry).unwrap();
    session.delete(&entry, None).await.unwrap();
    let next = lock(&other).lock().await.unwrap();
    store.reconnect(&waiter);
    let refused = waiting.await.unwrap();
    assert!(
        matches!(refused, Err(LockError::EntryDeleted { .. })),
        "two believe to hold: {refused:?}"
    );
    assert!(next.is_held());
}
