//! Queues: predecessors, and the waiters that wake.

use super::acl::{everybody, set_acl};
use super::*;
use crate::model::types::AclEntry;

#[test]
fn the_nearest_blocker_is_found_by_number() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    store.create(me, "/q/config", Persistent).unwrap();
    let (first, standing) = store.enqueue(me, "/q", "w-", Blockers::All);
    assert!(matches!(standing, Predecessor::Clear));
    let (reader, standing) = store.enqueue(me, "/q", "__READ__", Blockers::Exclusive);
    assert_eq!(by(&standing), Some((first.as_str(), 1)));
    let (second_reader, standing) = store.enqueue(me, "/q", "__READ__", Blockers::Exclusive);
    assert_eq!(by(&standing), Some((first.as_str(), 2)));
    let (writer, standing) = store.enqueue(me, "/q", "w-", Blockers::All);
    assert_eq!(by(&standing), Some((second_reader.as_str(), 3)));
    store.delete(me, second_reader.as_str()).unwrap();
    assert_eq!(
        by(&store.look(me, &writer, Blockers::All)),
        Some((reader.as_str(), 2))
    );
    // The position of another client's entry follows from its number, not from its age.
    store.create(me, "/q/x-0000000003", Ephemeral).unwrap();
    assert_eq!(
        by(&store.look(me, &writer, Blockers::All)),
        Some(("/q/x-0000000003", 3))
    );
    assert_eq!(by(&store.look(me, &first, Blockers::All)), None);
    let queue = store.submit(
        me,
        Request::GetQueue {
            parent: path("/q"),
            limit: 3,
        },
    );
    let Ok(Reply::Queue { names, .. }) = queue else {
        panic!("{queue:?}")
    };
    assert_eq!(
        names,
        ["w-0000000001", "__READ__0000000002", "x-0000000003"]
    );
}

#[test]
fn a_persistent_child_is_no_entry_under_any_name() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    store.create(me, "/q/0000000000", Persistent).unwrap();
    store.create(me, "/q/w-", PersistentSequential).unwrap();
    store.create(me, "/q/c-0000000000", Container).unwrap();
    let (first, standing) = store.enqueue(me, "/q", "w-", Blockers::All);
    assert!(matches!(standing, Predecessor::Clear));
    let (_, standing) = store.enqueue(me, "/q", "w-", Blockers::All);
    assert_eq!(by(&standing), Some((first.as_str(), 1)));
}

#[test]
fn an_entry_that_is_gone_or_not_mine_is_gone() {
    let mut store = Harness::new();
    let (me, other) = (store.session(), store.session());
    store.create(me, "/q", Persistent).unwrap();
    let (entry, _) = store.enqueue(me, "/q", "w-", Blockers::All);
    assert!(matches!(
        store.look(other, &entry, Blockers::All),
        Predecessor::Gone
    ));
    store.delete(me, entry.as_str()).unwrap();
    assert!(matches!(
        store.look(me, &entry, Blockers::All),
        Predecessor::Gone
    ));
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
            blockers: Blockers::All,
            conditions: Vec::new(),
            count: false,
            queue_data: None,
        };
        let refused = store.submit(me, Request::Enqueue(enqueue)).unwrap_err();
        assert!(
            matches!(refused, Error::InvalidPath { .. } | Error::BadArguments(_)),
            "{name:?}"
        );
    }
}

#[test]
fn a_departure_wakes_its_watcher_alone() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    let entries: Vec<_> = (0..10)
        .map(|_| store.enqueue(me, "/q", "w-", Blockers::All))
        .collect();
    store.delete(me, entries[4].0.as_str()).unwrap();
    let Predecessor::Blocked { watcher: watch, .. } = entries[5].1 else {
        panic!()
    };
    assert_eq!(store.fired(), [(watch, NodeDeleted, "ahead".into())]);
}

fn departures(store: &mut Harness) -> Vec<(WatchKey, bool, DeleteReason)> {
    let fired = store.effects.fired.drain(..);
    fired
        .filter_map(|fired| {
            let WatchUpdate::Departure { gone, .. } = fired.news else {
                return None;
            };
            Some((fired.watch, gone.clear, gone.reason))
        })
        .collect()
}

fn watch_of(standing: &Predecessor<WatchKey>) -> WatchKey {
    match standing {
        Predecessor::Blocked { watcher, .. } => *watcher,
        other => panic!("{other:?}"),
    }
}

impl Harness {
    fn convert(&mut self, session: SessionRef, from: &str, to: &str) -> Result<CoreReply> {
        let delete = Op::Delete {
            path: path(from),
            version: None,
        };
        let multi = vec![delete, Op::Create(create(to, Ephemeral))];
        self.submit(session, Request::Multi(multi))
    }

    fn queue(&mut self, session: SessionRef, parent: &str) -> Vec<String> {
        let parent = path(parent);
        match self.submit(session, Request::GetQueue { parent, limit: 0 }) {
            Ok(Reply::Queue { names, .. }) => names,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_departure_says_how_the_one_ahead_left_and_whether_the_way_is_clear() {
    let mut store = Harness::new();
    let [admin, one, two, three, four] = [(); 5].map(|()| store.session());
    store.create(admin, "/q", Persistent).unwrap();
    let (first, _) = store.enqueue(one, "/q", "w-", Blockers::All);
    let (second, behind_first) = store.enqueue(two, "/q", "w-", Blockers::All);
    store.enqueue(three, "/q", "w-", Blockers::All);
    let (fourth_entry, behind_third) = store.enqueue(four, "/q", "w-", Blockers::All);

    store.submit(three, Request::Close).unwrap();
    let fourth = watch_of(&behind_third);
    assert_eq!(
        departures(&mut store),
        [(fourth, false, DeleteReason::Died)]
    );
    store.delete(one, first.as_str()).unwrap();
    let of_second = watch_of(&behind_first);
    assert_eq!(
        departures(&mut store),
        [(of_second, true, DeleteReason::Released)]
    );

    let standing = store.look(four, &fourth_entry, Blockers::All);
    store.delete(admin, second.as_str()).unwrap();
    let fourth = watch_of(&standing);
    assert_eq!(
        departures(&mut store),
        [(fourth, true, DeleteReason::Removed)]
    );
}

impl Harness {
    fn granted<const N: usize>(
        &mut self,
        session: SessionRef,
        entries: [&str; N],
    ) -> [Option<i64>; N] {
        let reads = entries.map(|entry| ReadOp::GetEntry(path(entry)));
        let Ok(Reply::MultiRead(replies)) = self.submit(session, Request::MultiRead(reads.into()))
        else {
            panic!("a multi-read is answered with its parts")
        };
        let mut replies = replies.into_iter();
        entries.map(|entry| match replies.next() {
            Some(ReadReply::Entry { granted_at_ms, .. }) => granted_at_ms.map(|ms| ms / 1_000),
            other => panic!("{entry}: {other:?}"),
        })
    }
}

#[test]
fn an_entry_is_granted_when_the_last_that_blocks_it_is_gone() {
    let mut store = Harness::new();
    let [admin, one, two] = [(); 3].map(|()| store.session());
    store.create(admin, "/q", Persistent).unwrap();
    store.advance(SECOND);
    let (writer, _) = store.enqueue(one, "/q", "w-", Blockers::All);
    let (reader, _) = store.enqueue(two, "/q", "__READ__", Blockers::Exclusive);
    let (second_reader, _) = store.enqueue(two, "/q", "__READ__", Blockers::Exclusive);
    let (last, _) = store.enqueue(two, "/q", "w-", Blockers::All);
    let entries = [&writer, &reader, &second_reader, &last].map(ZnodePath::as_str);
    assert_eq!(store.granted(admin, entries), [Some(1), None, None, None]);
    store.advance(SECOND);
    store
        .convert(one, writer.as_str(), "/q/__READ__0000000000")
        .unwrap();
    let entries = ["/q/__READ__0000000000", entries[1], entries[2], entries[3]];
    assert_eq!(
        store.granted(admin, entries),
        [Some(2), Some(2), Some(2), None]
    );
    store.detach(two);
    for reader in &entries[..3] {
        store.advance(SECOND);
        store.delete(admin, reader).unwrap();
    }
    assert_eq!(store.granted(admin, [entries[3]]), [None]);
    store.advance(SECOND);
    assert!(matches!(
        store.look(two, &last, Blockers::All),
        Predecessor::Clear
    ));
    store.advance(SECOND);
    assert!(matches!(
        store.look(two, &last, Blockers::All),
        Predecessor::Clear
    ));
    assert_eq!(store.granted(admin, [entries[3]]), [Some(6)]);
}

#[test]
fn a_withdrawal_is_no_release() {
    let mut store = Harness::new();
    let [one, two, three] = [(); 3].map(|()| store.session());
    store.create(one, "/q", Persistent).unwrap();
    store.enqueue(one, "/q", "w-", Blockers::All);
    let (entry, behind_one) = store.enqueue(two, "/q", "w-", Blockers::All);
    let (_, behind_two) = store.enqueue(three, "/q", "w-", Blockers::All);
    store.submit(one, Request::Close).unwrap();
    let died = (watch_of(&behind_one), true, DeleteReason::Died);
    assert_eq!(departures(&mut store), [died]);
    // The waiter may not have read the event. If it withdraws now, it may never have seen the state that the dead
    // holder left, so its departure must not look like a release.
    store.submit(two, Request::Withdraw { entry }).unwrap();
    let unknown = (watch_of(&behind_two), true, DeleteReason::Unknown);
    assert_eq!(departures(&mut store), [unknown]);
}

#[test]
fn a_data_change_does_not_wake_a_waiter_and_one_without_its_node_is_not_clear() {
    let mut store = Harness::new();
    let (one, two) = (store.session(), store.session());
    store.create(one, "/q", Persistent).unwrap();
    let (first, _) = store.enqueue(one, "/q", "w-", Blockers::All);
    let (second, standing) = store.enqueue(two, "/q", "w-", Blockers::All);
    store.set(one, first.as_str(), None).unwrap();
    assert_eq!(store.fired(), []);
    store.delete(one, second.as_str()).unwrap();
    store.enqueue(two, "/q", "w-", Blockers::All);
    store.delete(one, first.as_str()).unwrap();
    let gone = (watch_of(&standing), false, DeleteReason::Released);
    assert_eq!(departures(&mut store)[0], gone);
}

#[test]
fn a_place_that_is_taken_over_in_the_same_transaction_is_not_clear() {
    let mut store = Harness::new();
    let (one, two) = (store.session(), store.session());
    store.create(one, "/q", Persistent).unwrap();
    let (first, _) = store.enqueue(one, "/q", "__WRIT__", Blockers::All);
    let (writer, behind) = store.enqueue(two, "/q", "__WRIT__", Blockers::All);
    let (_, reader) = store.enqueue(two, "/q", "__READ__", Blockers::Exclusive);
    let convert = Request::Multi(vec![
        Op::Delete {
            path: first,
            version: None,
        },
        Op::Create(create("/q/__READ__0000000000", Ephemeral)),
    ]);
    store.submit(one, convert).unwrap();
    let blocked = (watch_of(&behind), false, DeleteReason::Released);
    assert_eq!(departures(&mut store), [blocked]);
    assert_eq!(by(&reader), Some((writer.as_str(), 2)));
    assert_eq!(
        by(&store.look(two, &writer, Blockers::All)),
        Some(("/q/__READ__0000000000", 1))
    );
}

#[test]
fn an_entry_that_is_converted_keeps_its_place_on_the_other_side() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    let (writer, _) = store.enqueue(me, "/q", "a__WRIT__", Blockers::All);
    let (reader, standing) = store.enqueue(me, "/q", "b__READ__", Blockers::Exclusive);
    let Predecessor::Blocked { watcher: watch, .. } = standing else {
        panic!("{standing:?}")
    };
    let (next, _) = store.enqueue(me, "/q", "c__WRIT__", Blockers::All);
    let (last, _) = store.enqueue(me, "/q", "d__READ__", Blockers::Exclusive);
    let downgraded = "/q/a__READ__0000000000";

    store.convert(me, writer.as_str(), downgraded).unwrap();
    assert_eq!(store.fired(), [(watch, NodeDeleted, "ahead".into())]);
    let order = [
        "a__READ__0000000000",
        reader.name(),
        next.name(),
        last.name(),
    ];
    assert_eq!(store.queue(me, "/q"), order);
    assert_eq!(by(&store.look(me, &reader, Blockers::Exclusive)), None);
    assert_eq!(
        by(&store.look(me, &last, Blockers::Exclusive)),
        Some((next.as_str(), 3))
    );
    store.delete(me, reader.as_str()).unwrap();
    assert_eq!(
        by(&store.look(me, &next, Blockers::All)),
        Some((downgraded, 1))
    );

    store.convert(me, downgraded, writer.as_str()).unwrap();
    store.delete(me, next.as_str()).unwrap();
    assert_eq!(
        by(&store.look(me, &last, Blockers::Exclusive)),
        Some((writer.as_str(), 1))
    );
    let (new, standing) = store.enqueue(me, "/q", "e__WRIT__", Blockers::All);
    assert_eq!(by(&standing), Some((last.as_str(), 2)));
    assert_eq!(
        store.queue(me, "/q"),
        [writer.name(), last.name(), new.name()]
    );
}

#[test]
fn a_conversion_that_is_refused_changes_nothing() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    let (writer, _) = store.enqueue(me, "/q", "a__WRIT__", Blockers::All);
    let reader = "/q/a__READ__0000000000";
    store.create(me, reader, Ephemeral).unwrap();
    let refused = store.convert(me, writer.as_str(), reader).unwrap_err();
    assert!(
        matches!(refused, Error::MultiFailed { index: 1, .. }),
        "{refused}"
    );
    assert_eq!(
        store.queue(me, "/q"),
        [writer.name(), "a__READ__0000000000"]
    );
    let gone = store.convert(me, "/q/b__WRIT__0000000009", "/q/b__READ__0000000009");
    assert!(
        matches!(gone, Err(Error::MultiFailed { index: 0, .. })),
        "{gone:?}"
    );
    assert_eq!(store.queue(me, "/q").len(), 2);
}

fn joining(queue: &str, name: &str) -> Request {
    Request::Enqueue(Enqueue {
        parent: path(queue),
        name: name.into(),
        data: Bytes::new(),
        acl: Acl::open(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
        queue_data: Some("of the queue".into()),
    })
}

#[test]
fn a_missing_queue_is_created_with_its_first_entry() {
    let mut store = Harness::new();
    let me = store.session();
    for expected in ["/a/b/q/w-0000000000", "/a/b/q/w-0000000001"] {
        match store.submit(me, joining("/a/b/q", "w-")) {
            Ok(Reply::Enqueued { path, ahead, .. }) => {
                assert_eq!(path.as_str(), expected);
                let is_first = matches!(ahead, Predecessor::Clear);
                assert_eq!(is_first, expected.ends_with('0'));
            }
            other => panic!("{other:?}"),
        }
    }
    let Ok(Reply::Data { data, .. }) = store.submit(me, get_data("/a/b/q")) else {
        panic!()
    };
    assert_eq!(data, "of the queue");
    store.submit(me, Request::Close).unwrap();
    let me = store.session();
    assert!(store.next_deadline().is_some(), "the reaper is due");
    store.advance(60 * SECOND);
    assert!(store.stat(me, "/a/b/q").is_none(), "it is a container");
    store.advance(60 * SECOND);
    store.advance(60 * SECOND);
    assert!(store.stat(me, "/a").is_none(), "what is above it is, too");
}

#[test]
fn a_queue_below_too_many_missing_levels_or_with_too_long_a_path_is_not_created() {
    let mut store = Harness::new();
    let me = store.session();
    let deep = "/d".repeat(17);
    let long = format!("/{}", "l".repeat(4 << 10));
    for (queue, excess) in [(&deep, "/d".len()), (&long, 1)] {
        let before = store.core.dump();
        let refused = store.submit(me, joining(queue, "w-")).unwrap_err();
        assert!(matches!(refused, Error::NoNode { .. }), "{refused}");
        assert_eq!(store.core.dump(), before);
        store
            .submit(me, joining(&queue[..queue.len() - excess], "w-"))
            .unwrap();
    }
}

#[test]
fn an_entry_that_is_refused_leaves_no_queue_behind() {
    let read_only = Acl::new([AclEntry {
        permissions: AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    }]);
    const NEW_NODES: usize = 4;
    let large = Bytes::from(vec![0; 16 << 10]);
    type Change = (fn(&mut Limits), Acl, Bytes);
    let changes: [Change; 4] = [
        (|_| {}, read_only, Bytes::new()),
        (
            |limits| limits.znodes = NEW_NODES + 2,
            Acl::open(),
            Bytes::new(),
        ),
        (|limits| limits.bytes = 16 << 10, Acl::open(), large.clone()),
        (|limits| limits.txn_bytes = 4 << 10, Acl::open(), large),
    ];
    for (at, (limit, acl, data)) in changes.into_iter().enumerate() {
        let mut options = options();
        limit(&mut options.limits);
        let mut store = Harness::with(options);
        let me = store.session();
        let Request::Enqueue(mut enqueue) = joining("/a/q", "w-") else {
            panic!()
        };
        (enqueue.acl, enqueue.data) = (acl, data);
        let before = store.core.dump();
        let refused = store.submit(me, Request::Enqueue(enqueue));
        assert!(refused.is_err(), "{at}");
        assert_eq!(store.core.dump(), before, "{at}: {refused:?}");
        store.create(me, "/a", Persistent).unwrap();
        store.create(me, "/a/q", Container).unwrap();
    }
}

#[test]
fn the_room_that_is_asked_for_is_enough_for_the_queue_and_what_is_above_it() {
    let mut store = Harness::new();
    let me = store.session();
    let request = joining("/a/bb/ccc/queue", "w-");
    let asked = store.core.txn_bytes(me, &request);
    store.submit(me, request).unwrap();
    let taken: usize = store.core.kept().iter().map(Txn::log_bytes).sum();
    assert!(taken <= asked, "{taken} of {asked}");
}

#[test]
fn an_answer_to_a_session_of_another_process_takes_the_place_of_the_one_before() {
    let mut store = Harness::new();
    let (holder, waiting, other) = (store.remote(), store.remote(), store.remote());
    store.create(holder, "/q", Persistent).unwrap();
    let (held, _) = store.enqueue(holder, "/q", "w-", Blockers::All);
    let (entry, ahead) = store.enqueue(waiting, "/q", "w-", Blockers::All);
    let first = watch_of(&ahead);
    let second = watch_of(&store.look(waiting, &entry, Blockers::All));
    assert_ne!(first, second);
    let forget = |store: &mut Harness, session, watch| {
        let forgotten = store
            .core
            .forget_watch(session, watch, store.now, &mut store.effects);
        forgotten.unwrap()
    };
    assert!(
        !forget(&mut store, other, second),
        "it is another session's"
    );
    assert!(!forget(&mut store, waiting, first));
    store.delete(holder, held.as_str()).unwrap();
    let released = DeleteReason::Released;
    assert_eq!(departures(&mut store), [(second, true, released)]);
    assert!(!forget(&mut store, waiting, second), "it has fired");
}

#[test]
fn a_departure_takes_no_event_from_the_sessions_other_watches() {
    let mut store = Harness::new();
    let (holder, waiting) = (store.remote(), store.remote());
    store.create(holder, "/q", Persistent).unwrap();
    let (held, _) = store.enqueue(holder, "/q", "w-", Blockers::All);
    let (_, ahead) = store.enqueue(waiting, "/q", "w-", Blockers::All);
    let plain = store.watch(waiting, exists(held.as_str()));
    store.delete(holder, held.as_str()).unwrap();
    let fired: Vec<_> = store.fired().into_iter().map(|(watch, ..)| watch).collect();
    assert_eq!(fired, [watch_of(&ahead), plain]);
}

#[test]
fn waiting_for_a_predecessor_counts_as_a_watch_and_ends_with_the_connection() {
    let mut options = options();
    options.limits.watches_per_session = 1;
    let mut store = Harness::with(options);
    let (holder, waiting) = (store.remote(), store.remote());
    store.create(holder, "/q", Persistent).unwrap();
    let (held, _) = store.enqueue(holder, "/q", "w-", Blockers::All);
    let (entry, _) = store.enqueue(waiting, "/q", "w-", Blockers::All);
    let look = Request::GetPredecessor(GetPredecessor {
        entry: entry.clone(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
    });
    let refused = store.submit(waiting, look).unwrap_err();
    assert!(matches!(refused, Error::LimitReached { .. }), "{refused}");
    store.detach(waiting);
    store.delete(holder, held.as_str()).unwrap();
    assert_eq!(departures(&mut store), []);
}

#[test]
fn the_root_is_no_entry() {
    let mut store = Harness::new();
    let me = store.session();
    let look = store.look(me, &ZnodePath::root(), Blockers::All);
    assert!(matches!(look, Predecessor::Gone), "{look:?}");
    let (first, _) = store.enqueue(me, "/", "w-", Blockers::All);
    let look = store.look(me, &first, Blockers::All);
    assert!(matches!(look, Predecessor::Clear), "{look:?}");
}

#[test]
fn a_parent_with_a_child_that_shows_that_it_is_no_queue_is_listed() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/s", Persistent).unwrap();
    store.create(me, "/s/leases", Persistent).unwrap();
    let (_, ahead) = store.enqueue(me, "/s", "w-", Blockers::All);
    assert!(matches!(ahead, Predecessor::Unknown), "{ahead:?}");
    let (second, _) = store.enqueue(me, "/s", "w-", Blockers::All);
    match store.look(me, &second, Blockers::All) {
        Predecessor::Listed(names) => {
            assert_eq!(names, ["leases", "w-0000000001", "w-0000000002"]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_ephemeral_znode_without_a_number_is_no_entry() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    store.enqueue(me, "/q", "w-", Blockers::All);
    let (beside, _) = store.create(me, "/q/beside", Ephemeral).unwrap();
    let look = GetPredecessor {
        entry: beside,
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
    };
    let refused = store
        .submit(me, Request::GetPredecessor(look))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("no entry of a queue"), "{refused}");
}

fn held_up(conditions: &[Condition]) -> (Harness, [SessionRef; 2], WatchKey) {
    let mut store = Harness::new();
    let (holder, waiting) = (store.remote(), store.remote());
    for at in ["/q", "/s", "/s/leases", "/s/permits", "/s/leases/held"] {
        store.create(holder, at, Persistent).unwrap();
    }
    let (entry, _) = store.enqueue(waiting, "/q", "w-", Blockers::All);
    let ahead = store.look_for(waiting, &entry, Blockers::All, conditions);
    assert_eq!(by(&ahead), Some(("/s/leases", 0)));
    (store, [holder, waiting], watch_of(&ahead))
}

#[test]
fn conditions_of_a_waiter_end_with_its_watch_and_both_may_be_of_one_znode() {
    let on_one = [
        Condition::Data {
            znode: path("/s/leases"),
            data: "data".into(),
        },
        Condition::Children {
            znode: path("/s/leases"),
            limit: 0,
        },
    ];
    for conditions in [permits("data", 0), on_one] {
        let set = |data: &'static str| Request::SetData {
            path: conditions[0].znode().clone(),
            data: data.into(),
            version: None,
        };
        let (mut store, [holder, _], watch) = held_up(&conditions);
        store.submit(holder, set("data")).unwrap();
        assert_eq!(departures(&mut store), []);
        store.submit(holder, set("other")).unwrap();
        assert_eq!(
            departures(&mut store),
            [(watch, true, DeleteReason::Unknown)]
        );
        store.core.check_bytes();
        assert_eq!(store.core.watches.counts(), (0, 0));

        let (mut store, [holder, waiting], watch) = held_up(&conditions);
        // No number lets a client refer to the internal watch on the data.
        for number in 0..4 {
            let key = WatchKey::from_u64(watch.to_u64() & !0xff | number);
            let (now, effects) = (store.now, &mut store.effects);
            let is_known = store.core.forget_watch(waiting, key, now, effects).unwrap();
            assert_eq!(is_known, key == watch);
        }
        store.submit(holder, set("other")).unwrap();
        assert_eq!(departures(&mut store), []);
        store.core.check_bytes();
        assert_eq!(store.core.watches.counts(), (0, 0));

        let (mut store, [_, waiting], _) = held_up(&conditions);
        store.detach(waiting);
        store.core.check_bytes();
        assert_eq!(store.core.watches.counts(), (0, 0));
    }
}

#[test]
fn a_wait_ends_where_a_condition_may_no_longer_be_read() {
    for at in ["/s/leases", "/s/permits"] {
        let (mut store, [holder, _], watch) = held_up(&permits("data", 0));
        let unreadable = set_acl(at, everybody(AclEntry::ALL & !AclEntry::READ), None);
        store.submit(holder, unreadable).unwrap();
        store.create(holder, "/s/leases/more", Persistent).unwrap();
        assert_eq!(
            departures(&mut store),
            [(watch, true, DeleteReason::Unknown)]
        );
    }
}
