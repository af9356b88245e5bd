//! The blocking recipes, from plain threads.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockkeeper::blocking::{
    Client, Election, Mutex, RwLock, Semaphore, Upgrade, connect, connect_with,
};
use lockkeeper::{
    ConnectOptions, FencingToken, LeaderChange, LockError, LockEvent, LockOptions, LostReason,
    RevokeTarget, Revoker, lock_events,
};

use crate::common::{LOCK, LONG};
use crate::support::unique;

/// Makes of each `fn name(store: Place)` the tests `name::memory`, `name::served` and
/// `name::zookeeper`, outside any runtime. One that hangs fails.
macro_rules! on_every_store {
    ($(fn $name:ident($store:ident: Place) $body:block)*) => {$(
        mod $name {
            use super::*;

            fn test($store: &Place) $body

            #[test]
            fn memory() {
                within_reason(Place(format!("memory:{}", unique("blocking"))), test);
            }

            #[cfg(all(feature = "file", feature = "server", feature = "zookeeper"))]
            #[test]
            fn served() {
                let served = crate::support::Served::start(crate::support::SWEEP);
                let url = format!("lockkeeper://{}/{}", served.hosts(), unique("blocking"));
                within_reason(Place(url), test);
            }

            #[cfg(feature = "zookeeper")]
            #[test]
            fn zookeeper() {
                let hosts = crate::support::zookeeper().hosts();
                within_reason(Place(format!("zookeeper://{hosts}/{}", unique("blocking"))), test);
            }
        }
    )*};
}

fn within_reason(place: Place, test: fn(&Place)) {
    let (send, done) = mpsc::channel();
    let run = thread::spawn(move || {
        // Kept: an embedded store lives as long as one of its clients.
        let _first = place.client();
        test(&place);
        send.send(())
    });
    match done.recv_timeout(Duration::from_secs(300)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hung"),
        _ => run.join().expect("the test itself failed").unwrap(),
    }
}

/// Location of a store.
struct Place(String);

impl Place {
    fn client(&self) -> Client {
        let options = ConnectOptions::new().create_chroot().session_timeout(LONG);
        connect_with(self.0.as_str(), options).unwrap()
    }

    fn mutex(&self) -> Mutex {
        Mutex::new(&self.client(), LOCK).unwrap()
    }
}

/// An option to wait with, and what comes when the wait has joined the queue.
fn queueing() -> (LockOptions, impl FnOnce()) {
    let (sink, mut events) = lock_events();
    let queued = move || {
        let first = pollster::block_on(events.next());
        assert!(matches!(first, Some(LockEvent::Queued { .. })), "{first:?}");
    };
    (LockOptions::new().events(sink), queued)
}

on_every_store! {
    fn threads_are_served_in_the_order_of_arrival(store: Place) {
        let first = store.mutex().lock().unwrap();
        let (send, grants) = mpsc::channel::<(usize, FencingToken)>();
        let mut threads = Vec::new();
        for number in 0..5 {
            let (mutex, send) = (store.mutex(), send.clone());
            let (options, queued) = queueing();
            threads.push(thread::spawn(move || {
                let guard = mutex.lock_with(options).unwrap();
                send.send((number, guard.fencing_token())).unwrap();
                guard.release().unwrap();
            }));
            queued();
        }
        drop(send);
        let token = first.fencing_token();
        first.release().unwrap();
        let order: Vec<_> = grants.iter().collect();
        assert_eq!(order.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert!(token < order[0].1 && order.is_sorted_by_key(|(_, token)| *token));
        for thread in threads {
            thread.join().unwrap();
        }
    }

    fn a_held_lock_is_not_to_be_had_and_a_wait_ends_in_time(store: Place) {
        let guard = store.mutex().lock().unwrap();
        assert!(guard.is_held());
        assert!(store.mutex().try_lock().unwrap().is_none());
        let refusal = store.mutex().lock_timeout(Duration::from_millis(50)).unwrap_err();
        assert!(matches!(refusal, LockError::Timeout { .. }), "{refusal}");
        drop(guard);
        store.mutex().lock().unwrap().release().unwrap();
    }

    fn a_closed_client_tells_the_holder(store: Place) {
        let client = store.client();
        let guard = Mutex::new(&client, LOCK).unwrap().lock().unwrap();
        assert_eq!(guard.lost_within(Duration::from_millis(1)).unwrap(), None);
        client.close().unwrap();
        assert_eq!(guard.lost().unwrap(), LostReason::SessionClosed);
        assert!(!guard.is_held());
        assert_eq!(guard.release(), Err(LockError::Lost(LostReason::SessionClosed)));
    }

    fn a_holder_is_asked_for_the_lock(store: Place) {
        let client = store.client();
        let guard = Mutex::new(&client, LOCK).unwrap().lock().unwrap();
        assert_eq!(guard.revocation_requested_within(Duration::from_millis(1)), Ok(None));
        let (asker, holder) = (store.client(), RevokeTarget::holder(LOCK).unwrap());
        let revoker = Revoker::new(asker.as_async()).by("ops: jane");
        assert_eq!(pollster::block_on(revoker.request(&holder)).unwrap().len(), 1);
        let request = guard.revocation_requested_within(LONG).unwrap().unwrap();
        assert_eq!(request.by.as_deref(), Some("ops: jane"));
        assert_eq!(guard.revocation_requested_within(Duration::from_millis(1)), Ok(None));
        client.close().unwrap();
        let lost = LockError::Lost(LostReason::SessionClosed);
        assert_eq!(guard.revocation_requested_within(LONG), Err(lost));
    }

    fn readers_share_and_a_writer_is_alone(store: Place) {
        let lock = || RwLock::new(&store.client(), LOCK).unwrap();
        let (one, two) = (lock().read().unwrap(), lock().read_timeout(LONG).unwrap());
        assert!(lock().try_write().unwrap().is_none());
        let Upgrade::Refused(one) = one.try_upgrade().unwrap() else {
            panic!("two readers hold the lock");
        };
        two.release().unwrap();
        let Upgrade::Upgraded(writer) = one.try_upgrade().unwrap() else {
            panic!("nobody else is there");
        };
        assert!(lock().try_read().unwrap().is_none());
        let token = writer.fencing_token();
        let reader = writer.downgrade().unwrap();
        assert_eq!(reader.fencing_token(), token);
        lock().read_with(LockOptions::new().timeout(LONG)).unwrap().release().unwrap();
        reader.release().unwrap();
        lock().write().unwrap().release().unwrap();
    }

    fn permits_are_given_back_one_by_one(store: Place) {
        let semaphore = || Semaphore::new(&store.client(), LOCK, 2).unwrap();
        let mut both = semaphore().acquire_many(2).unwrap();
        assert_eq!((both.count(), semaphore().available().unwrap()), (2, 0));
        assert!(semaphore().try_acquire().unwrap().is_none());
        let one = both.split(1).unwrap();
        assert_eq!(one.token(), both.token());
        one.release().unwrap();
        let third = semaphore().acquire_timeout(LONG).unwrap();
        assert!(third.token() > both.token());
        semaphore().set_permits(3).unwrap();
        let open = Semaphore::open(&store.client(), LOCK).unwrap();
        assert_eq!((open.permits().unwrap(), open.available().unwrap()), (3, 1));
        open.try_acquire_many(1).unwrap().unwrap().release().unwrap();
        third.release().unwrap();
        both.release().unwrap();
    }

    fn an_observer_sees_each_leader(store: Place) {
        let election = || Election::new(&store.client(), LOCK).unwrap();
        let mut changes = election().observe();
        assert_eq!(changes.next(), Some(Ok(LeaderChange::Vacant)));
        let leadership = election().campaign("one").unwrap();
        let first = changes.next().unwrap().unwrap().into_leader().unwrap();
        assert_eq!(first.epoch, leadership.epoch());
        assert!(election().try_campaign("two").unwrap().is_none());
        leadership.set_data("one, warm").unwrap();
        assert_eq!(leadership.data(), "one, warm");
        assert!(changes.next().unwrap().unwrap().leader().is_some());
        leadership.resign().unwrap();
        assert_eq!(changes.next(), Some(Ok(LeaderChange::Vacant)));
        let second = election().campaign_timeout("two", LONG).unwrap();
        assert!(second.epoch() > first.epoch);
        assert_eq!(election().leader().unwrap().unwrap().epoch, second.epoch());
    }

    fn inside_a_runtime_each_call_is_refused(store: Place) {
        let mutex = store.mutex();
        let mut guard = mutex.lock().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let refused = Err::<(), _>(LockError::InsideRuntime);
            assert_eq!(connect(store.0.as_str()).map(drop), refused);
            assert_eq!(mutex.lock().map(drop), refused);
            assert_eq!(mutex.try_lock().map(drop), refused);
            assert_eq!(guard.keep_alive(), refused);
            assert_eq!(guard.lost().map(drop), refused);
            let words = LockError::InsideRuntime.to_string();
            assert!(words.contains("use the async types"), "{words}");
            assert!(guard.is_held());
        });
        guard.release().unwrap();
    }
}
