//! Watches: which events they fire on, and how often.

use super::*;
use crate::model::watch::WatchNumber;

#[test]
fn each_watch_hears_what_is_its_business() {
    let mut store = Harness::new();
    let me = store.session();
    let made = store.watch(me, exists("/a"));
    store.create(me, "/a", Persistent).unwrap();
    assert_eq!(store.fired(), [(made, NodeCreated, "/a".into())]);

    let data = store.watch(me, get_data("/a"));
    let list = store.watch(me, get_children("/a"));
    let all = store.watch(
        me,
        Request::AddWatch {
            path: path("/a"),
            mode: WatchMode::Persistent,
        },
    );
    let below = Request::AddWatch {
        path: path("/a"),
        mode: WatchMode::PersistentRecursive,
    };
    let below = store.watch(me, below);
    store.create(me, "/a/b", Persistent).unwrap();
    assert_eq!(
        store.fired(),
        [
            (below, NodeCreated, "/a/b".into()),
            (list, NodeChildrenChanged, "/a".into()),
            (all, NodeChildrenChanged, "/a".into()),
        ]
    );
    store.set(me, "/a/b", None).unwrap();
    assert_eq!(store.fired(), [(below, NodeDataChanged, "/a/b".into())]);
    store.delete(me, "/a/b").unwrap();
    let list = (all, NodeChildrenChanged, "/a".into());
    assert_eq!(store.fired(), [(below, NodeDeleted, "/a/b".into()), list]);
    store.delete(me, "/a").unwrap();
    // Recursive watches of a znode fire first.
    let deleted = |watch| (watch, NodeDeleted, "/a".to_owned());
    assert_eq!(store.fired(), [deleted(below), deleted(data), deleted(all)]);
    store.create(me, "/a", Persistent).unwrap();
    let created = |watch| (watch, NodeCreated, "/a".to_owned());
    assert_eq!(store.fired(), [created(below), created(all)]);
    assert!(store.core.unwatch(all) && store.core.unwatch(below));
    assert!(!store.core.unwatch(data));
    store.delete(me, "/a").unwrap();
    assert_eq!(store.core.watches.counts(), (0, 0));
}

#[test]
fn reads_of_a_missing_znode_arm_nothing() {
    let mut store = Harness::new();
    let me = store.session();
    for request in [get_data("/a"), get_children("/a")] {
        assert_eq!(
            store.submit(me, request).unwrap_err(),
            Error::NoNode { path: "/a".into() }
        );
    }
    assert_eq!(store.core.watches.counts(), (0, 0));
}

#[test]
fn a_connection_is_told_once() {
    let mut store = Harness::new();
    let me = store.remote();
    store.create(me, "/a", Persistent).unwrap();
    let data = store.watch(me, get_data("/a"));
    assert_eq!(store.watch(me, get_data("/a")), data);
    store.watch(me, get_children("/a"));
    store.delete(me, "/a").unwrap();
    assert_eq!(store.fired(), [(data, NodeDeleted, "/a".into())]);
    assert_eq!(store.core.watches.counts(), (0, 0));
}

#[test]
fn the_watches_of_a_session_are_limited() {
    let mut store = Harness::new();
    let me = store.session();
    let watches: Vec<_> = (0..100).map(|_| store.watch(me, exists("/a"))).collect();
    let limit = Error::LimitReached {
        what: "watches of a session",
        limit: 100,
    };
    assert_eq!(store.submit(me, exists("/a")).unwrap_err(), limit);
    store.core.unwatch(watches[50]);
    store.watch(me, exists("/a"));
}

#[test]
fn a_served_session_that_arms_a_watch_again_has_it_once() {
    let mut store = Harness::new();
    let me = store.remote();
    store.create(me, "/there", Persistent).unwrap();
    let others: Vec<_> = (0..3).map(|_| store.remote()).collect();
    for path in ["/there", "/missing"] {
        let first = store.watch(me, exists(path));
        for other in &others {
            store.watch(*other, exists(path));
        }
        assert_eq!(
            store.watch(me, exists(path)),
            first,
            "few of its own: {path}"
        );
    }
    let first = store.watch(me, exists("/one"));
    assert_eq!(store.watch(me, exists("/one")), first, "more of its own");
    let there = store.watch(me, exists("/there"));
    store.set(me, "/there", None).unwrap();
    let told = store.fired();
    assert_eq!(told.len(), 1 + others.len());
    assert_eq!(told[0].0, there);
}

#[test]
fn a_watch_has_a_number_that_leads_to_it_alone() {
    let mut store = Harness::new();
    let me = store.session();
    let first: Vec<_> = (0..3).map(|_| store.watch(me, exists("/a"))).collect();
    for watch in &first {
        assert!(store.core.unwatch(*watch));
    }
    let second: Vec<_> = (0..3).map(|_| store.watch(me, exists("/a"))).collect();
    let all: Vec<_> = first.into_iter().chain(second).collect();
    for watch in &all {
        let number = watch.watch_number();
        assert_eq!(WatchKey::from_u64(number.cast_unsigned()), *watch);
        let same = all.iter().filter(|other| other.watch_number() == number);
        assert_eq!(same.count(), 1);
    }
}
