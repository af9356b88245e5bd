//! Rules that need time to pass, on the embedded store in virtual time.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{
    Acl, Backend, Clock, ConnectOptions, Create, CreateMode, EventKind, Reply, Request,
    SessionState, Store, StoreOptions,
};

use crate::common::*;

const TICK: Duration = Duration::from_secs(2);
const INSTANT: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

fn virtual_store() -> (Clock, Store) {
    let clock = Clock::new_virtual();
    let options = StoreOptions::new()
        .clock(clock.clone())
        .tick(TICK)
        .reaper_interval(MINUTE);
    (clock, Store::memory_with(options))
}

/// Opens the backend of a session, because a `Session` would keep it alive.
async fn idle(store: &Store, timeout: Duration) -> Arc<dyn Backend> {
    let options = ConnectOptions::new().session_timeout(timeout);
    store.connector().open(&options).await.unwrap()
}

#[tokio::test]
async fn rule_14_no_session_expires_early_nor_more_than_a_tick_late() {
    for offset_ms in [0, 1, 700, 1_000, 1_999, 2_000, 3_333] {
        for timeout in [4_000, 4_001, 5_000, 39_999, 40_000].map(Duration::from_millis) {
            let (clock, store) = virtual_store();
            clock.advance(Duration::from_millis(offset_ms));
            let session = idle(&store, timeout).await;
            clock.advance(timeout);
            assert_eq!(
                session.status().state(),
                SessionState::Connected,
                "{offset_ms} {timeout:?}"
            );
            clock.advance(TICK);
            assert_eq!(
                session.status().state(),
                SessionState::Expired,
                "{offset_ms} {timeout:?}"
            );
        }
    }
}

#[tokio::test]
async fn rule_14_sessions_of_one_bucket_expire_together() {
    let (clock, store) = virtual_store();
    let early = idle(&store, Duration::from_secs(5)).await;
    clock.advance(Duration::from_millis(900));
    let late = idle(&store, Duration::from_secs(5)).await;
    let state = |session: &Arc<dyn Backend>| session.status().state();
    for _ in 0..100 {
        clock.advance(Duration::from_millis(100));
        assert_eq!(state(&early), state(&late));
    }
    assert_eq!(state(&late), SessionState::Expired);
}

#[tokio::test]
async fn rule_14_timeouts_are_from_2_to_20_ticks() {
    let (_, store) = virtual_store();
    for (asked, given) in [(1, 4), (4, 4), (17, 17), (40, 40), (1_000, 40)] {
        let session = idle(&store, Duration::from_secs(asked)).await;
        assert_eq!(session.status().timeout(), Some(Duration::from_secs(given)));
    }
}

#[tokio::test]
async fn rule_14_every_request_touches_its_session() {
    let (clock, store) = virtual_store();
    let session = idle(&store, Duration::from_secs(4)).await;
    let untouched = idle(&store, Duration::from_secs(4)).await;
    let (root, watch) = (path("/"), false);
    let create = |at, acl| Create {
        path: path(at),
        data: "".into(),
        mode: CreateMode::Ephemeral,
        acl,
    };
    for request in [
        Request::Exists {
            path: root.clone(),
            watch,
        },
        Request::GetData {
            path: path("/none"),
            watch,
        },
        Request::GetChildren {
            path: root.clone(),
            watch,
        },
        Request::Create(create("/a", Acl::open())),
        Request::SetData {
            path: path("/a"),
            data: "".into(),
            version: None,
        },
        Request::Delete {
            path: path("/a"),
            version: Some(7),
        },
        Request::Multi(vec![]),
        Request::MultiRead(vec![]),
        Request::Sync { path: root.clone() },
        Request::GetEphemerals {
            prefix: root.clone(),
        },
        Request::GetAllChildrenNumber { path: root.clone() },
        Request::GetQueue {
            parent: root,
            limit: 0,
        },
    ] {
        clock.advance(Duration::from_millis(3_999));
        let what = format!("{request:?}");
        let _ = session.submit(request).await;
        assert_eq!(session.status().state(), SessionState::Connected, "{what}");
    }
    assert_eq!(untouched.status().state(), SessionState::Expired);
    let (owner, observer) = (session.status().id(), session_at(&store).await);
    assert_eq!(stat(&observer, "/a").await.ephemeral_owner, owner);
    let (_, mut gone) = observer.watch_exists(&path("/a")).await.unwrap();
    clock.advance(Duration::from_secs(4) + TICK);
    assert_eq!(fired(&mut gone), Some(seen(EventKind::NodeDeleted, "/a")));
}

#[tokio::test]
async fn rule_14_a_session_of_the_stores_own_process_does_not_expire_unless_asked_for() {
    let (clock, store) = virtual_store();
    let session = session_at(&store).await;
    assert_eq!(session.timeout(), None);
    clock.advance(Duration::from_secs(100 * 365 * 24 * 60 * 60));
    assert_eq!(session.state(), SessionState::Connected);
}

#[tokio::test]
async fn rule_17_a_container_goes_after_its_last_child() {
    let (clock, store) = virtual_store();
    let session = session_at(&store).await;
    create(&session, "/c", CreateMode::Container).await;
    make(&session, "/c/1").await;
    clock.advance(10 * MINUTE);
    assert!(is_there(&session, "/c").await, "it has a child");
    session.delete(&path("/c/1"), None).await.unwrap();
    assert!(is_there(&session, "/c").await, "it goes with a sweep");
    let (_, mut gone) = session.watch_exists(&path("/c")).await.unwrap();
    clock.advance(2 * MINUTE);
    assert_eq!(fired(&mut gone), Some(seen(EventKind::NodeDeleted, "/c")));
    assert_eq!(
        session
            .create(&path("/c/2"), "", CreateMode::Persistent)
            .await
            .unwrap_err(),
        no_node("/c"),
        "who comes too late makes it again"
    );
}

#[tokio::test]
async fn rule_17_a_container_that_is_used_again_stays() {
    let (clock, store) = virtual_store();
    let session = session_at(&store).await;
    create(&session, "/c", CreateMode::Container).await;
    for _ in 0..10 {
        let (child, _) = create(&session, "/c/n-", CreateMode::EphemeralSequential).await;
        clock.advance(MINUTE);
        assert!(is_there(&session, "/c").await);
        session.delete(&child, None).await.unwrap();
        create(&session, "/c/n-", CreateMode::PersistentSequential).await;
    }
}

#[tokio::test]
async fn rule_17_a_container_that_was_never_used_goes_after_5_minutes() {
    let (clock, store) = virtual_store();
    let session = session_at(&store).await;
    create(&session, "/c", CreateMode::Container).await;
    clock.advance(5 * MINUTE - INSTANT);
    assert!(is_there(&session, "/c").await);
    clock.advance(2 * MINUTE);
    assert!(!is_there(&session, "/c").await);
}

#[tokio::test]
async fn rule_17_containers_in_containers_go_one_after_the_other() {
    let (clock, store) = virtual_store();
    let session = session_at(&store).await;
    session
        .create_all(&path("/a/b/c"), CreateMode::Container)
        .await
        .unwrap();
    session
        .create_all(&path("/c1"), CreateMode::Container)
        .await
        .unwrap();
    create(&session, "/c1/c2", CreateMode::Container).await;
    make(&session, "/c1/c2/x").await;
    session.delete(&path("/c1/c2/x"), None).await.unwrap();
    clock.advance(10 * MINUTE);
    assert!(!is_there(&session, "/c1").await);
    assert!(
        !is_there(&session, "/a").await,
        "what is above a container was made a container, too"
    );
}

#[tokio::test]
async fn rule_18_a_ttl_counts_from_the_last_change_of_a_childless_znode() {
    let (clock, store) = virtual_store();
    let session = session_at(&store).await;
    let ttl = 3 * MINUTE;
    create(&session, "/t", CreateMode::PersistentTtl(ttl)).await;
    clock.advance(ttl - INSTANT);
    assert!(is_there(&session, "/t").await);
    session.set_data(&path("/t"), "", None).await.unwrap();
    clock.advance(ttl - INSTANT);
    assert!(is_there(&session, "/t").await, "it was changed");
    make(&session, "/t/child").await;
    clock.advance(10 * ttl);
    assert!(is_there(&session, "/t").await, "it has a child");
    session.delete(&path("/t/child"), None).await.unwrap();
    let (_, mut gone) = session.watch_exists(&path("/t")).await.unwrap();
    clock.advance(2 * MINUTE);
    assert_eq!(fired(&mut gone), Some(seen(EventKind::NodeDeleted, "/t")));
}

#[tokio::test]
async fn rule_18_a_setting_must_allow_a_ttl() {
    let store = Store::memory_with(StoreOptions::new().allow_ttl(false));
    let session = session_at(&store).await;
    for mode in [
        CreateMode::PersistentTtl(MINUTE),
        CreateMode::PersistentSequentialTtl(MINUTE),
    ] {
        let refused = session.create(&path("/t"), "", mode).await;
        assert!(
            matches!(refused, Err(lockkeeper_store::Error::Unimplemented { .. })),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn rule_09_zxids_of_a_store_start_above_the_clock() {
    let (_, store) = virtual_store();
    let session = session_at(&store).await;
    let made = make(&session, "/a").await;
    assert!(made.czxid.0 > made.ctime << 20);
}

#[tokio::test]
async fn rule_01_a_watch_event_says_its_zxid() {
    let (_, store) = virtual_store();
    let session = session_at(&store).await;
    let (_, mut created) = session.watch_exists(&path("/a")).await.unwrap();
    let made = make(&session, "/a").await;
    assert_eq!(now(&mut created).unwrap().unwrap().zxid, Some(made.czxid));
    let (_, _, mut changed) = session.watch_data(&path("/a")).await.unwrap();
    let Reply::Stat(set) = session
        .submit(Request::SetData {
            path: path("/a"),
            data: "".into(),
            version: None,
        })
        .await
        .unwrap()
    else {
        panic!("setData answers a Stat")
    };
    assert_eq!(now(&mut changed).unwrap().unwrap().zxid, Some(set.mzxid));
}
