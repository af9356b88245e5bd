//! A session that waits behind itself: a task that holds a lock and asks for it again hangs, and says so.

use std::fmt::{self, Write};
use std::sync::LazyLock;
use std::time::Duration;

use lockkeeper::testing::{Plan, TestStore};
use lockkeeper::{Client, Clock, ConnectOptions, LockOptions, Mutex, RwLock, Store, StoreOptions};
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, span};

use crate::common::*;
use crate::support::on_every_backend;

/// The warnings of this thread, each as its message and fields.
struct Warnings(mpsc::UnboundedSender<String>);

impl Warnings {
    /// Hears until the first answer is dropped.
    fn hear() -> (DefaultGuard, mpsc::UnboundedReceiver<String>) {
        // With one subscriber alive, tracing asks that of the thread which reaches a line first, for all threads and for
        // good (tracing-core 0.1, `Rebuilder::JustOne`): another test's thread has none. With two it asks every one.
        static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| {
            let (send, _) = mpsc::unbounded_channel();
            Dispatch::new(Warnings(send))
        });
        LazyLock::force(&ANOTHER);
        let (send, warnings) = mpsc::unbounded_channel();
        (tracing::subscriber::set_default(Self(send)), warnings)
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        // The test may be over.
        let _ = self.0.send(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn label(label: &str) -> LockOptions {
    LockOptions::new().label(label)
}

/// A store in memory and virtual time, with a client of it.
async fn in_memory() -> (TestStore, Client) {
    let base = Store::memory_with(StoreOptions::new().clock(Clock::new_virtual()));
    let store = TestStore::wrapping(base.connector(), "memory:itself", Plan::calm());
    let client = store.client_with(ConnectOptions::new()).await.unwrap();
    (store, client)
}

/// Longer than any wait that is let pass.
const LONG_WAIT: Duration = Duration::from_secs(60);

on_every_backend! {
    async fn a_nested_lock_says_that_it_waits_for_itself(env: Env) {
        let (_hears, mut warnings) = Warnings::hear();
        let world = World::new(env).await;
        let client = world.client_for(Duration::from_secs(2)).await;
        let mutex = Mutex::new(&client, LOCK).unwrap();
        let outer = mutex.lock_with(label("outer")).await.unwrap();
        let inner = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock_with(label("inner")).await }
        });
        let limit = Duration::from_secs(20);
        let warning = tokio::time::timeout(limit, warnings.recv()).await;
        let warning = warning.expect("it hangs in silence").unwrap();
        for told in [LOCK, "inner", "outer", outer.path().name()] {
            assert!(warning.contains(told), "{told} in {warning}");
        }
        drop(outer);
        granted(inner).await.release().await.unwrap();
    }
}

#[tokio::test]
async fn it_is_said_once_for_each_wait() {
    let (_hears, mut warnings) = Warnings::hear();
    let (store, client) = in_memory().await;
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let _outer = mutex.lock().await.unwrap();
    let inner = tokio::spawn(async move { mutex.lock().await.map(drop) });
    store.advance(LONG_WAIT).await;
    let warning = warnings.try_recv().expect("it hangs in silence");
    assert!(warning.contains(LOCK), "{warning}");
    store.advance(LONG_WAIT).await;
    assert!(warnings.try_recv().is_err(), "said twice");
    inner.abort();
}

#[tokio::test]
async fn a_writer_behind_its_own_reader_says_so() {
    let (_hears, mut warnings) = Warnings::hear();
    let (store, client) = in_memory().await;
    let lock = RwLock::new(&client, LOCK).unwrap();
    let _first = lock.read().await.unwrap();
    let _second = lock.read().await.unwrap();
    let writer = tokio::spawn(async move { lock.write().await.map(drop) });
    store.advance(LONG_WAIT).await;
    assert!(warnings.try_recv().is_ok(), "it hangs in silence");
    writer.abort();
}

#[tokio::test]
async fn ordinary_waits_say_nothing() {
    let (_hears, mut warnings) = Warnings::hear();
    let (store, client) = in_memory().await;
    let other = store.client_with(ConnectOptions::new()).await.unwrap();
    // Behind another session, however long that takes; and behind an entry of the same session that is in this
    // situation itself.
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
    // Tasks of one client that take turns.
    drop(theirs);
    for waiter in waiters {
        let guard = granted(waiter).await;
        store.advance(Duration::from_millis(100)).await;
        drop(guard);
    }
    assert_eq!(warnings.try_recv().ok(), None);
}
