//! The wrapper without faults: events, withdrawals, closing, counts.

use super::*;

#[test]
fn the_watch_on_the_predecessor_passes_through() {
    let world = World::new();
    let ((_a, first), (client, second)) = (world.open(), world.open());
    let join = |session: &Session| {
        let queue = Enqueue {
            parent: path("/q"),
            name: "lock-".into(),
            data: "".into(),
            acl: session.acl().clone(),
            blockers: Blockers::All,
            conditions: Vec::new(),
            count: false,
            queue_data: None,
        };
        now(session.enqueue(queue)).unwrap().unwrap()
    };
    let (mine, _, ahead) = join(&first);
    assert!(matches!(ahead, Predecessor::Clear));
    let (_, _, ahead) = join(&second);
    let Predecessor::Blocked {
        by, mut watcher, ..
    } = ahead
    else {
        panic!("{ahead:?}")
    };
    assert_eq!(by, mine);

    world.store.delay_replies(&client, 5 * MS);
    now(first.delete(&mine, None)).unwrap().unwrap();
    assert!(peek(&mut watcher).is_none());
    world.advance(5 * MS);
    let event = peek(&mut watcher).unwrap().unwrap();
    let released = PredecessorGone::new(true, DeleteReason::Released);
    assert_eq!(
        (event.kind, event.predecessor_gone),
        (EventKind::NodeDeleted, Some(released))
    );
}

#[test]
fn a_dropped_watcher_takes_the_watch_back() {
    let world = World::new();
    let (_client, session) = world.open();
    let (_, once) = now(session.watch_exists(&path("/a"))).unwrap().unwrap();
    let lasting = now(session.add_watch(&path("/a"), WatchMode::Persistent))
        .unwrap()
        .unwrap();
    assert_eq!(world.fake.watches(), 2);
    drop(once);
    assert_eq!(world.fake.watches(), 1);
    drop(lasting);
    assert_eq!(world.fake.watches(), 0);
}

#[test]
fn a_session_is_closed_by_dropping_it() {
    let world = World::new();
    let (client, session) = world.open();
    now(create(&session, "/a")).unwrap().unwrap();
    let id = session.id();
    drop((client, session));
    assert!(world.fake.nodes().is_empty());
    assert_eq!(world.fake.state_of(id), SessionState::Closed);
}

#[test]
fn a_client_that_dies_while_disconnected_cannot_close_its_session() {
    let world = World::new();
    let timeout = Duration::from_secs(10);
    let (client, session) = world.open_with(ConnectOptions::new().session_timeout(timeout));
    now(create(&session, "/a")).unwrap().unwrap();
    let id = session.id();
    world.store.disconnect(&client);
    drop((client, session));
    assert_eq!(world.fake.nodes(), ["/a"]);
    world.advance(2 * timeout);
    assert_eq!(world.fake.state_of(id), SessionState::Expired);
    assert!(world.fake.nodes().is_empty());
    assert_eq!(world.store.clock().next_timer(), None);
}

#[test]
fn requests_that_wait_go_out_before_a_dropped_session_is_closed() {
    let world = World::new();
    let (client, session) = world.open();
    world.store.disconnect_for(&client, 10 * MS);
    let mut call = create(&session, "/a");
    let id = session.id();
    drop((client, session));
    world.advance(10 * MS);
    assert!(peek(&mut call).unwrap().is_ok());
    assert_eq!(world.fake.state_of(id), SessionState::Closed);
}

#[test]
fn closing_answers_and_then_the_session_is_closed() {
    let world = World::new();
    let (client, session) = world.open();
    let closed = Error::SessionClosed {
        session: session.id(),
    };
    let reply = session.submit(Request::Close);
    assert!(now(reply).unwrap().is_ok());
    assert_eq!(session.state(), SessionState::Closed);
    assert_eq!(now(create(&session, "/a")).unwrap().unwrap_err(), closed);
    assert_eq!(now(client.close()), Some(Ok(())));
}

#[test]
fn healing_ends_everything_at_once() {
    let world = World::with(Plan::new(1).delays(1.0, 5 * MS..6 * MS));
    let (client, session) = world.open();
    let mut delayed = create(&session, "/a");
    assert!(peek(&mut delayed).is_none());
    world.store.lose_reply(&client, RequestKind::Any);
    world.store.pause(&client);
    world.store.heal();
    assert!(peek(&mut delayed).unwrap().is_ok());
    assert!(create(&session, "/b").now_or_never().unwrap().is_ok());
    assert_eq!(world.store.clock().next_timer(), None);
}

#[test]
fn traffic_is_counted_for_each_session_and_in_all() {
    let world = World::new();
    let ((one, first), (two, second)) = (world.open(), world.open());
    let (_, watcher) = now(first.watch_exists(&path("/a"))).unwrap().unwrap();
    let before = world.store.traffic();
    now(create(&second, "/a")).unwrap().unwrap();
    now(create(&second, "/b")).unwrap().unwrap();
    let between = world.store.traffic() - before;
    assert_eq!(between.requests(RequestKind::Create), 2);
    assert_eq!(between.requests(RequestKind::Any), 2);
    assert_eq!((between.replies, between.events), (2, 1));
    assert_eq!(between.bytes, 5 * (64 + 2));
    drop(watcher);

    assert_eq!(world.store.traffic_of(&one).events, 1);
    assert_eq!(
        world.store.traffic_of(&two).requests(RequestKind::Create),
        2
    );
    assert_eq!(
        world
            .store
            .traffic_of(&first.session_id())
            .requests(RequestKind::Exists),
        1
    );
}

#[test]
#[should_panic(expected = "is none of those opened through this wrapper")]
fn a_command_for_a_stranger_is_refused() {
    let (world, other) = (World::new(), World::new());
    let (_client, _session) = world.open();
    other.store.pause(&crate::SessionId(1));
}

#[test]
fn a_fake_backend_keeps_its_store_id_through_the_wrapper() {
    let world = World::new();
    let (client, session) = world.open();
    assert_eq!(client.store_id(), Some("fake"));
    assert!(format!("{:?}", session.backend()).starts_with("Wrapped(0x1"));
}
