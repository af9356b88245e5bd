//! The stream of what happens to one contender.

use std::time::Duration;

use lockkeeper::testing::TestStore;
use lockkeeper::{ConnectOptions, LockEvent, LockEvents, LockOptions, Mutex, Store, lock_events};

use crate::common::*;
use crate::support::on_every_backend;

/// The next event, without what differs from run to run.
async fn next(events: &mut LockEvents) -> String {
    match events.next().await {
        None => "end".into(),
        Some(LockEvent::Queued { position, .. }) => format!("queued {position}"),
        Some(LockEvent::Acquired { .. }) => "acquired".into(),
        Some(LockEvent::Suspended { .. }) => "suspended".into(),
        Some(event) => event.to_string(),
    }
}

on_every_backend! {
    async fn a_contender_is_told_from_queued_to_released(env: Env) {
        let world = World::new(env).await;
        let holder = world.mutex().await.lock().await.unwrap();
        let between = world.queue_up(&world.mutex().await).await;
        let (sink, mut events) = lock_events();
        let mutex = world.mutex().await;
        let waiter = world.queue_up_with(&mutex, LockOptions::new().events(sink)).await;

        let names = world.children().await;
        let Some(LockEvent::Queued { position: 2, ahead }) = events.next().await else {
            panic!("it is queued behind two");
        };
        assert!(names.iter().any(|name| name == ahead.name() && name.ends_with("0000000001")));

        between.abort();
        assert_eq!(next(&mut events).await, "advanced, 1 ahead");
        holder.release().await.unwrap();
        let guard = granted(waiter).await;
        let Some(LockEvent::Acquired { token, waited }) = events.next().await else {
            panic!("it is granted");
        };
        assert_eq!(token, guard.fencing_token());
        assert!(waited > Duration::ZERO);
        guard.release().await.unwrap();
        assert_eq!(next(&mut events).await, "released");
        assert_eq!(next(&mut events).await, "end");
    }

    async fn a_free_lock_is_acquired_without_a_wait(env: Env) {
        let world = World::new(env).await;
        let (sink, mut events) = lock_events();
        let options = LockOptions::new().events(sink);
        let guard = world.mutex().await.lock_with(options).await.unwrap();
        let Some(LockEvent::Acquired { waited: Duration::ZERO, .. }) = events.next().await else {
            panic!("it is granted at once");
        };
        drop(guard);
        assert_eq!(next(&mut events).await, "released");
        assert_eq!(next(&mut events).await, "end");
    }

    async fn a_wait_that_ends_without_the_lock_is_abandoned(env: Env) {
        let world = World::new(env).await;
        let _holder = world.mutex().await.lock().await.unwrap();
        let mutex = world.mutex().await;
        let (sink, mut events) = lock_events();
        let options = LockOptions::new().events(sink).timeout(Duration::from_millis(10));
        mutex.lock_with(options).await.unwrap_err();
        while next(&mut events).await != "gave up waiting" {}
        assert_eq!(next(&mut events).await, "end");

        let (sink, mut events) = lock_events();
        let waiter = world.queue_up_with(&mutex, LockOptions::new().events(sink)).await;
        waiter.abort();
        while next(&mut events).await != "gave up waiting" {}
        assert_eq!(next(&mut events).await, "end");
    }

    async fn a_loss_is_told(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let (sink, mut events) = lock_events();
        let _guard = mutex.lock_with(LockOptions::new().events(sink)).await.unwrap();
        assert_eq!(next(&mut events).await, "acquired");
        world.expire(mutex.client()).await.unwrap();
        // Where there is a wire, its break is seen first.
        let mut told = next(&mut events).await;
        while told == "suspended" || told == "resumed" {
            told = next(&mut events).await;
        }
        assert_eq!(told, "lost: the session has expired");
    }

    async fn a_forced_removal_is_told(env: Env) {
        let world = World::new(env).await;
        let (sink, mut events) = lock_events();
        let mutex = world.mutex().await;
        let guard = mutex.lock_with(LockOptions::new().events(sink)).await.unwrap();
        assert_eq!(next(&mut events).await, "acquired");
        world.revoke(guard.path()).await;
        assert_eq!(next(&mut events).await, "lost: the lock was taken away by somebody else");
        assert!(!guard.is_held());
    }

    async fn a_broken_connection_is_told_to_holder_and_waiter(env: Env) {
        let world = World::new(env).await;
        let (holding, waiting) = (world.mutex().await, world.mutex().await);
        let (sink, mut holders) = lock_events();
        let guard = holding.lock_with(LockOptions::new().events(sink)).await.unwrap();
        let (sink, mut waiters) = lock_events();
        let waiter = world.queue_up_with(&waiting, LockOptions::new().events(sink)).await;
        assert_eq!(next(&mut holders).await, "acquired");
        assert_eq!(next(&mut waiters).await, "queued 1");

        world.disconnect(holding.client());
        let Some(LockEvent::Suspended { held_until: Some(until) }) = holders.next().await else {
            panic!("it is suspended");
        };
        assert!(!until.has_passed());
        world.reconnect(holding.client());
        assert_eq!(next(&mut holders).await, "resumed");
        assert!(guard.is_held());

        // Its watch is armed when what it sent after it was queued is answered.
        waiting.client().current_session().exists(&path(LOCK)).await.unwrap();
        tokio::task::yield_now().await;
        world.disconnect(waiting.client());
        assert_eq!(next(&mut waiters).await, "suspended");
        world.reconnect(waiting.client());
        assert_eq!(next(&mut waiters).await, "resumed");
        guard.release().await.unwrap();
        assert!(granted(waiter).await.is_held());
        assert_eq!(next(&mut waiters).await, "acquired");
    }
}

#[tokio::test]
async fn a_slow_reader_never_slows_the_lock_and_is_told_what_it_missed() {
    let mutex = Mutex::new(&Store::memory().connect().await.unwrap(), LOCK).unwrap();
    let (sink, mut events) = lock_events();
    const CYCLES: u64 = 1_000;
    for _ in 0..CYCLES {
        let guard = mutex
            .lock_with(LockOptions::new().events(sink.clone()))
            .await
            .unwrap();
        guard.release().await.unwrap();
    }
    drop(sink);
    let (mut read, mut missed) = (0, 0);
    while let Some(event) = events.next().await {
        match event {
            LockEvent::Missed { count } => missed += count,
            _ => read += 1,
        }
    }
    assert!(missed > 0);
    assert_eq!(read + missed, 2 * CYCLES);
}

#[tokio::test]
async fn a_lapse_is_told_at_its_moment() {
    let store = TestStore::new();
    let options = ConnectOptions::new().session_timeout(Duration::from_secs(10));
    let client = store.client_with(options).await.unwrap();
    let (sink, mut events) = lock_events();
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let guard = mutex
        .lock_with(LockOptions::new().events(sink))
        .await
        .unwrap();
    let until = guard.held_until().unwrap().moment();
    assert_eq!(next(&mut events).await, "acquired");
    store.disconnect(&client);
    assert_eq!(next(&mut events).await, "suspended");
    store.run(events.next()).await.unwrap();
    assert_eq!(store.clock().now(), until);
    assert!(!guard.is_held());
}
