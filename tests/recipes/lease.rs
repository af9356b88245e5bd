//! Leases of grants on a store that sessions take for an ensemble, in virtual time.

use std::time::Duration;

use lockkeeper::testing::{Plan, RequestKind, TestStore};
use lockkeeper::{
    Client, Clock, ConnectOptions, Deadline, Election, LockError, Mutex, RwLock, Semaphore, Store,
    StoreOptions, lock_all, try_lock_many,
};
use lockkeeper_store::CreateMode;
use testkit::unindexed;

use crate::common::*;

const TIMEOUT: Duration = Duration::from_secs(15);

const SECOND: Duration = Duration::from_secs(1);

/// A store without an index, where only committed writes are proof, like an ensemble. The queues' parents exist, so an
/// entry is the only write.
async fn ensemble() -> TestStore {
    let options = StoreOptions::new().clock(Clock::new_virtual());
    let base = Store::memory_with(options);
    let maker = base.connect().await.unwrap().session().await.unwrap();
    for parent in [LOCK, "/a", "/b"] {
        let parent = path(parent);
        let made = maker.create_all(&parent, CreateMode::Persistent);
        made.await.unwrap();
    }
    let store = TestStore::wrapping(unindexed(base.connector()), "memory:ensemble", Plan::calm());
    store.prove_by_quorum();
    store
}

async fn connected(store: &TestStore) -> Client {
    let options = ConnectOptions::new().session_timeout(TIMEOUT);
    store.client_with(options).await.unwrap()
}

fn has_a_fifth(held_until: Option<Deadline>, what: &str, idle: u64) {
    let left = held_until.unwrap().remaining();
    assert!(
        left >= TIMEOUT / 5,
        "{what} after {idle} s without a write: only {left:?} are left"
    );
}

#[tokio::test]
async fn a_grant_has_a_fifth_of_its_lease_left() {
    for idle in 0..40 {
        let store = ensemble().await;
        let client = connected(&store).await;
        // No contender writes, so the proof ages.
        store.advance(idle * SECOND).await;
        let guard = Mutex::new(&client, LOCK).unwrap();
        let guard = store.run(guard.lock()).await.unwrap();
        has_a_fifth(guard.held_until(), "a mutex", idle as u64);
        assert!(guard.is_held());
        drop(guard);
    }
}

#[tokio::test]
async fn every_recipe_waits_for_a_proof() {
    for idle in [11, 12, 13, 14, 100] {
        let what = idle as u64;
        let cold = || async {
            let store = ensemble().await;
            let client = connected(&store).await;
            store.advance(idle * SECOND).await;
            (store, client)
        };

        let (store, client) = cold().await;
        let lock = Mutex::new(&client, LOCK).unwrap();
        let guard = store.run(lock.try_lock()).await.unwrap().unwrap();
        has_a_fifth(guard.held_until(), "a try", what);

        let (store, client) = cold().await;
        let lock = RwLock::new(&client, LOCK).unwrap();
        let guard = store.run(lock.write()).await.unwrap();
        has_a_fifth(guard.held_until(), "a read-write lock", what);

        let (store, client) = cold().await;
        let lock = Semaphore::new(&client, LOCK, 2).unwrap();
        let permit = store.run(lock.acquire_many(2)).await.unwrap();
        has_a_fifth(permit.held_until(), "a semaphore", what);

        let (store, client) = cold().await;
        let election = Election::new(&client, LOCK).unwrap();
        let leadership = store.run(election.campaign("me")).await.unwrap();
        has_a_fifth(leadership.held_until(), "an election", what);

        let (store, client) = cold().await;
        let guard = store.run(lock_all(&client, ["/a", "/b"])).await.unwrap();
        has_a_fifth(guard.held_until(), "several locks", what);

        let (store, client) = cold().await;
        let tried = store.run(try_lock_many(&client, ["/a", "/b"])).await;
        for (_, guard) in &tried.unwrap().acquired {
            has_a_fifth(guard.held_until(), "several tries", what);
        }
    }
}

#[tokio::test]
async fn a_waiter_keeps_its_proof_fresh() {
    for held_for in [5, 12, 14, 31, 100] {
        let store = ensemble().await;
        let (holder, waiter) = (connected(&store).await, connected(&store).await);
        let guard = Mutex::new(&holder, LOCK).unwrap().lock().await.unwrap();
        let waiting = tokio::spawn({
            let mutex = Mutex::new(&waiter, LOCK).unwrap();
            async move {
                let guard = mutex.lock().await.unwrap();
                (mutex.client().clock().now(), guard)
            }
        });
        store.advance(held_for * SECOND).await;
        assert!(guard.is_held(), "a holder of {held_for} s lost its lock");
        let released = store.clock().now();
        guard.release().await.unwrap();
        let (granted, next) = store.run(waiting).await.unwrap();
        has_a_fifth(next.held_until(), "a waiter", held_for as u64);
        assert!(
            granted.since(released) < SECOND,
            "a waiter of {held_for} s was granted {:?} late",
            granted.since(released)
        );
    }
}

#[tokio::test]
async fn a_lock_of_a_healthy_ensemble_is_not_lost() {
    let store = ensemble().await;
    let client = connected(&store).await;
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let guard = store.run(mutex.lock()).await.unwrap();
    for _ in 0..300 {
        // Other writes of the session must not disturb the rhythm.
        store.advance(Duration::from_millis(730)).await;
        guard.session().check(guard.path(), None).await.unwrap();
        assert!(guard.held_until().unwrap().remaining() >= TIMEOUT / 5);
    }
    for _ in 0..100 {
        store.advance(7 * SECOND).await;
        assert!(guard.held_until().unwrap().remaining() >= TIMEOUT / 5);
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_for_a_proof_ends_with_its_timeout_and_leaves_nothing() {
    let store = ensemble().await;
    let (client, other) = (connected(&store).await, connected(&store).await);
    let mutex = Mutex::new(&client, LOCK).unwrap();
    // Old enough to need a new proof, which takes a tick of 2 s.
    store.advance(12 * SECOND).await;
    let refused = store.run(mutex.lock_timeout(SECOND)).await;
    assert!(
        matches!(refused, Err(LockError::Timeout { .. })),
        "{refused:?}"
    );
    store.settle().await;
    let session = other.session().await.unwrap();
    assert_eq!(children(&session, LOCK).await, Vec::<String>::new());

    for times in 1..20 {
        let cold = connected(&store).await;
        store.advance(12 * SECOND).await;
        let mutex = Mutex::new(&cold, LOCK).unwrap();
        if let Some(guard) = store.run(polled(mutex.lock(), times)).await {
            drop(guard);
        }
        store.settle().await;
        assert_eq!(children(&session, LOCK).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_idle_client_writes_nothing() {
    let store = ensemble().await;
    let client = connected(&store).await;
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let guard = store.run(mutex.lock()).await.unwrap();
    guard.release().await.unwrap();
    // A program that locks now and then finds a warm session.
    store.advance(9 * TIMEOUT).await;
    let before = store.clock().now();
    let guard = store.run(mutex.lock()).await.unwrap();
    assert_eq!(store.clock().now(), before);
    guard.release().await.unwrap();
    store.advance(11 * TIMEOUT).await;
    let writes = store.traffic_of(&client).requests(RequestKind::Multi);
    store.advance(20 * TIMEOUT).await;
    assert_eq!(
        store.traffic_of(&client).requests(RequestKind::Multi),
        writes
    );
}
