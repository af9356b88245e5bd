//! Who may do what.

use super::*;
use crate::identity::Secret;
use crate::types::AclEntry;

const ALL: u8 = AclEntry::ALL;
const READ: u8 = AclEntry::READ;
const WRITE: u8 = AclEntry::WRITE;
const CREATE: u8 = AclEntry::CREATE;
const DELETE: u8 = AclEntry::DELETE;
const ADMIN: u8 = AclEntry::ADMIN;

fn entry(permissions: u8, scheme: &str, id: &str) -> AclEntry {
    AclEntry {
        permissions,
        scheme: scheme.into(),
        id: id.into(),
    }
}

/// These rights for everybody.
fn everybody(permissions: u8) -> Acl {
    Acl::new([entry(permissions, "world", "anyone")])
}

fn digest(secret: &str) -> String {
    Identity::digest(secret.as_bytes()).id.into()
}

fn listed(at: &str, mode: CreateMode, acl: Acl) -> Create {
    Create {
        acl,
        ..super::create(at, mode)
    }
}

fn set_acl(at: &str, acl: Acl, version: Option<i32>) -> Request {
    Request::SetAcl {
        path: path(at),
        acl,
        version,
    }
}

fn denied(at: &str) -> Error {
    Error::NoAuth { path: at.into() }
}

fn invalid(at: &str) -> Error {
    Error::InvalidAcl { path: at.into() }
}

impl Harness {
    fn make(&mut self, session: SessionRef, at: &str, acl: Acl) {
        let create = listed(at, Persistent, acl);
        self.submit(session, Request::Create(create)).unwrap();
    }

    fn prove(&mut self, session: SessionRef, secret: &'static str) {
        let request = Request::AddAuth {
            scheme: "digest".into(),
            secret: Secret::new(secret),
        };
        self.submit(session, request).unwrap();
    }

    fn acl(&mut self, session: SessionRef, at: &str) -> Result<(Acl, Stat)> {
        match self.submit(session, Request::GetAcl { path: path(at) })? {
            Reply::Acl { acl, stat } => Ok((acl, stat)),
            other => panic!("{other:?}"),
        }
    }
}

/// Every operation that asks for a right: of the znode `/p/n`, or of its parent.
fn operations() -> Vec<(&'static str, Request, u8, &'static str)> {
    let at = || path("/p/n");
    let (watch, version) = (true, None);
    let multi = |op| Request::Multi(vec![op]);
    let enqueue = Request::Enqueue(Enqueue {
        parent: path("/p"),
        name: "q-".into(),
        data: Bytes::new(),
        acl: Acl::open(),
        skip: Skip::None,
        count: false,
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
        skip: Skip::None,
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
        ("lookAhead", look, READ, "/p"),
        ("getQueue", queue, READ, "/p"),
    ]
}

/// Makes `/p/n`, and gives `of` these rights; another session asks.
fn ask_with(rights: u8, of: &str, request: Request) -> Result<CoreReply> {
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
fn a_session_has_a_limit_of_identities() {
    let mut store = Harness::new();
    let me = store.session();
    let mut added = (0..100).map(|user| {
        let identity = Identity::digest(format!("{user}:").as_bytes());
        store.core.add_identity(me, identity)
    });
    let refused = added.find_map(Result::err).unwrap();
    assert!(
        matches!(refused, Error::LimitReached { limit: 64, .. }),
        "{refused:?}"
    );
}

#[test]
fn identities_have_a_limit_in_bytes() {
    let mut store = Harness::new();
    let me = store.session();
    let long = Identity::x509(&format!("CN={}", "n".repeat(100_000)));
    let refused = store.core.add_identity(me, long).unwrap_err();
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused:?}");
    assert_eq!(store.core.identities(me), []);
    let certificate = Identity::x509(&format!("CN={},O=an organization", "n".repeat(1_000)));
    store.core.add_identity(me, certificate).unwrap();
    let mut added = (0..60).map(|user| {
        let identity = Identity::digest(format!("{}{user}:", "n".repeat(1_000)).as_bytes());
        store.core.add_identity(me, identity)
    });
    let refused = added.find_map(Result::err).unwrap();
    assert!(matches!(refused, Error::LimitReached { .. }), "{refused:?}");
    let bytes = store.core.identities(me).iter();
    let bytes: usize = bytes.map(|identity| identity.id.len()).sum();
    assert!((4_000..100_000).contains(&bytes), "{bytes}");
}

#[test]
fn who_may_not_set_a_list_sees_no_digest_of_it() {
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
fn the_super_user_is_asked_for_no_right() {
    let mut store = Harness::with(CoreOptions {
        super_digest: Identity::written_digest("super:D/InIHSb7yEEbrWz8b9l71RjZJU="),
        ..options()
    });
    let (me, root) = (store.session(), store.session());
    store.make(me, "/a", everybody(0));
    assert_eq!(store.set(me, "/a", None), Err(denied("/a")));
    store.prove(root, "super:wrong");
    assert_eq!(store.set(root, "/a", None), Err(denied("/a")));
    store.prove(root, "super:test");
    store.set(root, "/a", None).unwrap();
    assert_eq!(store.acl(root, "/a").unwrap().0, everybody(0));
    let names: Vec<_> = store
        .core
        .identities(root)
        .iter()
        .map(Identity::shown)
        .collect();
    assert_eq!(names, ["super", "super", ""]);
    store.make(root, "/b", Acl::creator_all());
    let of_root = entry(ALL, "digest", &digest("super:wrong"));
    let entries = store.acl(root, "/b").unwrap().0;
    assert_eq!(entries.entries().unwrap()[0], of_root);
    assert_eq!(
        entries.entries().unwrap().len(),
        2,
        "being super is no identity of a list"
    );
}

#[test]
fn what_proves_nothing_ends_the_session() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/e", Ephemeral).unwrap();
    let request = Request::AddAuth {
        scheme: "sasl".into(),
        secret: Secret::new("alice:hidden"),
    };
    assert!(!format!("{request:?}").contains("hidden"), "{request:?}");
    assert_eq!(store.submit(me, request).unwrap_err(), Error::AuthFailed);
    let over = Error::SessionExpired { session: me.id };
    assert_eq!(store.create(me, "/a", Persistent), Err(over));
    let other = store.session();
    assert_eq!(store.stat(other, "/e"), None);
}

#[test]
fn a_new_connection_has_to_prove_itself_again() {
    let mut store = Harness::new();
    let me = store.session();
    store.prove(me, "alice:secret");
    store.make(me, "/a", Acl::creator_all());
    let (again, _) = store
        .core
        .reattach(me.id, &[7; 16], SECOND, store.now, &mut store.effects)
        .unwrap();
    assert_eq!(store.core.identities(again), []);
    assert_eq!(store.acl(again, "/a"), Err(denied("/a")));
    let alice = Identity::digest(b"alice:secret");
    store.core.add_identity(me, alice.clone()).unwrap();
    assert_eq!(
        store.core.identities(again),
        [],
        "from a connection of before"
    );
    store.core.add_identity(again, alice).unwrap();
    store.acl(again, "/a").unwrap();
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
    // The list of before is gone with the znode of before.
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
fn only_who_may_read_a_znode_is_told_of_it() {
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
    // It is used up all the same, but its watcher hears of the end of its session.
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
fn who_waits_in_a_queue_is_told_whatever_the_lists_say() {
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
            skip: Skip::None,
            count: false,
        }),
    ) else {
        panic!()
    };
    store.enqueue(two, "/q", "n-", Skip::None);
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

#[test]
fn a_name_may_be_a_number_alone() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    let numbered = || Create {
        path: ZnodePath::unnamed_below(&path("/q")),
        ..create("/q", EphemeralSequential)
    };
    let Ok(Reply::Created { path: first, .. }) = store.submit(me, Request::Create(numbered()))
    else {
        panic!()
    };
    assert_eq!(first.as_str(), "/q/0000000000");
    let ops = vec![Op::Create(numbered()), Op::Create(numbered())];
    let Ok(Reply::Multi(replies)) = store.submit(me, Request::Multi(ops)) else {
        panic!()
    };
    let made: Vec<_> = replies.iter().map(made).collect();
    assert_eq!(made, ["/q/0000000001", "/q/0000000002"]);
    let queue = Request::GetQueue {
        parent: path("/q"),
        limit: 0,
    };
    let Ok(Reply::Queue { names, .. }) = store.submit(me, queue) else {
        panic!()
    };
    assert_eq!(names, ["0000000000", "0000000001", "0000000002"]);
}

fn made(reply: &OpReply) -> &str {
    match reply {
        OpReply::Created { path, .. } => path.as_str(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_sessions_of_this_process_get_numbers_of_more_than_ten_digits() {
    let mut store = Harness::new();
    let me = store.session();
    let id = SessionId(99);
    let remote = store
        .core
        .open_session(id, [7; 16], Some(8 * SECOND), false, store.now);
    let remote = remote.unwrap().0;
    store.create(me, "/q", Persistent).unwrap();
    let near = NodeImage {
        path: path("/r"),
        data: Bytes::new(),
        acl: Acl::open(),
        kind: Kind::Persistent,
        owner: SessionId(0),
        czxid: Zxid(1),
        mzxid: Zxid(1),
        pzxid: Zxid(1),
        ctime: 0,
        mtime: 0,
        version: 0,
        aversion: 0,
        creates: 9_999_999_999,
        place: None,
    };
    store.core.restore_node(near).unwrap();
    let numbered = || create("/r/n-", PersistentSequential);
    let (last, _) = store.create(remote, "/r/n-", PersistentSequential).unwrap();
    assert_eq!(last.as_str(), "/r/n-9999999999");
    let used_up = Error::SequenceExhausted { path: "/r".into() };
    let refused = store.create(remote, "/r/n-", PersistentSequential);
    assert_eq!(refused, Err(used_up.clone()));
    let refused = store.submit(remote, Request::Multi(vec![Op::Create(numbered())]));
    let source = Box::new(used_up.clone());
    assert_eq!(
        refused.unwrap_err(),
        Error::MultiFailed { index: 0, source }
    );
    let enqueue = Request::Enqueue(Enqueue {
        parent: path("/r"),
        name: "n-".into(),
        data: Bytes::new(),
        acl: Acl::open(),
        skip: Skip::None,
        count: false,
    });
    assert_eq!(store.submit(remote, enqueue).unwrap_err(), used_up);
    store.create(remote, "/r/plain", Persistent).unwrap();
    let (beyond, _) = store.create(me, "/r/n-", PersistentSequential).unwrap();
    assert_eq!(beyond.as_str(), "/r/n-10000000001");
}

/// Entries that mean nobody, so many that the list is compiled; and one for somebody.
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
