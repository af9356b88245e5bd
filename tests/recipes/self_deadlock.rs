//! A session waits behind itself: a task that holds a lock and asks for it again hangs, and logs it.

use std::time::Duration;

use lockkeeper::testing::{Plan, TestStore};
use lockkeeper::{Client, Clock, ConnectOptions, LockOptions, Mutex, RwLock, Store, StoreOptions};
use testkit::{Log, on_every_backend};
use tracing::Level;

use crate::common::*;

const WARNING: &str = "a wait for a lock that the same session holds";

fn label(label: &str) -> LockOptions {
    LockOptions::new().label(label)
}

async fn in_memory() -> (TestStore, Client) {
    let base = Store::memory_with(StoreOptions::new().clock(Clock::new_virtual()));
    let store = TestStore::wrapping(base.connector(), "memory:itself", Plan::calm());
    let client = store.client_with(ConnectOptions::new()).await.unwrap();
    (store, client)
}

/// Longer than any accepted wait.
const LONG_WAIT: Duration = Duration::from_secs(60);

on_every_backend! {
    async fn a_nested_lock_says_that_it_waits_for_itself(env: Env) {
        let log = Log::of_thread(Level::WARN);
        let world = World::new(env).await;
        let client = world.client().await;
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let outer = mutex.lock_with(label("outer")).await.unwrap();
        let inner = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock_with(label("inner")).await }
        });
        let warning = log.next(WARNING).await;
        assert_eq!(warning.field("path"), LOCK);
        assert_eq!(warning.field("label"), "inner");
        assert_eq!(warning.field("holder"), "outer");
        assert_eq!(warning.field("entry"), outer.path().as_str());
        drop(outer);
        granted(inner).await.release().await.unwrap();
    }

    async fn a_second_reader_behind_a_writer_says_that_it_waits_for_itself(env: Env) {
        let log = Log::of_thread(Level::WARN);
        let world = World::new(env).await;
        let client = world.client().await;
        let lock = RwLock::new(&client, LOCK).unwrap();
        let outer = lock.read_with(label("outer")).await.unwrap();
        let writer = {
            let lock = RwLock::new(&world.client().await, LOCK).unwrap();
            world.queue_up_at(LOCK, async move { lock.write().await.map(drop) }).await
        };
        let inner = tokio::spawn(async move { lock.read_with(label("inner")).await.map(drop) });
        let warning = log.next(WARNING).await;
        assert_eq!(warning.field("path"), LOCK);
        assert_eq!(warning.field("label"), "inner");
        assert_eq!(warning.field("holder"), "outer");
        assert_eq!(warning.field("entry"), outer.path().as_str());
        drop(outer);
        writer.await.unwrap().unwrap();
        inner.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn it_is_said_once_for_each_wait() {
    let log = Log::of_thread(Level::WARN);
    let (store, client) = in_memory().await;
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let _outer = mutex.lock().await.unwrap();
    let inner = tokio::spawn(async move { mutex.lock().await.map(drop) });
    store.advance(LONG_WAIT).await;
    assert_eq!(log.next(WARNING).await.field("path"), LOCK);
    store.advance(LONG_WAIT).await;
    assert!(log.rest().is_empty(), "said twice");
    inner.abort();
}

/// Without a wrapper, where contenders wait by reference.
#[tokio::test]
async fn a_wait_by_reference_says_so() {
    let log = Log::of_thread(Level::WARN);
    let clock = Clock::new_virtual();
    let store = Store::memory_with(StoreOptions::new().clock(clock.clone()));
    let client = store.connect().await.unwrap();
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let outer = mutex.lock().await.unwrap();
    let inner = tokio::spawn(async move { mutex.lock().await });
    let passing = async {
        for _ in 0..10_000 {
            clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
    };
    let warning = tokio::select! {
        warning = log.next(WARNING) => warning,
        () = passing => panic!("a thousand seconds without a warning"),
    };
    assert_eq!(warning.field("path"), LOCK);
    drop(outer);
    granted(inner).await.release().await.unwrap();
}

#[tokio::test]
async fn a_writer_behind_its_own_reader_says_so() {
    let log = Log::of_thread(Level::WARN);
    let (store, client) = in_memory().await;
    let lock = RwLock::new(&client, LOCK).unwrap();
    let _first = lock.read().await.unwrap();
    let _second = lock.read().await.unwrap();
    let writer = tokio::spawn(async move { lock.write().await.map(drop) });
    store.advance(LONG_WAIT).await;
    log.next(WARNING).await;
    writer.abort();
}

#[tokio::test]
async fn ordinary_waits_say_nothing() {
    let log = Log::of_thread(Level::WARN);
    let (store, client) = in_memory().await;
    let other = store.client_with(ConnectOptions::new()).await.unwrap();
    // Behind another session, however long it takes, and behind an entry of the same session that waits for the other
    // session too.
    let theirs = Mutex::new(&other, LOCK).unwrap().lock().await.unwrap();
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    store.advance(LONG_WAIT).await;
    // A reader is not blocked by another reader of its session.
    let lock = RwLock::new(&client, "/lock/report").unwrap();
    let _readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    store.advance(LONG_WAIT).await;
    drop(theirs);
    for waiter in waiters {
        let guard = granted(waiter).await;
        store.advance(Duration::from_millis(100)).await;
        drop(guard);
    }
    assert!(log.rest().is_empty(), "{:?}", log.rest());
}
