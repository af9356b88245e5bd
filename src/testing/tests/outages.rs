//! Broken connections, stopped clients, and sessions that end as a result.

use super::*;

#[test]
fn requests_wait_for_the_connection_and_go_out_in_order() {
    let world = World::new();
    let (client, session) = world.open();
    world.store.disconnect(&client);
    assert_eq!(session.state(), SessionState::Suspended);
    let mut calls: Vec<_> = ["/a", "/b", "/c"].map(|at| create(&session, at)).into();
    assert!(calls.iter_mut().all(|call| peek(call).is_none()));
    world.advance(Duration::from_secs(3600));
    assert!(world.log().is_empty());

    world.store.reconnect(&client);
    assert_eq!(session.state(), SessionState::Reconnected);
    assert_eq!(world.log(), ["1 create /a", "1 create /b", "1 create /c"]);
    assert!(calls.iter_mut().all(|call| peek(call).unwrap().is_ok()));
}

#[test]
fn a_watch_stays_armed_while_the_connection_is_broken() {
    let world = World::new();
    let ((client, watching), (_other, acting)) = (world.open(), world.open());
    let (_, mut watcher) = now(watching.watch_exists(&path("/a"))).unwrap().unwrap();
    world.store.disconnect_for(&client, 10 * MS);
    let mut later = watching.exists(&path("/a"));
    now(create(&acting, "/a")).unwrap().unwrap();
    assert!(peek(&mut watcher).is_none());

    world.advance(10 * MS);
    assert_eq!(kind_of(peek(&mut watcher)), Some(EventKind::NodeCreated));
    assert!(matches!(peek(&mut later), Some(Ok(Some(_)))));
}

#[test]
fn a_lasting_watch_misses_what_happened_while_the_connection_was_broken_and_says_so() {
    let world = World::new();
    let ((client, watching), (_other, acting)) = (world.open(), world.open());
    let mut watcher = now(watching.add_watch(&path("/a"), WatchMode::Persistent))
        .unwrap()
        .unwrap();
    now(create(&acting, "/a")).unwrap().unwrap();
    assert_eq!(
        kind_of(now(watcher.next()).unwrap()),
        Some(EventKind::NodeCreated)
    );

    world.store.disconnect(&client);
    now(acting.set_data(&path("/a"), "", None))
        .unwrap()
        .unwrap();
    assert!(now(watcher.next()).is_none());
    world.store.reconnect(&client);
    assert_eq!(
        now(watcher.next()).unwrap(),
        Some(Err(Error::ConnectionLoss))
    );
    now(acting.delete(&path("/a"), None)).unwrap().unwrap();
    assert_eq!(
        kind_of(now(watcher.next()).unwrap()),
        Some(EventKind::NodeDeleted)
    );
    assert!(now(watcher.next()).is_none());
}

#[test]
fn an_expired_session_fails_its_requests_and_watches() {
    let world = World::new();
    let (client, session) = world.open();
    let expired = Error::SessionExpired {
        session: session.id(),
    };
    now(create(&session, "/a")).unwrap().unwrap();
    let (_, mut watcher) = now(session.watch_exists(&path("/b"))).unwrap().unwrap();
    let mut lasting = now(session.add_watch(&path("/b"), WatchMode::Persistent))
        .unwrap()
        .unwrap();

    now(world.store.expire(&client)).unwrap().unwrap();
    assert_eq!(session.state(), SessionState::Expired);
    assert!(world.fake.nodes().is_empty());
    assert_eq!(peek(&mut watcher), Some(Err(expired.clone())));
    assert_eq!(now(lasting.next()), Some(Some(Err(expired.clone()))));
    assert_eq!(now(lasting.next()), Some(None));
    assert_eq!(now(create(&session, "/c")).unwrap().unwrap_err(), expired);

    let next = now(client.session()).unwrap().unwrap();
    assert!(now(create(&next, "/c")).unwrap().is_ok());
}

#[test]
fn a_session_that_expires_while_disconnected_learns_so_when_it_is_back() {
    let world = World::new();
    let (client, session) = world.open();
    let expired = Error::SessionExpired {
        session: session.id(),
    };
    let (_, mut watcher) = now(session.watch_exists(&path("/a"))).unwrap().unwrap();
    world.store.disconnect(&client);
    let mut waiting = create(&session, "/a");
    now(world.store.expire(&client)).unwrap().unwrap();
    assert_eq!(world.fake.state_of(session.id()), SessionState::Expired);
    assert_eq!(session.state(), SessionState::Suspended);
    assert!(peek(&mut waiting).is_none());
    assert!(peek(&mut watcher).is_none());

    world.store.reconnect(&client);
    assert_eq!(session.state(), SessionState::Expired);
    assert_eq!(peek(&mut waiting).unwrap().unwrap_err(), expired);
    assert_eq!(peek(&mut watcher), Some(Err(expired)));
}

#[test]
fn a_stopped_client_sends_nothing_and_hears_nothing() {
    let world = World::new();
    let ((client, stopped), (_other, acting)) = (world.open(), world.open());
    let (_, mut watcher) = now(stopped.watch_exists(&path("/a"))).unwrap().unwrap();
    world.store.pause(&client);
    let mut waiting = stopped.exists(&path("/a"));
    now(create(&acting, "/a")).unwrap().unwrap();
    world.advance(Duration::from_secs(1));
    assert!(peek(&mut waiting).is_none());
    assert!(peek(&mut watcher).is_none());
    assert_eq!(stopped.state(), SessionState::Connected);

    world.store.resume(&client);
    assert_eq!(kind_of(peek(&mut watcher)), Some(EventKind::NodeCreated));
    assert!(matches!(peek(&mut waiting), Some(Ok(Some(_)))));
}

#[test]
fn the_store_ends_the_session_of_a_client_that_is_silent_for_too_long() {
    for stop in [World::pause, World::disconnect] {
        let world = World::new();
        let timeout = Duration::from_secs(10);
        let (client, session) = world.open_with(ConnectOptions::new().session_timeout(timeout));
        now(create(&session, "/a")).unwrap().unwrap();
        assert!(!session.held_until().unwrap().has_passed());
        stop(&world, &client);
        world.advance(timeout);
        assert!(session.held_until().unwrap().has_passed());
        world.advance(timeout);
        assert!(world.fake.nodes().is_empty());
        assert!(!session.state().is_final());

        world.store.heal();
        assert_eq!(session.state(), SessionState::Expired);
    }
}

impl World {
    fn pause(&self, client: &Client) {
        self.store.pause(client);
    }

    fn disconnect(&self, client: &Client) {
        self.store.disconnect(client);
    }
}

#[test]
fn a_stopped_client_finds_out_about_its_connection_when_it_goes_on() {
    let world = World::new();
    let (client, session) = world.open();
    world.fake.tree().slow = true;
    let mut unanswered = create(&session, "/a");
    world.store.pause(&client);
    world.store.disconnect(&client);
    assert!(peek(&mut unanswered).is_none());
    world.store.resume(&client);
    assert_eq!(
        peek(&mut unanswered).unwrap().unwrap_err(),
        Error::ConnectionLoss
    );
    assert_eq!(session.state(), SessionState::Suspended);
}
