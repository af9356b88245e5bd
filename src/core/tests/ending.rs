//! Ends and moves of sessions, and their watches and znodes.

use super::*;

#[test]
fn ephemerals_go_with_their_session_under_one_zxid() {
    let mut store = Harness::new();
    let (me, other) = (store.session(), store.session());
    store.create(me, "/a", Persistent).unwrap();
    for name in ["/a/z", "/a/y", "/a/x"] {
        store.create(other, name, Ephemeral).unwrap();
    }
    let under = store.create(other, "/a/z/sub", Persistent).unwrap_err();
    assert_eq!(
        under,
        Error::NoChildrenForEphemerals {
            path: "/a/z/sub".into()
        }
    );
    store.delete(me, "/a/y").unwrap();
    let watches = ["/a/x", "/a/z"].map(|at| store.watch(me, get_data(at)));
    let own = store.watch(other, get_data("/a/x"));
    let before = store.core.last_zxid();
    store.submit(other, Request::Close).unwrap();
    assert_eq!(store.core.last_zxid(), Zxid(before.0 + 1));
    let deleted = |watch, at: &str| (watch, NodeDeleted, at.to_owned());
    assert_eq!(
        store.fired(),
        [deleted(watches[1], "/a/z"), deleted(watches[0], "/a/x")]
    );
    assert_eq!(store.effects.dropped, [(own, other.id, End::Closed)]);
    let ended = Ended {
        id: other.id,
        slot: other.slot,
        end: End::Closed,
    };
    assert_eq!(store.effects.ended, [ended]);
    let after = store.submit(other, exists("/a")).unwrap_err();
    assert_eq!(after, Error::SessionExpired { session: other.id });
}

#[test]
fn a_session_expires_at_the_end_of_its_bucket() {
    let mut store = Harness::new();
    store.now.moment = BootInstant::from_nanos(1_500_000_000);
    let me = store.open(Some(SECOND));
    // 1.5 s plus the shortest timeout of 4 s, rounded up to the next tick.
    assert_eq!(
        store.next_deadline(),
        Some(BootInstant::from_nanos(6_000_000_000))
    );
    store.advance(3 * SECOND);
    store.stat(me, "/");
    assert_eq!(
        store.next_deadline(),
        Some(BootInstant::from_nanos(10_000_000_000))
    );
    store.advance(Duration::from_millis(5_499));
    assert_eq!(store.effects.ended, []);
    store.advance(Duration::from_millis(1));
    assert_eq!(
        store.effects.ended,
        [Ended {
            id: me.id,
            slot: me.slot,
            end: End::Expired
        }]
    );
    assert_eq!(store.next_deadline(), None);
}

#[test]
fn a_request_after_the_deadline_comes_too_late_even_before_the_tick() {
    let mut store = Harness::new();
    let me = store.open(Some(4 * SECOND));
    store.now.moment = BootInstant::from_nanos(6_000_000_000);
    let late = store.submit(me, exists("/")).unwrap_err();
    assert_eq!(late, Error::SessionExpired { session: me.id });
    assert_eq!(store.effects.ended.len(), 1);
}

#[test]
fn a_session_without_timeout_never_expires() {
    let mut store = Harness::new();
    let me = store.session();
    assert_eq!(store.next_deadline(), None);
    store.advance(SECOND * 1_000_000);
    assert!(store.stat(me, "/").is_some());
}

#[test]
fn a_session_moves_with_its_password_and_the_former_owner_is_refused() {
    let mut store = Harness::new();
    let me = store.open(Some(8 * SECOND));
    store.watch(me, exists("/a"));
    let (now, effects) = (store.now, &mut store.effects);
    assert!(
        store
            .core
            .reattach(me.id, &[8; 16], 4 * SECOND, now, effects)
            .is_err()
    );
    assert!(
        store
            .core
            .reattach(SessionId(99), &[7; 16], 8 * SECOND, now, effects)
            .is_err()
    );
    let (moved, timeout) = store
        .core
        .reattach(me.id, &[7; 16], 5 * SECOND, now, effects)
        .unwrap();
    assert_eq!(timeout, 5 * SECOND, "agreed anew");
    assert_eq!(store.core.watches.counts(), (0, 0));
    assert_eq!(
        store.submit(me, exists("/")).unwrap_err(),
        Error::SessionMoved { session: me.id }
    );
    assert!(store.stat(moved, "/").is_some());
}

#[test]
fn a_session_gets_back_the_timeout_that_it_was_opened_with_and_no_longer_one() {
    let mut store = Harness::new();
    let me = store.open(Some(8 * SECOND));
    for (asked, told) in [(5, 5), (20, 8), (1, 4), (8, 8)] {
        let (now, effects) = (store.now, &mut store.effects);
        let again = store
            .core
            .reattach(me.id, &[7; 16], asked * SECOND, now, effects);
        assert_eq!(again.unwrap().1, told * SECOND);
    }
}

/// `now` may be stale, because it is read before the lock is taken. A client that did not receive the shorter timeout
/// still relies on its old timeout.
#[test]
fn neither_a_stale_touch_nor_a_shorter_timeout_moves_a_deadline_back() {
    let mut store = Harness::new();
    let me = store.open(Some(20 * SECOND));
    let before = store.now;
    store.now.moment = BootInstant::from_nanos(15_000_000_000);
    store.submit(me, exists("/")).unwrap();
    let deadline = store.next_deadline();
    let effects = &mut store.effects;
    store.core.ping(me, before, effects).unwrap();
    assert_eq!(store.next_deadline(), deadline, "a stale touch");
    let (now, effects) = (store.now, &mut store.effects);
    store
        .core
        .reattach(me.id, &[7; 16], 4 * SECOND, now, effects)
        .unwrap();
    assert_eq!(store.next_deadline(), deadline, "a shorter timeout");
    store.now.moment = BootInstant::from_nanos(34_999_999_999);
    let effects = &mut store.effects;
    let again = store
        .core
        .reattach(me.id, &[7; 16], 4 * SECOND, store.now, effects);
    assert!(again.is_ok(), "the client still believes in it");
}

#[test]
fn sessions_of_other_processes_end_at_the_date_of_the_opening() {
    let mut store = Harness::new();
    let (me, other) = (store.session(), store.remote());
    store.create(other, "/a", Ephemeral).unwrap();
    store.core.kept().clear();
    assert_eq!(store.core.end_remote_sessions(77), 1);
    let kept = std::mem::take(store.core.kept());
    let ends: Vec<_> = kept.iter().map(|txn| (txn.session, txn.unix_ms)).collect();
    assert_eq!(ends, [(other.id, 77)]);
    assert_eq!(store.stat(me, "/a"), None);
    assert_eq!(store.core.counts().ended.expired, 1);
}

fn ends(store: &Harness) -> [u64; 4] {
    let ends = store.core.counts().ended;
    [ends.closed, ends.expired, ends.exited, ends.kicked]
}

#[test]
fn a_session_ends_with_the_process_of_its_present_connection_alone() {
    let mut store = Harness::new();
    let me = store.remote();
    store.create(me, "/e", Ephemeral).unwrap();
    let (now, effects) = (store.now, &mut store.effects);
    let moved = store
        .core
        .reattach(me.id, &[7; 16], 8 * SECOND, now, effects);
    let moved = moved.unwrap().0;
    assert!(store.core.is_current(moved) && !store.core.is_current(me));
    assert!(!store.core.end_exited(me, now, effects));
    store.core.doom_exited(me, now);
    store.core.tick(now, effects);
    assert_eq!((ends(&store), store.core.counts().ephemerals), ([0; 4], 1));
    let effects = &mut store.effects;
    assert!(store.core.end_exited(moved, now, effects));
    assert!(!store.core.end_exited(moved, now, effects));
    assert!(!store.core.is_current(moved));
    assert_eq!(
        (ends(&store), store.core.counts().ephemerals),
        ([0, 0, 1, 0], 0)
    );
}

#[test]
fn a_session_that_is_doomed_with_its_process_ends_by_the_next_tick() {
    let mut store = Harness::new();
    let me = store.remote();
    store.create(me, "/e", Ephemeral).unwrap();
    store.core.doom_exited(me, store.now);
    assert_eq!(store.core.counts().ephemerals, 1);
    assert_eq!(store.next_deadline(), Some(store.now.moment));
    store.core.tick(store.now, &mut store.effects);
    assert_eq!(
        (ends(&store), store.core.counts().ephemerals),
        ([0, 0, 1, 0], 0)
    );
}

#[test]
fn a_session_that_is_kicked_is_refused_from_then_on() {
    for may_log in [true, false] {
        let mut store = Harness::new();
        let (me, mine) = (store.remote(), store.session());
        store.create(me, "/e", Ephemeral).unwrap();
        let (now, effects) = (store.now, &mut store.effects);
        let gone = store.core.kick(SessionId(77), may_log, now, effects);
        assert!(matches!(gone, Kicked::NoSession));
        let local = store.core.kick(mine.id, may_log, now, effects);
        assert!(matches!(local, Kicked::Local));
        let kicked = store.core.kick(me.id, may_log, now, effects);
        match may_log {
            true => assert!(matches!(kicked, Kicked::Ended)),
            false => assert!(matches!(kicked, Kicked::Ending)),
        }
        assert!(!store.core.is_current(me), "may log: {may_log}");
        let refused = store.submit(me, exists("/")).unwrap_err();
        match may_log {
            true => assert!(
                matches!(refused, Error::SessionExpired { .. }),
                "{refused:?}"
            ),
            false => assert!(matches!(refused, Error::SessionMoved { .. }), "{refused:?}"),
        }
        store.core.tick(store.now, &mut store.effects);
        assert_eq!(
            (ends(&store), store.core.counts().ephemerals),
            ([0, 0, 0, 1], 0)
        );
        assert!(store.core.is_current(mine));
    }
}

#[test]
fn ends_are_counted_by_their_reasons() {
    let mut store = Harness::new();
    let [one, two] = [store.remote(), store.remote()];
    let three = store.open(Some(8 * SECOND));
    for closed in [one, two] {
        store.submit(closed, Request::Close).unwrap();
    }
    store.now.moment = store.now.moment.after(60 * SECOND);
    store.core.tick(store.now, &mut store.effects);
    assert!(!store.core.is_current(three));
    assert_eq!(ends(&store), [2, 1, 0, 0]);
}

#[test]
fn the_end_of_a_session_costs_a_unit_for_each_of_its_znodes() {
    let mut store = Harness::new();
    let me = store.remote();
    const COUNT: u64 = 500;
    for number in 0..COUNT {
        store.create(me, &format!("/e{number}"), Ephemeral).unwrap();
    }
    let before = store.core.work();
    store.submit(me, Request::Close).unwrap();
    assert!(store.core.work() - before >= COUNT);
}
