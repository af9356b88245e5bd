//! The bytes that the store keeps for its clients: how they are counted, charged and limited.

use super::super::budget::SESSION_BYTES;
use super::replay::Random;
use super::*;

const LIMIT: usize = 1 << 20;

fn small() -> Harness {
    let mut options = options();
    options.limits.bytes = LIMIT;
    options.limits.watches_per_session = usize::MAX;
    Harness::with(options)
}

fn long(number: usize) -> String {
    format!("/{number:0>10000}")
}

fn data_of(at: &str, bytes: usize, mode: CreateMode) -> Request {
    Request::Create(Create {
        data: vec![b'x'; bytes].into(),
        ..create(at, mode)
    })
}

fn until_refused(store: &mut Harness, who: SessionRef, of: impl Fn(usize) -> Request) -> usize {
    for number in 0..1_000 {
        match store.submit(who, of(number)) {
            Ok(_) => {}
            Err(Error::LimitReached { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nothing is refused");
}

#[test]
fn paths_that_are_watched_count_as_long_as_they_are() {
    let mut store = small();
    let (one, other) = (store.remote(), store.remote());
    let before = store.core.bytes();
    let key = store.watch(one, exists(&long(0)));
    let watched = until_refused(&mut store, one, |number| exists(&long(number)));
    assert!((40..100).contains(&watched), "{watched}");
    assert!(store.core.bytes() >= before + watched * 10_000);
    assert!(store.core.unwatch(key));
    store.watch(one, exists(&long(0)));
    store.detach(one);
    assert_eq!(store.core.bytes(), before);
    store.watch(other, exists("/a"));
    let watching = store.core.bytes();
    store.create(other, "/a", Persistent).unwrap();
    store.delete(other, "/a").unwrap();
    assert!(store.core.bytes() < watching, "it has fired");
    store.submit(one, Request::Close).unwrap();
    store.submit(other, Request::Close).unwrap();
    assert!(store.core.bytes() < before, "sessions count, too");
}

#[test]
fn watches_that_come_back_with_their_client_count_too() {
    let mut store = small();
    let me = store.remote();
    let asked = SetWatches {
        exist: (0..200).map(|number| path(&long(number))).collect(),
        ..SetWatches::default()
    };
    let (now, effects) = (store.now, &mut store.effects);
    let refused = store.core.set_watches(me, &asked, now, effects);
    assert!(
        matches!(refused, Err(Error::LimitReached { .. })),
        "{refused:?}"
    );
}

#[test]
fn watches_that_come_back_count_each_with_its_record() {
    let mut store = small();
    let me = store.remote();
    let asked = SetWatches {
        exist: (0..LIMIT / 200)
            .map(|number| path(&format!("/{number}")))
            .collect(),
        ..SetWatches::default()
    };
    let before = store.core.bytes();
    let (now, effects) = (store.now, &mut store.effects);
    let refused = store.core.set_watches(me, &asked, now, effects);
    assert!(
        matches!(refused, Err(Error::LimitReached { .. })),
        "{refused:?}"
    );
    assert_eq!(store.core.bytes(), before, "none is left behind");
}

#[test]
fn no_session_takes_what_others_need() {
    let hogs: [fn(usize) -> Request; 3] = [
        |number| exists(&long(number)),
        |number| data_of(&format!("/e{number}"), 10_000, Ephemeral),
        |number| data_of(&format!("/p{number}"), 10_000, Persistent),
    ];
    for hog in hogs {
        let mut store = small();
        let (greedy, honest) = (store.remote(), store.remote());
        store.create(honest, "/q", Persistent).unwrap();
        assert!(until_refused(&mut store, greedy, hog) > 40);
        for number in 0..5 {
            let entry = data_of(&format!("/q/{number}"), 10_000, Ephemeral);
            store.submit(honest, entry).unwrap();
            store.watch(honest, exists(&long(2_000 + number)));
        }
        let refused = store.submit(greedy, hog(2_000)).unwrap_err();
        assert!(matches!(refused, Error::LimitReached { .. }), "{refused}");
    }
}

#[test]
fn a_full_store_lets_go_and_lets_in() {
    let mut store = small();
    let greedy = store.remote();
    let brief = store.opened(Some(5 * SECOND), false);
    store.create(brief, "/q", Persistent).unwrap();
    store.create(brief, "/q/held", Ephemeral).unwrap();
    until_refused(&mut store, greedy, |number| {
        data_of(&format!("/p{number}"), 10_000, Persistent)
    });
    until_refused(&mut store, greedy, |number| exists(&long(number)));
    until_refused(&mut store, greedy, |number| {
        data_of(&format!("/small{number}"), 10, Ephemeral)
    });
    let operator = store.remote();
    let proof = Identity::digest(b"operator:secret");
    store.core.add_identity(operator, proof).unwrap();
    let (now, effects) = (store.now, &mut store.effects);
    store.core.ping(operator, now, effects).unwrap();
    store.detach(brief);
    store.advance(60 * SECOND);
    assert_eq!(store.stat(operator, "/q/held"), None, "its session expired");
    store.delete(operator, "/p0").unwrap();
    let full = store.core.bytes();
    store.submit(greedy, Request::Close).unwrap();
    assert!(store.core.bytes() < full);
}

#[test]
fn identities_go_with_their_connection() {
    let mut store = small();
    let before = store.core.bytes();
    for number in 0..90 {
        let me = store.remote();
        let with_session = store.core.bytes();
        for user in 0..4 {
            let secret = format!("{}{number}-{user}:x", "u".repeat(3_000));
            let proof = Identity::digest(secret.as_bytes());
            let _ = store.core.add_identity(me, proof);
        }
        assert!(store.core.bytes() >= with_session + 3_000);
        store.detach(me);
        assert_eq!(store.core.bytes(), with_session);
    }
    assert!(store.core.bytes() > before);
}

#[test]
fn identities_are_refused_where_there_is_no_room() {
    let mut store = small();
    let crowd: Vec<_> = (0..90).map(|_| store.remote()).collect();
    let refused = crowd.iter().any(|me| {
        let users = (0..4).map(|user| format!("{}{user}:x", "u".repeat(3_500)));
        let mut proofs = users.map(|user| Identity::digest(user.as_bytes()));
        proofs.any(|proof| store.core.add_identity(*me, proof).is_err())
    });
    assert!(refused, "{} bytes are kept", store.core.bytes());
}

#[test]
fn sessions_are_admitted_up_to_their_part_of_the_limit() {
    let mut options = options();
    options.limits.bytes = LIMIT;
    options.limits.sessions = usize::MAX;
    let mut store = Harness::with(options);
    let now = store.now;
    let mut open = |number: usize, is_local| {
        let id = SessionId(number as i64);
        let opened = store.core.open_session(id, [7; 16], None, is_local, now);
        opened.map(|_| ())
    };
    let admitted = LIMIT / 16 / SESSION_BYTES;
    for number in 1..=admitted {
        open(number, false).unwrap();
    }
    let limit = Error::LimitReached {
        what: "bytes of sessions",
        limit: LIMIT / 16,
    };
    assert_eq!(open(admitted + 1, false), Err(limit));
    open(admitted + 1, true).unwrap();
}

/// Two sessions that watch znodes that the same multi changes: `many` watches twenty of them, and `one` watches one.
struct Audience {
    store: Harness,
    many: SessionRef,
    one: SessionRef,
    writer: SessionRef,
}

impl Audience {
    fn new() -> Self {
        let mut store = Harness::new();
        let (many, one, writer) = (store.remote(), store.remote(), store.remote());
        let mut audience = Self {
            store,
            many,
            one,
            writer,
        };
        audience.watch();
        audience
    }

    fn watch(&mut self) {
        for number in 0..20 {
            self.store.watch(self.many, exists(&format!("/{number}")));
        }
        self.store.watch(self.one, exists("/19"));
    }

    fn change(&mut self, of: impl Fn(String) -> Op) -> (usize, Vec<u32>) {
        let effects = &mut self.store.effects;
        effects.fired.clear();
        effects.overflowed.clear();
        let multi = (0..20).map(|number| of(format!("/{number}")));
        let multi = Request::Multi(multi.collect());
        self.store.submit(self.writer, multi).unwrap();
        let effects = &self.store.effects;
        (effects.fired.len(), effects.overflowed.clone())
    }

    fn create(&mut self) -> (usize, Vec<u32>) {
        self.change(|at| Op::Create(create(&at, Persistent)))
    }
}

#[test]
fn events_within_the_limits_are_all_counted() {
    assert_eq!(Audience::new().create(), (21, vec![]));
}

#[test]
fn a_session_is_cut_off_at_its_own_limit_of_events_and_counts_anew_for_the_next_transaction() {
    let mut audience = Audience::new();
    audience.store.core.limit_answers(audience.many, 1_000);
    let (fired, cut) = audience.create();
    assert!((2..20).contains(&fired), "{fired}");
    assert_eq!(cut, [audience.many.slot]);
    audience.change(|at| Op::Delete {
        path: path(&at),
        version: None,
    });
    audience.store.core.limit_answers(audience.many, usize::MAX);
    audience.watch();
    assert_eq!(audience.create(), (21, vec![]));
}

#[test]
fn over_the_limit_of_all_events_the_session_with_most_is_cut_off() {
    let mut audience = Audience::new();
    audience.store.core.limit_events(1_000);
    let (fired, cut) = audience.create();
    assert!((2..20).contains(&fired), "{fired}");
    assert_eq!(cut, [audience.many.slot]);
}

#[test]
fn events_are_counted_to_the_byte() {
    let mut probe = Audience::new();
    probe.create();
    let slot = probe.many.slot;
    let own = probe.store.core.sessions.get(slot).pending_events.bytes;
    let paths: usize = (0..20).map(|number| format!("/{number}").len()).sum();
    assert_eq!(own, 20 * size_of::<Fired>() + paths);
    for (limit, is_cut) in [(own, false), (own - 1, true)] {
        let mut audience = Audience::new();
        audience.store.core.limit_answers(audience.many, limit);
        assert_eq!(!audience.create().1.is_empty(), is_cut, "its own, {limit}");
    }
    // With the limit `2 * own`, `many` exceeds its equal share, but all events together are within the limit.
    for (limit, is_cut) in [(2 * own, false), (own, false), (own - 1, true)] {
        let mut audience = Audience::new();
        audience.store.core.limit_events(limit);
        assert_eq!(!audience.create().1.is_empty(), is_cut, "of all, {limit}");
    }
}

#[test]
fn addresses_and_sessions_of_this_process_are_identified_where_there_is_no_room() {
    let mut store = small();
    let own = store.session();
    let proof = |user: usize| {
        let secret = format!("{}{user}:x", "u".repeat(3_500));
        Identity::digest(secret.as_bytes())
    };
    let full = (0..90).find_map(|_| {
        let me = store.remote();
        let refused = (0..4).any(|user| store.core.add_identity(me, proof(user)).is_err());
        refused.then_some(me)
    });
    let address = Identity::ip(std::net::IpAddr::from([127, 0, 0, 1]));
    store.core.add_identity(full.unwrap(), address).unwrap();
    store.core.add_identity(own, proof(0)).unwrap();
}

fn step(store: &mut Harness, random: &mut Random, sessions: &mut Vec<SessionRef>) {
    if sessions.is_empty() || random.below(12) == 0 {
        let timeout = [None, Some(5 * SECOND)][random.below(2) as usize];
        let is_local = random.below(3) == 0;
        sessions.push(store.opened(timeout, is_local));
        return;
    }
    let at = random.below(sessions.len() as u64) as usize;
    let me = sessions[at];
    let (now, effects) = (store.now, &mut store.effects);
    match random.below(16) {
        0 => _ = store.submit(me, exists(random.path())),
        1 => _ = store.submit(me, get_data(random.path())),
        2 => _ = store.submit(me, get_children(random.path())),
        3 => {
            let mode = [WatchMode::Persistent, WatchMode::PersistentRecursive];
            let mode = mode[random.below(2) as usize];
            let path = path(random.path());
            _ = store.submit(me, Request::AddWatch { path, mode });
        }
        4 => {
            let user = format!("user{}:x", random.below(4));
            _ = store
                .core
                .add_identity(me, Identity::digest(user.as_bytes()));
        }
        5 => store.detach(me),
        6 => {
            let again = store
                .core
                .reattach(me.id, &[7; 16], 5 * SECOND, now, effects);
            if let Ok((again, _)) = again {
                sessions[at] = again;
            }
        }
        7 => {
            if let Ok(found) = store.find_watches(me, random.path(), WatchFilter::Any) {
                store.core.remove_watches(&found);
            }
        }
        8 => {
            let acl = [Acl::open(), Acl::creator_all()][random.below(2) as usize].clone();
            let (path, version) = (path(random.path()), None);
            _ = store.submit(me, Request::SetAcl { path, acl, version });
        }
        9 => store.advance(random.below(4) as u32 * SECOND),
        10 if random.below(4) == 0 => _ = store.submit(me, Request::Close),
        _ => _ = store.submit(me, random.request()),
    }
}

fn reopened(store: &Harness, limit: usize) -> Harness {
    let mut options = options();
    options.limits.bytes = limit;
    let mut again = Harness::with(options);
    for node in store.core.node_images() {
        again.core.restore_node(node).unwrap();
    }
    again.core.finish_restore(store.core.last_zxid());
    again
}

#[test]
fn a_store_that_holds_more_than_it_may_is_read_and_cleared() {
    let mut large = small();
    let program = large.session();
    for number in 0..90 {
        let made = data_of(&format!("/p{number}"), 10_000, Persistent);
        large.submit(program, made).unwrap();
    }
    let mut store = reopened(&large, LIMIT / 4);
    let me = store.remote();
    assert!(store.stat(me, "/p0").is_some());
    for refused in [
        exists(&long(0)),
        data_of("/more", 0, Ephemeral),
        data_of("/more", 0, Persistent),
    ] {
        let refused = store.submit(me, refused).unwrap_err();
        assert!(matches!(refused, Error::LimitReached { .. }), "{refused}");
    }
    store.set(me, "/p0", None).unwrap();
    for number in 0..80 {
        store.delete(me, &format!("/p{number}")).unwrap();
    }
    store.create(me, "/more", Ephemeral).unwrap();
    store.submit(me, Request::Close).unwrap();
    assert_eq!(store.core.counts().sessions, 0);
}

fn delete_below(store: &mut Harness, me: SessionRef, at: &str) {
    let Ok(Reply::Children { names, .. }) = store.submit(me, get_children(at)) else {
        panic!("{at} is not there");
    };
    for name in names.iter().filter(|name| *name != "zookeeper") {
        let child = format!("{}/{name}", at.trim_end_matches('/'));
        delete_below(store, me, &child);
        store.delete(me, &child).unwrap();
    }
}

#[test]
fn every_count_is_what_is_there() {
    for seed in 0..100 {
        let mut options = options();
        options.limits.bytes = 16 * 16 * SESSION_BYTES;
        let empty = Core::new(options.clone()).bytes();
        let mut store = Harness::with(options.clone());
        let (mut random, mut sessions) = (Random(seed), Vec::new());
        for _ in 0..200 {
            if sessions.len() < 15 {
                step(&mut store, &mut random, &mut sessions);
            } else {
                let oldest = sessions.remove(0);
                _ = store.submit(oldest, Request::Close);
            }
            store.core.check_bytes();
        }
        let mut restored = Core::new(options.clone());
        for session in store.core.session_images() {
            restored.restore_session(session).unwrap();
        }
        for node in store.core.node_images() {
            restored.restore_node(node).unwrap();
        }
        restored.finish_restore(store.core.last_zxid());
        restored.check_bytes();
        let mut replayed = Core::new(options);
        for txn in store.core.kept().drain(..) {
            replayed.replay(txn).unwrap();
        }
        replayed.check_bytes();
        for session in sessions {
            _ = store.submit(session, Request::Close);
        }
        store.advance(1_000 * SECOND);
        let me = store.session();
        store.core.add_identity(me, Identity::superuser()).unwrap();
        delete_below(&mut store, me, "/");
        store.submit(me, Request::Close).unwrap();
        assert_eq!(store.core.bytes(), empty, "seed {seed}");
    }
}
