//! The bytes that the store keeps for its clients: what counts, for whom, and what is refused.

use super::*;

/// What all sessions of these tests may make the store keep together.
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

/// Does it with one number after the other until it is refused for want of room; how often it was done.
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
    // What is taken back, and what has fired, is no more.
    assert!(store.core.unwatch(key));
    store.watch(one, exists(&long(0)));
    store.core.detach(one);
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
            // There may be no room for the last of them.
            let _ = store.core.add_identity(me, proof);
        }
        assert!(store.core.bytes() >= with_session + 3_000);
        store.core.detach(me);
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
