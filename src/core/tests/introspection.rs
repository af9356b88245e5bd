//! Introspection: counts and lists for operators.

use super::*;

fn pieces(slots: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..slots)
        .step_by(most)
        .map(move |from| from..(from + most).min(slots))
}

#[test]
fn the_counts_are_those_of_what_is_there() {
    let mut store = Harness::new();
    let (me, other) = (store.session(), store.remote());
    let empty = store.core.counts();
    store.create(me, "/a", Persistent).unwrap();
    store.create(other, "/a/b", Ephemeral).unwrap();
    store.watch(other, exists("/later"));
    store.submit(me, Request::Close).unwrap();
    let counts = store.core.counts();
    assert_eq!(counts.znodes, empty.znodes + 2);
    assert_eq!((counts.ephemerals, counts.watches), (1, 1));
    assert_eq!((empty.sessions, counts.sessions), (2, 1));
    let data = "/a".len() + "/a/b".len() + 2 * "data".len();
    assert_eq!(counts.data_bytes, empty.data_bytes + data);
    assert!(counts.znode_bytes > empty.znode_bytes + data);
    assert!(counts.watch_bytes > 0 && empty.watch_bytes == 0);
    assert_eq!(counts.session_bytes, store.core.sessions.bytes);
    let proven = Identity::digest(b"user:secret");
    store.core.add_identity(other, proven).unwrap();
    let identity = store.core.sessions.identity_bytes;
    assert!(identity > 0);
    assert_eq!(
        store.core.counts().session_bytes,
        counts.session_bytes + identity
    );
    assert_eq!(counts.last_zxid, store.core.last_zxid());
    assert_eq!((counts.ended.closed, counts.ended.expired), (1, 0));
    assert_eq!(counts.max_bytes, options().limits.bytes);
}

#[test]
fn sessions_are_listed_by_their_deadlines_in_pieces() {
    let mut store = Harness::new();
    let forever = store.session();
    let expiring = [12, 4, 8].map(|seconds| store.open(Some(seconds * SECOND)).id);
    let first = store.core.expiring(None, 2);
    let second = store
        .core
        .expiring(first.last().map(|(deadline, _)| *deadline), 2);
    let ids = |list: Vec<(_, SessionId)>| list.into_iter().map(|(_, id)| id).collect::<Vec<_>>();
    assert_eq!(ids(first), [expiring[1], expiring[2]]);
    assert_eq!(ids(second), [expiring[0]]);

    let mut seen = Vec::new();
    for slots in pieces(store.core.session_slots(), 2) {
        store.core.sessions_in(slots, &mut |session| {
            seen.push((session.id, session.timeout))
        });
    }
    let timeouts = [12, 4, 8].map(|seconds| Some(seconds * SECOND));
    assert_eq!(seen[0], (forever.id, None));
    assert_eq!(seen[1..], [0, 1, 2].map(|at| (expiring[at], timeouts[at])));
}

#[test]
fn ephemerals_and_watches_are_listed_in_pieces() {
    let mut store = Harness::new();
    let (me, other) = (store.session(), store.session());
    store.create(me, "/a", Persistent).unwrap();
    for (session, at) in [(me, "/a/x"), (other, "/a/y"), (me, "/a/z")] {
        store.create(session, at, Ephemeral).unwrap();
    }
    store.delete(me, "/a/z").unwrap();
    let mut owned = Vec::new();
    for slots in pieces(store.core.znode_slots(), 2) {
        store
            .core
            .ephemerals_in(slots, &mut |owner, at| owned.push((owner, at.to_string())));
    }
    owned.sort();
    assert_eq!(
        owned,
        [(me.id, "/a/x".to_owned()), (other.id, "/a/y".to_owned())]
    );

    store.watch(me, exists("/later"));
    store.watch(other, get_data("/a"));
    store.watch(me, get_children("/a"));
    let mut watched = Vec::new();
    for slots in pieces(store.core.watch_slots(), 2) {
        store.core.watches_in(slots, &mut |watch| {
            watched.push((
                watch.session,
                watch.session_slot,
                watch.path.to_string(),
                watch.node.is_some(),
            ));
        });
    }
    watched.sort();
    let expected = [(me, "/later", false), (other, "/a", true)];
    assert_eq!(
        watched,
        expected.map(|(of, at, is_there)| (of.id, of.slot, at.to_owned(), is_there))
    );
    assert_eq!(store.core.watched_absences(), 1);
}
