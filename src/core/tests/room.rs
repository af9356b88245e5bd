//! Room: the bytes that znodes count for, and the limits.

use super::super::budget::{ACL_ENTRY_BYTES, ZNODE_BYTES};
use super::*;
use crate::model::types::AclEntry;

fn full() -> Error {
    Error::LimitReached {
        what: "bytes in the store",
        limit: LIMIT,
    }
}

const LIMIT: usize = 10_000;

fn small() -> (Harness, SessionRef) {
    let mut options = options();
    options.limits.bytes = LIMIT;
    let mut store = Harness::with(options);
    let me = store.session();
    (store, me)
}

fn of_size(at: &str, bytes: usize) -> Create {
    Create {
        data: vec![b'x'; bytes].into(),
        ..create(at, Persistent)
    }
}

fn set(at: &str, bytes: usize) -> Request {
    Request::SetData {
        path: path(at),
        data: vec![b'x'; bytes].into(),
        version: None,
    }
}

fn op(of: Request) -> Op {
    match of {
        Request::Create(create) => Op::Create(create),
        Request::Delete { path, version } => Op::Delete { path, version },
        Request::SetData {
            path,
            data,
            version,
        } => Op::SetData {
            path,
            data,
            version,
        },
        other => panic!("{other:?}"),
    }
}

pub(super) fn delete(at: &str) -> Request {
    Request::Delete {
        path: path(at),
        version: None,
    }
}

fn anybody() -> AclEntry {
    AclEntry {
        permissions: AclEntry::ALL & !AclEntry::ADMIN,
        scheme: "world".into(),
        id: "anyone".into(),
    }
}

fn fill(store: &mut Harness, me: SessionRef) {
    let rest = LIMIT - store.core.bytes() - ZNODE_BYTES - "/big".len();
    let big = of_size("/big", rest);
    store.submit(me, Request::Create(big)).unwrap();
    assert_eq!(store.core.bytes(), LIMIT);
}

#[test]
fn a_znode_counts_for_its_path_its_data_its_list_and_itself() {
    let (mut store, me) = small();
    let here = Identity::ip([127, 0, 0, 1].into());
    store.core.add_identity(me, here).unwrap();
    let before = store.core.bytes();
    let mut listed = of_size("/listed", 100);
    listed.acl = Acl::new(vec![AclEntry {
        permissions: AclEntry::ALL & !AclEntry::ADMIN,
        scheme: "world".into(),
        id: "anyone".into(),
    }]);
    store.submit(me, Request::Create(listed)).unwrap();
    let listed = ZNODE_BYTES + "/listed".len() + 100 + ACL_ENTRY_BYTES + "worldanyone".len();
    assert_eq!(store.core.bytes(), before + listed);
    store.submit(me, set("/listed", 30)).unwrap();
    assert_eq!(store.core.bytes(), before + listed - 70);
    store.create(me, "/e", Ephemeral).unwrap();
    store.submit(me, delete("/listed")).unwrap();
    store.submit(me, Request::Close).unwrap();
    assert_eq!(store.core.bytes(), before);
}

#[test]
fn a_write_without_room_is_refused_and_changes_nothing() {
    let (mut store, me) = small();
    store.create(me, "/q", Persistent).unwrap();
    fill(&mut store, me);
    let before = store.core.dump();
    let enqueue = Enqueue {
        parent: path("/q"),
        name: "n-".into(),
        data: Bytes::new(),
        acl: Acl::open(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
        queue_data: None,
    };
    for request in [
        Request::Create(of_size("/a", 0)),
        Request::Create(create("/q/n-", EphemeralSequential)),
        Request::Enqueue(enqueue),
        set("/q", 5),
        set("/big", LIMIT),
        Request::SetAcl {
            path: path("/q"),
            acl: Acl::new(vec![anybody()]),
            version: None,
        },
    ] {
        assert_eq!(store.submit(me, request).unwrap_err(), full());
    }
    assert_eq!(store.core.dump(), before);
}

#[test]
fn a_full_store_can_be_worked_on() {
    let (mut store, me) = small();
    store.create(me, "/q", Persistent).unwrap();
    fill(&mut store, me);
    store.submit(me, set("/q", 4)).unwrap();
    store.submit(me, set("/q", 1)).unwrap();
    let replace = Request::Multi(vec![
        op(set("/q", 3)),
        op(Request::Create(of_size("/a", 500))),
        op(delete("/big")),
    ]);
    store.submit(me, replace).unwrap();
    assert!(store.core.bytes() < LIMIT);
}

#[test]
fn a_multi_is_judged_by_its_sum() {
    let (mut store, me) = small();
    let two = |bytes| {
        Request::Multi(vec![
            op(Request::Create(of_size("/a", bytes))),
            op(set("/a", 2 * bytes)),
            op(delete("/a")),
            op(Request::Create(of_size("/a", bytes))),
            op(set("/a", bytes)),
        ])
    };
    let before = (store.core.bytes(), store.core.dump());
    let refused = store.submit(me, two(9_000)).unwrap_err();
    let failed = Error::MultiFailed {
        index: 3,
        source: Box::new(full()),
    };
    assert_eq!(refused, failed, "what adds last is to blame");
    assert_eq!((store.core.bytes(), store.core.dump()), before);
    store.submit(me, two(5_000)).unwrap();
    let added = ZNODE_BYTES + "/a".len() + 5_000;
    assert_eq!(store.core.bytes(), before.0 + added);
}

#[test]
fn the_number_of_znodes_is_judged_by_a_multis_sum_too() {
    let mut options = options();
    options.limits.znodes = 6; // two in addition to the system znodes
    let mut store = Harness::with(options);
    let me = store.session();
    store.create(me, "/a", Persistent).unwrap();
    store.create(me, "/b", Persistent).unwrap();
    let multi = |ops: Vec<Request>| Request::Multi(ops.into_iter().map(op).collect());
    let make = |at: &str| Request::Create(of_size(at, 0));
    store
        .submit(me, multi(vec![make("/c"), delete("/a")]))
        .unwrap();
    let refused = store.submit(me, multi(vec![delete("/c"), make("/d"), make("/e")]));
    let limit = Error::LimitReached {
        what: "znodes",
        limit: 6,
    };
    let failed = Error::MultiFailed {
        index: 2,
        source: Box::new(limit),
    };
    assert_eq!(refused.unwrap_err(), failed);
}

fn last_quarter() -> (Harness, SessionRef) {
    let mut options = options();
    options.limits.bytes = 10 * LIMIT;
    let mut store = Harness::with(options);
    let (program, me) = (store.session(), store.remote());
    store.create(me, "/own", Ephemeral).unwrap();
    store.create(me, "/lasting", Persistent).unwrap();
    let filling = Request::Create(of_size("/big", 8 * LIMIT));
    store.submit(program, filling).unwrap();
    (store, me)
}

const LASTING: &str = "bytes in znodes that outlive their session";

fn refusal(refused: Result<CoreReply>) -> Option<(Option<usize>, &'static str)> {
    match refused {
        Ok(_) => None,
        Err(Error::LimitReached { what, .. }) => Some((None, what)),
        Err(Error::MultiFailed { index, source }) => match *source {
            Error::LimitReached { what, .. } => Some((Some(index), what)),
            other => panic!("{other}"),
        },
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn in_the_last_quarter_only_what_ends_with_its_session_grows() {
    let (mut store, me) = last_quarter();
    assert_eq!(refusal(store.submit(me, set("/own", 1_000))), None);
    let refused = store.submit(me, set("/lasting", 1_000));
    let limit = Error::LimitReached {
        what: LASTING,
        limit: 10 * LIMIT * 3 / 4,
    };
    assert_eq!(refused.unwrap_err(), limit);
}

#[test]
fn a_write_is_judged_by_what_it_adds() {
    let (mut store, me) = small();
    store
        .submit(me, Request::Create(of_size("/a", 4_000)))
        .unwrap();
    let room = LIMIT - store.core.bytes();
    assert!(room < 8_000);
    store.submit(me, set("/a", 4_000 + room)).unwrap();
    store.submit(me, set("/a", 4_000)).unwrap();
    let more = store.submit(me, set("/a", 4_001 + room));
    assert_eq!(more.unwrap_err(), full());
}

#[test]
fn in_the_last_quarter_a_multi_is_judged_by_what_outlives_its_session() {
    let create = |at: &str, mode| Request::Create(super::create(at, mode));
    let of_mine = || create("/mine", Ephemeral);
    let check = || Op::Check {
        path: path("/own"),
        version: None,
    };
    let cases = [
        (vec![op(of_mine())], None),
        (vec![op(set("/own", 1_000))], None),
        (vec![op(create("/p", Persistent))], Some(0)),
        (vec![op(create("/p", Persistent)), op(of_mine())], Some(1)),
        (
            vec![
                op(of_mine()),
                op(create("/p", Persistent)),
                op(create("/long-name-of-another", Persistent)),
                op(delete("/own")),
            ],
            Some(2),
        ),
        (vec![check(), op(set("/lasting", 1_000))], Some(1)),
        (
            vec![check(), op(set("/lasting", 1_000)), op(delete("/own"))],
            Some(1),
        ),
    ];
    for (number, (ops, index)) in cases.into_iter().enumerate() {
        let (mut store, me) = last_quarter();
        let refused = refusal(store.submit(me, Request::Multi(ops)));
        let expected = index.map(|index| (Some(index), LASTING));
        assert_eq!(refused, expected, "case {number}");
    }
}

#[test]
fn a_multi_may_add_the_last_znodes() {
    for (number, is_refused) in [(2, false), (3, true)] {
        let mut store = Harness::new();
        let me = store.session();
        store.core.options.limits.znodes = store.core.tree.nodes.len() + 2;
        let create = |number| op(Request::Create(of_size(&format!("/{number}"), 0)));
        let multi = Request::Multi((0..number).map(create).collect());
        let refused = refusal(store.submit(me, multi));
        assert_eq!(refused.is_some(), is_refused, "{number}");
    }
}

#[test]
fn a_multi_that_adds_nothing_is_carried_out_beyond_the_limits() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/a", Persistent).unwrap();
    store.core.options.limits.znodes = 2;
    store.core.options.limits.bytes = 100;
    let create = op(Request::Create(of_size("/a", 0)));
    let replace = Request::Multi(vec![op(delete("/a")), create]);
    store.submit(me, replace).unwrap();
    store
        .submit(me, Request::Multi(vec![op(set("/a", 0))]))
        .unwrap();
}

#[test]
fn kept_content_comes_back_without_room_for_it() {
    let mut store = Harness::new();
    let session = store.session();
    for at in ["/a", "/b"] {
        let large = Request::Create(of_size(at, LIMIT));
        store.submit(session, large).unwrap();
    }
    store.submit(session, set("/a", 2 * LIMIT)).unwrap();
    let mut small = options();
    small.limits.bytes = LIMIT;
    let mut replayed = Core::new(small.clone());
    for txn in store.core.kept().drain(..) {
        replayed.replay(txn).unwrap();
    }
    let mut restored = Core::new(small);
    for session in store.core.session_images() {
        restored.restore_session(session).unwrap();
    }
    for node in store.core.node_images() {
        restored.restore_node(node).unwrap();
    }
    assert_eq!(replayed.bytes(), store.core.bytes());
    assert_eq!(restored.bytes(), store.core.bytes());
    let now = Now::default();
    let more = Request::Create(of_size("/c", 0));
    let refused = replayed.submit(session, more, now, &mut Effects::default());
    assert_eq!(refused.unwrap_err(), full());
}

#[test]
fn a_list_that_is_set_counts_for_what_it_has() {
    let (mut store, me) = small();
    store.create(me, "/a", Persistent).unwrap();
    let before = store.core.bytes();
    let of = |entries: usize| {
        let entry = |at| AclEntry {
            permissions: AclEntry::ALL,
            scheme: "ip".into(),
            id: format!("10.0.0.{at}"),
        };
        Request::SetAcl {
            path: path("/a"),
            acl: Acl::new((1..=entries).map(entry).collect::<Vec<_>>()),
            version: None,
        }
    };
    let owner = Identity::ip([10, 0, 0, 1].into());
    store.core.add_identity(me, owner).unwrap();
    store.submit(me, of(2)).unwrap();
    let two = 2 * (ACL_ENTRY_BYTES + "ip".len() + "10.0.0.1".len());
    assert_eq!(store.core.bytes(), before + two);
    store.submit(me, of(1)).unwrap();
    assert_eq!(store.core.bytes(), before + two / 2);
    assert_eq!(store.submit(me, of(200)).unwrap_err(), full());
    assert_eq!(store.core.bytes(), before + two / 2);
    let list = Acl::new([AclEntry {
        permissions: AclEntry::ALL,
        scheme: "ip".into(),
        id: "10.0.0.0/8".into(),
    }]);
    let (mut alone, mut in_a_multi) = (of_size("/b", 1), of_size("/c", 1));
    (alone.acl, in_a_multi.acl) = (list.clone(), list);
    let before = store.core.bytes();
    store.submit(me, Request::Create(alone)).unwrap();
    let one = store.core.bytes() - before;
    assert!(one > ZNODE_BYTES + ACL_ENTRY_BYTES);
    store
        .submit(me, Request::Multi(vec![Op::Create(in_a_multi)]))
        .unwrap();
    assert_eq!(store.core.bytes(), before + 2 * one);
    for at in ["/a", "/b", "/c"] {
        store.submit(me, delete(at)).unwrap();
    }
    assert_eq!(store.core.bytes(), small().0.core.bytes());
}
