//! Locks of a store in this process without a wrapper. Contenders join, wait and leave by reference (`queue/local.rs`)
//! and fall back to requests otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::{
    Client, Clock, Guard, LockError, LostReason, Mutex, RwLock, Semaphore, Store, StoreOptions,
};
use lockkeeper_store::{CreateMode, Error, Session};
use testkit::TempFolder;
use tokio::task::yield_now;

use crate::common::{children, path, polled};

const LOCK: &str = "/lock/orders";
const QUOTA: &str = "/quota/geocoder";

/// An in-memory store with a separate clock, so that no test depends on the machine's speed.
struct Local {
    store: Store,
    clock: Clock,
}

impl Local {
    fn new() -> Self {
        let clock = Clock::new_virtual();
        let store = Store::memory_with(StoreOptions::new().clock(clock.clone()));
        Self { store, clock }
    }

    async fn client(&self) -> Client {
        self.store.connect().await.unwrap()
    }

    async fn mutex(&self) -> Mutex {
        Mutex::new(&self.client().await, LOCK).unwrap()
    }

    async fn session(&self) -> Session {
        self.client().await.session().await.unwrap()
    }

    /// Returns a semaphore with a separate session that knows the number of permits.
    async fn semaphore(&self, permits: u32) -> Semaphore {
        let semaphore = Semaphore::new(&self.client().await, QUOTA, permits).unwrap();
        assert_eq!(semaphore.permits().await, Ok(permits));
        semaphore
    }

    async fn entries(&self) -> Vec<String> {
        children(&self.session().await, LOCK).await
    }
}

async fn waiting(
    mutex: &Mutex,
    local: &Local,
) -> tokio::task::JoinHandle<Result<Guard, LockError>> {
    let before = local.entries().await.len();
    let mutex = mutex.clone();
    let wait = tokio::spawn(async move { mutex.lock().await });
    while local.entries().await.len() == before {
        yield_now().await;
    }
    wait
}

#[tokio::test]
async fn a_wait_that_is_dropped_anywhere_leaves_nothing() {
    let local = Local::new();
    let (first, second, third) = (
        local.mutex().await,
        local.mutex().await,
        local.mutex().await,
    );
    // After 0 polls it has not joined, after 1 it waits, and after 2 (after the release) it has not noticed its turn.
    for polls in 0..3 {
        let held = first.lock().await.unwrap();
        let mut wait = Box::pin(second.lock());
        for _ in 0..polls.min(1) {
            assert!(polled(wait.as_mut(), 1).await.is_none());
        }
        let behind = waiting(&third, &local).await;
        if polls == 2 {
            held.release().await.unwrap();
            drop(wait);
        } else {
            drop(wait);
            yield_now().await;
            assert!(!behind.is_finished());
            held.release().await.unwrap();
        }
        behind.await.unwrap().unwrap().release().await.unwrap();
        assert!(local.entries().await.is_empty(), "{polls} polls");
    }
}

#[tokio::test]
async fn a_waiter_holds_only_once_nothing_ahead_blocks() {
    let local = Local::new();
    let [a, b, c] = [
        local.mutex().await,
        local.mutex().await,
        local.mutex().await,
    ];
    let held = a.lock().await.unwrap();
    let between = waiting(&b, &local).await;
    let behind = waiting(&c, &local).await;
    // The middle entry leaves. This wakes the last one, who must not take it for its turn.
    between.abort();
    assert!(between.await.unwrap_err().is_cancelled());
    for _ in 0..10 {
        yield_now().await;
    }
    assert!(!behind.is_finished() && held.is_held());
    held.release().await.unwrap();
    behind.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn contenders_of_other_libraries_are_waited_for_and_strangers_are_not() {
    let local = Local::new();
    let mutex = local.mutex().await;
    mutex.lock().await.unwrap().release().await.unwrap();
    let session = local.session().await;
    let entry = |name: &str| path(&format!("{LOCK}/{name}"));
    let create = async |name: &str| {
        let created = session.create(&entry(name), "", CreateMode::EphemeralSequential);
        created.await.unwrap().0
    };
    let kazoo = create("0123456789abcdef0123456789abcdef__lock__").await;
    let wait = waiting(&mutex, &local).await;
    for _ in 0..10 {
        yield_now().await;
    }
    assert!(!wait.is_finished());
    session.delete(&kazoo, None).await.unwrap();
    let guard = wait.await.unwrap().unwrap();
    assert!(guard.path().as_str().starts_with(LOCK));
    guard.release().await.unwrap();

    let stranger = create("config-").await;
    mutex.lock().await.unwrap().release().await.unwrap();
    session.delete(&stranger, None).await.unwrap();

    // A reader's entry belongs to another recipe.
    let client = local.client().await;
    let _reader = RwLock::new(&client, LOCK).unwrap().read().await.unwrap();
    assert!(matches!(
        mutex.lock().await,
        Err(LockError::WrongKind { .. })
    ));
}

#[tokio::test]
async fn a_long_wait_behind_the_same_session_keeps_its_place() {
    let local = Local::new();
    let mutex = local.mutex().await;
    let held = mutex.lock().await.unwrap();
    let second = waiting(&mutex, &local).await;
    let third = waiting(&mutex, &local).await;
    let queued = local.entries().await;
    // After a tick the waits continue with requests, keeping their places.
    for _ in 0..20 {
        local.clock.advance(Duration::from_secs(1));
        yield_now().await;
    }
    assert_eq!(local.entries().await, queued);
    assert!(!second.is_finished() && !third.is_finished());
    held.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(!third.is_finished());
    second.release().await.unwrap();
    third.await.unwrap().unwrap().release().await.unwrap();
    assert!(local.entries().await.is_empty());
}

#[tokio::test]
async fn a_removed_entry_is_noticed() {
    let local = Local::new();
    let (mutex, session) = (local.mutex().await, local.session().await);
    mutex.lock().await.unwrap().release().await.unwrap();
    let guard = mutex.lock().await.unwrap();
    assert!(guard.is_held());
    session.delete(guard.path(), None).await.unwrap();
    assert!(!guard.is_held());
    let lost = guard.release().await;
    assert!(
        matches!(lost, Err(LockError::Lost(LostReason::Revoked))),
        "{lost:?}"
    );

    let held = mutex.lock().await.unwrap();
    let waiter = local.mutex().await;
    let wait = waiting(&waiter, &local).await;
    let last = local.entries().await.pop().unwrap();
    session
        .delete(&path(&format!("{LOCK}/{last}")), None)
        .await
        .unwrap();
    held.release().await.unwrap();
    let removed = wait.await.unwrap();
    assert!(
        matches!(removed, Err(LockError::EntryDeleted { .. })),
        "{removed:?}"
    );
}

#[tokio::test]
async fn the_end_of_the_session_ends_waits_and_holds() {
    let local = Local::new();
    let (holder, waiter) = (local.mutex().await, local.mutex().await);
    let held = holder.lock().await.unwrap();
    let wait = waiting(&waiter, &local).await;
    waiter.client().close().await.unwrap();
    let ended = wait.await.unwrap();
    assert!(
        matches!(&ended, Err(LockError::Store(Error::SessionClosed { .. }))),
        "{ended:?}"
    );
    let next = local.mutex().await;
    let wait = waiting(&next, &local).await;
    holder.client().close().await.unwrap();
    assert!(!held.is_held());
    wait.await.unwrap().unwrap().release().await.unwrap();
}

/// Readers and writers of many sessions, some of which give up at any poll: a writer never holds with another, tokens
/// grow, and nothing is left.
async fn crowd(store: Store) {
    const TASKS: usize = 24;
    const ROUNDS: usize = 200;
    let (readers, writers) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let newest = Arc::new(AtomicI64::new(0));
    let grants = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let client = store.connect().await.unwrap();
        let (readers, writers) = (readers.clone(), writers.clone());
        let (newest, grants) = (newest.clone(), grants.clone());
        tasks.push(tokio::spawn(async move {
            let lock = RwLock::new(&client, LOCK).unwrap();
            for round in 0..ROUNDS {
                let is_impatient = (task * 7 + round * 13) % 5 == 0;
                let polls = if is_impatient { round % 3 } else { usize::MAX };
                if (task + round) % 3 == 0 {
                    let Some(guard) = polled(lock.read(), polls).await else {
                        continue;
                    };
                    let guard = guard.unwrap();
                    readers.fetch_add(1, Ordering::SeqCst);
                    assert!(!writers.load(Ordering::SeqCst), "a reader beside a writer");
                    yield_now().await;
                    readers.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                } else {
                    let Some(guard) = polled(lock.write(), polls).await else {
                        continue;
                    };
                    let guard = guard.unwrap();
                    assert!(!writers.swap(true, Ordering::SeqCst), "two writers");
                    assert_eq!(
                        readers.load(Ordering::SeqCst),
                        0,
                        "a writer beside a reader"
                    );
                    let token = guard.fencing_token().as_i64();
                    assert!(
                        newest.swap(token, Ordering::SeqCst) < token,
                        "a token that does not grow"
                    );
                    yield_now().await;
                    assert!(guard.is_held());
                    writers.store(false, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
                grants.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(grants.load(Ordering::Relaxed) >= TASKS * ROUNDS * 4 / 5);
    let session = store.connect().await.unwrap().session().await.unwrap();
    assert!(children(&session, LOCK).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_in_memory_never_has_a_writer_beside_another_holder() {
    crowd(Store::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_in_a_folder_never_has_a_writer_beside_another_holder() {
    let folder = TempFolder::new("local");
    crowd(Store::file(folder.path()).unwrap()).await;
}

#[tokio::test]
async fn free_permits_are_taken_up_to_their_number() {
    let local = Local::new();
    let (semaphore, session) = (local.semaphore(3).await, local.session().await);
    semaphore.acquire().await.unwrap().release().await.unwrap();
    let mut held = Vec::new();
    for number in 1..=3 {
        let permit = semaphore.acquire().await.unwrap();
        let lease = permit.paths().next().unwrap().clone();
        // A semaphore's request writes its data a second time.
        let stat = session.exists(&lease).await.unwrap().unwrap();
        assert_eq!(
            (stat.version, stat.ephemeral_owner),
            (0, permit.session().id())
        );
        assert_eq!(
            stat.czxid,
            lockkeeper_store::Zxid(permit.fencing_token().as_i64())
        );
        assert_eq!(permit.metadata().pid, Some(std::process::id()));
        assert!(permit.is_held() && permit.count() == 1);
        assert_eq!(semaphore.available().await, Ok(3 - number));
        held.push(permit);
    }
    let tokens = |permits: &[lockkeeper::Permit]| -> Vec<_> {
        permits
            .iter()
            .map(|permit| permit.fencing_token())
            .collect()
    };
    let holders = semaphore.holders().await.unwrap();
    let listed: Vec<_> = holders.iter().map(|holder| holder.fencing_token).collect();
    assert_eq!(listed, tokens(&held));
    assert!(listed.is_sorted());

    let mut fourth = Box::pin(semaphore.acquire());
    assert!(polled(fourth.as_mut(), 1).await.is_none());
    drop(held.remove(1));
    let fourth = fourth.await.unwrap();
    assert!(held.iter().all(|permit| permit.is_held()) && fourth.is_held());

    let removed = held.pop().unwrap();
    let lease = removed.paths().next().unwrap();
    session.delete(lease, None).await.unwrap();
    assert!(!removed.is_held());
    let lost = removed.release().await;
    assert!(
        matches!(lost, Err(LockError::Lost(LostReason::Revoked))),
        "{lost:?}"
    );
    drop((held, fourth));
    assert_eq!(semaphore.available().await, Ok(3));
}

#[tokio::test]
async fn a_free_permit_passes_no_waiter() {
    let local = Local::new();
    let (one, large, late) = (
        local.semaphore(2).await,
        local.semaphore(2).await,
        local.semaphore(2).await,
    );
    let held = one.acquire().await.unwrap();
    let mut both = Box::pin(large.acquire_many(2));
    assert!(polled(both.as_mut(), 1).await.is_none());
    assert_eq!(large.waiters().await.unwrap().len(), 1);
    let mut behind = Box::pin(late.acquire());
    assert!(polled(behind.as_mut(), 1).await.is_none(), "one is free");
    held.release().await.unwrap();
    let both = both.await.unwrap();
    assert!(polled(behind.as_mut(), 1).await.is_none());
    both.release().await.unwrap();
    drop(behind.await.unwrap());
}

#[tokio::test]
async fn a_changed_number_counts_for_the_next_permit() {
    let local = Local::new();
    let (semaphore, other) = (local.semaphore(2).await, local.semaphore(2).await);
    let first = semaphore.acquire().await.unwrap();
    other.set_permits(1).await.unwrap();
    let mut second = Box::pin(semaphore.acquire());
    assert!(polled(second.as_mut(), 1).await.is_none());
    other.set_permits(2).await.unwrap();
    let second = second.await.unwrap();
    drop((first, second));

    // Written by another version, with more fields.
    let number = path(&format!("{QUOTA}/permits"));
    let session = local.session().await;
    let data = r#"{"v":1,"permits":1,"by":"another"}"#;
    session.set_data(&number, data, None).await.unwrap();
    let only = semaphore.acquire().await.unwrap();
    let mut next = Box::pin(semaphore.acquire());
    assert!(polled(next.as_mut(), 1).await.is_none());
    only.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();

    let data = r#"{"v":1,"permits":0}"#;
    session.set_data(&number, data, None).await.unwrap();
    let refused = semaphore.acquire().await.unwrap_err();
    assert!(matches!(
        refused,
        LockError::TooManyPermits { total: 0, .. }
    ));
}

#[tokio::test]
async fn the_end_of_the_session_gives_its_permits_back() {
    let local = Local::new();
    let (holder, waiter) = (local.semaphore(1).await, local.semaphore(1).await);
    let held = holder.acquire().await.unwrap();
    let mut wait = Box::pin(waiter.acquire());
    assert!(polled(wait.as_mut(), 1).await.is_none());
    holder.client().close().await.unwrap();
    assert!(!held.is_held());
    drop(wait.await.unwrap());
    let ended = holder.acquire().await.unwrap_err();
    assert!(
        matches!(ended, LockError::Store(Error::SessionClosed { .. })),
        "{ended:?}"
    );
}

/// Some take several permits, some give up at any poll, and the number changes. More permits are never held than there
/// ever were, and nothing is left.
async fn crowd_of_takers(store: Store) {
    const TASKS: usize = 16;
    const ROUNDS: usize = 200;
    const PERMITS: u32 = 5;
    let first = store.connect().await.unwrap();
    let number = Semaphore::new(&first, QUOTA, PERMITS).unwrap();
    number.permits().await.unwrap();
    let held = Arc::new(AtomicI64::new(0));
    let grants = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let client = store.connect().await.unwrap();
        let (held, grants) = (held.clone(), grants.clone());
        tasks.push(tokio::spawn(async move {
            let semaphore = Semaphore::open(&client, QUOTA).unwrap();
            for round in 0..ROUNDS {
                let is_impatient = (task * 7 + round * 13) % 5 == 0;
                let polls = if is_impatient { round % 4 } else { usize::MAX };
                let count = if (task + round) % 6 == 0 { 3 } else { 1 };
                let permit = match count {
                    1 => polled(semaphore.acquire(), polls).await,
                    _ => polled(semaphore.acquire_many(count), polls).await,
                };
                let Some(permit) = permit else { continue };
                let permit = permit.unwrap();
                let count = i64::from(count);
                let now = held.fetch_add(count, Ordering::SeqCst) + count;
                assert!(now <= i64::from(PERMITS), "{now} permits are held");
                yield_now().await;
                assert!(permit.is_held());
                held.fetch_sub(count, Ordering::SeqCst);
                match round % 2 {
                    0 => permit.release().await.unwrap(),
                    _ => drop(permit),
                }
                grants.fetch_add(1, Ordering::Relaxed);
                if task == 0 && round % 10 == 0 {
                    // Never raised, because permits under the old number may still be held.
                    semaphore
                        .set_permits(PERMITS - (round / 10 % 3) as u32)
                        .await
                        .unwrap();
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(grants.load(Ordering::Relaxed) >= TASKS * ROUNDS * 4 / 5);
    let session = first.session().await.unwrap();
    for part in ["locks", "leases"] {
        assert!(
            children(&session, &format!("{QUOTA}/{part}"))
                .await
                .is_empty()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_in_memory_never_holds_more_permits_than_there_are() {
    crowd_of_takers(Store::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_in_a_folder_never_holds_more_permits_than_there_are() {
    let folder = TempFolder::new("local-permits");
    crowd_of_takers(Store::file(folder.path()).unwrap()).await;
}

#[tokio::test]
async fn a_guard_is_dropped_behind_the_end_of_its_session_in_a_folder() {
    let folder = TempFolder::new("local-end");
    let store = Store::file(folder.path()).unwrap();
    let client = store.connect().await.unwrap();
    let mutex = Mutex::new(&client, LOCK).unwrap();
    // The first lock creates the queue with requests.
    mutex.lock().await.unwrap().release().await.unwrap();
    let guard = mutex.lock().await.unwrap();
    client.close().await.unwrap();
    drop(guard);
    let next = Mutex::new(&store.connect().await.unwrap(), LOCK).unwrap();
    assert!(next.try_lock().await.unwrap().is_some());
}
