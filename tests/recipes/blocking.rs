//! The blocking recipes, from plain threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockkeeper::blocking::{
    Attempt, Client, Election, Mutex, OncePer, ReentrantMutex, Revoker, RwLock, Semaphore, Upgrade,
    connect, connect_with, iter, lock_all, lock_all_timeout, lock_each, observe, queue,
    try_lock_all, try_lock_many,
};
use lockkeeper::{
    ConnectOptions, Error, FencingEnforced, FencingToken, LeaderChange, LockError, LockEvent,
    LockOptions, LostReason, RevokeTarget, Role, Warden, WardenReport, lock_events,
};
use testkit::unique;

use crate::common::{LOCK, LONG};

/// Generates `name::memory`, `name::file`, `name::served` and `name::zookeeper` from each `fn name(store: Place)`,
/// outside any runtime. A hanging test fails.
macro_rules! on_every_store {
    ($(fn $name:ident($store:ident: Place) $body:block)*) => {$(
        mod $name {
            use super::*;

            fn test($store: &Place) $body

            #[test]
            fn memory() {
                within_reason(Place(format!("memory:{}", unique("blocking"))), test);
            }

            #[test]
            fn file() {
                let folder = testkit::TempFolder::new("blocking");
                within_reason(Place(format!("file:{}", folder.path().display())), test);
            }

            #[test]
            fn served() {
                let served = testkit::Served::start(testkit::SWEEP);
                let url = format!("lockkeeper://{}/{}", served.hosts(), unique("blocking"));
                within_reason(Place(url), test);
            }

            #[test]
            fn zookeeper() {
                let hosts = testkit::zookeeper().hosts();
                within_reason(Place(format!("zookeeper://{hosts}/{}", unique("blocking"))), test);
            }
        }
    )*};
}

fn within_reason(place: Place, test: fn(&Place)) {
    let (send, done) = mpsc::channel();
    let run = thread::spawn(move || {
        // Kept, because an embedded store lives only as long as one of its clients.
        let _first = place.client();
        test(&place);
        send.send(())
    });
    match done.recv_timeout(Duration::from_secs(300)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hung"),
        _ => run.join().expect("the test itself failed").unwrap(),
    }
}

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

/// Returns options that report when the wait has queued, and a function that blocks until then.
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

    fn a_job_of_threads_runs_once_a_period(store: Place) {
        let period = Duration::from_secs(3600);
        let job = || OncePer::new(&store.client(), LOCK, period).unwrap();
        drop(job().begin().unwrap().due().expect("it is due"));
        let run = job().begin().unwrap().due().expect("a run that was dropped does not count");
        run.release().unwrap();
        let run = job().begin().unwrap().due().expect("nor does one that was released");
        assert!(run.is_held());
        assert!(matches!(job().try_begin().unwrap(), Attempt::Running));
        run.finish().unwrap();
        assert!(matches!(job().begin().unwrap(), Attempt::NotDue { .. }));
        assert!(job().try_begin().unwrap().due().is_none());
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
        assert_eq!(guard.lost_timeout(Duration::from_millis(1)), None);
        client.close().unwrap();
        assert_eq!(guard.lost(), LostReason::SessionClosed);
        assert!(!guard.is_held());
        assert_eq!(guard.release(), Err(LockError::Lost(LostReason::SessionClosed)));
    }

    fn a_holder_is_asked_for_the_lock(store: Place) {
        let client = store.client();
        let guard = Mutex::new(&client, LOCK).unwrap().lock().unwrap();
        assert_eq!(guard.revocation_requested_timeout(Duration::from_millis(1)), Ok(None));
        let (asker, holder) = (store.client(), RevokeTarget::holder(LOCK).unwrap());
        let revoker = Revoker::new(&asker).by("ops: jane");
        assert_eq!(revoker.request(&holder).unwrap().len(), 1);
        let request = guard.revocation_requested_timeout(LONG).unwrap().unwrap();
        assert_eq!(request.by.as_deref(), Some("ops: jane"));
        assert_eq!(guard.revocation_requested_timeout(Duration::from_millis(1)), Ok(None));
        client.close().unwrap();
        assert_eq!(guard.revocation_requested_timeout(LONG), Err(LostReason::SessionClosed));
        assert_eq!(guard.revocation_requested(), Err(LostReason::SessionClosed));
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
        assert_eq!(one.fencing_token(), both.fencing_token());
        one.release().unwrap();
        let third = semaphore().acquire_timeout(LONG).unwrap();
        assert!(third.fencing_token() > both.fencing_token());
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

    fn a_forced_removal_tells_the_holder(store: Place) {
        let guard = store.mutex().lock().unwrap();
        let revoker = Revoker::new(&store.client());
        let holder = RevokeTarget::holder(LOCK).unwrap();
        let removed = revoker.force(&holder, FencingEnforced).unwrap();
        assert_eq!(removed, guard.paths().cloned().collect::<Vec<_>>());
        assert_eq!(guard.lost_timeout(LONG), Some(LostReason::Revoked));
        assert!(queue(&store.client(), LOCK).unwrap().is_empty());
    }

    fn an_owner_enters_again_from_any_thread(store: Place) {
        let owner = || ReentrantMutex::new(&store.client(), LOCK).unwrap().owner();
        let (one, other) = (owner(), owner());
        let outer = one.lock().unwrap();
        assert!(one.is_held() && !other.is_held());
        let again = one.clone();
        let inner = thread::spawn(move || again.lock_timeout(LONG).unwrap()).join().unwrap();
        assert_eq!((inner.entries(), inner.fencing_token()), (2, outer.fencing_token()));
        assert!(other.try_lock().unwrap().is_none());
        inner.keep_alive().unwrap();
        outer.release().unwrap();
        assert!(inner.is_held() && one.try_lock().unwrap().is_some());
        inner.release().unwrap();
        other.lock_with(LockOptions::new().timeout(LONG)).unwrap().release().unwrap();
    }

    fn several_locks_are_held_at_once_or_not_at_all(store: Place) {
        let client = store.client();
        let keys = ["/many/a", "/many/b", "/many/c"];
        let all = lock_all(&client, keys).unwrap();
        assert_eq!(all.keys().map(ToString::to_string).collect::<Vec<_>>(), keys);
        assert_eq!(all.paths().count(), 3);
        let within = Duration::from_millis(50);
        let refusal = lock_all_timeout(&store.client(), keys, within).unwrap_err();
        assert!(matches!(refusal, LockError::Timeout { .. }), "{refusal}");
        let mut one_by_one = all.into_guards();
        let (_, last) = one_by_one.pop().unwrap();
        last.release().unwrap();
        assert!(try_lock_all(&store.client(), keys).unwrap().is_none());
        let tried = try_lock_many(&store.client(), keys).unwrap();
        assert_eq!((tried.acquired.len(), tried.contended.len()), (1, 2));
        drop((tried, one_by_one));
        let all = lock_all_timeout(&store.client(), keys, LONG).unwrap();
        all.release().unwrap();
        let mut each = lock_each(&store.client(), keys).unwrap();
        let granted: Vec<_> = each.by_ref().map(Result::unwrap).collect();
        assert_eq!(granted.len(), 3);
        assert!(granted.iter().all(|(_, guard)| guard.is_held()));
        drop(granted);
        // The drop's release is written but may not be executed yet.
        let all = loop {
            if let Some(all) = try_lock_all(&store.client(), keys).unwrap() {
                break all;
            }
        };
        all.release().unwrap();
    }

    fn an_observer_sees_the_queue_and_a_warden_its_holder(store: Place) {
        let client = store.client();
        let mut snapshots = observe(&store.client(), LOCK).unwrap();
        assert_eq!(snapshots.next(), Some(Ok(Vec::new())));
        let options = LockOptions::new().auto_unlock_after(Duration::from_millis(1));
        let guard = Mutex::new(&client, LOCK).unwrap().lock_with(options).unwrap();
        let seen = snapshots.find(|seen| seen.as_ref().is_ok_and(|seen| !seen.is_empty()));
        let seen = seen.unwrap().unwrap();
        assert_eq!(seen[0].fencing_token, guard.fencing_token());
        assert_eq!(queue(&client, LOCK).unwrap(), seen);
        let (_warden, reports) = Warden::builder(client.as_async()).watch(LOCK).unwrap().start();
        let report = iter(reports).next();
        assert!(matches!(report, Some(WardenReport::Overdue(_))), "{report:?}");
    }

    fn a_state_follows_the_leadership(store: Place) {
        let election = Election::new(&store.client(), LOCK).unwrap();
        let mut state = election.state();
        assert_eq!(state.current(), Role::Bystander);
        let leadership = election.try_campaign("one").unwrap().unwrap();
        let leads = Role::Leader { epoch: leadership.epoch() };
        assert_eq!(state.wait_for(Role::is_leader), Some(leads));
        assert_eq!(leadership.epoch(), leadership.fencing_token());
        leadership.release().unwrap();
        assert_eq!(state.changed(), Some(Role::Bystander));
    }

    fn a_run_leads_again_after_every_loss_and_returns_the_output(store: Place) {
        let client = store.client();
        let election = Election::new(&client, LOCK).unwrap();
        let revoker = Revoker::new(&store.client());
        let holder = RevokeTarget::holder(LOCK).unwrap();
        let (mut epochs, mut last) = (Vec::new(), None);
        let output = election.run("one", |leadership| {
            assert_eq!(leadership.data(), "one");
            epochs.push(leadership.epoch());
            let lost = match epochs.len() {
                1 => {
                    revoker.force(&holder, FencingEnforced).unwrap();
                    Some(LostReason::Revoked)
                }
                // Close only the session. The client opens another.
                2 => {
                    pollster::block_on(leadership.session().close()).unwrap();
                    Some(LostReason::SessionClosed)
                }
                _ => None,
            };
            if lost.is_some() {
                assert_eq!(leadership.lost_timeout(LONG), lost);
            }
            last = Some(leadership);
            epochs.len()
        });
        assert_eq!(output.unwrap(), 3);
        assert!(queue(&store.client(), LOCK).unwrap().is_empty(), "the resignation is confirmed");
        assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
        // The kept share is void, and dropping it must not harm the next term.
        let last = last.unwrap();
        assert!(!last.is_held());
        assert_eq!(last.lost(), LostReason::Released);
        assert_eq!(election.state().current(), Role::Bystander);
        let _next = election.campaign_timeout("two", LONG).unwrap();
        drop(last);
        assert_eq!(queue(&store.client(), LOCK).unwrap().len(), 1);
    }

    fn a_runs_output_does_not_count_after_a_loss(store: Place) {
        let election = Election::new(&store.client(), LOCK).unwrap();
        let mut terms = 0;
        let output = election.run("one", |leadership| {
            terms += 1;
            if terms == 1 {
                pollster::block_on(leadership.session().close()).unwrap();
            }
            // The first term's work ends without noticing the loss.
            terms
        });
        assert_eq!(output, Ok(2));
    }

    fn a_run_is_ended_from_another_thread(store: Place) {
        let (one, two) = (store.client(), store.client());
        let run = |client: &Client, role: fn(Role) -> bool| {
            let election = Election::new(client, LOCK).unwrap();
            let mut state = election.state();
            let running = thread::spawn(move || election.run("it", |leadership| leadership.lost()));
            state.wait_for(role).unwrap();
            running
        };
        let leading = run(&one, Role::is_leader);
        let waiting = run(&two, |role| role == Role::Candidate);
        for (client, running) in [(two, waiting), (one, leading)] {
            client.close().unwrap();
            let end = running.join().unwrap().unwrap_err();
            assert!(matches!(end, LockError::Store(Error::SessionClosed { .. })), "{end}");
        }
        assert!(queue(&store.client(), LOCK).unwrap().is_empty());
    }

    fn a_panic_of_the_work_resigns(store: Place) {
        let election = Election::new(&store.client(), LOCK).unwrap();
        let run = || election.run("one", |_| panic!("the work has failed"));
        let panic: Result<Result<(), _>, _> = catch_unwind(AssertUnwindSafe(run));
        assert!(panic.is_err());
        assert_eq!(election.state().current(), Role::Bystander);
        election.campaign_timeout("two", LONG).unwrap().resign().unwrap();
    }

    fn a_run_has_options(store: Place) {
        let _leader = Election::new(&store.client(), LOCK).unwrap().campaign("other").unwrap();
        let election = Election::new(&store.client(), LOCK).unwrap();
        let options = LockOptions::new().queue_limit(0);
        let refusal = election.run_with("one", options, |_| ());
        assert!(matches!(refusal, Err(LockError::QueueFull { .. })));
        let options = LockOptions::new().timeout(Duration::from_millis(20));
        let refusal = election.run_with("one", options, |_| ());
        assert!(matches!(refusal, Err(LockError::Timeout { .. })));
    }

    fn it_blocks_wherever_no_task_is_driven(store: Place) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        let [one, two, three] = [store.mutex(), store.mutex(), store.mutex()];
        runtime.block_on(async {
            // Each waits for the one before, so that each really blocks.
            let held = tokio::task::block_in_place(|| one.lock().unwrap());
            let waiter = tokio::task::spawn_blocking(move || two.lock().unwrap());
            tokio::task::spawn_blocking(move || held.release().unwrap());
            let held = waiter.await.unwrap();
            let waiter = tokio::spawn(async move {
                tokio::task::block_in_place(|| three.lock().unwrap().release().unwrap());
            });
            tokio::task::spawn_blocking(move || drop(held));
            waiter.await.unwrap();
        });
        let current = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mutex = store.mutex();
        let blocking = current.spawn_blocking(move || mutex.lock().unwrap().release().unwrap());
        current.block_on(blocking).unwrap();
        // In the context of a runtime that runs nothing on this thread.
        let _entered = current.enter();
        store.mutex().lock().unwrap().release().unwrap();
    }

    fn inside_a_task_each_call_panics(store: Place) {
        let (mutex, place) = (store.mutex(), store.0.clone());
        let guard = mutex.lock().unwrap();
        let election = Election::new(&store.client(), LOCK).unwrap();
        let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let current = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let calls = async move {
            panics(|| drop(connect(place.as_str())));
            panics(|| drop(mutex.lock()));
            panics(|| drop(mutex.try_lock()));
            panics(|| drop(guard.keep_alive()));
            panics(|| _ = guard.lost_timeout(LONG));
            panics(|| drop(election.run("one", |_| ())));
            assert!(guard.is_held());
            (guard, mutex)
        };
        // As the runtime's main future, and as a task.
        let (guard, mutex) = current.block_on(calls);
        assert_eq!(queue(&store.client(), LOCK).unwrap().len(), 1, "a call was made");
        let task = multi.spawn(async move {
            panics(|| drop(mutex.lock_timeout(LONG)));
            panics(|| drop(guard.release()));
            mutex
        });
        let mutex = multi.block_on(task).unwrap();
        // The release was sent nevertheless.
        mutex.lock_timeout(LONG).unwrap().release().unwrap();
    }
}

fn panics(call: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("it blocks the task's thread");
    let words = panic.downcast_ref::<String>().map(String::as_str);
    let words = words
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .expect("a text");
    assert!(words.contains("Cannot block the current thread"), "{words}");
}
