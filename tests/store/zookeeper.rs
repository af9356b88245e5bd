//! Behaviour that needs a real ZooKeeper: the wire, reconnections and the end of a session.

use std::time::Duration;

use lockkeeper_store::{
    Client, ConnectOptions, CreateMode, Error, EventKind, Op, OpReply, Predecessor, ReadOp,
    ReadReply, Session, SessionState, WatchMode, connect_with,
};
use testkit::{Env, Frame, Proxy, unique, within_reason, zookeeper};

use crate::common::*;

async fn wired() -> (Proxy, Client, Session) {
    wired_at(&unique("wired")).await
}

async fn wired_at(chroot: &str) -> (Proxy, Client, Session) {
    let proxy = Proxy::to(zookeeper().address());
    let url = format!("zookeeper://{}/{chroot}", proxy.hosts());
    let client = connect_with(url.as_str(), ConnectOptions::new().create_chroot())
        .await
        .unwrap();
    let session = client.session().await.unwrap();
    proxy.take_frames();
    (proxy, client, session)
}

#[tokio::test]
async fn joining_a_queue_is_one_round_trip() {
    let (proxy, client, session) = wired().await;
    make(&session, "/q").await;
    proxy.take_frames();
    proxy.hold_replies();
    let joining = session.enqueue(entry("/q", "lock-"));
    let operation = |wanted| move |frame: &Frame| frame.to_server && frame.operation == wanted;
    let (create2, get_children) = (operation(15), operation(8));
    proxy.wait_for(create2);
    proxy.wait_for(get_children);
    proxy.mend();
    let (made, czxid, ahead) = joining.await.unwrap();
    assert_eq!(made.as_str(), "/q/lock-0000000000");
    let stat = session.exists(&made).await.unwrap().unwrap();
    assert_eq!((stat.czxid, stat.ephemeral_owner), (czxid, session.id()));
    let Predecessor::Listed(names) = ahead else {
        panic!("{ahead:?}")
    };
    assert_eq!(names, ["lock-0000000000"]);
    client.close().await.unwrap();
}

#[tokio::test]
async fn a_reply_that_is_lost_with_the_connection_is_a_connection_loss() {
    let chroot = unique("wired");
    let (proxy, client, session) = wired_at(&chroot).await;
    let direct = format!("zookeeper://{}/{chroot}", zookeeper().address());
    let direct = connect_with(direct.as_str(), ConnectOptions::new())
        .await
        .unwrap();
    let observer = direct.session().await.unwrap();
    make(&session, "/q").await;
    let mut states = session.states();
    proxy.hold_replies();
    let joining = session.enqueue(entry("/q", "lock-"));
    // The proxy has replies that it has not read, so a cut resets the server's connection, and the server drops what it has
    // not read.
    loop {
        let (names, _, changed) = observer.watch_children(&path("/q")).await.unwrap();
        if !names.is_empty() {
            break;
        }
        changed.await.unwrap();
    }
    proxy.cut();
    assert_eq!(states.next().await, Some(SessionState::Suspended));
    let waiting = session.get_children(&path("/q"));
    assert_eq!(joining.await.unwrap_err(), Error::ConnectionLoss);
    let connection = session.status().connection();
    proxy.mend();
    assert_eq!(states.next().await, Some(SessionState::Reconnected));
    assert_eq!(session.status().connection(), connection + 1);
    let (names, _) = waiting.await.unwrap();
    assert_eq!(
        names,
        ["lock-0000000000"],
        "the create was carried out, its answer lost"
    );
    client.close().await.unwrap();
}

#[tokio::test]
async fn a_reply_of_a_new_connection_comes_after_the_new_connection() {
    let (proxy, client, session) = wired().await;
    for round in 2..12 {
        proxy.break_off();
        // The request may fail with the old connection or succeed on the new one.
        while session.exists(&path("/")).await.is_err() {}
        let suspended = session.state() == SessionState::Suspended;
        assert!(
            !suspended && session.status().connection() <= round,
            "{session:?}"
        );
    }
    client.close().await.unwrap();
}

#[tokio::test]
async fn one_shot_watches_outlive_a_connection() {
    let (proxy, client, session) = wired().await;
    let direct = client
        .target()
        .replace(&proxy.hosts(), &zookeeper().hosts());
    let other = connect_with(direct.as_str(), ConnectOptions::new())
        .await
        .unwrap();
    let other = other.session().await.unwrap();
    make(&session, "/a").await;
    let (_, _, changed) = session.watch_data(&path("/a")).await.unwrap();
    let (_, created) = session.watch_exists(&path("/b")).await.unwrap();
    let (_, _, listed) = session.watch_children(&path("/a")).await.unwrap();
    let connection = session.status().connection();
    proxy.cut();
    other.set_data(&path("/a"), "new", None).await.unwrap();
    make(&other, "/b").await;
    make(&other, "/a/c").await;
    proxy.mend();
    assert_eq!(changed.await.unwrap().kind, EventKind::NodeDataChanged);
    assert_eq!(session.status().connection(), connection + 1);
    assert_eq!(created.await.unwrap().kind, EventKind::NodeCreated);
    assert_eq!(listed.await.unwrap().path, path("/a"));
    client.close().await.unwrap();
}

#[tokio::test]
async fn a_persistent_watch_tells_of_a_reconnection_and_goes_on() {
    let (proxy, client, session) = wired().await;
    let mut watcher = session
        .add_watch(&path("/a"), WatchMode::PersistentRecursive)
        .await
        .unwrap();
    make(&session, "/a").await;
    assert_eq!(
        watcher.next().await.unwrap().unwrap().kind,
        EventKind::NodeCreated
    );
    for name in ["/a/1", "/a/2"] {
        proxy.break_off();
        assert_eq!(watcher.next().await, Some(Err(Error::ConnectionLoss)));
        make(&session, name).await;
        let event = watcher.next().await.unwrap().unwrap();
        assert_eq!(
            (event.kind, event.path.as_str()),
            (EventKind::NodeCreated, name)
        );
    }
    client.close().await.unwrap();
    let end = Error::SessionClosed {
        session: session.id(),
    };
    assert_eq!(watcher.next().await, Some(Err(end)));
    assert_eq!(watcher.next().await, None);
}

#[tokio::test]
async fn closing_does_not_wait_for_requests_that_are_not_polled() {
    let (proxy, client, session) = wired().await;
    create(&session, "/mine", CreateMode::Ephemeral).await;
    let unpolled = session.get_data(&path("/mine"));
    within_reason(client.close()).await.unwrap();
    assert_eq!(session.state(), SessionState::Closed);
    assert_eq!(unpolled.await.unwrap().1.ephemeral_owner, session.id());
    let late = session.exists(&path("/mine")).await;
    assert_eq!(
        late,
        Err(Error::SessionClosed {
            session: session.id()
        })
    );
    drop(proxy);
}

#[tokio::test]
async fn closing_without_a_connection_ends_with_the_connect_timeout() {
    let proxy = Proxy::to(zookeeper().address());
    let url = format!("zookeeper://{}", proxy.hosts());
    let options = ConnectOptions::new().connect_timeout(Duration::from_secs(1));
    let client = connect_with(url.as_str(), options).await.unwrap();
    let session = client.session().await.unwrap();
    let mut states = session.states();
    proxy.cut();
    assert_eq!(states.next().await, Some(SessionState::Suspended));
    assert_eq!(client.close().await, Err(Error::ConnectionLoss));
    assert_eq!(session.state(), SessionState::Closed);
}

#[tokio::test]
async fn a_session_that_the_store_ends_takes_its_znodes_and_its_watchers() {
    let env = Env::zookeeper().await;
    let (client, other) = (env.client().await, env.session().await);
    let session = client.session().await.unwrap();
    create(&session, "/mine", CreateMode::Ephemeral).await;
    let (_, own) = session.watch_exists(&path("/other")).await.unwrap();
    let (_, gone) = other.watch_exists(&path("/mine")).await.unwrap();
    env.expire(&client).await;
    assert_eq!(session.state(), SessionState::Expired);
    env.expire(&client).await; // no error if it has ended already
    assert_eq!(gone.await.unwrap().kind, EventKind::NodeDeleted);
    let expired = Error::SessionExpired {
        session: session.id(),
    };
    assert_eq!(own.await, Err(expired.clone()));
    assert_eq!(session.exists(&path("/mine")).await, Err(expired));
    assert_ne!(client.session().await.unwrap().id(), session.id());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_told_by_a_watch_gives_a_new_session_at_once() {
    let env = Env::zookeeper().await;
    let client = env.client().await;
    for _ in 0..50 {
        let session = client.session().await.unwrap();
        let (_, watcher) = session.watch_exists(&path("/nothing")).await.unwrap();
        let told = tokio::spawn({
            let (client, session) = (client.clone(), session.clone());
            async move { (watcher.await, session.state(), client.session().await) }
        });
        env.expire(&client).await;
        let (event, state, next) = told.await.unwrap();
        let event = event.unwrap_err();
        assert!(matches!(event, Error::SessionExpired { .. }), "{event}");
        assert_eq!(state, SessionState::Expired);
        assert_ne!(next.unwrap().id(), session.id());
    }
}

#[tokio::test]
async fn clients_of_one_store_find_one_id() {
    let env = Env::zookeeper().await;
    let (one, two) = tokio::join!(env.client(), env.client());
    assert!(one.store_id().is_some());
    assert_eq!(one.store_id(), two.store_id());
    assert_ne!(
        one.store_id(),
        Env::zookeeper().await.client().await.store_id()
    );
}

/// A tool that copies znodes between stores also copies the id.
#[tokio::test]
async fn an_id_that_was_copied_is_not_the_same_stores() {
    let (one, other) = (Env::zookeeper().await, Env::zookeeper().await);
    let id = path("/lockkeeper.id");
    let (data, _) = one.session().await.get_data(&id).await.unwrap();
    let session = other.session().await;
    session.set_data(&id, data, None).await.unwrap();
    let (one, other) = tokio::join!(one.client(), other.client());
    assert_ne!(one.store_id(), other.store_id());
}

#[tokio::test]
async fn a_single_server_is_no_ensemble() {
    let session = Env::zookeeper().await.session().await;
    assert!(!session.status().quorum_only());
    assert_eq!(session.timeout(), Some(Duration::from_secs(15)));
}

#[tokio::test]
async fn paths_in_answers_are_those_below_the_chroot() {
    let session = Env::zookeeper().await.session().await;
    let replies = session.multi([
        create_op("/a", CreateMode::Persistent),
        create_op("/a/n-", CreateMode::EphemeralSequential),
    ]);
    let made: Vec<_> = replies.await.unwrap();
    let [
        OpReply::Created { .. },
        OpReply::Created {
            path: numbered,
            stat: None,
        },
    ] = &made[..]
    else {
        panic!("3.8 says no Stat in a multi: {made:?}");
    };
    assert_eq!(numbered.as_str(), "/a/n-0000000000");
    assert_eq!(
        session.get_ephemerals(&path("/")).await.unwrap(),
        std::slice::from_ref(numbered)
    );
    let (_, gone) = session.watch_exists(numbered).await.unwrap();
    session.delete(numbered, None).await.unwrap();
    assert_eq!(gone.await.unwrap().path, *numbered);
    assert_eq!(
        session.get_all_children_number(&path("/a")).await.unwrap(),
        0
    );
}

#[tokio::test]
async fn a_long_chroot_counts_before_every_path() {
    let chroot = format!("{}{}", unique("long"), "x".repeat(3_000));
    let url = format!("zookeeper://{}/{chroot}", zookeeper().hosts());
    let options = ConnectOptions::new().create_chroot();
    let client = connect_with(url.as_str(), options).await.unwrap();
    let session = client.session().await.unwrap();
    make(&session, "/a").await;
    let connection = session.status().connection();
    let checks = |count| {
        let check = Op::Check {
            path: path("/a"),
            version: None,
        };
        session.multi(vec![check; count])
    };
    let Err(Error::TooLarge { actual, limit, .. }) = checks(500).await else {
        panic!("500 such paths are too long for a request");
    };
    assert!(actual > limit);
    checks(500 * limit / actual).await.unwrap();
    assert_eq!(session.status().connection(), connection);
    client.close().await.unwrap();
}

/// ZooKeeper's op code of multiRead, known since 3.6.
const MULTI_READ: i32 = 22;

#[tokio::test]
async fn a_server_that_knows_no_multi_read_is_asked_one_by_one() {
    let (proxy, client, session) = wired().await;
    make(&session, "/a").await;
    make(&session, "/a/b").await;
    proxy.forget(MULTI_READ);
    for _ in 0..2 {
        let reads = [
            ReadOp::GetData(path("/a")),
            ReadOp::GetChildren(path("/a")),
            ReadOp::GetData(path("/none")),
        ];
        let found = session.multi_read(reads).await.unwrap();
        let [
            ReadReply::Data { stat, .. },
            ReadReply::Children(names),
            ReadReply::Failed(Error::NoNode { path: missing }),
        ] = &found[..]
        else {
            panic!("{found:?}");
        };
        assert_eq!(stat.num_children, 1);
        assert_eq!(
            (&names[..], missing.as_str()),
            (&["b".to_owned()][..], "/none")
        );
    }
    let tries = proxy.take_frames();
    let tries = tries.iter().filter(|frame| frame.operation == 999).count();
    assert_eq!(tries, 1, "it is asked for that no more");
    client.close().await.unwrap();
}
