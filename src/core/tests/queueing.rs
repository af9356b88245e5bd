//! Who is ahead of whom, and who is woken.

use super::*;

#[test]
fn the_nearest_blocker_is_found_by_number() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    store.create(me, "/q/config", Persistent).unwrap();
    let (first, standing) = store.enqueue(me, "/q", "w-", Skip::None);
    assert!(matches!(standing, Standing::Clear));
    let (reader, standing) = store.enqueue(me, "/q", "__READ__", Skip::Shared);
    assert_eq!(by(&standing), Some((first.as_str(), 1)));
    let (second_reader, standing) = store.enqueue(me, "/q", "__READ__", Skip::Shared);
    assert_eq!(by(&standing), Some((first.as_str(), 2)));
    let (writer, standing) = store.enqueue(me, "/q", "w-", Skip::None);
    assert_eq!(by(&standing), Some((second_reader.as_str(), 3)));
    store.delete(me, second_reader.as_str()).unwrap();
    assert_eq!(
        by(&store.look(me, &writer, Skip::None)),
        Some((reader.as_str(), 2))
    );
    // A stranger's entry counts by its number, not by its age.
    store.create(me, "/q/x-0000000003", Ephemeral).unwrap();
    assert_eq!(
        by(&store.look(me, &writer, Skip::None)),
        Some(("/q/x-0000000003", 3))
    );
    assert_eq!(by(&store.look(me, &first, Skip::None)), None);
    let queue = store.submit(
        me,
        Request::GetQueue {
            parent: path("/q"),
            limit: 3,
        },
    );
    let Ok(Answer::Queue(names)) = queue else {
        panic!("{queue:?}")
    };
    assert_eq!(
        names,
        ["w-0000000001", "__READ__0000000002", "x-0000000003"]
    );
}

#[test]
fn an_entry_that_is_gone_or_not_mine_is_gone() {
    let mut store = Harness::new();
    let (me, other) = (store.session(), store.session());
    store.create(me, "/q", Persistent).unwrap();
    let (entry, _) = store.enqueue(me, "/q", "w-", Skip::None);
    assert!(matches!(
        store.look(other, &entry, Skip::None),
        Standing::Gone
    ));
    store.delete(me, entry.as_str()).unwrap();
    assert!(matches!(store.look(me, &entry, Skip::None), Standing::Gone));
}

#[test]
fn a_bad_entry_name_is_refused() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    for name in ["a/b", "a\0", "a1"] {
        let enqueue = Enqueue {
            parent: path("/q"),
            name: name.into(),
            data: Bytes::new(),
            acl: Acl::open(),
            skip: Skip::None,
            count: false,
        };
        let refused = store.submit(me, Request::Enqueue(enqueue)).unwrap_err();
        assert!(
            matches!(refused, Error::InvalidPath { .. } | Error::BadArguments(_)),
            "{name:?}"
        );
    }
}

#[test]
fn a_departure_wakes_its_watcher_and_nobody_else() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    let entries: Vec<_> = (0..10)
        .map(|_| store.enqueue(me, "/q", "w-", Skip::None))
        .collect();
    store.delete(me, entries[4].0.as_str()).unwrap();
    let Standing::Blocked { watch, .. } = entries[5].1 else {
        panic!()
    };
    assert_eq!(
        store.fired(),
        [(watch, NodeDeleted, entries[4].0.to_string())]
    );
}
