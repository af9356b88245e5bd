//! What answers take until they are sent.

use super::*;
use crate::backend::{Create, Request};
use crate::engine::remote::{Ask, Connection, Remote};
use crate::types::{Acl, AclEntry, CreateMode};

const TIMEOUT: Duration = Duration::from_secs(10);
const LIMIT: usize = 1 << 20;

fn served() -> Remote {
    Store::memory().attach().unwrap()
}

fn connected(remote: &Remote) -> Connection {
    now(remote.open(TIMEOUT, LIMIT)).unwrap()
}

/// So many of a thousand such requests are carried out before the client has read anything.
fn carried_out(connection: &Connection, request: &Request) -> usize {
    let asks = (0..1_000).map(|_| Ask::Request(request.clone()));
    connection.submit(&mut asks.collect())
}

/// A list that lets everybody read, and so many users do what they like.
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
    assert_eq!(connection.submit(&mut [Ask::Request(made)].into()), 1);
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
