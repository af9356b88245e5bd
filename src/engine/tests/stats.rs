//! The lists and counts of a store that operators can request.

use super::*;
use crate::engine::stats::{Expiring, Room};

const ROOMY: Room = Room {
    entries: 1_000_000,
    bytes: 1 << 30,
};

fn make(session: &Session, at: &str, mode: CreateMode) {
    now(session.create(&path(at), "12345", mode)).unwrap();
}

#[test]
fn everything_is_counted_as_it_comes_and_goes() {
    let store = Store::memory();
    let fresh = store.counts();
    assert_eq!((fresh.sessions, fresh.ephemerals, fresh.watches), (0, 0, 0));
    let (client, session) = session_of(&store, None);
    make(&session, "/a", CreateMode::Persistent);
    make(&session, "/a/b", CreateMode::Ephemeral);
    make(&session, "/a/c", CreateMode::Ephemeral);
    let _data = now(session.watch_data(&path("/a"))).unwrap();
    let _children = now(session.watch_children(&path("/a"))).unwrap();
    let _absent = now(session.watch_exists(&path("/later"))).unwrap();
    let counts = store.counts();
    assert_eq!(counts.znodes, fresh.znodes + 3);
    assert_eq!((counts.sessions, counts.ephemerals), (1, 2));
    assert_eq!(counts.watches, 3);
    let texts = "/a/a/b/a/c".len() + 3 * "12345".len();
    assert_eq!(counts.data_bytes, fresh.data_bytes + texts);
    assert!(counts.last_zxid > fresh.last_zxid);
    now(session.delete(&path("/a/b"), None)).unwrap();
    assert_eq!(store.counts().ephemerals, 1);
    assert_eq!(store.counts().watches, 2, "that of the children has fired");
    now(client.close()).unwrap();
    let after = store.counts();
    assert_eq!((after.sessions, after.ephemerals, after.watches), (0, 0, 0));
    assert_eq!(after.znodes, fresh.znodes + 1);
}

#[test]
fn sessions_are_listed_by_when_they_expire_and_those_that_never_do_are_not() {
    let (store, clock) = virtual_store();
    let (_forever, _) = session_of(&store, None);
    let (_first, first) = session_of(&store, Some(Duration::from_secs(5)));
    let (_second, second) = session_of(&store, Some(Duration::from_secs(5)));
    let (_long, long) = session_of(&store, Some(Duration::from_secs(30)));
    let listed = store.endings(ROOMY);
    assert!(listed.is_whole);
    let [soon, late]: [Expiring; 2] = listed.list.try_into().unwrap();
    assert_eq!(soon.sessions, [first.id(), second.id()]);
    assert_eq!(late.sessions, [long.id()]);
    for (ending, seconds) in [(soon, 5), (late, 30)] {
        let ahead_ms = ending.at_ms - clock.unix_ms();
        assert!(
            (seconds * 1_000..=seconds * 1_000 + 2_000).contains(&ahead_ms),
            "{ahead_ms}"
        );
    }
    let one = Room {
        entries: 1,
        ..ROOMY
    };
    let listed = store.endings(one);
    assert!(!listed.is_whole);
    assert_eq!(listed.list.len(), 1);
    assert_eq!(listed.list[0].sessions, [first.id()]);
}

#[test]
fn more_sessions_than_a_piece_are_all_listed() {
    let (store, _clock) = virtual_store();
    let timeout = ConnectOptions::new().session_timeout(Duration::from_secs(10));
    let open = |_| now(store.connector().open(&timeout)).unwrap();
    let sessions: Vec<_> = (0..9_000).map(open).collect();
    let listed = store.endings(ROOMY);
    assert!(listed.is_whole);
    let all = listed.list.iter().flat_map(|ending| &ending.sessions);
    let mut all: Vec<SessionId> = all.copied().collect();
    let mut expected: Vec<_> = sessions.iter().map(|open| open.status().id()).collect();
    all.sort_unstable();
    expected.sort_unstable();
    assert_eq!(all, expected);
}

#[test]
fn ephemerals_are_listed_by_their_owners_as_far_as_there_is_room() {
    let store = Store::memory();
    let (_one, one) = session_of(&store, None);
    let (_other, other) = session_of(&store, None);
    let (_idle, _) = session_of(&store, None);
    make(&one, "/kept", CreateMode::Persistent);
    make(&one, "/kept/a", CreateMode::Ephemeral);
    make(&other, "/kept/b", CreateMode::Ephemeral);
    make(&one, "/c", CreateMode::Ephemeral);
    let listed = store.ephemerals(ROOMY);
    assert!(listed.is_whole);
    let expected = [
        (one.id(), vec![path("/kept/a"), path("/c")]),
        (other.id(), vec![path("/kept/b")]),
    ];
    assert_eq!(listed.list, expected.into());
    for (entries, bytes) in [(2, 1_000), (1_000, "/kept/a/kept/b".len())] {
        let listed = store.ephemerals(Room { entries, bytes });
        assert!(!listed.is_whole);
        assert_eq!(listed.list.values().flatten().count(), 2);
    }
}

#[test]
fn watches_are_listed_but_for_those_of_children_alone() {
    let store = Store::memory();
    let (_one, one) = session_of(&store, None);
    let (_other, other) = session_of(&store, None);
    make(&one, "/a", CreateMode::Persistent);
    make(&one, "/b", CreateMode::Persistent);
    let _first = now(one.watch_data(&path("/a"))).unwrap();
    let _same = now(one.watch_exists(&path("/a"))).unwrap();
    let _children = now(one.watch_children(&path("/b"))).unwrap();
    let _persistent = now(other.add_watch(&path("/a"), crate::WatchMode::Persistent)).unwrap();
    let _absent = now(other.watch_exists(&path("/later"))).unwrap();
    let _also = now(one.watch_exists(&path("/later"))).unwrap();
    let listed = store.watching(ROOMY);
    assert!(listed.is_whole);
    let expected = [
        (path("/a"), one.id()),
        (path("/a"), other.id()),
        (path("/later"), one.id()),
        (path("/later"), other.id()),
    ];
    assert_eq!(listed.list, expected.into());
    let watched = store.watched();
    let counts = (watched.sessions, watched.paths, watched.watches);
    assert_eq!(counts, (2, 2, 5));
    assert_eq!(store.counts().watches, 6);
    let listed = store.watching(Room {
        entries: 1,
        ..ROOMY
    });
    assert_eq!((listed.list.len(), listed.is_whole), (1, false));
}

#[test]
fn more_watches_than_a_piece_are_all_counted_and_listed() {
    let store = Store::memory();
    let (_client, session) = session_of(&store, None);
    let all: Vec<_> = (0..10_000)
        .map(|number| now(session.watch_exists(&path(&format!("/{number}")))).unwrap())
        .collect();
    let watched = store.watched();
    let counts = (watched.sessions, watched.paths, watched.watches);
    assert_eq!(counts, (1, 10_000, 10_000));
    let listed = store.watching(ROOMY);
    assert_eq!((listed.list.len(), listed.is_whole), (10_000, true));
    let room = Room {
        entries: 7_000,
        ..ROOMY
    };
    let listed = store.watching(room);
    assert_eq!((listed.list.len(), listed.is_whole), (7_000, false));
    drop(all);
    assert_eq!(store.counts().watches, 0);
}
