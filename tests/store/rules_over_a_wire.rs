//! The rules that only a real server and its wire can show.

use std::time::Duration;

use lockkeeper_store::{
    Client, ConnectOptions, CreateMode, Error, EventKind, OpReply, Session, SessionState,
    WatchMode, connect_with,
};

use crate::common::*;
use crate::support::{Env, Proxy, unique, within_reason, zookeeper};

/// A client whose wire the test holds, and a session beside it.
async fn wired(options: ConnectOptions) -> (Proxy, Client, Session) {
    let proxy = Proxy::to(zookeeper().address());
    let chroot = unique("rule");
    let url = format!("zookeeper://{}/{chroot}", proxy.hosts());
    let client = connect_with(url.as_str(), options.create_chroot())
        .await
        .unwrap();
    let url = format!("zookeeper://{}/{chroot}", zookeeper().hosts());
    let other = connect_with(url.as_str(), ConnectOptions::new())
        .await
        .unwrap();
    (proxy, client, other.session().await.unwrap())
}

#[tokio::test]
async fn rule_13_a_session_is_taken_up_again_or_is_over_and_never_another() {
    let timeout = Duration::from_secs(1);
    let options = ConnectOptions::new().session_timeout(timeout);
    let (proxy, client, other) = wired(options).await;
    let session = client.session().await.unwrap();
    let id = session.id();
    create(&session, "/e", CreateMode::Ephemeral).await;
    let mut states = session.states();

    proxy.break_off();
    assert_eq!(states.next().await, Some(SessionState::Suspended));
    assert_eq!(states.next().await, Some(SessionState::Reconnected));
    assert_eq!(stat(&session, "/e").await.ephemeral_owner, id);

    let (_, gone) = other.watch_exists(&path("/e")).await.unwrap();
    proxy.cut();
    assert_eq!(states.next().await, Some(SessionState::Suspended));
    assert!(!session.state().is_connected());
    assert_eq!(
        event(within_reason(gone).await),
        seen(EventKind::NodeDeleted, "/e")
    );
    assert!(
        !session.status().may_hold(0),
        "it had stopped to believe before the server let go"
    );
    proxy.mend();
    assert_eq!(
        within_reason(states.next()).await,
        Some(SessionState::Expired)
    );
    assert_eq!(states.next().await, None);
    assert_eq!(session.id(), id);
    assert_eq!(
        session.exists(&path("/e")).await,
        Err(Error::SessionExpired { session: id })
    );
    let new = client.session().await.unwrap();
    assert_ne!(new.id(), id);
    assert!(!is_there(&new, "/e").await);
}

#[tokio::test]
async fn rule_17_a_container_goes_after_its_last_child_on_a_server() {
    let session = Env::zookeeper().await.session().await;
    create(&session, "/c", CreateMode::Container).await;
    let (child, _) = create(&session, "/c/n-", CreateMode::EphemeralSequential).await;
    let (_, gone) = session.watch_exists(&path("/c")).await.unwrap();
    session.delete(&child, None).await.unwrap();
    assert_eq!(
        event(within_reason(gone).await),
        seen(EventKind::NodeDeleted, "/c")
    );
}

#[tokio::test]
async fn rule_18_a_ttl_znode_goes_when_its_time_has_passed_on_a_server() {
    let session = Env::zookeeper().await.session().await;
    create(
        &session,
        "/t",
        CreateMode::PersistentTtl(Duration::from_millis(1)),
    )
    .await;
    let (stat, gone) = session.watch_exists(&path("/t")).await.unwrap();
    // The sweep may have come before the watch.
    if stat.is_some() {
        assert_eq!(
            event(within_reason(gone).await),
            seen(EventKind::NodeDeleted, "/t")
        );
    }
    assert!(!is_there(&session, "/t").await);
}

#[tokio::test]
async fn rule_19_what_happened_while_disconnected_fires_the_watches() {
    let (proxy, client, other) = wired(ConnectOptions::new()).await;
    let session = client.session().await.unwrap();
    for at in ["/changed", "/deleted", "/parent", "/parent/b", "/same"] {
        make(&session, at).await;
    }
    let (_, _, changed) = session.watch_data(&path("/changed")).await.unwrap();
    let (_, _, deleted) = session.watch_data(&path("/deleted")).await.unwrap();
    let (_, missing) = session.watch_exists(&path("/deleted")).await.unwrap();
    let (_, _, list) = session.watch_children(&path("/parent")).await.unwrap();
    let (_, made) = session.watch_exists(&path("/made")).await.unwrap();
    let (_, _, mut same) = session.watch_data(&path("/same")).await.unwrap();
    let (_, mut never) = session.watch_exists(&path("/never")).await.unwrap();
    let mut states = session.states();
    proxy.cut();
    assert_eq!(states.next().await, Some(SessionState::Suspended));
    other
        .set_data(&path("/changed"), "new", None)
        .await
        .unwrap();
    other.delete(&path("/deleted"), None).await.unwrap();
    other.delete(&path("/parent/b"), None).await.unwrap();
    make(&other, "/made").await;
    proxy.mend();
    assert_eq!(
        event(changed.await),
        seen(EventKind::NodeDataChanged, "/changed")
    );
    assert_eq!(
        event(deleted.await),
        seen(EventKind::NodeDeleted, "/deleted")
    );
    assert_eq!(
        event(missing.await),
        seen(EventKind::NodeDeleted, "/deleted")
    );
    assert_eq!(
        event(list.await),
        seen(EventKind::NodeChildrenChanged, "/parent")
    );
    assert_eq!(event(made.await), seen(EventKind::NodeCreated, "/made"));

    barrier(&session).await;
    assert_eq!((fired(&mut same), fired(&mut never)), (None, None));
    other.set_data(&path("/same"), "new", None).await.unwrap();
    make(&other, "/never").await;
    assert_eq!(event(same.await), seen(EventKind::NodeDataChanged, "/same"));
    assert_eq!(event(never.await), seen(EventKind::NodeCreated, "/never"));
}

#[tokio::test]
async fn rule_21_a_chroot_shows_in_no_answer_and_no_event() {
    let (top, chroot) = (
        format!("zookeeper://{}", zookeeper().hosts()),
        unique("chroot"),
    );
    let session_at = async |url: &str| {
        let client = connect_with(url, ConnectOptions::new().create_chroot())
            .await
            .unwrap();
        client.session().await.unwrap()
    };
    let (root, inner) = (
        session_at(&top).await,
        session_at(&format!("{top}/{chroot}/app")).await,
    );
    let outside = |at: &str| format!("/{chroot}/app{at}");

    let (_, made) = inner.watch_exists(&path("/a")).await.unwrap();
    let mut all = inner
        .add_watch(&path("/"), WatchMode::PersistentRecursive)
        .await
        .unwrap();
    make(&root, &outside("/a")).await;
    assert_eq!(event(made.await), seen(EventKind::NodeCreated, "/a"));
    let (numbered, _) = create(&inner, "/a/n-", CreateMode::EphemeralSequential).await;
    assert_eq!(numbered.as_str(), "/a/n-0000000000");
    let replies = inner
        .multi([create_op("/a/n-", CreateMode::PersistentSequential)])
        .await
        .unwrap();
    let [OpReply::Created { path: in_multi, .. }] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!(in_multi.as_str(), "/a/n-0000000001");
    assert_eq!(inner.get_ephemerals(&path("/")).await.unwrap(), [numbered]);
    assert!(is_there(&root, &outside("/a/n-0000000001")).await);
    assert_eq!(
        inner.get_data(&path("/b")).await.unwrap_err(),
        no_node("/b")
    );
    let expected = ["/a", "/a/n-0000000000", "/a/n-0000000001"];
    assert_eq!(
        all_fired(&mut all),
        expected.map(|at| seen(EventKind::NodeCreated, at))
    );
}
