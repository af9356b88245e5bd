//! The delivery of requests and replies, and their order.

use super::*;

#[test]
fn without_faults_an_answer_that_is_there_passes_at_once() {
    let world = World::new();
    let (_client, session) = world.open();
    create(&session, "/a").now_or_never().unwrap().unwrap();
    let exists = create(&session, "/a").now_or_never().unwrap();
    assert_eq!(exists.unwrap_err(), Error::NodeExists { path: "/a".into() });
}

#[test]
fn a_lost_request_never_reaches_the_store() {
    let world = World::lossy();
    let (client, session) = world.open();
    world.store.lose_request(&client, RequestKind::Create);
    assert!(now(session.exists(&path("/a"))).unwrap().is_ok());
    let lost = create(&session, "/a");
    assert_eq!(now(lost).unwrap().unwrap_err(), Error::ConnectionLoss);
    assert_eq!(session.state(), SessionState::Suspended);
    assert_eq!(world.log(), ["1 exists /a"]);

    world.advance(9 * MS);
    assert_eq!(session.state(), SessionState::Suspended);
    world.advance(MS);
    assert_eq!(session.state(), SessionState::Reconnected);
    assert!(now(create(&session, "/a")).unwrap().is_ok());
}

#[test]
fn a_lost_reply_is_lost_after_the_request_was_carried_out() {
    let world = World::lossy();
    let (client, session) = world.open();
    world.store.lose_reply(&client, RequestKind::Any);
    assert_eq!(
        now(create(&session, "/a")).unwrap().unwrap_err(),
        Error::ConnectionLoss
    );
    assert_eq!(world.fake.nodes(), ["/a"]);
    world.advance(10 * MS);
    assert_eq!(session.state(), SessionState::Reconnected);
    assert_eq!(session.status().connection(), 2);
}

#[test]
fn a_garbled_reply_leaves_the_request_done_and_the_connection_up() {
    let world = World::lossy();
    let (client, session) = world.open();
    world.store.garble_reply(&client, RequestKind::Create);
    let garbled = now(create(&session, "/a")).unwrap().unwrap_err();
    assert!(matches!(garbled, Error::Protocol(_)), "{garbled}");
    assert_eq!(world.fake.nodes(), ["/a"]);
    assert_eq!(session.state(), SessionState::Connected);
    world.store.garble_reply(&client, RequestKind::Create);
    let refused = now(create(&session, "/a")).unwrap().unwrap_err();
    assert_eq!(refused, Error::NodeExists { path: "/a".into() });
}

#[test]
fn a_refused_request_never_reaches_the_store_and_the_connection_is_up() {
    let world = World::lossy();
    let (client, session) = world.open();
    let refusal = Error::DiskFull { path: "/".into() };
    world
        .store
        .refuse(&client, RequestKind::Create, refusal.clone());
    let refused = now(create(&session, "/a")).unwrap().unwrap_err();
    assert_eq!(refused, refusal);
    assert!(world.log().is_empty());
    assert_eq!(session.state(), SessionState::Connected);
    assert!(now(create(&session, "/a")).unwrap().is_ok());
}

#[test]
fn a_plan_refuses_deletes_at_any_version_alone() {
    let world = World::with(Plan::calm().refusals(1.0));
    let (_client, session) = world.open();
    assert!(now(create(&session, "/a")).unwrap().is_ok());
    for delete in [
        session.delete(&path("/a"), None),
        session.withdraw(&path("/a")),
    ] {
        let refused = now(delete).unwrap().unwrap_err();
        assert!(matches!(refused, Error::LimitReached { .. }), "{refused}");
    }
    assert_eq!(now(session.delete(&path("/a"), Some(0))).unwrap(), Ok(()));
}

#[test]
fn sessions_believe_committed_writes_alone_where_they_are_told_to() {
    let world = World::new();
    let options = ConnectOptions::new().session_timeout(Duration::from_secs(10));
    let (_client, session) = world.open_with(options.clone());
    world.store.prove_by_quorum();
    let (_other, told) = world.open_with(options);
    assert!(!session.status().quorum_only());
    assert!(told.status().quorum_only());
}

#[test]
fn every_unanswered_request_fails_when_the_connection_breaks() {
    let world = World::lossy();
    let (client, session) = world.open();
    world.fake.tree().slow = true;
    let mut first = create(&session, "/a");
    world.store.lose_request(&client, RequestKind::Delete);
    assert!(peek(&mut first).is_none());
    let second = session.delete(&path("/a"), None);
    assert_eq!(now(first).unwrap().unwrap_err(), Error::ConnectionLoss);
    assert_eq!(now(second).unwrap().unwrap_err(), Error::ConnectionLoss);
    assert_eq!(world.log(), ["1 create /a"]);
}

#[test]
fn the_answers_before_a_lost_reply_come_and_those_after_it_do_not() {
    let world = World::lossy();
    let (client, session) = world.open();
    world.fake.tree().slow = true;
    world.store.lose_reply(&client, RequestKind::SetData);
    let before = create(&session, "/a");
    let lost = session.set_data(&path("/a"), "x", None);
    let after = create(&session, "/b");
    world.fake.release();
    assert!(now(before).unwrap().is_ok());
    assert_eq!(now(lost).unwrap().unwrap_err(), Error::ConnectionLoss);
    assert_eq!(now(after).unwrap().unwrap_err(), Error::ConnectionLoss);
    assert_eq!(world.fake.nodes(), ["/a", "/b"]);
}

#[test]
fn delayed_replies_keep_their_order() {
    let world = World::new();
    let (client, session) = world.open();
    world.store.delay_replies(&client, 20 * MS);
    let mut first = create(&session, "/a");
    world.store.delay_replies(&client, Duration::ZERO);
    world.advance(5 * MS);
    let mut second = create(&session, "/b");
    assert_eq!(world.fake.nodes(), ["/a", "/b"]);

    world.advance(14 * MS);
    assert!(peek(&mut first).is_none() && peek(&mut second).is_none());
    world.advance(MS);
    assert!(peek(&mut first).is_some() && peek(&mut second).is_some());
}

#[test]
fn delays_reorder_what_different_sessions_see() {
    let world = World::new();
    let ((slow, first), (_fast, second)) = (world.open(), world.open());
    world.store.delay_replies(&slow, 20 * MS);
    let mut early = create(&first, "/a");
    assert!(now(create(&second, "/b")).unwrap().is_ok());
    assert!(peek(&mut early).is_none());
    world.advance(20 * MS);
    assert!(peek(&mut early).unwrap().is_ok());
}

#[test]
fn an_event_is_there_before_any_later_reply() {
    let world = World::new();
    let ((client, watching), (_other, acting)) = (world.open(), world.open());
    let (_, mut watcher) = now(watching.watch_exists(&path("/a"))).unwrap().unwrap();
    world.store.delay_replies(&client, 20 * MS);
    let mut earlier = watching.exists(&path("/a"));
    world.advance(5 * MS);
    now(create(&acting, "/a")).unwrap().unwrap();
    world.store.delay_replies(&client, Duration::ZERO);
    let mut later = watching.exists(&path("/a"));

    // The earlier reply delays the event, and the event delays the later reply.
    world.advance(15 * MS);
    assert_eq!(peek(&mut earlier).unwrap(), Ok(None));
    assert!(peek(&mut watcher).is_none());
    assert!(peek(&mut later).is_none());
    world.advance(5 * MS);
    assert_eq!(kind_of(peek(&mut watcher)), Some(EventKind::NodeCreated));
    assert!(matches!(peek(&mut later), Some(Ok(Some(_)))));
}

#[test]
fn the_event_of_a_sessions_own_request_comes_before_its_reply() {
    let world = World::new();
    let (_client, session) = world.open();
    let (_, mut watcher) = now(session.watch_exists(&path("/a"))).unwrap().unwrap();
    let created = create(&session, "/a").now_or_never();
    assert_eq!(kind_of(peek(&mut watcher)), Some(EventKind::NodeCreated));
    assert!(created.is_ok());
}
