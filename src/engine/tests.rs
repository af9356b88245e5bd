//! Tests of the engine around the core: time, watchers, and the ends of sessions and stores.

mod bench;
mod buffers;
mod by_reference;
mod conditions;
mod crashes;
mod filling;
#[cfg(feature = "server")]
mod large;
mod poison;
mod remote;
mod restarts;
mod stalls;
mod stats;
mod syncing;
mod wakers;
mod work;
mod world;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::embedded::Embedded;
use super::*;
use crate::backend::{Backend, ConnectOptions};
use crate::client::connect::Client;
use crate::client::session::Session;
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::identity::Identity;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Blockers, Enqueue, Predecessor};
use crate::model::types::{CreateMode, SessionId, SessionState, Zxid};
use crate::model::watch::{DeleteReason, EventKind, PredecessorGone};

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the result of a future that must be ready immediately.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a store in this process answers at once"),
    }
}

fn session_of(store: &Store, timeout: Option<Duration>) -> (Client, Session) {
    let options = ConnectOptions::new();
    let options = match timeout {
        Some(timeout) => options.session_timeout(timeout),
        None => options,
    };
    let client = now(store.connect_with(options)).unwrap();
    let session = client.current_session();
    (client, session)
}

fn path(text: &str) -> ZnodePath {
    ZnodePath::new(text).unwrap()
}

fn virtual_store() -> (Store, Clock) {
    let clock = Clock::new_virtual();
    (
        Store::memory_with(StoreOptions::new().clock(clock.clone())),
        clock,
    )
}

#[test]
fn an_event_is_there_before_the_reply_of_what_caused_it() {
    let store = Store::memory();
    let (_client, session) = session_of(&store, None);
    let (stat, mut watcher) = now(session.watch_exists(&path("/a"))).unwrap();
    assert_eq!(stat, None);
    assert!(poll(&mut watcher).is_pending());
    let (_, stat) = now(session.create(&path("/a"), "", CreateMode::Persistent)).unwrap();
    let Poll::Ready(Ok(event)) = poll(&mut watcher) else {
        panic!()
    };
    assert_eq!(
        (event.kind, event.zxid),
        (EventKind::NodeCreated, Some(stat.czxid))
    );
}

#[test]
fn a_session_expires_by_itself_unless_it_gives_signs_of_life() {
    let (store, clock) = virtual_store();
    let (_one, silent) = {
        let backend = now(store
            .connector()
            .open(&ConnectOptions::new().session_timeout(Duration::from_secs(6))));
        let backend = backend.unwrap();
        (backend.clone(), backend)
    };
    let (_client, kept) = session_of(&store, Some(Duration::from_secs(6)));
    let (_other, watching) = session_of(&store, None);
    let create = crate::Request::Create(crate::Create {
        path: path("/a"),
        data: bytes::Bytes::new(),
        mode: CreateMode::Ephemeral,
        acl: Acl::open(),
    });
    now(silent.submit(create)).unwrap();
    let (_, _, mut watcher) = now(watching.watch_data(&path("/a"))).unwrap();
    clock.advance(Duration::from_secs(5));
    assert!(poll(&mut watcher).is_pending());
    clock.advance(Duration::from_secs(4));
    let Poll::Ready(Ok(event)) = poll(&mut watcher) else {
        panic!()
    };
    assert_eq!(event.kind, EventKind::NodeDeleted);
    assert_eq!(silent.status().state(), SessionState::Expired);
    let after = now(silent.submit(crate::Request::Sync { path: path("/a") }));
    assert_eq!(
        after.unwrap_err(),
        Error::SessionExpired {
            session: silent.status().id()
        }
    );
    clock.advance(Duration::from_secs(60));
    assert_eq!(kept.state(), SessionState::Connected);
}

#[test]
fn a_session_with_too_many_identities_is_refused_and_leaves_nothing() {
    let store = Store::memory();
    let options = (0..100).fold(ConnectOptions::new(), |options, user| {
        options.auth("digest", format!("{user}:secret"))
    });
    let refused = now(store.connect_with(options)).unwrap_err();
    assert!(matches!(refused, Error::LimitReached { .. }), "{refused}");
    let state = store.0.state.lock();
    assert_eq!(state.core.session_images().count(), 0);
}

#[test]
fn without_deadlines_no_timer_runs() {
    let (store, clock) = virtual_store();
    let (_client, session) = session_of(&store, None);
    now(session.create(&path("/a"), "", CreateMode::Ephemeral)).unwrap();
    assert_eq!(clock.next_timer(), None);
    now(session.create(&path("/c"), "", CreateMode::Container)).unwrap();
    assert!(clock.next_timer().is_some());
}

#[test]
fn dropping_the_last_handle_closes_the_session() {
    let store = Store::memory();
    let (client, session) = session_of(&store, None);
    let (_other, watching) = session_of(&store, None);
    now(session.create(&path("/a"), "", CreateMode::Ephemeral)).unwrap();
    drop((client, session));
    assert_eq!(now(watching.exists(&path("/a"))).unwrap(), None);
}

#[test]
fn the_end_of_a_session_ends_its_watchers_and_states() {
    let store = Store::memory();
    let (_client, session) = session_of(&store, None);
    let (_, mut watcher) = now(session.watch_exists(&path("/a"))).unwrap();
    let mut states = session.states();
    now(session.close()).unwrap();
    let closed = Error::SessionClosed {
        session: session.id(),
    };
    assert_eq!(poll(&mut watcher), Poll::Ready(Err(closed.clone())));
    assert_eq!(now(states.next()), Some(SessionState::Closed));
    assert_eq!(now(session.exists(&path("/a"))).unwrap_err(), closed);
    now(session.close()).unwrap();
}

#[test]
fn a_dropped_watcher_is_forgotten_and_keeps_no_store_alive() {
    let store = Store::memory();
    let (client, session) = session_of(&store, None);
    let (_, watcher) = now(session.watch_exists(&path("/a"))).unwrap();
    drop(watcher);
    assert!(store.0.state.lock().cells.iter().all(Option::is_none));
    let (_, watcher) = now(session.watch_exists(&path("/a"))).unwrap();
    let engine = Arc::downgrade(&store.0);
    drop((store, client, session));
    assert!(engine.upgrade().is_none());
    drop(watcher);
}

#[test]
fn a_blocked_entry_is_woken_by_the_one_ahead() {
    let store = Store::memory();
    let (_client, session) = session_of(&store, None);
    now(session.create(&path("/q"), "", CreateMode::Container)).unwrap();
    let enqueue = || {
        now(session.enqueue(Enqueue {
            parent: path("/q"),
            name: "lock-".into(),
            data: bytes::Bytes::new(),
            acl: Acl::open(),
            blockers: Blockers::All,
            conditions: Vec::new(),
            count: true,
            queue_data: None,
        }))
        .unwrap()
    };
    let (first, _, ahead) = enqueue();
    assert!(matches!(ahead, Predecessor::Clear));
    let (_, _, ahead) = enqueue();
    let Predecessor::Blocked {
        by,
        mut watcher,
        count,
    } = ahead
    else {
        panic!()
    };
    assert_eq!((by, count), (first.clone(), Some(1)));
    now(session.delete(&first, None)).unwrap();
    let Poll::Ready(Ok(event)) = poll(&mut watcher) else {
        panic!()
    };
    let released = PredecessorGone::new(true, DeleteReason::Released);
    assert_eq!(event.predecessor_gone, Some(released));
}

#[test]
fn equal_names_are_one_store_while_a_handle_lives_and_tokens_go_on_after() {
    let store = Store::named("engine-tests");
    let (client, session) = session_of(&Store::named("engine-tests"), None);
    assert!(Arc::ptr_eq(&store.0, &Store::named("engine-tests").0));
    assert!(!Arc::ptr_eq(&store.0, &Store::named("engine-tests-2").0));
    let (_, before) = now(session.create(&path("/a"), "", CreateMode::Persistent)).unwrap();
    drop((store, client, session));
    let (_client, session) = session_of(&Store::named("engine-tests"), None);
    let (_, after) = now(session.create(&path("/a"), "", CreateMode::Persistent)).unwrap();
    assert!(after.czxid > before.czxid);
}
