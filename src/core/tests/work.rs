//! The work of a request is bounded by the length of the request and of its answer, no matter how large the store is.

use super::*;
use crate::model::types::AclEntry;

const ENTRIES: usize = 1_024;

impl Harness {
    fn work(&mut self, session: SessionRef, requests: impl IntoIterator<Item = Request>) -> u64 {
        let before = self.core.work();
        for request in requests {
            self.submit(session, request).unwrap();
        }
        self.core.work() - before
    }

    fn prove_many(&mut self, session: SessionRef) {
        for user in 0..63 {
            let identity = Identity::digest(format!("user-{user}:secret").as_bytes());
            self.core.add_identity(session, identity).unwrap();
        }
    }

    fn make_listed(&mut self, session: SessionRef, at: &str) {
        let mine = Identity::digest(b"user-62:secret");
        let entries = (1..ENTRIES).map(|at| format!("somebody-{at}:hash"));
        let entries = entries.chain([mine.id.to_string()]).map(|id| AclEntry {
            permissions: AclEntry::READ,
            scheme: "digest".into(),
            id,
        });
        let acl = Acl::new(entries.collect::<Vec<_>>());
        let create = Create {
            acl,
            ..create(at, Persistent)
        };
        self.submit(session, Request::Create(create)).unwrap();
    }
}

fn roomy() -> Harness {
    let mut options = options();
    options.limits.sessions = 10_000;
    options.limits.watches_per_session = 100_000;
    Harness::with(options)
}

#[test]
fn a_long_list_costs_many_reads_little_more_than_the_open_one() {
    let mut store = roomy();
    let me = store.remote();
    store.prove_many(me);
    store.make_listed(me, "/listed");
    store.create(me, "/open", Persistent).unwrap();
    let reads = |at: &str| Request::MultiRead(vec![ReadOp::GetData(path(at)); 10_000]);
    let open = store.work(me, [reads("/open")]);
    let listed = store.work(me, [reads("/listed")]);
    assert!(
        listed < 2 * open,
        "{listed} units, with the open list {open}"
    );
}

#[test]
fn an_event_costs_a_watcher_of_a_listed_znode_no_walk_of_the_list() {
    let mut store = roomy();
    let me = store.remote();
    store.prove_many(me);
    store.make_listed(me, "/listed");
    store.submit(me, get_data("/listed")).unwrap();
    let add = |mode| Request::AddWatch {
        path: path("/listed"),
        mode,
    };
    store.submit(me, add(WatchMode::Persistent)).unwrap();
    let at = store.core.existing(&path("/listed")).unwrap();
    let before = store.core.work();
    for _ in 0..1_000 {
        let stamp = store.core.stamp(store.now, LogMode::None);
        store
            .core
            .apply_set(at, Bytes::new(), 1, stamp, &mut store.effects);
    }
    let work = store.core.work() - before;
    assert!(work < 20 * 1_000, "{work} units for 1000 events");
    assert_eq!(store.fired().len(), 1_000);
}

#[test]
fn a_count_of_descendants_touches_none_of_them() {
    let mut store = roomy();
    let me = store.remote();
    store.create(me, "/top", Persistent).unwrap();
    for child in 0..20_000 {
        store
            .create(me, &format!("/top/{child}"), Persistent)
            .unwrap();
    }
    let count = Request::GetAllChildrenNumber { path: path("/top") };
    let work = store.work(me, vec![count; 256]);
    assert!(work < 256 * 10, "{work} units");
}

#[test]
fn a_watch_is_found_by_session_and_path_however_many_there_are() {
    const CROWD: usize = 5_000;
    let mut store = roomy();
    let me = store.remote();
    store.create(me, "/hot", Persistent).unwrap();
    for _ in 0..CROWD {
        let other = store.remote();
        store.submit(other, get_data("/hot")).unwrap();
    }
    for own in 0..CROWD {
        store.submit(me, exists(&format!("/own/{own}"))).unwrap();
    }
    let add = Request::AddWatch {
        path: path("/hot"),
        mode: WatchMode::Persistent,
    };
    let requests = [exists("/hot"), get_data("/hot"), get_children("/hot"), add];
    let work = store.work(me, vec![requests; 100].into_iter().flatten());
    assert!(
        work < 100 * 40,
        "{work} units for 400 watches that are armed again"
    );

    let asked = SetWatches {
        since: Zxid(i64::MAX),
        data: vec![path("/hot"); 1_000],
        exist: vec![path("/own/4999"); 1_000],
        ..SetWatches::default()
    };
    let before = store.core.work();
    store
        .core
        .set_watches(me, &asked, store.now, &mut store.effects)
        .unwrap();
    let work = store.core.work() - before;
    assert!(
        work < 2_000 * 10,
        "{work} units for 2000 watches of two paths"
    );

    let before = store.core.work();
    for _ in 0..100 {
        let found = store.find_watches(me, "/hot", WatchFilter::Any);
        assert!(!found.unwrap().is_empty());
        let none = store.find_watches(me, "/cold", WatchFilter::Any).unwrap();
        assert!(!store.core.remove_watches(&none));
    }
    let work = store.core.work() - before;
    assert!(work < 200 * 20, "{work} units for 200 searches");
}

#[test]
fn a_sweep_looks_at_some_candidates_and_the_next_at_the_others() {
    const CONTAINERS: usize = 30_000;
    let mut store = roomy();
    let me = store.remote();
    for number in 0..CONTAINERS {
        store
            .create(me, &format!("/container-{number}"), Container)
            .unwrap();
    }
    store.next_deadline();
    let most = |store: &mut Harness| {
        let before = store.core.work();
        store.advance(Duration::from_secs(61));
        store.core.work() - before
    };
    for _ in 0..10 {
        let work = most(&mut store);
        assert!(work <= 20_000, "{work} units in one sweep");
    }
    for _ in 0..200 {
        store.advance(Duration::from_secs(61));
    }
    let left = store.core.counts().znodes;
    assert!(left < 10, "{left} are left");
}

fn walked(store: &Harness, below: &str) -> usize {
    let below = format!("{below}/");
    let tree = &store.core.tree;
    let paths = tree.nodes.iter().map(|(index, _)| tree.path(index as u32));
    paths
        .filter(|path| path.as_str().starts_with(&below))
        .count()
}

#[test]
fn each_znode_is_counted_below_all_that_are_above_it_as_long_as_it_is_there() {
    let mut store = roomy();
    let (me, other) = (store.session(), store.remote());
    let check = |store: &mut Harness| {
        for at in ["/a", "/a/b", "/a/b/c", "/a/b/d", "/a/e"] {
            let request = Request::GetAllChildrenNumber { path: path(at) };
            let Ok(Reply::Count(count)) = store.submit(me, request) else {
                continue;
            };
            assert_eq!(count, walked(store, at), "{at}");
        }
    };
    for at in ["/a", "/a/b", "/a/b/c", "/a/b/d"] {
        store.create(me, at, Persistent).unwrap();
        check(&mut store);
    }
    for at in ["/a/b/c/x", "/a/b/d/y", "/a/z"] {
        store.create(other, at, Ephemeral).unwrap();
        check(&mut store);
    }
    store.enqueue(me, "/a/b/c", "q-", Blockers::All);
    store.create(me, "/a/e", Container).unwrap();
    check(&mut store);
    let op = |at: &str| Op::Create(create(at, Persistent));
    let delete = |at: &str| Op::Delete {
        path: path(at),
        version: None,
    };
    let ops = vec![op("/a/e/f"), op("/a/e/f/g"), delete("/a/e/f/g")];
    store.submit(me, Request::Multi(ops)).unwrap();
    check(&mut store);
    store.submit(other, Request::Close).unwrap();
    check(&mut store);
    store.delete(me, "/a/e/f").unwrap();
    for _ in 0..10 {
        store.advance(Duration::from_secs(61));
    }
    assert_eq!(store.stat(me, "/a/e"), None, "the container is reaped");
    check(&mut store);
    let mut copy = Core::new(options());
    for txn in std::mem::take(store.core.kept()) {
        copy.replay(txn).unwrap();
    }
    let at = copy.existing(&path("/a")).unwrap();
    assert_eq!(copy.tree.count_below(at), walked(&store, "/a"));
}

const LEVELS: u64 = 400;

fn make_deep(store: &mut Harness, me: SessionRef) -> String {
    let mut deep = String::new();
    for level in 0..LEVELS {
        deep.push_str(&format!("/{level}"));
        store.create(me, &deep, Persistent).unwrap();
    }
    deep
}

#[test]
fn a_deep_path_costs_its_levels() {
    let mut store = roomy();
    let me = store.session();
    let deep = make_deep(&mut store, me);
    let look = Request::Exists {
        path: path(&deep),
        watch: false,
    };
    let found = store.work(me, [look]);
    assert!((LEVELS / 4..LEVELS).contains(&found), "found: {found}");
    let entry = Create {
        path: path(&format!("{deep}/e")),
        ..create("/", Ephemeral)
    };
    let created = store.work(me, [Request::Create(entry)]);
    assert!(
        (LEVELS..3 * LEVELS).contains(&created),
        "created: {created}"
    );
    let list = Request::GetEphemerals {
        prefix: ZnodePath::root(),
    };
    let named = store.work(me, [list]);
    assert!((LEVELS / 4..LEVELS).contains(&named), "named: {named}");
}

#[test]
fn watches_that_an_event_does_not_fire_are_work() {
    let mut store = roomy();
    let me = store.session();
    store.create(me, "/a", Persistent).unwrap();
    for _ in 0..1_000 {
        store.watch(me, get_children("/a"));
    }
    let change = Request::SetData {
        path: path("/a"),
        data: Bytes::new(),
        version: None,
    };
    assert!(store.work(me, [change]) >= 1_000);
    assert_eq!(store.fired(), []);
}

#[test]
fn what_is_above_a_change_is_looked_at_for_recursive_watches_alone() {
    let mut store = roomy();
    let me = store.session();
    let deep = make_deep(&mut store, me);
    let change = || Request::SetData {
        path: path(&deep),
        data: Bytes::new(),
        version: None,
    };
    let without = store.work(me, [change()]);
    let watch = store.watch(
        me,
        Request::AddWatch {
            path: ZnodePath::root(),
            mode: WatchMode::PersistentRecursive,
        },
    );
    let with = store.work(me, [change()]);
    assert!(with >= without + LEVELS, "{with} after {without}");
    assert!(store.core.unwatch(watch));
    assert_eq!(store.work(me, [change()]), without);
}

#[test]
fn a_search_goes_on_behind_what_is_deleted_meanwhile() {
    let mut store = roomy();
    let (me, other) = (store.remote(), store.session());
    for number in 0..10 {
        store
            .create(me, &format!("/own-{number}"), Ephemeral)
            .unwrap();
    }
    let mut found = store.core.begin_search(me);
    let mut some = |store: &mut Harness, most| {
        let (now, effects) = (store.now, &mut store.effects);
        let prefix = path("/own");
        store
            .core
            .search_some(me, &prefix, most, &mut found, now, effects)
            .unwrap()
    };
    assert!(some(&mut store, 3));
    for gone in ["/own-2", "/own-3", "/own-4", "/own-8", "/own-9"] {
        store.delete(other, gone).unwrap();
    }
    assert!(some(&mut store, 2));
    assert!(!some(&mut store, 10));
    assert!(!some(&mut store, 10), "it is over");
    let found: Vec<_> = found
        .paths
        .iter()
        .map(|path| path.name().to_owned())
        .collect();
    assert_eq!(
        found,
        ["own-0", "own-1", "own-2", "own-5", "own-6", "own-7"]
    );
}

#[test]
fn the_watches_of_a_session_that_expires_go_in_pieces_before_it_does() {
    let mut store = roomy();
    let mut core = options();
    core.limits.watches_per_session = 100_000;
    store.core = Core::new(core);
    let timeout = Some(Duration::from_secs(10));
    let me = store.opened(timeout, false);
    for number in 0..20_000 {
        store
            .submit(me, exists(&format!("/missing/{number}")))
            .unwrap();
    }
    store.now.moment = store.now.moment.after(Duration::from_secs(60));
    store.core.tick(store.now, &mut store.effects);
    store.now.moment = store.now.moment.after(Duration::from_secs(60));
    let mut ticks = 0;
    while store.core.counts().sessions > 0 {
        let before = store.core.work();
        store.core.tick(store.now, &mut store.effects);
        let work = store.core.work() - before;
        assert!(work <= 2 * 16_384, "{work} units in one tick");
        let due = store.next_deadline();
        assert!(due.is_none_or(|due| due <= store.now.moment));
        ticks += 1;
    }
    assert!(ticks > 1);
    assert_eq!(store.core.counts().watches, 0);
}

#[test]
fn an_event_below_costs_nothing_for_watches_of_a_znode_alone() {
    let mut store = roomy();
    let me = store.remote();
    store.create(me, "/top", Persistent).unwrap();
    store.create(me, "/top/below", Persistent).unwrap();
    let recursive = Request::AddWatch {
        path: path("/top"),
        mode: WatchMode::PersistentRecursive,
    };
    for crowd in 0..2_000 {
        let other = store.remote();
        if crowd == 1_000 {
            store.submit(me, recursive.clone()).unwrap();
        }
        store.submit(other, get_data("/top")).unwrap();
    }
    let set = Request::SetData {
        path: path("/top/below"),
        data: Bytes::new(),
        version: None,
    };
    let work = store.work(me, vec![set; 100]);
    assert!(work < 100 * 20, "{work} units for 100 events");
    assert_eq!(store.fired().len(), 100);
}

#[test]
fn a_session_that_has_lost_some_of_its_watches_is_not_saved_by_a_late_sign_of_life() {
    let mut store = roomy();
    let me = store.opened(Some(Duration::from_secs(10)), false);
    for number in 0..40_000 {
        store
            .submit(me, exists(&format!("/missing/{number}")))
            .unwrap();
    }
    for _ in 0..2 {
        store.now.moment = store.now.moment.after(Duration::from_secs(60));
        store.core.tick(store.now, &mut store.effects);
    }
    let counts = store.core.counts();
    assert_eq!(counts.sessions, 1, "one tick drops some of its watches");
    assert!(counts.watches < 40_000);
    let late = store.submit(me, exists("/missing/0"));
    assert!(
        matches!(late, Err(Error::SessionExpired { .. })),
        "{late:?}"
    );
}

fn with_many_watches(store: &mut Harness) -> SessionRef {
    let me = store.remote();
    for number in 0..MANY {
        store.watch(me, exists(&format!("/{number}")));
    }
    me
}

const MANY: usize = 2_500;

#[test]
fn a_session_that_is_displaced_loses_its_watches_in_pieces_and_refuses_its_connection_at_once() {
    let mut store = roomy();
    let me = with_many_watches(&mut store);
    assert!(!store.core.displace(me.id, &[8; 16]), "a wrong password");
    assert!(!store.core.displace(SessionId(77), &[7; 16]), "no session");
    assert_eq!(store.core.counts().watches, MANY);
    let before = store.core.work();
    assert!(store.core.displace(me.id, &[7; 16]));
    let left = store.core.counts().watches;
    assert!(left > 0 && left < MANY);
    assert!(store.core.work() - before < MANY as u64);
    let refused = store.submit(me, exists("/a")).unwrap_err();
    assert!(matches!(refused, Error::SessionMoved { .. }), "{refused:?}");
    while store.core.displace(me.id, &[7; 16]) {}
    assert!(store.core.counts().watches < left);
}

#[test]
fn a_connection_that_is_closed_drops_all_watches_in_pieces() {
    let mut store = roomy();
    let me = with_many_watches(&mut store);
    let mut calls = 1;
    while store.core.detach(me, store.now, &mut store.effects) {
        assert!(store.core.counts().watches < MANY);
        calls += 1;
    }
    assert_eq!((calls, store.core.counts().watches), (3, 0));
}

#[test]
fn a_long_queue_costs_its_waiters_no_walk() {
    let mut store = roomy();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    for _ in 0..20_000 {
        store.create(me, "/q/n-", EphemeralSequential).unwrap();
    }
    let waiter = store.remote();
    let (last, _) = store.enqueue(waiter, "/q", "n-", Blockers::All);
    let look = Request::GetPredecessor(GetPredecessor {
        entry: last,
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: true,
    });
    let work = store.work(waiter, vec![look; 256]);
    assert!(work < 256 * 64, "{work} units");
}

#[test]
fn a_waiter_that_asks_again_and_again_has_one_watch() {
    let mut store = roomy();
    let me = store.remote();
    for part in ["/s", "/s/permits", "/s/leases", "/s/queue"] {
        store.create(me, part, Persistent).unwrap();
    }
    for lease in 0..10 {
        let lease = format!("/s/leases/{lease}");
        store.create(me, &lease, Persistent).unwrap();
    }
    let (entry, _) = store.enqueue(me, "/s/queue", "n-", Blockers::All);
    for limit in (0..10).cycle().take(1_000) {
        let seen = store.look_for(me, &entry, Blockers::All, &permits("data", limit));
        assert!(matches!(seen, Predecessor::Blocked { .. }));
    }
    let watches = store.core.watches.len();
    assert!(watches <= 2, "{watches} watches");
    let create = Request::Create(create("/s/leases/another", Persistent));
    let work = store.work(me, [create]);
    assert!(work < 100, "{work} units");
}

fn end_all(store: &mut Harness) -> (usize, usize) {
    let (mut ticks, mut most) = (0, 0);
    while store.core.counts().sessions > 1 {
        store.now.moment = store.now.moment.after(Duration::from_secs(60));
        let before = store.core.counts().sessions;
        store.core.tick(store.now, &mut store.effects);
        most = most.max(before - store.core.counts().sessions);
        ticks += 1;
    }
    (ticks, most)
}

#[test]
fn a_tick_ends_a_part_of_many_idle_sessions() {
    let mut options = options();
    options.limits.sessions = 100_000;
    let mut store = Harness::with(options);
    store.session();
    for _ in 0..40_000 {
        store.opened(Some(Duration::from_secs(10)), false);
    }
    let (ticks, most) = end_all(&mut store);
    assert!(
        most <= 16_384,
        "{most} sessions ended in one of {ticks} ticks"
    );
}

#[test]
fn the_end_of_a_session_looks_at_no_events_of_another_session() {
    const CROWD: usize = 1_000;
    let mut store = roomy();
    let me = store.session();
    for number in 0..CROWD {
        let other = store.opened(Some(Duration::from_secs(10)), false);
        let queue = format!("/{number}");
        store.create(me, &queue, Persistent).unwrap();
        store.enqueue(other, &queue, "n-", Blockers::All);
        store.enqueue(me, &queue, "n-", Blockers::All);
    }
    let before = store.core.work();
    end_all(&mut store);
    let work = store.core.work() - before;
    assert_eq!(store.fired().len(), CROWD);
    assert!(work < CROWD as u64 * 20, "{work} units");
}
