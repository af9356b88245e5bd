//! A wait that is polled once and then kept. Once granted, it blocks every contender behind it, and the library logs
//! that.

use std::pin::pin;
use std::time::Duration;

use lockkeeper::testing::{Plan, TestStore};
use lockkeeper::{
    Clock, ConnectOptions, LockOptions, Mutex, Semaphore, Store, StoreOptions, lock_events,
};
use testkit::Log;
use tracing::Level;

use crate::common::*;

const WARNING: &str = "a lock was granted to a wait that is not polled";

/// Without a wrapper, where contenders wait by reference.
#[tokio::test]
async fn a_wait_by_reference_that_is_granted_and_not_polled_says_so() {
    let log = Log::of_thread(Level::WARN);
    let clock = Clock::new_virtual();
    let store = Store::memory_with(StoreOptions::new().clock(clock.clone()));
    let (holder, client) = (store.connect().await, store.connect().await);
    let holder = Mutex::new(&holder.unwrap(), LOCK).unwrap();
    let mutex = Mutex::new(&client.unwrap(), LOCK).unwrap();
    let held = holder.lock().await.unwrap();
    let mut kept = pin!(mutex.lock());
    assert!(polled(&mut kept, 1).await.is_none());
    clock.advance(Duration::from_secs(10));
    held.release().await.unwrap();
    clock.advance(Duration::from_millis(900));
    assert!(log.rest().is_empty(), "it may still be polled in time");
    clock.advance(Duration::from_millis(500));
    assert_eq!(log.next(WARNING).await.field("path"), LOCK);
    clock.advance(Duration::from_secs(60));
    assert!(log.rest().is_empty(), "said twice");
    drop(kept.await.unwrap());
}

/// With requests, as over a network. A wait that is woken without a grant, or polled in time, logs nothing.
#[tokio::test]
async fn only_a_wait_that_is_granted_and_not_polled_says_so() {
    let log = Log::of_thread(Level::WARN);
    let base = Store::memory_with(StoreOptions::new().clock(Clock::new_virtual()));
    let store = TestStore::wrapping(base.connector(), "memory:untaken", Plan::calm());
    let client = store.client_with(ConnectOptions::new()).await.unwrap();
    let other = store.client_with(ConnectOptions::new()).await.unwrap();
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let held = Mutex::new(&other, LOCK).unwrap().lock().await.unwrap();
    let options = |label: &str| LockOptions::new().label(label);
    let mut first = pin!(mutex.lock_with(options("first")));
    assert!(polled(&mut first, 1).await.is_none());
    let mut second = pin!(mutex.lock_with(options("second")));
    assert!(polled(&mut second, 1).await.is_none());
    store.advance(Duration::from_secs(5)).await;
    assert!(log.rest().is_empty(), "neither is granted");
    assert!(polled(&mut first, 1).await.is_none());
    held.release().await.unwrap();
    store.advance(Duration::from_millis(500)).await;
    first.await.unwrap().release().await.unwrap();
    store.advance(Duration::from_secs(5)).await;
    let warning = log.next(WARNING).await;
    assert_eq!(
        (warning.field("path"), warning.field("label")),
        (LOCK, "second")
    );
    assert!(log.rest().is_empty(), "only that one");
    drop(second.await.unwrap());
}

/// A semaphore's first waiter is granted once enough permits are free. If its watches only report a change, as on
/// ZooKeeper and with events, the library looks again.
#[tokio::test]
async fn permits_that_are_granted_and_not_taken_say_so() {
    for has_events in [false, true] {
        let log = Log::of_thread(Level::WARN);
        let clock = Clock::new_virtual();
        let store = Store::memory_with(StoreOptions::new().clock(clock.clone()));
        let (holder, client) = (store.connect().await, store.connect().await);
        let holder = Semaphore::new(&holder.unwrap(), LOCK, 2).unwrap();
        let semaphore = Semaphore::new(&client.unwrap(), LOCK, 2).unwrap();
        let one = holder.acquire().await.unwrap();
        let two = holder.acquire().await.unwrap();
        let (sink, _events) = lock_events();
        let mut options = LockOptions::new().label("kept");
        if has_events {
            options = options.events(sink);
        }
        let mut kept = pin!(semaphore.acquire_with(2, options));
        assert!(polled(&mut kept, 1).await.is_none());
        one.release().await.unwrap();
        clock.advance(Duration::from_secs(10));
        assert!(log.rest().is_empty(), "one permit is not enough");
        two.release().await.unwrap();
        clock.advance(Duration::from_millis(900));
        assert!(log.rest().is_empty(), "it may still be polled in time");
        clock.advance(Duration::from_secs(60));
        let warning = log
            .next("permits were granted to a wait that is not polled")
            .await;
        assert_eq!(
            (warning.field("path"), warning.field("label")),
            (LOCK, "kept")
        );
        assert!(log.rest().is_empty(), "said twice");
        drop(kept.await.unwrap());
    }
}

/// The reply with the permits arrives, but the wait is not polled. No other client waits, but the permits are held.
#[tokio::test]
async fn permits_that_were_free_and_are_not_taken_say_so() {
    let log = Log::of_thread(Level::WARN);
    let base = Store::memory_with(StoreOptions::new().clock(Clock::new_virtual()));
    let store = TestStore::wrapping(base.connector(), "memory:untaken", Plan::calm());
    let client = store.client_with(ConnectOptions::new()).await.unwrap();
    let semaphore = Semaphore::new(&client, LOCK, 2).unwrap();
    drop(semaphore.acquire().await.unwrap());
    let session = client.session().await.unwrap();
    store
        .faults()
        .delay_replies(&session, Duration::from_millis(10));
    let mut kept = pin!(semaphore.acquire());
    assert!(polled(&mut kept, 1).await.is_none());
    store.advance(Duration::from_secs(5)).await;
    let warning = log
        .next("permits were granted to a wait that is not polled")
        .await;
    assert_eq!(warning.field("path"), LOCK);
    drop(kept.await.unwrap());
}
