//! Sessions: their states, their ends, and how long they are believed alive.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{
    Acl, Backend, Clock, ConnectOptions, CreateMode, Error, EventKind, Predecessor, Request,
    Response, Session, SessionState, SessionStatus, Store, StoreOptions, WatchMode, connect,
};
use testkit::on_every_znode_store;
use tokio::sync::watch;

use crate::common::*;

on_every_znode_store! {
    async fn a_request_is_sent_without_being_awaited(env: Env) {
        let session = env.session().await;
        let _unpolled = session.create(&path("/a"), "", CreateMode::Persistent);
        assert!(is_there(&session, "/a").await);
    }

    async fn a_dropped_futures_request_still_happens(env: Env) {
        let session = env.session().await;
        drop(session.create(&path("/a"), "", CreateMode::Persistent));
        drop(session.set_data(&path("/a"), "new", Some(0)));
        assert_eq!(session.get_data(&path("/a")).await.unwrap().0, "new");
    }

    async fn a_dropped_watcher_does_not_disturb_the_others(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let (_, _, first) = session.watch_data(&path("/a")).await.unwrap();
        let (_, _, mut second) = session.watch_data(&path("/a")).await.unwrap();
        let first_list = session.watch_children(&path("/a")).await.unwrap().2;
        let (_, mut third) = session.watch_exists(&path("/a")).await.unwrap();
        drop((first, first_list));
        barrier(&session).await;
        session.set_data(&path("/a"), "new", None).await.unwrap();
        let changed = Some(seen(EventKind::NodeDataChanged, "/a"));
        assert_eq!((fired(&mut second), fired(&mut third)), (changed.clone(), changed));
    }

    async fn a_watch_can_be_set_again_after_its_watcher_was_dropped(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        for round in 0..20 {
            drop(session.watch_data(&path("/a")).await.unwrap().2);
            drop(session.add_watch(&path("/a"), WatchMode::Persistent).await.unwrap());
            let (_, _, mut watcher) = session.watch_data(&path("/a")).await.unwrap();
            session.set_data(&path("/a"), round.to_string(), None).await.unwrap();
            assert_eq!(fired(&mut watcher), Some(seen(EventKind::NodeDataChanged, "/a")));
        }
    }

    async fn closing_ends_everything_of_the_session(env: Env) {
        let (session, other) = (env.session().await, env.session().await);
        assert_eq!(session.state(), SessionState::Connected);
        let mut states = session.states();
        create(&session, "/e", CreateMode::Ephemeral).await;
        let (_, watcher) = session.watch_exists(&path("/x")).await.unwrap();
        let mut stream = session.add_watch(&path("/x"), WatchMode::Persistent).await.unwrap();
        let lease = session.lease();
        let closing = session.close();
        assert!(!lease.is_valid(), "from the call on, nothing is believed to be held");
        closing.await.unwrap();
        let closed = Error::SessionClosed { session: session.id() };
        assert_eq!(watcher.await, Err(closed.clone()));
        assert_eq!(stream.next().await, Some(Err(closed.clone())));
        assert_eq!(states.next().await, Some(SessionState::Closed));
        assert_eq!(states.next().await, None);
        assert_eq!(session.state(), SessionState::Closed);
        assert_eq!(session.get_data(&path("/e")).await.unwrap_err(), closed);
        assert!(!is_there(&other, "/e").await);
    }

    async fn expiry_ends_everything_of_the_session(env: Env) {
        let (client, other) = (env.client().await, env.session().await);
        let session = client.session().await.unwrap();
        let mut states = session.states();
        create(&session, "/e", CreateMode::Ephemeral).await;
        let (_, watcher) = session.watch_exists(&path("/x")).await.unwrap();
        let mut stream = session.add_watch(&path("/x"), WatchMode::Persistent).await.unwrap();
        let lease = session.lease();
        client.connector().expire(session.backend()).await.unwrap();
        let expired = Error::SessionExpired { session: session.id() };
        assert_eq!(watcher.await, Err(expired.clone()));
        let end = loop {
            match stream.next().await {
                Some(Err(Error::ConnectionLoss)) => {}
                end => break end,
            }
        };
        assert_eq!(end, Some(Err(expired.clone())));
        assert_eq!(last_state(&mut states).await, SessionState::Expired);
        assert!(!lease.is_valid());
        assert_eq!(session.get_data(&path("/e")).await.unwrap_err(), expired);
        assert!(!is_there(&other, "/e").await);
        assert_eq!(session.close().await, Ok(()), "closing what is over is no error");
    }

    async fn a_client_opens_a_new_session_after_an_expiry(env: Env) {
        let client = env.client().await;
        let old = client.session().await.unwrap();
        assert_eq!(client.session().await.unwrap(), old, "as long as it lives there is one");
        let mut states = old.states();
        client.connector().expire(old.backend()).await.unwrap();
        last_state(&mut states).await;
        assert_eq!(client.current_session(), old);
        let new = client.session().await.unwrap();
        assert_ne!(new.id(), old.id());
        assert_eq!(client.current_session(), new);
        make(&new, "/a").await;
        assert!(matches!(old.exists(&path("/a")).await, Err(Error::SessionExpired { .. })));
    }

    async fn a_closed_client_opens_no_session(env: Env) {
        let client = env.client().await;
        let session = client.session().await.unwrap();
        client.close().await.unwrap();
        assert_eq!(session.state(), SessionState::Closed);
        let closed = Error::SessionClosed { session: session.id() };
        assert_eq!(client.session().await.unwrap_err(), closed);
        assert_eq!(client.close().await, Ok(()));
    }

    async fn a_session_ends_with_its_last_handle(env: Env) {
        let (client, other) = (env.client().await, env.session().await);
        let session = client.session().await.unwrap();
        create(&session, "/e", CreateMode::Ephemeral).await;
        let (_, gone) = other.watch_exists(&path("/e")).await.unwrap();
        let clone = session.clone();
        drop((client, session));
        assert!(is_there(&clone, "/e").await);
        drop(clone);
        assert_eq!(event(gone.await), seen(EventKind::NodeDeleted, "/e"));
    }

    async fn create_all_creates_missing_parents(env: Env) {
        let session = env.session().await;
        session.create_all(&path("/a/b/c"), CreateMode::Container).await.unwrap();
        session.create_all(&path("/a/b/c"), CreateMode::Container).await.unwrap();
        session.create_all(&path("/a/b/d"), CreateMode::Persistent).await.unwrap();
        let (mut names, _) = session.get_children(&path("/a/b")).await.unwrap();
        names.sort();
        assert_eq!(names, ["c", "d"]);
        create(&session, "/a/e", CreateMode::Ephemeral).await;
        let refused = session.create_all(&path("/a/e/f"), CreateMode::Persistent).await;
        assert_eq!(refused, Err(Error::NoChildrenForEphemerals { path: "/a/e/f".into() }));
    }
}

async fn last_state(states: &mut lockkeeper_store::StateStream) -> SessionState {
    let mut last = None;
    while let Some(state) = states.next().await {
        last = Some(state);
    }
    last.expect("a session ends with a state")
}

#[tokio::test]
async fn equal_targets_are_one_store_while_a_handle_lives() {
    let name = "memory:registry-test";
    let (one, two) = (connect(name).await.unwrap(), connect(name).await.unwrap());
    assert_eq!(one.store_id(), two.store_id());
    make(&one.session().await.unwrap(), "/a").await;
    drop(one);
    assert!(is_there(&two.session().await.unwrap(), "/a").await);
    let other = connect("memory:registry-test-2").await.unwrap();
    assert!(!is_there(&other.session().await.unwrap(), "/a").await);
    drop(two);
    let again = connect(name).await.unwrap();
    assert!(
        !is_there(&again.session().await.unwrap(), "/a").await,
        "nobody held the store"
    );
}

#[tokio::test]
async fn a_memory_store_made_by_hand_is_always_fresh() {
    let (one, two) = (Store::memory(), Store::memory());
    make(&session_at(&one).await, "/a").await;
    assert!(is_there(&session_at(&one).await, "/a").await);
    assert!(!is_there(&session_at(&two).await, "/a").await);
}

#[tokio::test]
async fn in_process_an_answer_is_there_at_once() {
    let session = session_at(&Store::memory()).await;
    let made = session
        .create(&path("/a"), "", CreateMode::EphemeralSequential)
        .now_or_never();
    assert_eq!(made.unwrap().unwrap().0.as_str(), "/a0000000000");
    assert!(
        session
            .exists(&path("/a0000000000"))
            .now_or_never()
            .unwrap()
            .unwrap()
            .is_some()
    );
    assert_eq!(session.timeout(), None);
    assert!(
        session.held_until().is_none(),
        "a session of the store's own process has no timeout"
    );
}

#[tokio::test]
async fn no_watch_is_left_behind_by_dropped_watchers() {
    let store = Store::memory_with(StoreOptions::new().max_watches_per_session(2));
    let session = session_at(&store).await;
    make(&session, "/a").await;
    for _ in 0..3 {
        for at in ["/a", "/none"] {
            drop(session.watch_exists(&path(at)).await.unwrap());
            drop(
                session
                    .add_watch(&path(at), WatchMode::Persistent)
                    .await
                    .unwrap(),
            );
            drop(
                session
                    .add_watch(&path(at), WatchMode::PersistentRecursive)
                    .await
                    .unwrap(),
            );
        }
        drop(session.watch_data(&path("/a")).await.unwrap());
        drop(session.watch_children(&path("/a")));
        let fired = session.watch_data(&path("/a")).await.unwrap();
        session.set_data(&path("/a"), "", None).await.unwrap();
        drop(fired);
    }
    let kept = (
        session.watch_exists(&path("/a")).await,
        session.watch_exists(&path("/b")).await,
    );
    let refused = session.watch_exists(&path("/c")).await.unwrap_err();
    assert!(
        matches!(refused, Error::LimitReached { limit: 2, .. }),
        "{refused}"
    );
    drop(kept);
}

#[tokio::test]
async fn joining_a_queue_takes_nothing_from_its_watchers() {
    let session = session_at(&Store::memory()).await;
    make(&session, "/q").await;
    let join = || entry("/q", "n-");
    let (head, _, _) = session.enqueue(join()).await.unwrap();
    let (_, _, mut list) = session.watch_children(&path("/q")).await.unwrap();
    let (_, _, ahead) = session.enqueue(join()).await.unwrap();
    let Predecessor::Blocked { mut watcher, .. } = ahead else {
        panic!("{ahead:?}")
    };
    assert_eq!(fired(&mut watcher), None);
    assert_eq!(
        fired(&mut list),
        Some(seen(EventKind::NodeChildrenChanged, "/q"))
    );
    session.delete(&head, None).await.unwrap();
    assert_eq!(
        fired(&mut watcher),
        Some(seen(EventKind::NodeDeleted, head.as_str()))
    );
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Network {
    Up,
    /// Requests are lost.
    Down,
    /// Requests arrive, but their answers wait until the network is up.
    Slow,
}

#[derive(Debug)]
struct Networked {
    inner: Arc<dyn Backend>,
    network: watch::Receiver<Network>,
}

impl Backend for Networked {
    fn submit(&self, request: Request) -> Response {
        let mut network = self.network.clone();
        let now = *network.borrow();
        match now {
            Network::Up => self.inner.submit(request),
            Network::Down => Response::pending(std::future::pending()),
            Network::Slow => {
                let reply = self.inner.submit(request);
                Response::pending(async move {
                    let _ = network.wait_for(|network| *network == Network::Up).await;
                    reply.await
                })
            }
        }
    }

    fn status(&self) -> &Arc<SessionStatus> {
        self.inner.status()
    }

    fn store_id(&self) -> Option<&str> {
        self.inner.store_id()
    }
}

const TIMEOUT: Duration = Duration::from_secs(20);

/// The part of the timeout for which a session is believed alive.
const BELIEF: Duration = Duration::from_secs(18);

async fn networked_session() -> (Clock, Session, watch::Sender<Network>) {
    let clock = Clock::new_virtual();
    let store = Store::memory_with(StoreOptions::new().clock(clock.clone()));
    let connector = store.connect().await.unwrap().connector().clone();
    let options = ConnectOptions::new().session_timeout(TIMEOUT);
    let (network, receiver) = watch::channel(Network::Up);
    let inner = connector.open(&options).await.unwrap();
    let backend = Arc::new(Networked {
        inner,
        network: receiver,
    });
    (clock, Session::new(backend, Acl::open()), network)
}

#[tokio::test]
async fn held_until_moves_with_answered_requests_and_not_otherwise() {
    let (clock, session, network) = networked_session().await;
    assert_eq!(session.timeout(), Some(TIMEOUT));
    let held = || session.held_until().unwrap().moment();
    let opened = held();
    assert_eq!(opened, clock.now().after(BELIEF));

    clock.advance(Duration::from_secs(1));
    assert_eq!(held(), opened, "time alone proves nothing");
    session.exists(&path("/a")).await.unwrap();
    let read = held();
    assert_eq!(read, clock.now().after(BELIEF), "an answered read does");

    clock.advance(Duration::from_secs(1));
    session.get_data(&path("/a")).await.unwrap_err();
    let refused = held();
    assert_eq!(refused, clock.now().after(BELIEF), "a refusal is an answer");

    clock.advance(Duration::from_secs(1));
    session
        .set_data(&path("/a"), vec![0; 2 << 20], None)
        .await
        .unwrap_err();
    assert_eq!(held(), refused, "what is refused on this side is none");

    network.send_replace(Network::Down);
    drop(session.exists(&path("/a")));
    assert_eq!(held(), refused, "nor is what nobody answered");
}

#[tokio::test]
async fn an_idle_session_renews_its_proof_every_third_of_its_timeout() {
    let (clock, session, _network) = networked_session().await;
    let (start, lease) = (clock.now(), session.lease());
    for _ in 0..100 {
        clock.advance(Duration::from_secs(7));
        assert!(lease.is_valid());
    }
    assert!(session.held_until().unwrap().moment() > start.after(Duration::from_secs(690)));
    assert_eq!(session.state(), SessionState::Connected);
    assert_eq!(session.heartbeat_lag(), Duration::ZERO);
}

#[tokio::test]
async fn belief_ends_before_the_store_lets_anybody_else_hold() {
    let (clock, session, network) = networked_session().await;
    create(&session, "/e", CreateMode::Ephemeral).await;
    let lease = session.lease();
    network.send_replace(Network::Down);
    clock.advance(BELIEF - Duration::from_millis(1));
    assert!(lease.is_valid());
    clock.advance(Duration::from_millis(1));
    assert!(!lease.is_valid());
    assert!(session.held_until().unwrap().has_passed());
    assert_eq!(session.held_until().unwrap().remaining(), Duration::ZERO);
    assert!(
        session.status().is_alive(),
        "the store has not ended it yet"
    );
    clock.advance(TIMEOUT);
    assert_eq!(session.state(), SessionState::Expired);
}

#[tokio::test]
async fn a_late_answer_proves_only_the_moment_of_its_question() {
    let (clock, session, network) = networked_session().await;
    let opened = session.held_until().unwrap().moment();
    clock.advance(Duration::from_secs(1));
    let sent = clock.now();
    network.send_replace(Network::Slow);
    let answer = session.exists(&path("/a"));
    clock.advance(Duration::from_secs(2));
    assert_eq!(session.held_until().unwrap().moment(), opened);
    network.send_replace(Network::Up);
    answer.await.unwrap();
    assert_eq!(session.held_until().unwrap().moment(), sent.after(BELIEF));
}
