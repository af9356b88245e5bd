//! What the types promise: which may cross threads, and that the embedded store needs no runtime.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_executor::block_on;
use lockkeeper::{
    Client, ConnectOptions, Election, ElectionState, Error, EventSink, FencingEnforced,
    FencingGate, FencingToken, Guard, Leader, LeaderChange, LeaderChanges, Leadership, LockEach,
    LockError, LockEvent, LockEvents, LockMetadata, LockOptions, LockPath, LostReason, MultiGuard,
    Mutex, Overdue, Owner, Permit, QueueEntry, ReadGuard, ReentrantGuard, ReentrantMutex,
    RevocationRequest, RevokeTarget, Revoker, Role, RwLock, Semaphore, Session, Snapshots, Store,
    Target, TryLockMany, Warden, WardenBuilder, WardenReport, WardenReports, WriteGuard, lock_all,
    lock_each, observe, queue, try_lock_many,
};

fn shared<T: Clone + Debug + Send + Sync + 'static>() {}
fn owned<T: Debug + Send + 'static>() {}
fn sent<F: Future + Send>(future: F) -> F {
    future
}

#[test]
fn recipes_are_clone_and_shared_and_guards_own_their_state() {
    shared::<Client>();
    shared::<Session>();
    shared::<Store>();
    shared::<Mutex>();
    shared::<Semaphore>();
    shared::<RwLock>();
    owned::<ReadGuard>();
    owned::<WriteGuard>();
    shared::<Target>();
    shared::<ConnectOptions>();
    shared::<LockOptions>();
    shared::<LockPath>();
    shared::<LockMetadata>();
    shared::<LockEvent>();
    shared::<EventSink>();
    shared::<QueueEntry>();
    shared::<FencingToken>();
    shared::<FencingGate>();
    shared::<Error>();
    shared::<LockError>();
    shared::<LostReason>();
    shared::<Election>();
    shared::<ElectionState>();
    shared::<Leader>();
    shared::<LeaderChange>();
    shared::<Role>();
    owned::<LeaderChanges>();
    owned::<Leadership>();
    owned::<std::sync::Arc<Leadership>>();
    owned::<Guard>();
    shared::<Revoker>();
    shared::<RevokeTarget>();
    shared::<FencingEnforced>();
    shared::<RevocationRequest>();
    shared::<Warden>();
    shared::<WardenBuilder>();
    shared::<Overdue>();
    shared::<WardenReport>();
    owned::<WardenReports>();
    owned::<Permit>();
    owned::<lockkeeper::Upgrade>();
    owned::<LockEvents>();
    owned::<Snapshots>();
    shared::<lockkeeper::LockInfo>();
    shared::<lockkeeper::LockList>();
    shared::<lockkeeper::LockPrefix>();
    shared::<lockkeeper::LockQueue>();
    shared::<lockkeeper::LockChange>();
    owned::<lockkeeper::LockChanges>();
}

#[test]
fn several_locks_and_re_entry_keep_the_same_promises() {
    shared::<ReentrantMutex>();
    shared::<Owner>();
    owned::<ReentrantGuard>();
    owned::<MultiGuard>();
    owned::<TryLockMany>();
    owned::<LockEach>();
    let client = block_on(lockkeeper::connect("memory:types-many")).unwrap();
    block_on(sent(async {
        let guard = sent(lock_all(&client, ["/a", "/b"])).await.unwrap();
        sent(guard.keep_alive()).await.unwrap();
        assert_eq!(sent(guard.protect(async { 1 })).await, Ok(1));
        drop(sent(try_lock_many(&client, ["/a", "/c"])).await.unwrap());
        let mut each = lock_each(&client, ["/c"]).unwrap();
        drop(sent(each.next()).await.unwrap().unwrap());
        sent(guard.release()).await.unwrap();
        let owner = ReentrantMutex::new(&client, "/a").unwrap().owner();
        let guard = sent(owner.lock()).await.unwrap();
        drop(sent(owner.try_lock()).await.unwrap());
        sent(guard.keep_alive()).await.unwrap();
        sent(guard.release()).await.unwrap();
    }));
}

#[test]
fn futures_are_send() {
    let client = block_on(sent(lockkeeper::connect("memory:types-send"))).unwrap();
    let mutex = Mutex::new(&client, "/lock").unwrap();
    block_on(sent(async {
        drop(sent(mutex.try_lock()).await.unwrap().unwrap());
        drop(
            sent(mutex.try_lock_with(LockOptions::new().synced()))
                .await
                .unwrap()
                .unwrap(),
        );
        drop(
            sent(mutex.lock_timeout(std::time::Duration::from_secs(1)))
                .await
                .unwrap(),
        );
        drop(sent(mutex.lock_with(LockOptions::new())).await.unwrap());
        let guard = sent(mutex.lock()).await.unwrap();
        sent(guard.keep_alive()).await.unwrap();
        assert_eq!(sent(guard.protect(async { 1 })).await, Ok(1));
        assert_eq!(sent(queue(&client, "/lock")).await.unwrap().len(), 1);
        assert!(
            sent(observe(&client, "/lock").unwrap().next())
                .await
                .unwrap()
                .is_ok()
        );
        let revoker = Revoker::new(&client);
        let whom = RevokeTarget::holder("/lock").unwrap();
        sent(revoker.request(&whom)).await.unwrap();
        sent(guard.revocation_requested()).await.unwrap();
        let (_warden, mut reports) = Warden::builder(&client).watch("/lock").unwrap().start();
        drop(sent(reports.next()));
        sent(guard.release()).await.unwrap();
        sent(revoker.force(&whom, FencingEnforced)).await.unwrap();
        sent(client.close()).await.unwrap();
    }));
}

#[test]
fn the_futures_of_an_election_are_send_and_need_no_runtime() {
    let client = block_on(lockkeeper::connect("memory:types-election")).unwrap();
    let election = Election::new(&client, "/election").unwrap();
    block_on(sent(async {
        let mut changes = election.observe();
        sent(changes.next()).await.unwrap().unwrap();
        let mut state = election.state();
        drop(sent(election.try_campaign("a")).await.unwrap().unwrap());
        let within = std::time::Duration::from_secs(1);
        drop(sent(election.campaign_timeout("a", within)).await.unwrap());
        let leadership = sent(election.campaign("a")).await.unwrap();
        sent(leadership.set_data("b")).await.unwrap();
        sent(state.changed()).await.unwrap();
        sent(state.wait_for(Role::is_leader)).await.unwrap();
        let leader = sent(election.leader()).await.unwrap().unwrap();
        assert_eq!(leader.data.as_deref(), Some("b"));
        sent(changes.next()).await.unwrap().unwrap();
        sent(leadership.resign()).await.unwrap();
        let run = election.run("a", |leadership| async move { leadership.epoch() });
        assert!(sent(run).await.unwrap() > leader.epoch);
    }));
}

#[test]
fn a_semaphores_futures_are_send() {
    let client = block_on(lockkeeper::connect("memory:types-semaphore")).unwrap();
    let semaphore = Semaphore::new(&client, "/quota", 3).unwrap();
    block_on(sent(async {
        drop(sent(semaphore.try_acquire_many(2)).await.unwrap().unwrap());
        let limit = std::time::Duration::from_secs(1);
        drop(sent(semaphore.acquire_timeout(limit)).await.unwrap());
        sent(semaphore.set_permits(2)).await.unwrap();
        assert_eq!(sent(semaphore.available()).await, Ok(2));
        let permit = sent(semaphore.acquire_many(2)).await.unwrap();
        sent(permit.keep_alive()).await.unwrap();
        assert_eq!(sent(permit.protect(async { 1 })).await, Ok(1));
        assert_eq!(sent(semaphore.holders()).await.unwrap().len(), 2);
        let release = permit.release();
        std::thread::spawn(|| block_on(release))
            .join()
            .unwrap()
            .unwrap();
    }));
}

#[test]
fn the_futures_of_a_read_write_lock_are_send() {
    let client = block_on(lockkeeper::connect("memory:types-rwlock")).unwrap();
    let lock = lockkeeper::RwLock::new(&client, "/lock").unwrap();
    let second = std::time::Duration::from_secs(1);
    block_on(sent(async {
        drop(sent(lock.read()).await.unwrap());
        drop(sent(lock.write()).await.unwrap());
        drop(sent(lock.read_timeout(second)).await.unwrap());
        drop(sent(lock.write_with(LockOptions::new())).await.unwrap());
        drop(sent(lock.try_read()).await.unwrap().unwrap());
        let guard = sent(lock.try_write_with(LockOptions::new().synced()))
            .await
            .unwrap()
            .unwrap();
        let guard = sent(guard.downgrade()).await.unwrap();
        let upgrade = sent(guard.try_upgrade());
        // It borrows neither the lock nor the guard that it came from.
        fn of_its_own<T: 'static>(_: &T) {}
        of_its_own(&upgrade);
        drop(upgrade.await.unwrap());
    }));
}

#[test]
fn a_release_future_is_static() {
    let client = block_on(lockkeeper::connect("memory:types-static")).unwrap();
    let release = {
        let mutex = Mutex::new(&client, "/lock").unwrap();
        block_on(mutex.lock()).unwrap().release()
    };
    std::thread::spawn(|| block_on(release))
        .join()
        .unwrap()
        .unwrap();
}

#[test]
fn memory_needs_no_runtime() {
    let counter = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let counter = counter.clone();
            std::thread::spawn(move || {
                let client = block_on(lockkeeper::connect("memory:types-no-runtime")).unwrap();
                let mutex = Mutex::new(&client, "/lock/counter").unwrap();
                for _ in 0..200 {
                    let guard = block_on(mutex.lock()).unwrap();
                    let read = counter.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    counter.store(read + 1, Ordering::Relaxed);
                    block_on(guard.release()).unwrap();
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(counter.load(Ordering::Relaxed), 8 * 200);
}

#[test]
fn timeouts_in_memory_need_no_runtime() {
    let client = block_on(lockkeeper::connect("memory:types-timeout")).unwrap();
    let mutex = Mutex::new(&client, "/lock").unwrap();
    let _holder = block_on(mutex.lock()).unwrap();
    let timeout = std::time::Duration::from_millis(10);
    let refusal = block_on(mutex.lock_timeout(timeout)).unwrap_err();
    assert!(matches!(refusal, LockError::Timeout { .. }));
    assert_eq!(block_on(queue(&client, "/lock")).unwrap().len(), 1);
}
