//! The event stream of one contender.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use lockkeeper::testing::TestStore;
use lockkeeper::{
    ConnectOptions, LockEvent, LockEvents, LockOptions, LostReason, Mutex, PreviousHolder, Store,
    lock_events,
};
use testkit::on_every_backend;

use crate::common::*;

/// Returns the next event without parts that vary between runs.
async fn next(events: &mut LockEvents) -> String {
    match events.next().await {
        None => "end".into(),
        Some(LockEvent::Queued { position, .. }) => format!("queued {position}"),
        Some(LockEvent::Acquired { .. }) => "acquired".into(),
        Some(LockEvent::Suspended { .. }) => "suspended".into(),
        Some(event) => event.to_string(),
    }
}

async fn previous(events: &mut LockEvents) -> PreviousHolder {
    loop {
        match events.next().await.expect("it is granted the lock") {
            LockEvent::Acquired { previous, .. } => return previous,
            _ => continue,
        }
    }
}

on_every_backend! {
    async fn a_loss_is_told_though_the_holder_hears_first_and_releases(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let (sink, mut events) = lock_events();
        let guard = mutex.lock_with(LockOptions::new().events(sink)).await.unwrap();
        world.expire(mutex.client()).await.unwrap();
        guard.lost().await;
        guard.release().await.unwrap_err();
        let mut losses = 0;
        while let Some(event) = events.next().await {
            losses += u32::from(matches!(event, LockEvent::Lost { .. }));
        }
        assert_eq!(losses, 1);
    }

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
        assert!(names.iter().any(|name| name == ahead.name()));
        assert!(world.env.is_etcd() || ahead.name().ends_with("0000000001"));

        between.abort();
        assert_eq!(next(&mut events).await, "advanced, 1 ahead");
        holder.release().await.unwrap();
        let guard = granted(waiter).await;
        let Some(LockEvent::Acquired { fencing_token: token, waited, .. }) = events.next().await else {
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
        let Some(LockEvent::Acquired {
            waited: Duration::ZERO,
            previous: PreviousHolder::Free,
            ..
        }) = events.next().await else {
            panic!("it is granted at once");
        };
        drop(guard);
        assert_eq!(next(&mut events).await, "released");
        assert_eq!(next(&mut events).await, "end");
    }

    async fn a_grant_tells_how_the_previous_holder_left(env: Env) {
        let world = World::new(env).await;
        // ZooKeeper's events do not say. The mark of a holder that has waited does.
        let of_index = |previous| match world.env.has_index() {
            true => previous,
            false => PreviousHolder::Unknown,
        };
        let first = world.mutex().await.lock().await.unwrap();
        let (mut mutexes, mut waiters) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let (mutex, (sink, events)) = (world.mutex().await, lock_events());
            let waiter = world.queue_up_with(&mutex, LockOptions::new().events(sink)).await;
            waiters.push(Some((waiter, events)));
            mutexes.push(mutex);
        }
        let mut turn = async |waiter: usize| {
            let (waiter, mut events) = waiters[waiter].take().unwrap();
            let guard = granted(waiter).await;
            (guard, previous(&mut events).await)
        };

        first.release().await.unwrap();
        let (released, previous) = turn(0).await;
        assert_eq!(previous, of_index(PreviousHolder::Released));
        released.release().await.unwrap();
        let (_expired, previous) = turn(1).await;
        assert_eq!(previous, PreviousHolder::Released);
        world.expire(mutexes[1].client()).await.unwrap();
        let (removed, previous) = turn(2).await;
        assert_eq!(previous, of_index(PreviousHolder::Died));
        world.revoke(removed.path()).await;
        let (closed, previous) = turn(3).await;
        assert_eq!(previous, of_index(PreviousHolder::Died));
        mutexes[3].client().close().await.unwrap();
        let (_last, previous) = turn(4).await;
        assert_eq!(previous, of_index(PreviousHolder::Died));
        drop(closed);
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
        // Over a wire, the lost connection is seen first.
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
        assert_eq!(next(&mut events).await, "lost: the lock was taken away by another client");
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

        // The watch is armed once a request sent after the entry's is answered.
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

/// Returns all events of a finished contender, except the connection's.
async fn story(events: &mut LockEvents) -> Vec<String> {
    let mut story = Vec::new();
    loop {
        match next(events).await.as_str() {
            "end" => return story,
            "suspended" | "resumed" => {}
            event => story.push(event.to_owned()),
        }
    }
}

on_every_backend! {
    async fn a_holder_that_expires_has_a_whole_story(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let (sink, mut events) = lock_events();
        let guard = mutex.lock_with(LockOptions::new().events(sink)).await.unwrap();
        let waiter = world.queue_up(&world.mutex().await).await;
        world.expire(mutex.client()).await.unwrap();
        assert_eq!(guard.lost().await, LostReason::SessionExpired);
        // Its own end is reported, not the end of the next holder.
        granted(waiter).await.release().await.unwrap();
        drop(guard);
        assert_eq!(story(&mut events).await, ["acquired", "lost: the session has expired"]);
    }

    async fn a_waiter_that_expires_has_a_whole_story(env: Env) {
        let world = World::new(env).await;
        let holder = world.mutex().await.lock().await.unwrap();
        let (waiting, behind) = (world.mutex().await, world.mutex().await);
        let (sink, mut events) = lock_events();
        let waiter = world.queue_up_with(&waiting, LockOptions::new().events(sink)).await;
        let (sink, mut events_behind) = lock_events();
        let next = world.queue_up_with(&behind, LockOptions::new().events(sink)).await;
        world.expire(waiting.client()).await.unwrap();
        assert!(refused(waiter).await.is_session_end());
        assert_eq!(story(&mut events).await, ["queued 1", "gave up waiting"]);
        world.until_count(2).await;
        holder.release().await.unwrap();
        granted(next).await.release().await.unwrap();
        let told = story(&mut events_behind).await;
        // A waiter that looks only after the holder's release misses a step.
        let all = ["queued 2", "advanced, 1 ahead", "acquired", "released"];
        assert!(told == all || told == ["queued 2", "acquired", "released"], "{told:?}");
    }

    async fn a_waiter_hears_of_the_expiry_of_all_ahead(env: Env) {
        let world = World::new(env).await;
        let (first, second, third) = (world.mutex().await, world.mutex().await, world.mutex().await);
        let _dying = first.lock().await.unwrap();
        let between = world.queue_up(&second).await;
        let (sink, mut events) = lock_events();
        let waiter = world.queue_up_with(&third, LockOptions::new().events(sink)).await;
        assert_eq!(next(&mut events).await, "queued 2");
        world.expire(second.client()).await.unwrap();
        assert!(refused(between).await.is_session_end());
        assert_eq!(next(&mut events).await, "advanced, 1 ahead");
        world.expire(first.client()).await.unwrap();
        let guard = granted(waiter).await;
        let died = match world.env.has_index() {
            true => PreviousHolder::Died,
            false => PreviousHolder::Unknown,
        };
        let previous = previous(&mut events).await;
        // On etcd the entry may leave before the watch for it is armed.
        let is_missed = world.env.is_etcd() && previous == PreviousHolder::Unknown;
        assert!(previous == died || is_missed, "{previous:?}");
        guard.release().await.unwrap();
        assert_eq!(story(&mut events).await, ["released"]);
    }

    async fn a_holder_that_is_cut_off_for_good_is_suspended_and_then_lost(env: Env) {
        let world = World::new(env).await;
        let client = world.client_for(Duration::from_secs(2)).await;
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let (sink, mut events) = lock_events();
        let guard = mutex.lock_with(LockOptions::new().events(sink)).await.unwrap();
        assert_eq!(next(&mut events).await, "acquired");
        world.disconnect(&client);
        let Some(LockEvent::Suspended { held_until: Some(until) }) = events.next().await else {
            panic!("it is suspended");
        };
        assert_eq!(next(&mut events).await, "lost: the store was not heard from for too long");
        assert!(until.has_passed() && !guard.is_held());
        world.reconnect(&client);
        drop(guard);
        // If the session has outlived the lease, its entry remains to be deleted.
        let told = story(&mut events).await;
        assert!(told.is_empty() || told == ["released"], "{told:?}");
        world.until_count(0).await;
    }

    async fn a_waiter_that_expires_while_it_is_cut_off_has_a_whole_story(env: Env) {
        let world = World::new(env).await;
        let holder = world.mutex().await.lock().await.unwrap();
        let waiting = world.mutex().await;
        let (sink, mut events) = lock_events();
        let waiter = world.queue_up_with(&waiting, LockOptions::new().events(sink)).await;
        assert_eq!(next(&mut events).await, "queued 1");
        // The watch is armed once a request sent after the entry's is answered.
        waiting.client().current_session().exists(&path(LOCK)).await.unwrap();
        tokio::task::yield_now().await;
        world.disconnect(waiting.client());
        assert_eq!(next(&mut events).await, "suspended");
        world.expire(waiting.client()).await.unwrap();
        world.until_count(1).await;
        world.reconnect(waiting.client());
        assert!(refused(waiter).await.is_session_end());
        assert_eq!(story(&mut events).await, ["gave up waiting"]);
        // The client's next wait uses another session and has separate events.
        let (sink, mut events) = lock_events();
        let again = world.queue_up_with(&waiting, LockOptions::new().events(sink)).await;
        holder.release().await.unwrap();
        granted(again).await.release().await.unwrap();
        assert_eq!(story(&mut events).await, ["queued 1", "acquired", "released"]);
    }

    async fn a_holder_that_expires_while_it_is_cut_off_has_a_whole_story(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let (sink, mut events) = lock_events();
        let guard = mutex.lock_with(LockOptions::new().events(sink)).await.unwrap();
        assert_eq!(next(&mut events).await, "acquired");
        world.disconnect(mutex.client());
        assert_eq!(next(&mut events).await, "suspended");
        world.expire(mutex.client()).await.unwrap();
        let next_holder = world.mutex().await.lock().await.unwrap();
        assert!(next_holder.fencing_token() > guard.fencing_token());
        world.reconnect(mutex.client());
        assert_eq!(guard.lost().await, LostReason::SessionExpired);
        drop(guard);
        assert_eq!(story(&mut events).await, ["lost: the session has expired"]);
    }
}

async fn joined<F: Future>(mut wait: Pin<&mut F>) {
    poll_fn(|context| {
        assert!(wait.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_waiter_that_gives_up_at_its_turn_has_released_nothing() {
    let store = Store::memory();
    let mut mutexes = Vec::new();
    for _ in 0..3 {
        mutexes.push(Mutex::new(&store.connect().await.unwrap(), LOCK).unwrap());
    }
    let [dying, giving_up, next] = &mutexes[..] else {
        unreachable!()
    };
    let _dead = dying.lock().await.unwrap();
    let mut wait = Box::pin(giving_up.lock());
    joined(wait.as_mut()).await;
    let (sink, mut events) = lock_events();
    let mut last = Box::pin(next.lock_with(LockOptions::new().events(sink)));
    joined(last.as_mut()).await;
    dying.client().close().await.unwrap();
    // Its turn came, but it has not looked.
    drop(wait);
    let _guard = last.await.unwrap();
    assert_eq!(previous(&mut events).await, PreviousHolder::Unknown);
}

#[tokio::test]
async fn a_slow_reader_of_events_never_slows_the_lock_and_hears_how_many_it_missed() {
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

/// The connection is lost between the granting answer and the waiter's next poll.
#[tokio::test]
async fn a_resumption_is_told_after_its_suspension_alone() {
    let store = TestStore::new();
    let options = ConnectOptions::new().session_timeout(LONG);
    let client = store.client_with(options).await.unwrap();
    let mutex = Mutex::new(&client, LOCK).unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    let delay = Duration::from_millis(1);
    store.delay_replies(&client, delay);
    let (sink, mut events) = lock_events();
    let mut waiting = Box::pin(mutex.lock_with(LockOptions::new().events(sink)));
    assert!(polled(&mut waiting, 1).await.is_none());
    store.clock().advance(delay);
    store.disconnect(&client);
    let guard = polled(&mut waiting, 1)
        .await
        .expect("it was answered")
        .unwrap();
    store.reconnect(&client);
    store.run(guard.release()).await.unwrap();
    let told = all_told(&mut events).await;
    assert_eq!(told, ["acquired", "suspended", "resumed", "released"]);
}

/// The connection is lost and restored between two polls of a waiter.
#[tokio::test]
async fn a_waiter_that_misses_its_suspension_is_told_of_no_resumption() {
    let store = TestStore::new();
    let options = ConnectOptions::new().session_timeout(LONG);
    let (holder, waiter) = (
        store.client_with(options.clone()).await.unwrap(),
        store.client_with(options).await.unwrap(),
    );
    let held = Mutex::new(&holder, LOCK).unwrap().lock().await.unwrap();
    let mutex = Mutex::new(&waiter, LOCK).unwrap();
    let (sink, mut events) = lock_events();
    let mut waiting = Box::pin(mutex.lock_with(LockOptions::new().events(sink)));
    for _ in 0..10 {
        assert!(polled(&mut waiting, 1).await.is_none());
        store.settle().await;
    }
    store.disconnect(&waiter);
    store.reconnect(&waiter);
    store.settle().await;
    for _ in 0..10 {
        assert!(polled(&mut waiting, 1).await.is_none());
        store.settle().await;
    }
    held.release().await.unwrap();
    let guard = store.run(waiting).await.unwrap();
    guard.release().await.unwrap();
    let told = all_told(&mut events).await;
    assert_eq!(told, ["queued", "acquired", "released"]);
}

async fn all_told(events: &mut LockEvents) -> Vec<&'static str> {
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        told.push(match event {
            LockEvent::Queued { .. } => "queued",
            LockEvent::Acquired { .. } => "acquired",
            LockEvent::Suspended { .. } => "suspended",
            LockEvent::Resumed => "resumed",
            LockEvent::Released => "released",
            other => panic!("{other:?}"),
        });
    }
    told
}
