//! Revocation: asking a holder to give up, and taking the lock away.

use std::cell::Cell;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper::testing::{Plan, RequestKind, TestStore, seeds};
use lockkeeper::{
    Client, Clock, Election, FencingEnforced, FencingGate, Guard, LockError, LockEvent, LockEvents,
    LockMetadata, LockOptions, LockPath, LostReason, Mutex, RevokeTarget, Revoker, RwLock,
    Semaphore, Store, StoreOptions, lock_all, lock_events,
};
use lockkeeper_store::{CreateMode, Error, SessionId, ZnodePath};
use testkit::{on_every_backend, rounds};

use crate::common::*;

fn jane(client: &Client) -> Revoker {
    Revoker::new(client).by("ops: jane")
}

fn holder() -> RevokeTarget {
    RevokeTarget::holder(LOCK).unwrap()
}

async fn asked_by(events: &mut LockEvents) -> Option<String> {
    loop {
        match events.next().await.expect("the stream goes on") {
            LockEvent::RevocationRequested { by } => return by,
            LockEvent::Lost { reason } => panic!("{reason}"),
            _ => {}
        }
    }
}

async fn rest(mut events: LockEvents) -> usize {
    let mut requests = 0;
    while let Some(event) = events.next().await {
        requests += usize::from(matches!(event, LockEvent::RevocationRequested { .. }));
    }
    requests
}

impl World {
    async fn data(&self, at: &ZnodePath) -> Bytes {
        self.observing().await.get_data(at).await.unwrap().0
    }

    async fn metadata(&self, at: &ZnodePath) -> LockMetadata {
        LockMetadata::parse(&self.data(at).await).expect("it is our JSON")
    }

    async fn entry(&self, below: &str, name: &str) -> (ZnodePath, SessionId) {
        let at = format!("{LOCK}{below}");
        self.make(&at).await;
        let session = self.client().await.session().await.unwrap();
        let entry = path(&format!("{at}/{name}"));
        let made = session
            .create(&entry, "10.0.0.1", CreateMode::EphemeralSequential)
            .await;
        let path = made.unwrap().0;
        let id = session.id();
        // Lives as long as the store.
        std::mem::forget(session);
        (path, id)
    }

    /// Asks like Curator's `Revoker`.
    async fn ask_as_curator(&self, entry: &ZnodePath) {
        let session = self.observing().await;
        session.set_data(entry, "__REVOKE__", None).await.unwrap();
    }
}

on_every_backend! {
    async fn a_holder_is_asked_and_told_once(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let (sink, mut events) = lock_events();
        let options = LockOptions::new().events(sink).label("billing").field("team", "blue");
        let guard = mutex.lock_with(options).await.unwrap();
        let waiter = world.queue_up(&world.mutex().await).await;
        let before = world.metadata(guard.path()).await;

        let asked = jane(&world.observer).request(&holder()).await.unwrap();
        assert_eq!(asked, [guard.path().clone()], "who waits is left alone");
        assert_eq!(asked_by(&mut events).await.as_deref(), Some("ops: jane"));
        let request = guard.revocation_requested().await.unwrap();
        assert_eq!(request.by.as_deref(), Some("ops: jane"));
        assert_eq!(request.number, 1);
        assert!(request.at_ms > 0);
        // Its reads are answered before any later request.
        tokio::select! {
            biased;
            told = guard.revocation_requested() => panic!("it is answered once, not {told:?}"),
            there = guard.session().exists(guard.path()) => assert!(there.unwrap().is_some()),
        }

        let after = world.metadata(guard.path()).await;
        assert_eq!(after.revocation, Some(request));
        let mut rest_of_it = after.clone();
        rest_of_it.revocation = None;
        assert_eq!(rest_of_it, before, "all else is kept");
        assert!(guard.is_held(), "a request is no loss");

        Revoker::new(&world.observer).request(&holder()).await.unwrap();
        assert_eq!(asked_by(&mut events).await, None);
        guard.release().await.unwrap();
        assert_eq!(rest(events).await, 0);
        assert!(granted(waiter).await.is_held());
    }

    async fn a_holder_without_events_is_told_when_it_asks(env: Env) {
        let world = World::new(env).await;
        let guard = world.mutex().await.lock().await.unwrap();
        let revoker = jane(&world.observer);
        let whom = holder();
        let (request, asked) = tokio::join!(guard.revocation_requested(), revoker.request(&whom));
        assert_eq!(request.unwrap().number, 1);
        asked.unwrap();
        revoker.request(&whom).await.unwrap();
        revoker.request(&whom).await.unwrap();
        let request = guard.revocation_requested().await.unwrap();
        assert_eq!(request.number, 3, "of those before it looked, the last");
    }

    async fn a_wait_for_requests_ends_with_the_lock(env: Env) {
        let world = World::new(env).await;
        let (revoked, expired) = (world.mutex().await, world.mutex().await);
        let guard = revoked.lock().await.unwrap();
        let (end, ()) = tokio::join!(guard.revocation_requested(), world.revoke(guard.path()));
        assert_eq!(end, Err(LostReason::Revoked));
        assert!(!guard.is_held());
        assert_eq!(guard.revocation_requested().await, Err(LostReason::Revoked));

        let guard = expired.lock().await.unwrap();
        world.expire(expired.client()).await.unwrap();
        assert_eq!(guard.revocation_requested().await, Err(LostReason::SessionExpired));
    }

    async fn a_request_to_a_waiter_is_told_when_it_holds(env: Env) {
        let world = World::new(env).await;
        let first = world.mutex().await.lock().await.unwrap();
        let (sink, mut events) = lock_events();
        let mutex = world.mutex().await;
        let waiter = world.queue_up_with(&mutex, LockOptions::new().events(sink)).await;
        let entry = lockkeeper::queue(&world.observer, LOCK).await.unwrap().remove(1).path;
        let whom = RevokeTarget::entry(entry.as_str()).unwrap();
        assert_eq!(jane(&world.observer).request(&whom).await.unwrap(), [entry]);
        first.release().await.unwrap();
        let guard = granted(waiter).await;
        assert_eq!(asked_by(&mut events).await.as_deref(), Some("ops: jane"));
        assert_eq!(guard.revocation_requested().await.unwrap().number, 1);
    }

    async fn keep_alive_and_a_request_leave_each_other_alone(env: Env) {
        let world = World::new(env).await;
        let (sink, mut events) = lock_events();
        let options = LockOptions::new().events(sink).label("billing");
        let guard = world.mutex().await.lock_with(options).await.unwrap();
        for number in 1..=3 {
            jane(&world.observer).request(&holder()).await.unwrap();
            guard.keep_alive().await.unwrap();
            let there = world.metadata(guard.path()).await;
            assert_eq!(there.kept_alive, Some(number));
            assert_eq!(there.label.as_deref(), Some("billing"));
            assert_eq!(there.revocation.as_ref().unwrap().number, number);
            assert_eq!(guard.metadata(), there);
            asked_by(&mut events).await;
        }
        guard.release().await.unwrap();
        assert_eq!(rest(events).await, 0);
    }

    async fn keep_alive_preserves_data_of_other_writers(env: Env) {
        let world = World::new(env).await;
        let guard = world.mutex().await.lock().await.unwrap();
        let mut metadata = guard.metadata();
        metadata.other.insert("ticket".into(), "OPS-7".into());
        let data = serde_json::to_vec(&metadata).unwrap();
        world.observing().await.set_data(guard.path(), data, None).await.unwrap();
        guard.keep_alive().await.unwrap();
        let there = world.metadata(guard.path()).await;
        assert_eq!(there.other["ticket"], "OPS-7");
        assert_eq!(there.kept_alive, Some(1));
    }

    async fn a_lost_answer_counts_a_keep_alive_once(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        for (times, lose) in [(1, true), (2, false), (3, true)] {
            match lose {
                true => world.lose_reply(mutex.client(), RequestKind::SetData),
                false => world.lose_request(mutex.client(), RequestKind::SetData),
            }
            guard.keep_alive().await.unwrap();
            let there = world.observing().await.get_data(guard.path()).await.unwrap();
            assert_eq!(there.1.version, times, "one write each");
            assert_eq!(LockMetadata::parse(&there.0).unwrap().kept_alive, Some(times as u64));
        }
        // Dropped after it was sent, so the next one says it again.
        assert_eq!(polled(guard.keep_alive(), 1).await.unwrap_or(Ok(())), Ok(()));
        guard.keep_alive().await.unwrap();
        assert_eq!(world.metadata(guard.path()).await.kept_alive, Some(5));
    }

    async fn a_request_of_curators_names_no_requester(env: Env) {
        let world = World::new(env).await;
        let (sink, mut events) = lock_events();
        let options = LockOptions::new().events(sink).label("billing");
        let guard = world.mutex().await.lock_with(options).await.unwrap();
        world.ask_as_curator(guard.path()).await;
        assert_eq!(asked_by(&mut events).await, None);
        assert_eq!(guard.revocation_requested().await.unwrap().by, None);

        // The next sign of life restores the wiped metadata, and the request stays.
        guard.keep_alive().await.unwrap();
        let there = world.metadata(guard.path()).await;
        assert_eq!(there.label.as_deref(), Some("billing"));
        assert_eq!(there.revocation.unwrap().number, 1);

        world.ask_as_curator(guard.path()).await;
        assert_eq!(asked_by(&mut events).await, None, "asked again, told again");
        jane(&world.observer).request(&holder()).await.unwrap();
        assert_eq!(world.data(guard.path()).await, "__REVOKE__");
        guard.release().await.unwrap();
        assert!(rest(events).await <= 1);
    }

    async fn a_keep_alive_over_curators_request_does_not_swallow_it(env: Env) {
        let world = World::new(env).await;
        let guard = world.mutex().await.lock().await.unwrap();
        // Before anything listens for requests.
        world.ask_as_curator(guard.path()).await;
        guard.keep_alive().await.unwrap();
        let request = guard.revocation_requested().await.unwrap();
        assert_eq!((request.by, request.number), (None, 1));
    }

    async fn a_foreign_holder_is_asked_in_curators_words(env: Env) {
        let world = World::new(env).await;
        for name in ["_c_2f1b-lock-", "9d8a__lock__", "lock-"] {
            let (entry, _) = world.entry("", name).await;
            let asked = jane(&world.observer).request(&holder()).await.unwrap();
            assert_eq!(asked, std::slice::from_ref(&entry));
            assert_eq!(world.data(&entry).await, "__REVOKE__");
            world.revoke(&entry).await;
        }
    }

    async fn the_holders_of_each_recipe_are_found(env: Env) {
        let world = World::new(env).await;
        let revoker = jane(&world.observer);
        let mut entries = Vec::new();
        for name in ["_c_a-__READ__", "_c_b-__READ__", "_c_c-__WRIT__", "_c_d-__READ__"] {
            entries.push(world.entry("/rw", name).await.0);
        }
        let whom = RevokeTarget::holder(format!("{LOCK}/rw")).unwrap();
        assert_eq!(revoker.request(&whom).await.unwrap(), entries[..2]);
        assert_eq!(revoker.force(&whom, FencingEnforced).await.unwrap(), entries[..2]);
        assert_eq!(revoker.request(&whom).await.unwrap(), entries[2..3]);

        let candidates = [
            world.entry("/leader", "_c_a-latch-").await.0,
            world.entry("/leader", "_c_b-latch-").await.0,
        ];
        let whom = RevokeTarget::holder(format!("{LOCK}/leader")).unwrap();
        assert_eq!(revoker.request(&whom).await.unwrap(), candidates[..1]);

        let leases = [
            world.entry("/permits/leases", "_c_a-lease-").await.0,
            world.entry("/permits/leases", "_c_b-lease-").await.0,
        ];
        let (waiting, session) = world.entry("/permits/locks", "_c_c-lock-").await;
        let permits = format!("{LOCK}/permits");
        let all = RevokeTarget::holder(permits.as_str()).unwrap();
        assert_eq!(revoker.request(&all).await.unwrap(), leases);
        let below = RevokeTarget::holder(format!("{permits}/leases")).unwrap();
        assert_eq!(revoker.request(&below).await.unwrap(), leases);
        let whose = RevokeTarget::session(permits.as_str(), session).unwrap();
        assert_eq!(revoker.request(&whose).await.unwrap(), [waiting]);
        assert_eq!(revoker.force(&all, FencingEnforced).await.unwrap(), leases);
        assert_eq!(revoker.force(&all, FencingEnforced).await.unwrap(), []);
    }

    async fn readers_and_writers_are_asked_and_forced(env: Env) {
        let world = World::new(env).await;
        let lock = RwLock::new(&world.client().await, LOCK).unwrap();
        let (one, two) = (lock.read().await.unwrap(), lock.read().await.unwrap());
        let writer = tokio::spawn({
            let lock = lock.clone();
            async move { lock.write().await }
        });
        world.until_count(3).await;
        let revoker = jane(&world.observer);
        assert_eq!(revoker.request(&holder()).await.unwrap().len(), 2);
        assert_eq!(one.revocation_requested().await.unwrap().number, 1);
        assert_eq!(two.revocation_requested().await.unwrap().number, 1);
        assert_eq!(revoker.force(&holder(), FencingEnforced).await.unwrap().len(), 2);
        assert_eq!(one.lost().await, LostReason::Revoked);
        assert_eq!(two.lost().await, LostReason::Revoked);
        let writer = writer.await.unwrap().unwrap();
        assert_eq!(revoker.request(&holder()).await.unwrap(), [writer.path().clone()]);
        writer.revocation_requested().await.unwrap();
    }

    async fn a_conversion_keeps_a_request_and_does_not_repeat_it(env: Env) {
        let world = World::new(env).await;
        let lock = RwLock::new(&world.client().await, LOCK).unwrap();
        let (sink, mut events) = lock_events();
        let options = LockOptions::new().events(sink).label("billing");
        let writer = lock.write_with(options).await.unwrap();
        jane(&world.observer).request(&holder()).await.unwrap();
        assert_eq!(asked_by(&mut events).await.as_deref(), Some("ops: jane"));
        let reader = writer.downgrade().await.unwrap();
        let there = world.metadata(reader.path()).await;
        assert_eq!(there.revocation.as_ref().unwrap().number, 1);
        assert_eq!(there.label.as_deref(), Some("billing"));
        assert_eq!(reader.revocation_requested().await.unwrap().number, 1, "not answered yet");
        reader.keep_alive().await.unwrap();
        assert_eq!(world.metadata(reader.path()).await.kept_alive, Some(1));
        reader.release().await.unwrap();
        assert_eq!(rest(events).await, 0);
    }

    async fn permits_are_asked_for_and_come_back_by_force(env: Env) {
        let world = World::new(env).await;
        let semaphore = Semaphore::new(&world.client().await, LOCK, 3).unwrap();
        let one = semaphore.acquire().await.unwrap();
        let two = semaphore.acquire_many(2).await.unwrap();
        let waiter = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire_many(3).await }
        });
        let waiting = format!("{LOCK}/locks");
        until(&world.observing().await, &waiting, |names| names.len() == 1).await;
        let revoker = jane(&world.observer);
        assert_eq!(revoker.request(&holder()).await.unwrap().len(), 3);
        one.revocation_requested().await.unwrap();
        two.revocation_requested().await.unwrap();
        assert_eq!(revoker.force(&holder(), FencingEnforced).await.unwrap().len(), 3);
        assert_eq!(two.lost().await, LostReason::Revoked);
        assert_eq!(waiter.await.unwrap().unwrap().count(), 3);
    }

    async fn a_leader_is_asked_and_forced(env: Env) {
        let world = World::new(env).await;
        let election = Election::new(&world.client().await, LOCK).unwrap();
        let leader = election.campaign("10.0.0.1").await.unwrap();
        let revoker = jane(&world.observer);
        revoker.request(&holder()).await.unwrap();
        leader.set_data("10.0.0.2").await.unwrap();
        assert_eq!(leader.revocation_requested().await.unwrap().number, 1);
        let there = world.metadata(leader.path()).await;
        assert_eq!(there.revocation.unwrap().number, 1, "new data leave it alone");
        revoker.force(&holder(), FencingEnforced).await.unwrap();
        assert_eq!(leader.lost().await, LostReason::Revoked);
        let next = election.campaign("10.0.0.3").await.unwrap();
        assert!(next.epoch() > leader.epoch());
    }

    async fn the_holder_of_several_locks_is_asked_for_any(env: Env) {
        let world = World::new(env).await;
        let keys = ["a", "b"].map(|key| LockPath::new(LOCK).unwrap().key(key));
        let guard = lock_all(&world.client().await, &keys).await.unwrap();
        let whom = RevokeTarget::holder(&keys[1]).unwrap();
        jane(&world.observer).request(&whom).await.unwrap();
        assert_eq!(guard.revocation_requested().await.unwrap().number, 1);
    }

    async fn a_missing_queue_has_no_holders(env: Env) {
        let world = World::new(env).await;
        let revoker = jane(&world.observer);
        let entry = RevokeTarget::entry(format!("{LOCK}/_c_x-lock-0000000000")).unwrap();
        let session = RevokeTarget::session(LOCK, SessionId(7)).unwrap();
        for whom in [holder(), entry, session] {
            assert_eq!(revoker.request(&whom).await.unwrap(), []);
            assert_eq!(revoker.force(&whom, FencingEnforced).await.unwrap(), []);
        }
        assert!(matches!(RevokeTarget::holder("orders"), Err(Error::InvalidPath { .. })));
    }

    async fn force_drops_the_work_and_the_old_token_is_refused(env: Env) {
        let world = World::new(env).await;
        let mut gate = FencingGate::default();
        let guard = world.mutex().await.lock().await.unwrap();
        gate.admit(guard.fencing_token()).unwrap();
        let waiter = world.queue_up(&world.mutex().await).await;

        let (alive, mut dropped) = tokio::sync::oneshot::channel::<()>();
        let work = async {
            let _alive = alive;
            pending::<()>().await;
        };
        let (revoker, whom) = (jane(&world.observer), holder());
        let force = revoker.force(&whom, FencingEnforced);
        let (outcome, deleted) = tokio::join!(guard.protect(work), force);
        assert_eq!(outcome, Err(LostReason::Revoked));
        assert_eq!(deleted.unwrap(), [guard.path().clone()]);
        assert!(dropped.try_recv().is_err(), "the work is dropped with the lock");

        let next = granted(waiter).await;
        gate.admit(next.fencing_token()).unwrap();
        assert!(gate.admit(guard.fencing_token()).is_err());
        assert_eq!(guard.release().await, Err(LockError::Lost(LostReason::Revoked)));
        assert!(next.is_held());
        world.until_count(1).await;
    }

    async fn force_by_entry_and_by_session_removes_no_other_entry(env: Env) {
        let world = World::new(env).await;
        let (one, other) = (world.mutex().await, world.mutex().await);
        let guard = one.lock().await.unwrap();
        let first = world.queue_up(&other).await;
        let second = world.queue_up(&one).await;
        let third = world.queue_up(&other).await;
        let revoker = jane(&world.observer);
        let queue = lockkeeper::queue(&world.observer, LOCK).await.unwrap();

        let whom = RevokeTarget::entry(queue[1].path.as_str()).unwrap();
        let deleted = revoker.force(&whom, FencingEnforced).await.unwrap();
        assert_eq!(deleted, [queue[1].path.clone()]);

        let whom = RevokeTarget::session(LOCK, guard.session().id()).unwrap();
        let deleted = revoker.force(&whom, FencingEnforced).await.unwrap();
        assert_eq!(deleted, [queue[0].path.clone(), queue[2].path.clone()]);
        // A waiter looks again when its predecessor has left.
        assert!(matches!(refused(first).await, LockError::EntryDeleted { .. }));
        assert!(matches!(refused(second).await, LockError::EntryDeleted { .. }));
        assert_eq!(guard.lost().await, LostReason::Revoked);
        assert_eq!(granted(third).await.path(), &queue[3].path);
    }

    async fn a_revoker_sees_it_through_when_answers_are_lost(env: Env) {
        let world = World::new(env).await;
        let (sink, mut events) = lock_events();
        let options = LockOptions::new().events(sink);
        let guard = world.mutex().await.lock_with(options).await.unwrap();
        let client = world.client().await;
        let revoker = jane(&client);
        for (number, on) in [(1, RequestKind::GetChildren), (2, RequestKind::GetData), (3, RequestKind::SetData)] {
            world.lose_reply(&client, on);
            assert_eq!(revoker.request(&holder()).await.unwrap().len(), 1);
            let there = world.metadata(guard.path()).await;
            assert_eq!(there.revocation.unwrap().number, number, "asked once");
            asked_by(&mut events).await;
        }
        world.lose_request(&client, RequestKind::SetData);
        revoker.request(&holder()).await.unwrap();
        asked_by(&mut events).await;
        world.lose_reply(&client, RequestKind::Delete);
        let deleted = revoker.force(&holder(), FencingEnforced).await.unwrap();
        assert_eq!(deleted.len(), 1);
        assert_eq!(guard.lost().await, LostReason::Revoked);
    }
}

/// One client keeps its lock alive, one asks, and one asks like Curator. All but the last have faults. Each request is
/// reported once, and no sign of life is lost.
#[tokio::test]
async fn no_seed_loses_a_request_or_a_keep_alive() {
    for (_, seed) in rounds(60).zip(seeds(u64::MAX)) {
        let clock = Clock::new_virtual();
        let base = Store::memory_with(StoreOptions::new().clock(clock));
        let store = TestStore::wrapping(base.connector(), "memory:race", Plan::lossy(seed));
        store
            .run(race_of_asking_and_keeping(&base, &store, seed))
            .await;
    }
}

async fn race_of_asking_and_keeping(base: &Store, store: &TestStore, seed: u64) {
    const ROUNDS: u64 = 6;
    let pause = |n: u64| {
        store
            .clock()
            .sleep(Duration::from_millis((seed * 31 + n * 17) % 97 + 1))
    };
    let holding = store.client().await.unwrap();
    let (sink, mut events) = lock_events();
    let options = LockOptions::new().events(sink).label("billing");
    let mutex = Mutex::new(&holding, LOCK).unwrap();
    let guard: Guard = mutex.lock_with(options).await.unwrap();
    let entry = guard.path().clone();

    let asker = store.client().await.unwrap();
    let curator = base.connect().await.unwrap().session().await.unwrap();
    let done = Cell::new(false);
    let asking = async {
        for round in 0..ROUNDS {
            pause(round).await;
            if (seed + round).is_multiple_of(3) {
                curator.set_data(&entry, "__REVOKE__", None).await.unwrap();
                assert_eq!(told(store, &mut events).await, None, "seed {seed}");
                // That overwrote the requester's name. Wait until the holder has written its metadata again.
                while curator.get_data(&entry).await.unwrap().0 == "__REVOKE__" {
                    pause(1).await;
                }
                continue;
            }
            let who = format!("{round}");
            let revoker = Revoker::new(&asker).by(who.as_str());
            assert_eq!(
                revoker.request(&holder()).await.unwrap().len(),
                1,
                "seed {seed}"
            );
            assert_eq!(told(store, &mut events).await, Some(who), "seed {seed}");
        }
        done.set(true);
    };
    let keeping = async {
        let mut times = 0;
        while !done.get() {
            pause(times * 7).await;
            guard.keep_alive().await.unwrap();
            times += 1;
        }
        times
    };
    let ((), times) = tokio::join!(asking, keeping);
    let (data, _) = curator.get_data(&entry).await.unwrap();
    let metadata = LockMetadata::parse(&data).unwrap();
    assert_eq!(metadata.kept_alive, Some(times), "seed {seed}");
    assert_eq!(metadata.label.as_deref(), Some("billing"), "seed {seed}");
    assert_eq!(metadata.revocation.unwrap().number, ROUNDS, "seed {seed}");
    store.heal();
    guard.release().await.unwrap();
    assert_eq!(rest(events).await, 0, "seed {seed}: told twice");
}

/// Runs [`asked_by`] for up to an hour of virtual time.
async fn told(store: &TestStore, events: &mut LockEvents) -> Option<String> {
    tokio::select! {
        by = asked_by(events) => by,
        () = store.clock().sleep(Duration::from_secs(3_600)) => panic!("a request is lost"),
    }
}
