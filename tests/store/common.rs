//! Helpers for all tests.

use std::future::Future;
use std::pin::pin;

use lockkeeper_store::{
    Acl, Blockers, Create, CreateMode, Enqueue, Error, EventKind, Op, PersistentWatcher, Result,
    Session, SessionState, Stat, StateStream, Store, WatchedEvent, Watcher, ZnodePath,
};

use crate::program;

pub(crate) fn path(path: &str) -> ZnodePath {
    path.parse().unwrap()
}

/// Polls a future once. Returns `None` if it is pending.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    program::now(pin!(future))
}

pub(crate) async fn session_at(store: &Store) -> Session {
    store.connect().await.unwrap().session().await.unwrap()
}

pub(crate) async fn create(session: &Session, at: &str, mode: CreateMode) -> (ZnodePath, Stat) {
    session.create(&path(at), "", mode).await.unwrap()
}

pub(crate) async fn make(session: &Session, at: &str) -> Stat {
    create(session, at, CreateMode::Persistent).await.1
}

pub(crate) async fn stat(session: &Session, at: &str) -> Stat {
    session
        .exists(&path(at))
        .await
        .unwrap()
        .unwrap_or_else(|| panic!("no znode {at}"))
}

pub(crate) async fn is_there(session: &Session, at: &str) -> bool {
    session.exists(&path(at)).await.unwrap().is_some()
}

/// Waits until all earlier events have reached the session's watchers.
pub(crate) async fn barrier(session: &Session) {
    session.exists(&ZnodePath::root()).await.unwrap();
}

/// An event without its zxid, which ZooKeeper reports only since 3.9.
pub(crate) type Event = (EventKind, String);

pub(crate) fn event(event: Result<WatchedEvent>) -> Event {
    let event = event.unwrap();
    (event.kind, event.path.to_string())
}

pub(crate) fn seen(kind: EventKind, at: &str) -> Event {
    (kind, at.to_owned())
}

/// Returns a one-shot watcher's event. Call [`barrier`] before.
pub(crate) fn fired(watcher: &mut Watcher) -> Option<Event> {
    now(watcher).map(event)
}

/// Returns a persistent watcher's events. Call [`barrier`] before.
pub(crate) fn all_fired(watcher: &mut PersistentWatcher) -> Vec<Event> {
    std::iter::from_fn(|| now(watcher.next()))
        .map(|next| event(next.unwrap()))
        .collect()
}

pub(crate) fn create_op(at: &str, mode: CreateMode) -> Op {
    Op::Create(Create {
        path: path(at),
        data: "".into(),
        mode,
        acl: Acl::open(),
    })
}

pub(crate) fn entry(parent: &str, name: &str) -> Enqueue {
    Enqueue {
        parent: path(parent),
        name: name.into(),
        data: "".into(),
        acl: Acl::open(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
        queue_data: None,
    }
}

pub(crate) fn no_node(at: &str) -> Error {
    Error::NoNode {
        path: at.to_owned(),
    }
}

/// Waits until a session has reconnected after its connection breaks. A slow reader of states sees only the latest, so
/// it may miss `Suspended`.
pub(crate) async fn reconnected(states: &mut StateStream) {
    let state = match states.next().await {
        Some(SessionState::Suspended) => states.next().await,
        state => state,
    };
    assert_eq!(state, Some(SessionState::Reconnected));
}
