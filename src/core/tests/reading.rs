//! Reads: limits of answers, and searches.

use super::*;

#[test]
fn an_answer_fills_its_room_to_the_last_byte() {
    let mut store = Harness::new();
    let me = store.remote();
    store.create(me, "/a", Persistent).unwrap();
    for name in ["/a/one", "/a/three"] {
        store.create(me, name, Ephemeral).unwrap();
    }
    const LENGTH: usize = 4;
    let list = ReadOp::GetChildren(path("/a"));
    let data = ReadOp::GetData(path("/a"));
    let names = LENGTH + "one".len() + LENGTH + "three".len();
    for (request, bytes) in [
        (get_children("/a"), names),
        (Request::MultiRead(vec![data.clone()]), "data".len()),
        (Request::MultiRead(vec![data, list]), "data".len() + names),
        (
            Request::GetEphemerals {
                prefix: ZnodePath::root(),
            },
            names + 2 * "/a/".len(),
        ),
        (
            Request::GetEphemerals {
                prefix: path("/a/t"),
            },
            LENGTH + "/a/three".len(),
        ),
    ] {
        store.core.limit_answers(me, bytes);
        store.submit(me, request.clone()).expect("there is room");
        store.core.limit_answers(me, bytes - 1);
        let refused = store.submit(me, request.clone()).unwrap_err();
        let limit = Error::LimitReached {
            what: ANSWER_BYTES,
            limit: bytes - 1,
        };
        assert_eq!(refused, limit, "{request:?}");
    }
    let watches = store.find_watches(me, "/a", WatchFilter::Child).unwrap();
    assert_eq!(watches.len(), 1, "of the answer that had room");
}

#[test]
fn a_list_of_a_queue_fills_its_room_to_the_last_byte() {
    let mut store = Harness::new();
    let me = store.remote();
    for parent in ["/q", "/s", "/s/leases"] {
        store.create(me, parent, Persistent).unwrap();
    }
    store.enqueue(me, "/q", "n-", Blockers::All);
    let (entry, _) = store.enqueue(me, "/s", "n-", Blockers::All);
    let name = 4 + "n-0000000000".len();
    let look = GetPredecessor {
        entry,
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
    };
    let (parent, limit) = (path("/q"), 0);
    for (request, bytes) in [
        (Request::GetQueue { parent, limit }, name),
        (Request::GetPredecessor(look), name + 4 + "leases".len()),
    ] {
        store.core.limit_answers(me, bytes);
        store.submit(me, request.clone()).expect("there is room");
        store.core.limit_answers(me, bytes - 1);
        let refused = store.submit(me, request).unwrap_err();
        assert!(matches!(refused, Error::LimitReached { .. }), "{refused}");
    }
}

#[test]
fn a_search_of_a_former_connection_does_not_begin() {
    let mut store = Harness::new();
    let former = store.opened(Some(8 * SECOND), false);
    for number in 0..4 {
        let at = format!("/own-{number}");
        store.create(former, &at, Ephemeral).unwrap();
    }
    let (now, effects) = (store.now, &mut store.effects);
    let moved = store
        .core
        .reattach(former.id, &[7; 16], 8 * SECOND, now, effects);
    let (me, _) = moved.unwrap();
    let (mut found, root) = (store.core.begin_search(me), ZnodePath::root());
    let effects = &mut store.effects;
    let mut some = |core: &mut Core| core.search_some(me, &root, 2, &mut found, now, effects);
    assert!(some(&mut store.core).unwrap());
    store.core.begin_search(former);
    assert!(!some(&mut store.core).unwrap(), "it goes on where it was");
    let names: Vec<_> = found.paths.iter().map(|path| path.name()).collect();
    assert_eq!(names, ["own-0", "own-1", "own-2", "own-3"]);
}
