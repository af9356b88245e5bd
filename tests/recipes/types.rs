//! What the types promise: which may cross threads, and that no runtime is needed in process.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_executor::block_on;
use lockkeeper::{
    Client, ConnectOptions, Error, EventSink, FencingGate, FencingToken, Guard, LockError,
    LockEvent, LockEvents, LockMetadata, LockOptions, LockPath, LostReason, Mutex, QueueEntry,
    Session, Snapshots, Store, Target, observe, queue,
};

fn shared<T: Clone + Debug + Send + Sync + 'static>() {}
fn owned<T: Debug + Send + 'static>() {}
fn sent<F: Future + Send>(future: F) -> F {
    future
}

#[test]
fn recipes_are_clone_and_shared_and_guards_own_what_they_need() {
    shared::<Client>();
    shared::<Session>();
    shared::<Store>();
    shared::<Mutex>();
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
    owned::<Guard>();
    owned::<LockEvents>();
    owned::<Snapshots>();
}

#[test]
fn futures_are_send() {
    let client = block_on(sent(lockkeeper::connect("memory:types-send"))).unwrap();
    let mutex = Mutex::new(&client, "/lock").unwrap();
    block_on(sent(async {
        drop(sent(mutex.try_lock()).await.unwrap().unwrap());
        drop(sent(mutex.try_lock_synced()).await.unwrap().unwrap());
        drop(
            sent(mutex.lock_timeout(std::time::Duration::from_secs(1)))
                .await
                .unwrap(),
        );
        drop(sent(mutex.lock_with(LockOptions::new())).await.unwrap());
        let mut guard = sent(mutex.lock()).await.unwrap();
        sent(guard.keep_alive()).await.unwrap();
        assert_eq!(sent(guard.protect(async { 1 })).await, Ok(1));
        assert_eq!(sent(queue(&client, "/lock")).await.unwrap().len(), 1);
        assert!(
            sent(observe(&client, "/lock").unwrap().next())
                .await
                .unwrap()
                .is_ok()
        );
        sent(guard.release()).await.unwrap();
        sent(client.close()).await.unwrap();
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
