//! Access control lists: the rights that requests need.

use super::*;
use crate::model::identity::Secret;
use crate::model::types::AclEntry;

pub(super) const ALL: u8 = AclEntry::ALL;
pub(super) const READ: u8 = AclEntry::READ;
pub(super) const WRITE: u8 = AclEntry::WRITE;
pub(super) const CREATE: u8 = AclEntry::CREATE;
pub(super) const DELETE: u8 = AclEntry::DELETE;
pub(super) const ADMIN: u8 = AclEntry::ADMIN;

pub(super) fn entry(permissions: u8, scheme: &str, id: &str) -> AclEntry {
    AclEntry {
        permissions,
        scheme: scheme.into(),
        id: id.into(),
    }
}

pub(super) fn everybody(permissions: u8) -> Acl {
    Acl::new([entry(permissions, "world", "anyone")])
}

pub(super) fn digest(secret: &str) -> String {
    Identity::digest(secret.as_bytes()).id.into()
}

pub(super) fn listed(at: &str, mode: CreateMode, acl: Acl) -> Create {
    Create {
        acl,
        ..super::create(at, mode)
    }
}

pub(super) fn set_acl(at: &str, acl: Acl, version: Option<i32>) -> Request {
    Request::SetAcl {
        path: path(at),
        acl,
        version,
    }
}

pub(super) fn denied(at: &str) -> Error {
    Error::NoAuth { path: at.into() }
}

pub(super) fn invalid(at: &str) -> Error {
    Error::InvalidAcl { path: at.into() }
}

impl Harness {
    pub(super) fn make(&mut self, session: SessionRef, at: &str, acl: Acl) {
        let create = listed(at, Persistent, acl);
        self.submit(session, Request::Create(create)).unwrap();
    }

    pub(super) fn prove(&mut self, session: SessionRef, secret: &'static str) {
        let request = Request::AddAuth {
            scheme: "digest".into(),
            secret: Secret::new(secret),
        };
        self.submit(session, request).unwrap();
    }

    pub(super) fn acl(&mut self, session: SessionRef, at: &str) -> Result<(Acl, Stat)> {
        match self.submit(session, Request::GetAcl { path: path(at) })? {
            Reply::Acl { acl, stat } => Ok((acl, stat)),
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn operations() -> Vec<(&'static str, Request, u8, &'static str)> {
    let at = || path("/p/n");
    let (watch, version) = (true, None);
    let multi = |op| Request::Multi(vec![op]);
    let enqueue = Request::Enqueue(Enqueue {
        parent: path("/p"),
        name: "q-".into(),
        data: Bytes::new(),
        acl: Acl::open(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
        queue_data: None,
    });
    let set = Op::SetData {
        path: at(),
        data: Bytes::new(),
        version,
    };
    let set_one = Request::SetData {
        path: at(),
        data: Bytes::new(),
        version,
    };
    let look = Request::GetPredecessor(GetPredecessor {
        entry: path("/p/q-0000000001"),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
    });
    let queue = Request::GetQueue {
        parent: path("/p"),
        limit: 0,
    };
    let (path, new) = (at(), || create("/p/new", Persistent));
    let delete = Request::Delete {
        path: at(),
        version,
    };
    let delete_op = Op::Delete {
        path: at(),
        version,
    };
    let check = Op::Check {
        path: at(),
        version,
    };
    vec![
        (
            "exists",
            Request::Exists { path: at(), watch },
            READ,
            "/p/n",
        ),
        (
            "getData",
            Request::GetData { path: at(), watch },
            READ,
            "/p/n",
        ),
        (
            "getChildren",
            Request::GetChildren { path: at(), watch },
            READ,
            "/p/n",
        ),
        (
            "count",
            Request::GetAllChildrenNumber { path },
            READ,
            "/p/n",
        ),
        (
            "getACL",
            Request::GetAcl { path: at() },
            READ | ADMIN,
            "/p/n",
        ),
        ("setACL", set_acl("/p/n", everybody(0), None), ADMIN, "/p/n"),
        ("setData", set_one, WRITE, "/p/n"),
        ("setData in a multi", multi(set), WRITE, "/p/n"),
        ("check", multi(check), READ, "/p/n"),
        ("delete", delete, DELETE, "/p"),
        ("withdraw", Request::Withdraw { entry: at() }, DELETE, "/p"),
        ("delete in a multi", multi(delete_op), DELETE, "/p"),
        ("create", Request::Create(new()), CREATE, "/p"),
        ("create in a multi", multi(Op::Create(new())), CREATE, "/p"),
        ("enqueue", enqueue, CREATE, "/p"),
        ("getPredecessor", look, READ, "/p"),
        ("getQueue", queue, READ, "/p"),
    ]
}

pub(super) fn ask_with(rights: u8, of: &str, request: Request) -> Result<CoreReply> {
    let mut store = Harness::new();
    let (owner, other) = (store.session(), store.session());
    store.create(owner, "/p", Persistent).unwrap();
    store.create(owner, "/p/n", Persistent).unwrap();
    store.create(other, "/p/q-", EphemeralSequential).unwrap();
    let set = set_acl(of, everybody(rights), Some(0));
    store.submit(owner, set).unwrap();
    let answer = store.submit(other, request);
    if answer.is_err() {
        let watches = store.core.watches.counts().0;
        assert_eq!(watches, 0, "what was refused arms nothing");
    }
    answer
}

#[test]
fn each_operation_asks_for_its_right_and_for_no_other() {
    for (what, request, right, of) in operations() {
        for granted in [READ, WRITE, CREATE, DELETE, ADMIN] {
            let answer = ask_with(granted, of, request.clone());
            let is_granted = granted & right != 0;
            assert_eq!(
                answer.is_ok(),
                is_granted,
                "{what} with {granted}: {answer:?}"
            );
        }
        let refused = ask_with(ALL & !right, of, request).unwrap_err();
        let is_refusal = match &refused {
            Error::MultiFailed { index: 0, source } => matches!(**source, Error::NoAuth { .. }),
            refused => matches!(refused, Error::NoAuth { .. }),
        };
        assert!(is_refusal, "{what}: {refused:?}");
    }
}

/// Submits a request for a session that waits in the queue of the semaphore `/s` and has all rights on the znode `of`
/// except `right`.
fn ask_without(right: u8, of: &str, request: &Request) -> Result<CoreReply> {
    let mut store = Harness::new();
    let (owner, other) = (store.session(), store.session());
    for at in ["/s", "/s/locks", "/s/leases", "/s/permits"] {
        store.create(owner, at, Persistent).unwrap();
    }
    for session in [owner, other] {
        let entry = store.create(session, "/s/locks/q-", EphemeralSequential);
        entry.unwrap();
    }
    let set = set_acl(of, everybody(ALL & !right), None);
    store.submit(owner, set).unwrap();
    store.submit(other, request.clone())
}

/// Compares each operation of Lockkeeper's protocol extension with the ZooKeeper operations that it replaces.
#[test]
fn the_extension_tells_no_more_than_the_operations_that_it_stands_for() {
    let entry = || path("/s/locks/q-0000000001");
    let enqueue = |parent: &str, conditions: &[Condition]| {
        Request::Enqueue(Enqueue {
            parent: path(parent),
            name: "q-".into(),
            data: Bytes::new(),
            acl: Acl::open(),
            blockers: Blockers::All,
            conditions: conditions.to_vec(),
            count: true,
            queue_data: None,
        })
    };
    let look = |conditions: &[Condition]| {
        Request::GetPredecessor(GetPredecessor {
            entry: entry(),
            blockers: Blockers::All,
            conditions: conditions.to_vec(),
            count: true,
        })
    };
    let create = |at: &str| Request::Create(super::create(at, EphemeralSequential));
    let watch = false;
    let list = |at: &str| Request::GetChildren {
        path: path(at),
        watch,
    };
    let permits = || Request::GetData {
        path: path("/s/permits"),
        watch,
    };
    let delete = Request::Delete {
        path: entry(),
        version: None,
    };
    let queue = Request::GetQueue {
        parent: path("/s/locks"),
        limit: 0,
    };
    let new = || create("/s/locks/q-");
    let pairs = [
        (enqueue("/s/locks", &[]), vec![new(), list("/s/locks")]),
        (
            enqueue("/s/locks", &super::permits("data", 1)),
            vec![new(), list("/s/locks"), list("/s/leases"), permits()],
        ),
        (
            enqueue("/zookeeper/quota", &[]),
            vec![create("/zookeeper/quota/q-")],
        ),
        (look(&[]), vec![list("/s/locks")]),
        (
            look(&super::permits("data", 1)),
            vec![list("/s/locks"), list("/s/leases"), permits()],
        ),
        (queue, vec![list("/s/locks")]),
        (Request::Withdraw { entry: entry() }, vec![delete]),
    ];
    for (request, stands_for) in pairs {
        for of in ["/s/locks", "/s/leases", "/s/permits"] {
            for right in [0, READ, WRITE, CREATE, DELETE, ADMIN] {
                let answer = ask_without(right, of, &request);
                let is_told = match &answer {
                    Ok(Reply::Enqueued { ahead, .. }) => !matches!(ahead, Predecessor::Unknown),
                    other => other.is_ok(),
                };
                let mut allowed = stands_for
                    .iter()
                    .map(|it| ask_without(right, of, it).is_ok());
                let what = format!("{request:?} without {right} of {of}: {answer:?}");
                assert_eq!(is_told, allowed.clone().all(|it| it), "{what}");
                if matches!(request, Request::Enqueue(_)) {
                    assert_eq!(answer.is_ok(), allowed.next() == Some(true), "{what}");
                }
            }
        }
    }
}

#[test]
fn the_error_names_what_was_asked_for() {
    let asked = |request| ask_with(0, "/p", request).unwrap_err();
    let create = Request::Create(create("/p/x-", PersistentSequential));
    assert_eq!(asked(create), denied("/p/x-"));
    let delete = Request::Delete {
        path: path("/p/n"),
        version: None,
    };
    assert_eq!(asked(delete), denied("/p/n"));
    let (_, enqueue, ..) = operations().swap_remove(14);
    assert_eq!(asked(enqueue), denied("/p/q-"));
}

#[test]
fn a_right_is_asked_for_before_the_znode_is_looked_at() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/p", Persistent).unwrap();
    store.create(me, "/p/n", Persistent).unwrap();
    store.create(me, "/p/n/x", Persistent).unwrap();
    store
        .submit(me, set_acl("/p", everybody(READ), None))
        .unwrap();
    store
        .submit(me, set_acl("/p/n", everybody(READ), None))
        .unwrap();
    let missing = store.delete(me, "/p/gone");
    assert_eq!(missing, Err(denied("/p/gone")));
    assert_eq!(
        store.delete(me, "/p/n"),
        Err(denied("/p/n")),
        "and it has children"
    );
    assert_eq!(store.set(me, "/p/n", Some(7)), Err(denied("/p/n")));
    let exists = store.create(me, "/p/n", Persistent);
    assert_eq!(exists, Err(denied("/p/n")));
    let set = set_acl("/p/n", Acl::open(), Some(7));
    assert_eq!(store.submit(me, set).unwrap_err(), denied("/p/n"));
    let bad = listed("/nowhere/x", Persistent, Acl::new([]));
    let bad = store.submit(me, Request::Create(bad));
    assert_eq!(
        bad.unwrap_err(),
        invalid("/nowhere/x"),
        "the list comes first"
    );
    let bad = set_acl("/nowhere", Acl::new([]), None);
    assert_eq!(store.submit(me, bad).unwrap_err(), invalid("/nowhere"));
}

#[test]
fn set_acl_moves_its_own_version_and_nothing_else() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/a", Persistent).unwrap();
    let before = store.stat(me, "/a").unwrap();
    store.watch(me, get_data("/a"));
    for version in 0..2 {
        let set = set_acl("/a", everybody(ALL - DELETE), Some(version));
        store.submit(me, set).unwrap();
    }
    assert_eq!(store.fired(), [], "no watch fires");
    let (acl, stat) = store.acl(me, "/a").unwrap();
    assert_eq!(acl, everybody(ALL - DELETE));
    assert_eq!(
        stat,
        Stat {
            aversion: 2,
            ..before
        }
    );
    let stale = store.submit(me, set_acl("/a", Acl::open(), Some(1)));
    let (path, expected) = ("/a".into(), 1);
    assert_eq!(stale.unwrap_err(), Error::BadVersion { path, expected });
    store
        .submit(me, set_acl("/a", Acl::open(), Some(-1)))
        .unwrap();
    assert_eq!(store.acl(me, "/a").unwrap().0, Acl::open());
    let gone = store.submit(me, set_acl("/b", Acl::open(), None));
    assert_eq!(gone.unwrap_err(), Error::NoNode { path: "/b".into() });
}

#[test]
fn a_read_of_a_list_waits_for_the_log_to_have_it() {
    let mut store = Harness::new();
    let me = store.remote();
    store.make(me, "/a", everybody(ALL));
    store
        .submit(me, set_acl("/a", everybody(READ), None))
        .unwrap();
    let get = Request::GetAcl { path: path("/a") };
    assert_eq!(store.core.shown_by(&get), store.core.last_zxid());
}

#[test]
fn a_list_that_gives_all_to_everybody_takes_no_room() {
    let mut store = Harness::new();
    let me = store.remote();
    store.create(me, "/a", Persistent).unwrap();
    let before = store.core.bytes();
    for (acl, is_kept) in [(everybody(READ | ADMIN), true), (everybody(ALL), false)] {
        store.submit(me, set_acl("/a", acl, None)).unwrap();
        assert_eq!(store.core.bytes() > before, is_kept);
    }
    assert_eq!(store.core.bytes(), before);
}

#[test]
fn auth_stands_for_what_the_creator_has_proved() {
    let mut store = Harness::new();
    let me = store.session();
    let auth = |rights, id| Acl::new([entry(rights, "auth", id)]);
    let refused = listed("/a", Persistent, Acl::creator_all());
    let refused = store.submit(me, Request::Create(refused)).unwrap_err();
    assert_eq!(refused, invalid("/a"), "nothing is proved");
    let address = Identity::ip([127, 0, 0, 1].into());
    store.core.add_identity(me, address).unwrap();
    let refused = listed("/a", Persistent, Acl::creator_all());
    let refused = store.submit(me, Request::Create(refused)).unwrap_err();
    assert_eq!(refused, invalid("/a"), "an address proves nothing");
    store.prove(me, "alice:secret");
    let certificate = Identity::x509("CN=alice");
    store.core.add_identity(me, certificate).unwrap();
    store.make(me, "/a", auth(READ | ADMIN, "whatever"));
    let expanded = [
        entry(READ | ADMIN, "digest", &digest("alice:secret")),
        entry(READ | ADMIN, "x509", "CN=alice"),
    ];
    assert_eq!(store.acl(me, "/a").unwrap().0, Acl::new(expanded.clone()));
    let refused = store.set(me, "/a", None);
    assert_eq!(refused, Err(denied("/a")));

    let other = store.session();
    assert_eq!(store.acl(other, "/a"), Err(denied("/a")));
    store
        .core
        .add_identity(other, Identity::x509("CN=alice"))
        .unwrap();
    assert_eq!(store.acl(other, "/a").unwrap().0, Acl::new(expanded));
}

#[test]
fn a_list_is_checked_and_loses_its_repetitions() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/a", Persistent).unwrap();
    for (scheme, id) in [
        ("world", "me"),
        ("digest", "alice"),
        ("ip", "10.0.0.0/33"),
        ("x509", "alice"),
        ("auth", ""),
        ("super", ""),
        ("sasl", "alice"),
        ("", ""),
    ] {
        let list = Acl::new([entry(ALL, "world", "anyone"), entry(ALL, scheme, id)]);
        let refused = store.submit(me, set_acl("/a", list, None)).unwrap_err();
        assert_eq!(refused, invalid("/a"), "{scheme}:{id}");
    }
    let (one, two) = (entry(ALL, "ip", "::1"), entry(READ, "world", "anyone"));
    let list = [one.clone(), two.clone(), one.clone(), two.clone()];
    store
        .submit(me, set_acl("/a", Acl::new(list), None))
        .unwrap();
    assert_eq!(store.acl(me, "/a").unwrap().0, Acl::new([one, two]));
    let many = (0..2_000).map(|at| entry(READ, "digest", &format!("{at}:x")));
    store.make(me, "/b", Acl::open());
    let many = set_acl("/b", Acl::new(many.collect::<Vec<_>>()), None);
    let refused = store.submit(me, many).unwrap_err();
    assert!(matches!(refused, Error::LimitReached { .. }), "{refused:?}");
}

#[test]
fn digests_are_hidden_from_sessions_that_may_not_set_the_list() {
    let mut store = Harness::new();
    let (alice, other) = (store.session(), store.session());
    store.prove(alice, "alice:secret");
    let list = Acl::new([
        entry(ALL, "auth", ""),
        entry(READ, "world", "anyone"),
        entry(READ, "ip", "::1"),
    ]);
    store.make(alice, "/a", list);
    let of_alice = |id: &str| {
        Acl::new([
            entry(ALL, "digest", id),
            entry(READ, "world", "anyone"),
            entry(READ, "ip", "::1"),
        ])
    };
    let hash = digest("alice:secret");
    assert_eq!(store.acl(alice, "/a").unwrap().0, of_alice(&hash));
    assert_eq!(store.acl(other, "/a").unwrap().0, of_alice("alice:x"));
    store.prove(other, "alice:wrong");
    assert_eq!(store.acl(other, "/a").unwrap().0, of_alice("alice:x"));
}

#[test]
fn a_multi_goes_by_the_lists_that_its_own_operations_leave() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/p", Persistent).unwrap();
    let create = |at, rights| Op::Create(listed(at, Persistent, everybody(rights)));
    let delete = |at| Op::Delete {
        path: path(at),
        version: None,
    };
    let set = |at| Op::SetData {
        path: path(at),
        data: Bytes::new(),
        version: None,
    };
    let mut run = |ops: Vec<Op>| match store.submit(me, Request::Multi(ops)) {
        Ok(Reply::Multi(replies)) => Ok(replies.len()),
        Err(Error::MultiFailed { index, source }) => Err((index, *source)),
        other => panic!("{other:?}"),
    };
    let refused = run(vec![create("/p/a", READ), create("/p/a/b", ALL)]);
    assert_eq!(refused, Err((1, denied("/p/a/b"))));
    let refused = run(vec![create("/p/a", READ), set("/p/a")]);
    assert_eq!(refused, Err((1, denied("/p/a"))));
    let refused = run(vec![
        create("/p/a", CREATE),
        create("/p/a/b", ALL),
        delete("/p/a/b"),
    ]);
    assert_eq!(refused, Err((2, denied("/p/a/b"))));
    assert_eq!(run(vec![create("/p/a", WRITE), set("/p/a")]), Ok(2));
    let anew = vec![
        delete("/p/a"),
        create("/p/a", CREATE),
        create("/p/a/b", ALL),
    ];
    assert_eq!(run(anew), Ok(3));
    let anew = vec![delete("/p/a"), create("/p/a", CREATE)];
    assert!(run(anew).is_err(), "it has a child");
    let bad = Op::Create(listed("/p/x", Persistent, Acl::creator_all()));
    assert_eq!(run(vec![set("/p"), bad]), Err((1, invalid("/p/x"))));
}

#[test]
fn a_multi_read_is_refused_part_by_part() {
    let mut store = Harness::new();
    let me = store.session();
    store.make(me, "/a", everybody(ALL - READ));
    store.create(me, "/b", Persistent).unwrap();
    let ops = ["/a", "/b", "/a"].map(path).map(ReadOp::GetData);
    let Ok(Reply::MultiRead(replies)) = store.submit(me, Request::MultiRead(ops.into())) else {
        panic!()
    };
    let refused = ReadReply::Failed(denied("/a"));
    assert_eq!((&replies[0], &replies[2]), (&refused, &refused));
    assert!(matches!(replies[1], ReadReply::Data { .. }));
}

#[test]
fn only_sessions_that_may_read_a_znode_get_its_events() {
    let mut store = Harness::new();
    let (me, other) = (store.session(), store.session());
    store.create(me, "/a", Persistent).unwrap();
    let watch = |mode| Request::AddWatch {
        path: path("/"),
        mode,
    };
    let mine = store.watch(me, watch(WatchMode::PersistentRecursive));
    store.prove(me, "me:secret");
    let hidden = store.watch(other, get_data("/a"));
    store.watch(other, exists("/a/new"));
    store.watch(other, watch(WatchMode::PersistentRecursive));
    store
        .submit(me, set_acl("/a", Acl::creator_all(), None))
        .unwrap();
    store.set(me, "/a", None).unwrap();
    store.make(me, "/a/new", Acl::creator_all());
    let told = |kind, at: &str| (mine, kind, at.to_owned());
    let expected = [told(NodeDataChanged, "/a"), told(NodeCreated, "/a/new")];
    assert_eq!(store.fired(), expected);
    store.submit(me, set_acl("/a", Acl::open(), None)).unwrap();
    store.set(me, "/a", None).unwrap();
    assert_eq!(store.fired().len(), 2, "the recursive ones");
    store.submit(other, Request::Close).unwrap();
    assert!(
        store
            .effects
            .dropped
            .iter()
            .any(|(watch, ..)| *watch == hidden)
    );
    assert_eq!(store.core.watches.counts(), (1, 0));
}

#[test]
fn a_watch_that_fired_unseen_can_be_taken_back() {
    let mut store = Harness::new();
    let (me, other) = (store.session(), store.session());
    store.create(me, "/a", Persistent).unwrap();
    let hidden = store.watch(other, get_data("/a"));
    store
        .submit(me, set_acl("/a", everybody(ALL - READ), None))
        .unwrap();
    store.set(me, "/a", None).unwrap();
    assert_eq!(store.fired(), []);
    assert!(store.core.unwatch(hidden));
    assert_eq!(store.core.watches.counts(), (0, 0));
    assert!(!store.core.unwatch(hidden));
}

#[test]
fn a_waiter_gets_its_event_without_the_right_to_read() {
    let mut store = Harness::new();
    let (one, two) = (store.session(), store.session());
    store.create(one, "/q", Persistent).unwrap();
    store.prove(one, "one:secret");
    let Ok(Reply::Enqueued { path: head, .. }) = store.submit(
        one,
        Request::Enqueue(Enqueue {
            parent: path("/q"),
            name: "n-".into(),
            data: Bytes::new(),
            acl: Acl::creator_all(),
            blockers: Blockers::All,
            conditions: Vec::new(),
            count: false,
            queue_data: None,
        }),
    ) else {
        panic!()
    };
    store.enqueue(two, "/q", "n-", Blockers::All);
    store.delete(one, head.as_str()).unwrap();
    assert_eq!(store.fired().len(), 1);
}

#[test]
fn a_replay_brings_the_lists_back() {
    let mut store = Harness::new();
    let me = store.session();
    store.prove(me, "me:secret");
    store.make(me, "/a", Acl::creator_all());
    store.create(me, "/b", Persistent).unwrap();
    store
        .submit(me, set_acl("/b", Acl::creator_all(), None))
        .unwrap();
    store
        .submit(me, set_acl("/b", everybody(READ | ADMIN), None))
        .unwrap();
    store.submit(me, set_acl("/a", Acl::open(), None)).unwrap();
    let mut copy = Core::new(options());
    for txn in std::mem::take(store.core.kept()) {
        copy.replay(txn).unwrap();
    }
    assert_eq!(copy.dump(), store.core.dump());
    let unknown = Txn {
        zxid: Zxid(1 << 40),
        unix_ms: 0,
        session: me.id,
        op: TxnOp::SetAcl {
            path: path("/c"),
            acl: Acl::open(),
            aversion: 1,
        },
    };
    assert!(copy.replay(unknown).is_err());
}

/// A list that is long enough to be compiled. One entry matches `somebody`, and the others match no session.
fn long_list(somebody: &str) -> Acl {
    let others = (0..200).map(|at| entry(ALL, "digest", &format!("other-{at}:x")));
    let mine = entry(READ, "digest", &digest(somebody));
    Acl::new(others.chain([mine]).collect::<Vec<_>>())
}

#[test]
fn a_verdict_on_a_list_is_no_verdict_on_another_list_or_on_other_identities() {
    let mut store = Harness::new();
    let (owner, me, other) = (store.session(), store.remote(), store.remote());
    store.prove(owner, "owner:secret");
    store.make(owner, "/a", Acl::creator_all());
    let admin = entry(ADMIN, "digest", &digest("owner:secret"));
    let list = |acl: Acl| Acl::new([acl.entries().unwrap(), std::slice::from_ref(&admin)].concat());
    let may = |store: &mut Harness, who| store.submit(who, get_data("/a")).is_ok();
    for identity in ["me:secret", "me:other"] {
        store
            .submit(owner, set_acl("/a", list(long_list(identity)), None))
            .unwrap();
        assert!(
            !may(&mut store, other) && !may(&mut store, me),
            "{identity}"
        );
        store.prove(me, identity);
        assert!(may(&mut store, me) && !may(&mut store, other), "{identity}");
        store
            .submit(owner, set_acl("/a", list(long_list("nobody:x")), None))
            .unwrap();
        assert!(!may(&mut store, me), "the list is another");
        store
            .submit(owner, set_acl("/a", list(long_list(identity)), None))
            .unwrap();
        assert!(may(&mut store, me) && !may(&mut store, other), "{identity}");
    }
    let (now, effects) = (store.now, &mut store.effects);
    let again = store
        .core
        .reattach(me.id, &[7; 16], Duration::from_secs(10), now, effects);
    let me = again.unwrap().0;
    assert!(!may(&mut store, me), "identities go with their connection");
}
