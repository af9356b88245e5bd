//! Which transactions an answer must wait for (invariant 2), and which requests need room in the log.

use super::*;

fn filled() -> (Harness, SessionRef, [Zxid; 3]) {
    let mut store = Harness::new();
    let me = store.remote();
    let zxids =
        ["/a", "/a/b", "/c", "/d"].map(|at| store.create(me, at, Persistent).unwrap().1.czxid);
    let [_, b, c, d] = zxids;
    (store, me, [b, c, d])
}

fn get_acl(at: &str) -> Request {
    Request::GetAcl { path: path(at) }
}

fn delete(at: &str) -> Op {
    let path = path(at);
    Op::Delete {
        path,
        version: None,
    }
}

fn of_all() -> [Request; 3] {
    [
        Request::Sync { path: path("/a") },
        Request::GetEphemerals { prefix: path("/a") },
        Request::GetAllChildrenNumber { path: path("/a") },
    ]
}

#[test]
fn an_answer_waits_for_the_last_change_of_all_that_it_shows() {
    let (mut store, _, [b, c, d]) = filled();
    let queue = Request::GetQueue {
        parent: path("/a"),
        limit: 10,
    };
    let read = |ops: &[ReadOp]| Request::MultiRead(ops.to_vec());
    let (data, children) = (
        |at| ReadOp::GetData(path(at)),
        |at| ReadOp::GetChildren(path(at)),
    );
    let nothing = Zxid(0);
    let mut expected = vec![
        (exists("/a"), b),
        (get_data("/a"), b),
        (get_children("/a"), b),
        (get_acl("/a"), b),
        (queue, b),
        (exists("/c"), c),
        (read(&[data("/a")]), b),
        (read(&[data("/a"), children("/c"), data("/a/b")]), c),
        (read(&[]), nothing),
        (Request::Multi(vec![check("/a")]), b),
        (Request::Multi(vec![has("/c", "data"), check("/a")]), c),
        (Request::Multi(vec![has_at_most("/a", 1)]), b),
        (Request::Multi(vec![has_at_most("/gone", 1)]), nothing),
        (exists("/gone"), d),
        (read(&[data("/gone")]), d),
        (Request::Multi(vec![check("/gone")]), d),
        (Request::Create(create("/e", Persistent)), nothing),
        (
            Request::Multi(vec![set("/c", "new"), delete("/d")]),
            nothing,
        ),
        (Request::Close, nothing),
    ];
    expected.extend(of_all().map(|request| (request, d)));
    for (request, zxid) in &expected {
        assert_eq!(store.core.shown_by(request), *zxid, "{request:?}");
    }
    store.core.set_journal(Journal::Off);
    for (request, _) in &expected {
        assert_eq!(store.core.shown_by(request), nothing, "{request:?}");
    }
}

#[test]
fn a_delete_shows_in_the_parent_and_a_change_in_the_znode() {
    let (mut store, me, [b, _, _]) = filled();
    let changed = store.set(me, "/a/b", None).unwrap().mzxid;
    assert_eq!(store.core.shown_by(&get_data("/a/b")), changed);
    assert_eq!(store.core.shown_by(&get_children("/a")), b);
    store.delete(me, "/a/b").unwrap();
    let deleted = store.core.last_zxid();
    assert_eq!(store.core.shown_by(&get_children("/a")), deleted);
    store.core.set_journal(Journal::Durable);
    let mine = store.session();
    store.create(mine, "/a/mine", Ephemeral).unwrap();
    store.delete(mine, "/a/mine").unwrap();
    assert_eq!(store.core.shown_by(&get_children("/a")), deleted);
}

#[test]
fn a_store_without_a_log_keeps_no_transactions() {
    let mut store = Harness::new();
    store.core.set_journal(Journal::Off);
    let (mine, other) = (store.session(), store.remote());
    for (number, mode) in [Persistent, Ephemeral, Container].into_iter().enumerate() {
        for (name, session) in [("l", mine), ("r", other)] {
            let at = format!("/{name}{number}");
            store.create(session, &at, mode).unwrap();
            store.set(session, &at, None).unwrap();
            store.delete(session, &at).unwrap();
        }
    }
    assert_eq!(store.core.kept(), &[]);
    assert_eq!(store.core.last_kept(), Zxid(0));
}

/// With `DelayedRestart`, answers wait only for persistent changes.
#[test]
fn sessions_that_are_kept_lightly_make_no_answer_wait_and_persistent_changes_do() {
    let mut store = Harness::new();
    store.core.keep_sessions_lightly();
    let other = store.remote();
    let (_, persistent) = store.create(other, "/p", Persistent).unwrap();
    assert_eq!(store.core.last_kept(), persistent.czxid);
    store.create(other, "/e", Ephemeral).unwrap();
    assert_eq!(store.core.last_kept(), persistent.czxid);
    let changed = store.set(other, "/p", None).unwrap();
    assert_eq!(store.core.last_kept(), changed.mzxid);
    assert_eq!(store.core.kept().len(), 4);
}

fn enqueue(parent: &str, queue_data: Option<&str>) -> Request {
    Request::Enqueue(Enqueue {
        parent: path(parent),
        name: "n-".into(),
        data: Bytes::new(),
        acl: Acl::open(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
        queue_data: queue_data.map(|data| data.to_owned().into()),
    })
}

/// Requests of a local session. The flags say whether the request needs room in a log of all transactions, and in a log
/// that excludes local sessions.
fn needs() -> Vec<(Request, bool, bool)> {
    let create = |mode| Request::Create(create("/new", mode));
    let multi = |ops: &[Op]| Request::Multi(ops.to_vec());
    let write = |at: &str| {
        let [one, two, three, four] = [at; 4].map(path);
        let (version, data, acl) = (None, Bytes::new(), Acl::open());
        [
            Request::Delete { path: one, version },
            Request::Withdraw { entry: two },
            Request::SetData {
                path: three,
                data,
                version,
            },
            Request::SetAcl {
                path: four,
                acl,
                version,
            },
        ]
    };
    let ttl = PersistentTtl(SECOND);
    let mut needs = vec![
        (create(Persistent), true, true),
        (create(Container), true, true),
        (create(Ephemeral), true, false),
        (create(ttl), false, false),
        (multi(&[check("/p"), has("/p", "data")]), false, false),
        (multi(&[has_at_most("/p", 1)]), false, false),
        (multi(&[]), false, false),
        (multi(&[check("/p"), set("/p", "new")]), true, true),
        (multi(&[delete("/p"), check("/p")]), true, true),
        (multi(&[delete("/mine"), set("/mine", "new")]), true, false),
        (multi(&[set("/gone", "new")]), false, false),
        (enqueue("/p", None), true, false),
        (enqueue("/p", Some("")), true, false),
        (enqueue("/p/queue", Some("")), true, true),
        (enqueue("/p/queue", None), true, false),
        (Request::Close, true, false),
        (exists("/p"), false, false),
        (get_data("/p"), false, false),
    ];
    for (at, of_all, of_durable) in [
        ("/p", true, true),
        ("/other", true, true),
        ("/mine", true, false),
        ("/gone", false, false),
    ] {
        needs.extend(write(at).map(|request| (request, of_all, of_durable)));
    }
    needs.extend(of_all().map(|request| (request, false, false)));
    needs
}

#[test]
fn a_request_takes_room_in_the_log_if_anything_of_it_is_kept() {
    let mut store = Harness::with(CoreOptions {
        allow_ttl: false,
        ..options()
    });
    let (mine, other) = (store.session(), store.remote());
    store.create(mine, "/p", Persistent).unwrap();
    store.create(mine, "/mine", Ephemeral).unwrap();
    store.create(other, "/other", Ephemeral).unwrap();
    for (request, of_all, of_durable) in needs() {
        for (journal, needed) in [
            (Journal::Off, false),
            (Journal::Durable, of_durable),
            (Journal::All, of_all),
        ] {
            store.core.set_journal(journal);
            let needs = store.core.needs_log(mine, &request);
            assert_eq!(needs, needed, "{journal:?}: {request:?}");
        }
    }
    store.core.set_journal(Journal::Durable);
    for request in [Request::Close, enqueue("/p", None)] {
        assert!(store.core.needs_log(other, &request), "{request:?}");
    }
}

#[test]
fn a_session_that_is_over_or_has_proved_nothing_takes_no_room() {
    let mut store = Harness::new();
    let gone = store.remote();
    store.submit(gone, Request::Close).unwrap();
    let next = store.remote();
    assert_eq!(next.slot, gone.slot);
    let now = store.now;
    let opened = store
        .core
        .open_unproven(SessionId(77), [7; 16], SECOND, now);
    let unproven = opened.unwrap().0;
    for session in [gone, unproven] {
        assert!(!store.core.needs_log(session, &Request::Close));
    }
    assert!(store.core.needs_log(next, &Request::Close));
}

#[test]
fn the_room_that_is_asked_for_is_enough_for_any_request() {
    let by_identity = || Acl::creator_all();
    let creates = |mode| {
        [Acl::open(), by_identity()].map(|acl| Create {
            acl,
            data: Bytes::new(),
            ..create("/n", mode)
        })
    };
    let mut requests: Vec<_> = [
        Persistent,
        PersistentSequential,
        Ephemeral,
        EphemeralSequential,
        Container,
        PersistentTtl(SECOND),
        PersistentSequentialTtl(SECOND),
    ]
    .into_iter()
    .flat_map(creates)
    .flat_map(|new| {
        [
            Request::Create(new.clone()),
            Request::Multi(vec![Op::Create(new); 1]),
        ]
    })
    .collect();
    let all = [
        create("/n", Persistent),
        create("/n/n", PersistentSequential),
    ];
    requests.push(Request::Multi(all.map(Op::Create).to_vec()));
    requests.push(Request::Multi(vec![set("/p", "new"), delete("/p")]));
    requests.push(Request::Delete {
        path: path("/p"),
        version: None,
    });
    requests.push(Request::SetData {
        path: path("/p"),
        data: Bytes::new(),
        version: None,
    });
    for acl in [Acl::open(), by_identity(), Acl::new(Vec::new())] {
        requests.push(Request::SetAcl {
            path: path("/p"),
            acl,
            version: None,
        });
    }
    requests.extend([
        enqueue("/p", None),
        enqueue("/q/r/s", Some("")),
        Request::Close,
    ]);
    for request in requests {
        let mut store = Harness::new();
        let me = store.remote();
        for name in ["one", "two"] {
            let identity = Identity::digest(format!("{name}:secret").as_bytes());
            store.core.add_identity(me, identity).unwrap();
        }
        store.create(me, "/p", Persistent).unwrap();
        store.core.kept().clear();
        let asked = store.core.txn_bytes(me, &request);
        match store.submit(me, request.clone()) {
            Err(Error::InvalidAcl { .. }) => continue,
            answer => drop(answer.unwrap()),
        }
        let taken: usize = store.core.kept().iter().map(Txn::log_bytes).sum();
        assert!(
            taken > 0 && taken <= asked,
            "{taken} of {asked}: {request:?}"
        );
    }
}
