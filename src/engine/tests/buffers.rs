//! The bytes that answers and events occupy until they are sent.

use std::collections::VecDeque;

use super::*;
use crate::core::CoreReply;
use crate::engine::connection::{Connection, SessionRequest};
use crate::engine::outbox::{Ending, Message};
use crate::engine::remote::Remote;
use crate::model::acl::Acl;
use crate::model::protocol::{Create, Op, ReadOp, Request};
use crate::model::types::{AclEntry, CreateMode};
use crate::model::watch::WatchMode;

const TIMEOUT: Duration = Duration::from_secs(10);
const LIMIT: usize = 1 << 20;

fn served() -> Remote {
    Store::memory().attach().unwrap()
}

fn connected(remote: &Remote) -> Connection {
    now(remote.open(TIMEOUT, LIMIT)).unwrap()
}

fn carried_out(connection: &Connection, request: &Request) -> usize {
    let asks = (0..1_000).map(|_| SessionRequest::Request(request.clone()));
    connection.submit(&mut asks.collect())
}

fn long_list(users: usize) -> Acl {
    let user = |number| AclEntry {
        permissions: AclEntry::ALL,
        scheme: "digest".into(),
        id: format!("{number:0>900}:hash"),
    };
    let mut list: Vec<_> = (0..users).map(user).collect();
    list.push(AclEntry {
        permissions: AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    });
    Acl::new(list)
}

#[test]
fn access_lists_count_in_answers() {
    let remote = served();
    let connection = connected(&remote);
    let made = Request::Create(Create {
        path: path("/listed"),
        data: bytes::Bytes::new(),
        mode: CreateMode::Persistent,
        acl: long_list(300),
    });
    assert_eq!(
        connection.submit(&mut [SessionRequest::Request(made)].into()),
        1
    );
    let path = path("/listed");
    let count = carried_out(&connection, &Request::GetAcl { path });
    assert!(count < 4, "{count} lists of 300 KB wait");
}

#[test]
fn the_texts_of_errors_count_in_answers() {
    let remote = served();
    let connection = connected(&remote);
    let path = path(&format!("/{}", "x".repeat(100_000)));
    let absent = Request::GetData { path, watch: false };
    let count = carried_out(&connection, &absent);
    assert!(count < 6, "{count} errors of 100 KB wait");
}

fn asked(connection: &Connection, request: Request) -> Result<CoreReply> {
    assert_eq!(
        connection.submit(&mut [SessionRequest::Request(request)].into()),
        1
    );
    let mut said = VecDeque::new();
    connection.outbox().take(usize::MAX, |_| true, &mut said);
    connection.outbox().set_beside(0);
    match said.pop_back() {
        Some(Message::Answer { answer, .. }) => answer,
        other => panic!("{other:?}"),
    }
}

fn create(at: &str, bytes: usize, mode: CreateMode) -> Request {
    Request::Create(Create {
        path: path(at),
        data: vec![0; bytes].into(),
        mode,
        acl: Acl::open(),
    })
}

#[test]
fn an_answer_too_large_to_be_sent_is_not_built() {
    let remote = served();
    let connection = connected(&remote);
    asked(&connection, create("/many", 0, CreateMode::Persistent)).unwrap();
    for number in 0..100 {
        let at = format!("/many/{number:0>1000}");
        asked(&connection, create(&at, 0, CreateMode::Ephemeral)).unwrap();
    }
    let lists = |count: usize| Request::MultiRead(vec![ReadOp::GetChildren(path("/many")); count]);
    assert!(asked(&connection, lists(10)).is_ok());
    let refused = asked(&connection, lists(11)).unwrap_err();
    let limit = Error::LimitReached {
        what: "bytes of an answer",
        limit: LIMIT,
    };
    assert_eq!(refused, limit);
    let meagre = now(remote.open(TIMEOUT, 64 << 10)).unwrap();
    let list = Request::GetChildren {
        path: path("/many"),
        watch: true,
    };
    assert!(asked(&connection, list.clone()).is_ok());
    assert!(asked(&meagre, list).is_err());
    for number in 100..200 {
        let at = format!("/many/{number:0>1000}");
        asked(&meagre, create(&at, 0, CreateMode::Ephemeral)).unwrap();
    }
    let prefix = path("/many");
    let own = Request::GetEphemerals { prefix };
    assert!(asked(&meagre, own.clone()).is_err());
    assert!(asked(&connection, own).is_ok());
}

#[test]
fn the_events_of_one_transaction_close_the_sessions_with_most_of_them() {
    let remote = served().limiting_unread(LIMIT);
    let crowd: Vec<_> = (0..10).map(|_| connected(&remote)).collect();
    for silent in &crowd {
        let (path, mode) = (path("/"), WatchMode::PersistentRecursive);
        asked(silent, Request::AddWatch { path, mode }).unwrap();
    }
    let (writer, honest) = (connected(&remote), connected(&remote));
    asked(&writer, create("/a", 0, CreateMode::Persistent)).unwrap();
    let (at, watch) = (path("/a"), true);
    asked(&honest, Request::GetData { path: at, watch }).unwrap();
    let set = Op::SetData {
        path: path("/a"),
        data: bytes::Bytes::new(),
        version: None,
    };
    asked(&writer, Request::Multi(vec![set; 2_000])).unwrap();
    let waiting = remote.unread_bytes();
    assert!(waiting <= LIMIT, "{waiting}");
    for silent in &crowd {
        assert_eq!(silent.outbox().is_cut(), Some(Ending::Overflow));
    }
    assert_eq!(honest.outbox().is_cut(), None);
    assert_eq!(writer.outbox().is_cut(), None);
}

#[test]
fn the_slowest_reader_goes_first() {
    let remote = served().limiting_unread(LIMIT);
    let honest = connected(&remote);
    let large = create("/large", 300_000, CreateMode::Persistent);
    asked(&honest, large).unwrap();
    let get = || Request::GetData {
        path: path("/large"),
        watch: false,
    };
    let silent: Vec<_> = (0..4)
        .map(|_| {
            let silent = connected(&remote);
            assert_eq!(carried_out(&silent, &get()), 1);
            let mut said = VecDeque::new();
            silent.outbox().take(usize::MAX, |_| true, &mut said);
            silent.outbox().set_beside(300_000);
            assert!(asked(&honest, get()).is_ok());
            silent
        })
        .collect();
    let cut: Vec<_> = silent
        .iter()
        .map(|silent| silent.outbox().is_cut().is_some())
        .collect();
    assert_eq!(cut, [true, true, false, false]);
    assert_eq!(honest.outbox().is_cut(), None);
    assert!(remote.unread_bytes() <= LIMIT);
    drop(silent);
    assert_eq!(remote.unread_bytes(), 0);
}

#[test]
fn a_session_that_was_closed_is_no_excuse_for_a_slow_reader() {
    let remote = served().limiting_unread(LIMIT);
    let (silent, honest) = (connected(&remote), connected(&remote));
    let large = create("/large", 200_000, CreateMode::Persistent);
    asked(&honest, large).unwrap();
    let (path, watch) = (path("/large"), false);
    let get = || Request::GetData {
        path: path.clone(),
        watch,
    };
    let last = [get(), Request::Close].map(SessionRequest::Request);
    assert_eq!(silent.submit(&mut last.into()), 2);
    assert_eq!(silent.outbox().is_cut(), None, "it may read the rest");
    silent.outbox().set_beside(700_000);
    asked(&honest, get()).unwrap();
    assert_eq!(silent.outbox().is_cut(), Some(Ending::Overflow));
    assert_eq!(remote.unread_bytes(), 0);
}
