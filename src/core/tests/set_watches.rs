//! `setWatches`, and the search for watches by path.

use super::*;
use crate::model::watch::WatchMode;

fn persistent(at: &str, mode: WatchMode) -> Request {
    Request::AddWatch {
        path: path(at),
        mode,
    }
}

#[test]
fn a_filter_finds_the_watches_of_its_kind_alone() {
    let mut store = Harness::new();
    let (me, other) = (store.remote(), store.remote());
    store.create(me, "/a", Persistent).unwrap();
    let [persistent, recursive] = [WatchMode::Persistent, WatchMode::PersistentRecursive]
        .map(|mode| store.watch(me, persistent("/a", mode)));
    let child = store.watch(me, get_children("/a"));
    let data = store.watch(me, get_data("/a"));
    store.watch(me, get_data("/"));
    store.watch(other, get_data("/a"));
    let sorted = |mut keys: Vec<WatchKey>| {
        keys.sort_by_key(|key| format!("{key:?}"));
        keys
    };
    for (which, expected) in [
        (WatchFilter::Child, vec![child]),
        (WatchFilter::Data, vec![data]),
        (WatchFilter::Mode(WatchMode::Persistent), vec![persistent]),
        (
            WatchFilter::Mode(WatchMode::PersistentRecursive),
            vec![recursive],
        ),
        (WatchFilter::Any, vec![persistent, recursive, child, data]),
    ] {
        let found = store.find_watches(me, "/a", which).unwrap();
        assert_eq!(sorted(found), sorted(expected), "{which:?}");
    }
    assert!(!store.core.remove_watches(&[]));
    assert!(store.core.remove_watches(&[child]));
    let left = store.find_watches(me, "/a", WatchFilter::Child).unwrap();
    assert_eq!(left, []);
}

impl Harness {
    fn set_watches(
        &mut self,
        of: SessionRef,
        mut asked: SetWatches,
        most: usize,
    ) -> (usize, Vec<(EventKind, String)>) {
        self.effects.fired.clear();
        let (now, effects) = (self.now, &mut self.effects);
        let mut turns = 1;
        while self
            .core
            .set_some_watches(of, &mut asked, most, now, effects)
            .unwrap()
        {
            turns += 1;
        }
        let event = |fired: &Fired| match &fired.news {
            WatchUpdate::Event(event) => (event.kind, event.path.to_string()),
            other => panic!("{other:?}"),
        };
        (turns, self.effects.fired.iter().map(event).collect())
    }
}

#[test]
fn watches_that_come_back_fire_for_later_changes_alone() {
    let mut store = Harness::new();
    let me = store.remote();
    let (_, a) = store.create(me, "/a", Persistent).unwrap();
    store.create(me, "/a/b", Persistent).unwrap();
    let changed = store.set(me, "/a", None).unwrap();
    let (set_at, child_at) = (changed.mzxid, changed.pzxid);
    assert!(a.czxid < child_at && child_at < set_at);
    let kinds = |events: Vec<(EventKind, String)>| {
        events.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>()
    };
    for (since, expected) in [
        (a.czxid, vec![NodeDataChanged, NodeChildrenChanged]),
        (child_at, vec![NodeDataChanged]),
        (set_at, vec![]),
    ] {
        let asked = SetWatches {
            since,
            data: vec![path("/a")],
            child: vec![path("/a")],
            ..SetWatches::default()
        };
        let (_, events) = store.set_watches(me, asked, 10);
        assert_eq!(kinds(events), expected, "since {since}");
    }
}

fn lists(since: Zxid) -> SetWatches {
    let paths = |paths: &[&str]| paths.iter().map(|at| path(at)).collect();
    SetWatches {
        since,
        data: paths(&["/a", "/gone", "/new"]),
        exist: paths(&["/new", "/missing"]),
        child: paths(&["/gone", "/a"]),
        persistent: paths(&["/a", "/missing"]),
        recursive: paths(&["/a"]),
        done: 0,
    }
}

#[test]
fn watches_come_back_in_turns_as_they_do_at_once() {
    const COUNT: usize = 10;
    for most in 1..=COUNT + 1 {
        let mut store = Harness::new();
        let me = store.remote();
        let since = store.create(me, "/a", Persistent).unwrap().1.czxid;
        store.create(me, "/new", Persistent).unwrap();
        let work = store.core.work();
        let (turns, events) = store.set_watches(me, lists(since), most);
        let events: Vec<_> = events.iter().map(|(kind, path)| (*kind, &**path)).collect();
        let expected = [
            (NodeDeleted, "/gone"),
            (NodeDataChanged, "/new"),
            (NodeCreated, "/new"),
            (NodeDeleted, "/gone"),
        ];
        assert_eq!(events, expected, "{most} in a turn");
        assert_eq!(turns, COUNT.div_ceil(most), "{most} in a turn");
        for (at, armed) in [("/a", 4), ("/missing", 2), ("/new", 0), ("/gone", 0)] {
            let found = store.find_watches(me, at, WatchFilter::Any).unwrap();
            assert_eq!(found.len(), armed, "{at}, {most} in a turn");
        }
        assert!(store.core.work() >= work + COUNT as u64);
    }
}

#[test]
fn too_many_watches_come_back_in_no_turn() {
    let mut store = Harness::new();
    let me = store.remote();
    let at = |number: usize| path(&format!("/{number}"));
    let mut asked = SetWatches {
        exist: (0..101).map(at).collect(),
        ..SetWatches::default()
    };
    let (now, effects) = (store.now, &mut store.effects);
    let core = &mut store.core;
    let refused = core.set_some_watches(me, &mut asked, 10, now, effects);
    assert!(refused.is_err());
    assert_eq!(core.watches.counts(), (0, 0));
    asked.exist.pop();
    while core
        .set_some_watches(me, &mut asked, 10, now, effects)
        .unwrap()
    {}
    assert_eq!(core.watches.counts(), (100, 100));
}
