//! Overdue locks, and the warden that watches for them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::testing::{Plan, RequestKind, TestStore, seeds};
use lockkeeper::{
    Attempt, Client, Clock, ConnectOptions, Error, FencingEnforced, FencingGate, LockError,
    LockOptions, LostReason, Mutex, OncePer, OverdueLevel, RevokeTarget, Revoker, Session, Store,
    StoreOptions, Warden, WardenReport, WardenReports, queue,
};
use lockkeeper_store::{BootInstant, CreateMode, ZnodePath};
use testkit::{on_every_backend, rounds};

use crate::common::*;

const NO_LIMIT: Duration = Duration::MAX;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A holder that declares all three times.
fn stating(expected: u64, alert: u64, unlock: u64) -> LockOptions {
    LockOptions::new()
        .label("billing")
        .expected_hold(ms(expected))
        .alert_after(ms(alert))
        .auto_unlock_after(ms(unlock))
}

fn watching(client: &Client) -> (Warden, WardenReports) {
    Warden::builder(client).watch(LOCK).unwrap().start()
}

fn removing(client: &Client) -> (Warden, WardenReports) {
    let warden = Warden::builder(client).watch(LOCK).unwrap();
    warden.remove_overdue(FencingEnforced).start()
}

/// Returns the next report in short form, and its entry.
async fn next(reports: &mut WardenReports) -> (String, ZnodePath) {
    match reports.next().await.expect("the stream goes on") {
        WardenReport::Overdue(overdue) => (format!("{:?}", overdue.level), overdue.entry.path),
        WardenReport::Removed { entry, .. } => ("Removed".into(), entry.path),
        other => panic!("{other:?}"),
    }
}

/// Checks that overdue holders are removed despite a lost connection and a lost session.
async fn removals_go_on(world: &World, client: &Client, reports: &mut WardenReports) {
    for round in 0..4 {
        match round {
            1 => world.disconnect(client),
            2 => {
                world.reconnect(client);
                world.expire(client).await.unwrap();
            }
            _ => {}
        }
        let stating = stating(5, 10, 20);
        let guard = world.mutex().await.lock_with(stating).await.unwrap();
        if round == 1 {
            world.reconnect(client);
        }
        while next(reports).await != ("Removed".into(), guard.path().clone()) {}
        assert_eq!(guard.lost().await, LostReason::Revoked);
    }
}

async fn unread(reports: &mut WardenReports) -> Vec<String> {
    let mut told = Vec::new();
    while let Some((report, _)) = polled(next(reports), 1).await {
        told.push(report);
    }
    told
}

/// Creates an entry that declares how long it will hold.
async fn entry(session: &Session, name: &str, metadata: &str) -> ZnodePath {
    let at = path(name);
    session
        .create_all(&at.parent().unwrap(), CreateMode::Persistent)
        .await
        .unwrap();
    let made = session
        .create(&at, metadata.to_owned(), CreateMode::EphemeralSequential)
        .await;
    made.unwrap().0
}

const PATIENT: &str = r#"{"v":1,"alert_at_ms":5}"#;

on_every_backend! {
    /// Callers write "no limit" like this.
    async fn durations_may_be_the_longest(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let (warden, _reports) = removing(&client);
        let options = LockOptions::new().timeout(NO_LIMIT).expected_hold(NO_LIMIT);
        let options = options.alert_after(NO_LIMIT).auto_unlock_after(NO_LIMIT);
        let held = world.mutex().await.lock_with(options).await.unwrap();
        let patient = LockOptions::new().timeout(NO_LIMIT);
        let waiter = world.queue_up_with(&world.mutex().await, patient).await;
        held.keep_alive().await.unwrap();
        let holder = &queue(&client, LOCK).await.unwrap()[0];
        let now_ms = client.clock().unix_ms();
        assert_eq!(holder.overdue_by(now_ms), None);
        assert!(holder.due_at_ms().is_none_or(|due| due > now_ms));
        assert_eq!(warden.overdue_all().len(), 0);
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        let job = OncePer::new(&client, "/job", NO_LIMIT).unwrap();
        job.try_begin().await.unwrap().due().unwrap().finish().await.unwrap();
        assert!(matches!(job.try_begin().await.unwrap(), Attempt::NotDue { .. }));
    }

    async fn an_overdue_holder_is_reported_on_each_level_and_then_removed(env: Env) {
        let world = World::new(env).await;
        let (warden, mut reports) = removing(&world.observer);
        let mut gate = FencingGate::default();
        let guard = world.mutex().await.lock_with(stating(5, 10, 20)).await.unwrap();
        gate.admit(guard.fencing_token()).unwrap();
        for wanted in ["Expected", "Alert", "AutoUnlock", "Removed"] {
            assert_eq!(next(&mut reports).await, (wanted.into(), guard.path().clone()));
        }
        assert_eq!(guard.lost().await, LostReason::Revoked);
        assert!(world.children().await.is_empty());
        let after = world.mutex().await.lock().await.unwrap();
        gate.admit(after.fencing_token()).unwrap();
        assert!(gate.admit(guard.fencing_token()).is_err());
        drop(warden);
        assert!(reports.next().await.is_none(), "the stream ends with the warden");
    }

    async fn no_holder_is_removed_unless_the_warden_is_configured_to(env: Env) {
        let world = World::new(env).await;
        let (warden, mut reports) = watching(&world.observer);
        let guard = world.mutex().await.lock_with(stating(5, 10, 20)).await.unwrap();
        while next(&mut reports).await.0 != "AutoUnlock" {}
        let overdue = warden.overdue(LOCK).unwrap();
        assert_eq!(overdue, warden.overdue_all().iter().map(|now| {
            // Except for the time between the two looks.
            lockkeeper::Overdue::clone(now)
        }).zip(&overdue).map(|(mut now, before)| {
            now.seen_for = before.seen_for;
            now.over_by = before.over_by;
            now
        }).collect::<Vec<_>>());
        let [overdue] = &overdue[..] else { panic!("{overdue:?}") };
        assert_eq!(overdue.entry.path, *guard.path());
        assert_eq!(overdue.entry.metadata.as_ref().unwrap().label.as_deref(), Some("billing"));
        assert_eq!(overdue.level, OverdueLevel::AutoUnlock);
        assert_eq!(overdue.seen_for, ms(20) + overdue.over_by);
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let elsewhere = warden.overdue("/lock/elsewhere").unwrap_err();
        assert!(matches!(elsewhere, Error::BadArguments(_)), "{elsewhere}");
    }

    async fn holders_of_every_recipe_are_watched_and_waiters_are_not(env: Env) {
        let world = World::new(env).await;
        let names = ["rw", "leader", "permits", "plain"].map(|name| format!("{LOCK}/{name}"));
        let mut builder = Warden::builder(&world.observer);
        for name in &names {
            builder = builder.watch(name).unwrap();
        }
        // Started before anything exists.
        let (warden, mut reports) = builder.start();
        let session = world.client().await.session().await.unwrap();
        let [rw, leader, permits, plain] = &names;
        let make = |name: String| entry_of(&session, name);
        let mut holding = vec![
            make(format!("{rw}/_c_a-__READ__")).await,
            make(format!("{rw}/_c_b-__READ__")).await,
            make(format!("{leader}/_c_a-latch-")).await,
            make(format!("{permits}/leases/_c_a-lease-")).await,
            make(format!("{permits}/leases/_c_b-lease-")).await,
            make(format!("{plain}/_c_a-lock-")).await,
        ];
        for waiting in [
            format!("{rw}/_c_c-__WRIT__"),
            format!("{rw}/_c_d-__READ__"),
            format!("{leader}/_c_b-latch-"),
            format!("{permits}/locks/_c_c-lock-"),
            format!("{plain}/_c_b-lock-"),
        ] {
            make(waiting).await;
        }
        let mut told = Vec::new();
        for _ in &holding {
            told.push(next(&mut reports).await.1);
        }
        told.sort_unstable();
        holding.sort_unstable();
        assert_eq!(told, holding);
        // The next holder is seen when its turn comes.
        let writer = {
            session.delete(&holding_of(&holding, "_c_a-__READ__"), None).await.unwrap();
            session.delete(&holding_of(&holding, "_c_b-__READ__"), None).await.unwrap();
            next(&mut reports).await.1
        };
        assert!(writer.name().contains("__WRIT__"), "{writer}");
        assert_eq!(warden.overdue(permits.as_str()).unwrap().len(), 2);
    }

    async fn other_libraries_holders_are_never_overdue(env: Env) {
        let world = World::new(env).await;
        let (warden, mut reports) = removing(&world.observer);
        let session = world.client().await.session().await.unwrap();
        let foreign = entry(&session, &format!("{LOCK}/_c_a-lock-"), "10.0.0.1").await;
        let behind = world.queue_up_with(&world.mutex().await, stating(5, 10, 20)).await;
        session.delete(&foreign, None).await.unwrap();
        // The first report is about the one behind.
        let guard = granted(behind).await;
        assert_eq!(next(&mut reports).await.1, *guard.path());
        drop(warden);
    }

    async fn a_revocation_request_leaves_the_holder_overdue(env: Env) {
        let world = World::new(env).await;
        let (warden, mut reports) = removing(&world.observer);
        for by_curator in [false, true] {
            let guard = world.mutex().await.lock_with(stating(5, 300, 400)).await.unwrap();
            assert_eq!(next(&mut reports).await.0, "Expected");
            if by_curator {
                let session = world.observing().await;
                session.set_data(guard.path(), "__REVOKE__", None).await.unwrap();
            } else {
                let revoker = Revoker::new(&world.observer);
                revoker.request(&RevokeTarget::holder(LOCK).unwrap()).await.unwrap();
            }
            for wanted in ["Alert", "AutoUnlock", "Removed"] {
                assert_eq!(next(&mut reports).await.0, wanted, "told once each");
            }
        }
        drop(warden);
    }

    async fn a_warden_outlives_its_connections_and_sessions(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let (_warden, mut reports) = removing(&client);
        removals_go_on(&world, &client, &mut reports).await;
    }

    async fn a_warden_ends_with_its_client(env: Env) {
        let world = World::new(env).await;
        let client = world.env.client_with(ConnectOptions::new().session_timeout(LONG)).await;
        let (warden, mut reports) = watching(&client);
        client.close().await.unwrap();
        assert!(reports.next().await.is_none());
        assert!(warden.overdue_all().is_empty());
    }

    async fn a_removal_with_a_lost_answer_is_reported_once(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let (_warden, mut reports) = removing(&client);
        a_removal_is_reported_once(&world, &client, &mut reports).await;
    }
}

/// Loses the reply to the delete that removes an overdue holder.
async fn a_removal_is_reported_once(world: &World, client: &Client, reports: &mut WardenReports) {
    world.lose_reply(client, RequestKind::Delete);
    let guard = world
        .mutex()
        .await
        .lock_with(stating(5, 10, 20))
        .await
        .unwrap();
    while next(reports).await.0 != "Removed" {}
    assert_eq!(guard.lost().await, LostReason::Revoked);
    // The next one is removed after that, and is the next report.
    let guard = world
        .mutex()
        .await
        .lock_with(stating(5, 10, 20))
        .await
        .unwrap();
    assert_eq!(
        next(reports).await,
        ("Expected".into(), guard.path().clone())
    );
}

/// Watches all locks below a path and removes overdue holders.
fn removing_below(client: &Client, prefix: &str) -> (Warden, WardenReports) {
    let warden = Warden::builder(client).watch_prefix(prefix).unwrap();
    warden.remove_overdue(FencingEnforced).start()
}

on_every_backend! {
    async fn every_lock_below_a_prefix_is_watched_now_and_later(env: Env) {
        let world = World::new(env).await;
        let session = world.client().await.session().await.unwrap();
        let early = entry_of(&session, "/l/early/_c_a-lock-".into()).await;
        let elsewhere = entry_of(&session, "/elsewhere/_c_a-lock-".into()).await;
        // Below a semaphore, `locks` contains waiters. Elsewhere it is a mutex.
        let (warden, mut reports) = Warden::builder(&world.observer)
            .watch_prefix("/l").unwrap()
            .watch("/l/early").unwrap()
            .watch_prefix("/l/early").unwrap()
            .start();
        assert_eq!(next(&mut reports).await, ("Alert".into(), early));
        for (holds, waits) in [
            ("/l/a/_c_a-lock-", "/l/a/_c_b-lock-"),
            ("/l/a/nested/_c_a-__WRIT__", "/l/a/nested/_c_b-__READ__"),
            ("/l/quota/leases/_c_a-lease-", "/l/quota/locks/_c_b-lock-"),
            ("/l/app/locks/_c_a-lock-", "/l/app/locks/_c_b-lock-"),
            ("/l/app/locks/deep/er/_c_a-latch-", "/l/app/locks/deep/er/_c_b-latch-"),
        ] {
            let holder = entry_of(&session, holds.into()).await;
            let waiter = entry_of(&session, waits.into()).await;
            assert_eq!(next(&mut reports).await, ("Alert".into(), holder.clone()));
            let queue = holder.parent().unwrap();
            let lock = if queue.name() == "leases" { queue.parent().unwrap() } else { queue };
            let overdue = warden.overdue(&lock).unwrap();
            assert_eq!(overdue.iter().map(|it| &it.entry.path).collect::<Vec<_>>(), [&holder]);
            // The next one is timed from its turn.
            session.delete(&holder, None).await.unwrap();
            if lock.name() != "quota" {
                assert_eq!(next(&mut reports).await, ("Alert".into(), waiter));
            }
        }
        assert_eq!(warden.overdue("/l/none").unwrap(), []);
        assert!(warden.overdue("/elsewhere").is_err());
        let all = warden.overdue_all();
        assert!(all.iter().all(|it| it.entry.path != elsewhere));
        assert_eq!(all.len(), 5, "{all:?}");
    }

    async fn overdue_holders_below_a_prefix_are_removed(env: Env) {
        let world = World::new(env).await;
        let (warden, mut reports) = removing_below(&world.observer, "/");
        let guard = world.mutex().await.lock_with(stating(5, 10, 20)).await.unwrap();
        for wanted in ["Expected", "Alert", "AutoUnlock", "Removed"] {
            assert_eq!(next(&mut reports).await, (wanted.into(), guard.path().clone()));
        }
        assert_eq!(guard.lost().await, LostReason::Revoked);
        assert!(warden.overdue_all().is_empty());
        drop(warden);
        assert!(reports.next().await.is_none(), "the stream ends with the warden");
    }

    async fn a_sign_of_life_below_a_prefix_counts(env: Env) {
        let world = World::new(env).await;
        let (warden, mut reports) = removing_below(&world.observer, "/");
        let alive = world.mutex().await.lock_with(stating(200, 1_000_000, 1_000_000)).await.unwrap();
        assert_eq!(next(&mut reports).await, ("Expected".into(), alive.path().clone()));
        alive.keep_alive().await.unwrap();
        // Reported again, because its time has restarted.
        assert_eq!(next(&mut reports).await, ("Expected".into(), alive.path().clone()));
        let version = warden.overdue(LOCK).unwrap()[0].entry.version;
        assert_eq!(version, 1);
        assert!(alive.is_held());
    }

    async fn a_prefix_is_watched_over_connections_and_sessions(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let (_warden, mut reports) = removing_below(&client, "/lock");
        removals_go_on(&world, &client, &mut reports).await;
    }

    async fn a_removal_below_a_prefix_with_a_lost_answer_is_reported_once(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let (_warden, mut reports) = removing_below(&client, "/");
        a_removal_is_reported_once(&world, &client, &mut reports).await;
    }

    async fn a_lock_at_rest_below_a_prefix_costs_nothing(env: Env) {
        let world = World::new(env).await;
        let session = world.client().await.session().await.unwrap();
        for number in 0..200 {
            entry(&session, &format!("/l/{number}/_c_a-lock-"), r#"{"v":1}"#).await;
        }
        let client = world.client().await;
        let (_warden, mut reports) = removing_below(&client, "/l");
        // Once this is reported, all have been read.
        let first = entry_of(&session, "/l/first/_c_a-lock-".into()).await;
        assert_eq!(next(&mut reports).await.1, first);
        let before = world.traffic_of(&client);
        let second = entry_of(&session, "/l/second/_c_a-lock-".into()).await;
        assert_eq!(next(&mut reports).await.1, second);
        let cost = world.traffic_of(&client) - before;
        // It is listed and read when it appears, and again when its time has passed, plus twice if its parent's
        // creation is seen first.
        assert!(cost.requests(RequestKind::MultiRead) <= 8, "{cost:?}");
        let watches = [RequestKind::AddWatch, RequestKind::GetChildren, RequestKind::GetData];
        assert_eq!(watches.map(|kind| cost.requests(kind)), [0; 3], "{cost:?}");
    }

    async fn a_warden_that_has_lost_its_lock_removes_nothing(env: Env) {
        let world = World::new(env).await;
        for below in [false, true] {
            let office = Mutex::new(&world.observer, format!("/wardens/{below}")).unwrap();
            let own = office.lock().await.unwrap();
            let builder = Warden::builder(&world.observer);
            let builder = if below {
                builder.watch_prefix("/lock").unwrap()
            } else {
                builder.watch(LOCK).unwrap()
            };
            let (warden, mut reports) = builder.remove_overdue_while(FencingEnforced, own.path()).start();
            let guard = world.mutex().await.lock_with(stating(5, 10, 20)).await.unwrap();
            while next(&mut reports).await.0 != "Removed" {}
            assert_eq!(guard.lost().await, LostReason::Revoked);
            // It does not know of the loss, because another client has removed its entry.
            world.revoke(own.path()).await;
            let guard = world.mutex().await.lock_with(stating(5, 10, 20)).await.unwrap();
            let kept = world.mutex().await;
            while next(&mut reports).await.0 != "AutoUnlock" {}
            // Reports of another lock follow any removal that it may have tried.
            let later = format!("{LOCK}/later");
            let more = Mutex::new(kept.client(), later.as_str()).unwrap();
            let more = more.lock_with(stating(5, 10, 20)).await.unwrap();
            if below {
                while next(&mut reports).await != ("AutoUnlock".into(), more.path().clone()) {}
            } else {
                guard.keep_alive().await.unwrap();
                while next(&mut reports).await.0 != "AutoUnlock" {}
            }
            let queue = lockkeeper::queue(&world.observer, LOCK).await.unwrap();
            assert_eq!(queue.len(), 1, "it is held");
            drop(warden);
            guard.release().await.unwrap();
        }
    }
}

/// Without persistent watches, the server is polled.
#[tokio::test]
async fn without_persistent_watches_a_prefix_is_read_from_time_to_time() {
    let store = TestStore::new();
    let client = store.client().await.unwrap();
    let what = "addWatch";
    store.refuse(
        &client,
        RequestKind::AddWatch,
        Error::Unimplemented { what },
    );
    let (_warden, mut reports) = removing_below(&client, "/");
    store.advance(ms(1)).await;
    let mutex = Mutex::new(&store.client().await.unwrap(), LOCK).unwrap();
    let guard = mutex
        .lock_with(stating(1_000, 20_000, 30_000))
        .await
        .unwrap();
    // Seen at 10 s, and due at 11 s.
    store.advance(ms(10_000)).await;
    assert_eq!(unread(&mut reports).await, [""; 0]);
    store.advance(ms(1_000)).await;
    assert_eq!(unread(&mut reports).await, ["Expected"]);
    store.advance(ms(20_000)).await;
    assert_eq!(unread(&mut reports).await, ["Alert"]);
    guard.keep_alive().await.unwrap();
    store.advance(ms(35_000)).await;
    assert_eq!(unread(&mut reports).await, ["Expected", "Alert"]);
    store.advance(ms(10_000)).await;
    assert_eq!(unread(&mut reports).await, ["AutoUnlock", "Removed"]);
    assert_eq!(guard.lost().await, LostReason::Revoked);
}

async fn entry_of(session: &Session, name: String) -> ZnodePath {
    entry(session, &name, PATIENT).await
}

fn holding_of(holding: &[ZnodePath], name: &str) -> ZnodePath {
    let found = holding.iter().find(|path| path.name().starts_with(name));
    found.unwrap().clone()
}

#[tokio::test]
async fn time_counts_from_the_first_sight_and_from_each_sign_of_life() {
    let store = TestStore::new();
    let mutex = Mutex::new(&store.client().await.unwrap(), LOCK).unwrap();
    let guard = mutex.lock_with(stating(1_000, 2_000, 3_000)).await.unwrap();
    // Time held before the watch started does not count.
    store.advance(ms(60_000)).await;
    let (warden, mut reports) = removing(&store.client().await.unwrap());
    store.advance(ms(999)).await;
    assert_eq!(unread(&mut reports).await, [""; 0]);
    store.advance(ms(1)).await;
    assert_eq!(unread(&mut reports).await, ["Expected"]);
    store.advance(ms(1_999)).await;
    assert_eq!(unread(&mut reports).await, ["Alert"]);
    let overdue = warden.overdue(LOCK).unwrap().remove(0);
    assert_eq!(overdue.level, OverdueLevel::Alert);
    assert_eq!((overdue.seen_for, overdue.over_by), (ms(2_999), ms(999)));

    guard.keep_alive().await.unwrap();
    store.settle().await;
    assert!(warden.overdue_all().is_empty());
    store.advance(ms(2_999)).await;
    assert_eq!(unread(&mut reports).await, ["Expected", "Alert"]);
    assert!(guard.is_held());
    store.advance(ms(1)).await;
    assert_eq!(unread(&mut reports).await, ["AutoUnlock", "Removed"]);
    assert_eq!(guard.lost().await, LostReason::Revoked);
    assert!(matches!(
        guard.keep_alive().await,
        Err(LockError::Lost(LostReason::Revoked))
    ));
}

#[tokio::test]
async fn the_time_of_a_waiter_counts_from_its_turn() {
    let store = TestStore::new();
    let mutex = Mutex::new(&store.client().await.unwrap(), LOCK).unwrap();
    let first = mutex.lock().await.unwrap();
    let (_warden, mut reports) = removing(&store.client().await.unwrap());
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock_with(stating(10, 20, 30)).await }
    });
    store.advance(ms(60_000)).await;
    first.release().await.unwrap();
    let guard = granted(waiter).await;
    store.settle().await;
    store.advance(ms(29)).await;
    assert_eq!(unread(&mut reports).await, ["Expected", "Alert"]);
    assert!(guard.is_held());
    store.advance(ms(1)).await;
    assert_eq!(unread(&mut reports).await, ["AutoUnlock", "Removed"]);
}

#[tokio::test]
async fn a_reconnection_keeps_the_time_and_a_new_session_starts_it_anew() {
    let store = TestStore::new();
    let client = store.client().await.unwrap();
    let mutex = Mutex::new(&store.client().await.unwrap(), LOCK).unwrap();
    let guard = mutex.lock_with(stating(1_000, 2_000, 3_000)).await.unwrap();
    let (warden, mut reports) = removing(&client);
    store.advance(ms(900)).await;
    store.disconnect(&client);
    store.advance(ms(600)).await;
    // The warden does not report holders that it could not read again.
    assert_eq!(unread(&mut reports).await, [""; 0]);
    store.reconnect(&client);
    store.settle().await;
    assert_eq!(unread(&mut reports).await, ["Expected"]);
    store.advance(ms(1_000)).await;
    assert_eq!(unread(&mut reports).await, ["Alert"]);

    store.expire(&client).await.unwrap();
    store.settle().await;
    assert!(warden.overdue_all().is_empty());
    store.advance(ms(2_999)).await;
    assert!(guard.is_held());
    store.advance(ms(1)).await;
    assert_eq!(
        unread(&mut reports).await,
        ["Expected", "Alert", "AutoUnlock", "Removed"]
    );
}

#[tokio::test]
async fn a_holder_alone_costs_a_warden_nothing_however_many_join_behind() {
    let store = TestStore::new();
    let client = store.client().await.unwrap();
    let mutex = Mutex::new(&store.client().await.unwrap(), LOCK).unwrap();
    let guard = mutex.lock().await.unwrap();
    let (_warden, _reports) = watching(&client);
    store.settle().await;
    let before = store.traffic_of(&client);
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    store.settle().await;
    assert_eq!(store.traffic_of(&client) - before, Default::default());
    waiters.iter().for_each(|waiter| waiter.abort());
    guard.release().await.unwrap();
}

/// A holder keeps itself alive about as often as it must, and both it and the warden have faults. A holder that kept
/// itself alive in time is never removed, and a silent one always is.
#[tokio::test]
async fn no_seed_removes_a_holder_too_early_or_never() {
    let mut removals = 0;
    let mut early = 0;
    for (_, seed) in rounds(150).zip(seeds(u64::MAX)) {
        let clock = Clock::new_virtual();
        let base = Store::memory_with(StoreOptions::new().clock(clock));
        let plan = Plan::rough(seed).delays(0.3, ms(0)..ms(2_000));
        let store = TestStore::wrapping(base.connector(), "memory:warden", plan);
        let (removed, kept) = store.run(keeping_alive(&base, &store, seed)).await;
        removals += u64::from(removed);
        early += kept;
    }
    assert!(
        removals > 0 && early > 0,
        "{removals} removals, {early} signs of life"
    );
}

fn watch_departure(base: Session, clock: Clock, entry: ZnodePath) -> Rc<Cell<Option<BootInstant>>> {
    let gone = Rc::new(Cell::new(None));
    let note = gone.clone();
    tokio::task::spawn_local(async move {
        while let (Some(_), watcher) = base.watch_exists(&entry).await.unwrap() {
            let _ = watcher.await;
        }
        note.set(Some(clock.now()));
    });
    gone
}

/// Returns true if the holder was removed while it tried to stay, and how often it kept itself alive.
async fn keeping_alive(base: &Store, store: &TestStore, seed: u64) -> (bool, u64) {
    const UNLOCK: Duration = ms(5_000);
    let clock = store.clock().clone();
    let direct = base.connect().await.unwrap().session().await.unwrap();
    let client = store.client().await.unwrap();
    let (_warden, _reports) = removing(&client);
    let mutex = Mutex::new(&store.client().await.unwrap(), LOCK).unwrap();
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            // Executed no earlier than this, so a removal may follow only `UNLOCK` later.
            let mut alive = clock.now();
            let options = LockOptions::new().auto_unlock_after(UNLOCK);
            let guard = loop {
                match mutex.lock_with(options.clone()).await {
                    Ok(guard) => break guard,
                    Err(error) => assert!(error.is_session_end(), "{error}"),
                }
                alive = clock.now();
            };
            let session = guard.session().clone();
            let gone = watch_departure(direct.clone(), clock.clone(), guard.path().clone());
            let mut kept = 0;
            for round in 0..20 {
                clock
                    .sleep(ms((seed * 7_919 + round * 104_729) % 4_500))
                    .await;
                let sent = clock.now();
                if guard.keep_alive().await.is_err() {
                    break;
                }
                alive = sent;
                kept += 1;
            }
            let was_there = gone.get().is_none();
            // Silent from here. The guard is kept, so only the warden or the end of its session removes it.
            store.heal();
            let silent = clock.now();
            while gone.get().is_none() {
                clock.sleep(ms(100)).await;
                assert!(
                    clock.now() < silent.after(UNLOCK * 3),
                    "seed {seed}: it is never removed"
                );
            }
            let gone = gone.get().unwrap();
            let ended = !session.status().is_alive() || guard.lost().await != LostReason::Revoked;
            assert!(
                ended || gone.since(alive) >= UNLOCK,
                "seed {seed}: removed {:?} after a sign of life",
                gone.since(alive)
            );
            (!was_there && !ended, kept)
        })
        .await
}
