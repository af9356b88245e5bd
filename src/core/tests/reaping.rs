//! Containers and TTL nodes.

use super::*;

#[test]
fn containers_are_reaped_when_childless_after_having_had_children() {
    let mut store = Harness::new();
    let me = store.session();
    assert_eq!(store.next_deadline(), None);
    for at in ["/used", "/full", "/new"] {
        store.create(me, at, Container).unwrap();
    }
    for at in ["/used/a", "/full/a"] {
        store.create(me, at, Persistent).unwrap();
    }
    store.delete(me, "/used/a").unwrap();
    assert!(store.next_deadline().is_some());
    store.advance(60 * SECOND);
    let there =
        |store: &mut Harness| ["/used", "/full", "/new"].map(|at| store.stat(me, at).is_some());
    assert_eq!(there(&mut store), [false, true, true]);
    for _ in 0..5 {
        store.advance(60 * SECOND);
    }
    assert_eq!(there(&mut store), [false, true, false]);
    assert_eq!(store.next_deadline(), None);
}

#[test]
fn ttl_nodes_are_reaped_when_childless_and_unchanged() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/t", PersistentTtl(90 * SECOND)).unwrap();
    assert_eq!(store.stat(me, "/t").unwrap().ephemeral_owner, SessionId(0));
    store.next_deadline();
    store.advance(60 * SECOND);
    store.set(me, "/t", None).unwrap();
    store.create(me, "/t/a", Persistent).unwrap();
    for _ in 0..3 {
        store.advance(60 * SECOND);
    }
    assert!(store.stat(me, "/t").is_some());
    store.delete(me, "/t/a").unwrap();
    store.next_deadline();
    store.advance(60 * SECOND);
    assert!(store.stat(me, "/t").is_none());
    let longest = Duration::from_millis((1 << 40) - 1);
    for (at, ttl) in [("/least", Duration::from_millis(1)), ("/most", longest)] {
        store.create(me, at, PersistentTtl(ttl)).unwrap();
    }
    let [too_short, too_long] = [
        Duration::from_micros(999),
        longest + Duration::from_nanos(1),
    ];
    for ttl in [Duration::ZERO, too_short, too_long] {
        let refused = store.create(me, "/t", PersistentTtl(ttl)).unwrap_err();
        assert!(matches!(refused, Error::BadArguments(_)));
    }
    let mut strict = Harness::with(CoreOptions {
        allow_ttl: false,
        ..options()
    });
    let me = strict.session();
    let refused = strict.create(me, "/t", PersistentTtl(SECOND)).unwrap_err();
    assert!(matches!(refused, Error::Unimplemented { .. }));
}

#[test]
fn a_sweep_is_limited_and_the_next_one_comes_soon() {
    let mut store = Harness::new();
    let me = store.session();
    for n in 0..1_500 {
        store
            .create(me, &format!("/t{n}"), PersistentTtl(SECOND))
            .unwrap();
    }
    store.next_deadline();
    store.advance(60 * SECOND);
    let left = |store: &Harness| store.core.tree.nodes.len() - 4;
    assert!((1..1_500).contains(&left(&store)), "{} left", left(&store));
    let next = store.next_deadline().unwrap();
    assert!(next.since(store.now.moment) < SECOND);
    for _ in 0..100 {
        store.next_deadline();
        store.advance(SECOND / 100);
    }
    assert_eq!(left(&store), 0);
}

#[test]
fn containers_that_come_all_the_time_do_not_gather() {
    const RATE: usize = 2_000;
    let mut store = Harness::with(CoreOptions {
        reaper_interval: 10 * SECOND,
        ..options()
    });
    let me = store.session();
    let mut most = 0;
    for name in 0..40 * RATE {
        let at = format!("/c{name}");
        store.create(me, &at, Container).unwrap();
        let entry = format!("{at}/a");
        store.create(me, &entry, Ephemeral).unwrap();
        store.delete(me, &entry).unwrap();
        if name % (RATE / 100) == 0 {
            store.next_deadline();
            store.advance(SECOND / 100);
            most = most.max(store.core.tree.nodes.len());
        }
    }
    let of_interval = 10 * RATE;
    assert!(most < of_interval * 3 / 2, "{most} znodes");
}

#[test]
fn a_znode_that_nobody_reaps_is_no_candidate() {
    let mut store = Harness::new();
    let me = store.session();
    for (at, mode) in [("/p", Persistent), ("/e", Ephemeral), ("/c", Container)] {
        store.create(me, at, mode).unwrap();
    }
    for _ in 0..3 {
        store.create(me, "/p/a", Persistent).unwrap();
        store.delete(me, "/p/a").unwrap();
        store.create(me, "/c/a", Persistent).unwrap();
        assert_eq!(store.core.reaper.candidates(), 1);
        store.delete(me, "/c/a").unwrap();
        assert_eq!(store.core.reaper.candidates(), 1, "once");
    }
    store.next_deadline();
    store.advance(60 * SECOND);
    assert_eq!(store.core.reaper.candidates(), 0);
    assert_eq!(store.stat(me, "/c"), None);
}

#[test]
fn a_time_to_live_has_passed_after_its_last_millisecond() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/t", PersistentTtl(60 * SECOND)).unwrap();
    store.create(me, "/c", Container).unwrap();
    store.next_deadline();
    store.advance(60 * SECOND);
    assert!(
        store.stat(me, "/t").is_some(),
        "it is that old, and no older"
    );
    store.advance(60 * SECOND);
    assert_eq!(store.stat(me, "/t"), None);
    for _ in 2..5 {
        store.advance(60 * SECOND);
    }
    assert!(store.stat(me, "/c").is_some());
    store.advance(60 * SECOND);
    assert_eq!(store.stat(me, "/c"), None);
}

#[test]
fn a_sweep_that_leaves_candidates_waits_for_the_interval() {
    let mut store = Harness::new();
    let me = store.session();
    store
        .create(me, "/t", PersistentTtl(3_600 * SECOND))
        .unwrap();
    for _ in 0..3 {
        let next = store.next_deadline();
        assert_eq!(next, Some(store.now.moment.after(60 * SECOND)));
        store.advance(60 * SECOND);
    }
}

#[test]
fn a_candidate_that_is_gone_is_forgotten_where_another_has_its_place() {
    let mut store = Harness::new();
    let me = store.session();
    for at in ["/c", "/d"] {
        store.create(me, at, Container).unwrap();
        store.delete(me, at).unwrap();
    }
    store.create(me, "/e", Container).unwrap();
    store.next_deadline();
    store.advance(60 * SECOND);
    assert_eq!(store.core.reaper.candidates(), 1);
}
