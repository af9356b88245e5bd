//! Znodes, their accounts, and multis.

use super::replay::Random;
use super::*;

#[test]
fn a_fresh_tree_is_zookeepers() {
    let mut store = Harness::new();
    let me = store.session();
    let root = store.stat(me, "/").unwrap();
    assert_eq!(
        (root.cversion, root.num_children, root.czxid),
        (-1, 1, Zxid(0))
    );
    let count = store.submit(
        me,
        Request::GetAllChildrenNumber {
            path: ZnodePath::root(),
        },
    );
    assert!(matches!(count, Ok(Reply::Count(3))));
    for special in ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"] {
        assert!(matches!(
            store.delete(me, special),
            Err(Error::BadArguments(_))
        ));
    }
    assert!(matches!(
        store.set(me, "/zookeeper/config", None),
        Err(Error::NoAuth { .. })
    ));
    assert!(matches!(
        store.create(me, "/", Persistent),
        Err(Error::NodeExists { .. })
    ));
    assert_eq!(
        store
            .create(me, "/", PersistentSequential)
            .unwrap()
            .0
            .as_str(),
        "/0000000000"
    );
}

#[test]
fn stats_keep_zookeepers_accounts() {
    let mut store = Harness::new();
    let me = store.session();
    let (_, made) = store.create(me, "/a", Persistent).unwrap();
    for name in ["/a/1", "/a/2", "/a/3"] {
        store.create(me, name, Persistent).unwrap();
    }
    store.delete(me, "/a/2").unwrap();
    let stat = store.stat(me, "/a").unwrap();
    assert_eq!((stat.cversion, stat.num_children), (2 * 3 - 2, 2));
    assert_eq!((stat.mzxid, stat.version), (made.czxid, 0));
    assert_eq!(stat.pzxid, store.core.last_zxid());
    let set = store.set(me, "/a", Some(0)).unwrap();
    assert_eq!(
        (set.version, set.mzxid, set.pzxid),
        (1, store.core.last_zxid(), stat.pzxid)
    );
    let refused = store.set(me, "/a", Some(0)).unwrap_err();
    assert_eq!(
        refused,
        Error::BadVersion {
            path: "/a".into(),
            expected: 0
        }
    );
    assert_eq!(store.set(me, "/a", Some(-1)).unwrap().version, 2);
}

#[test]
fn the_version_skips_minus_one() {
    assert_eq!(write::next_version(i32::MAX), i32::MIN);
    assert_eq!(write::next_version(-2), 0);
}

#[test]
fn numbers_have_ten_digits_or_more() {
    let text = |number| {
        let mut text = String::new();
        names::push_number(&mut text, number);
        text
    };
    assert_eq!(text(0), "0000000000");
    assert_eq!(text(2_147_483_648), "2147483648");
    assert_eq!(text(12_345_678_901), "12345678901");
}

#[test]
fn the_counter_counts_every_child_create() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    store.create(me, "/q/plain", Persistent).unwrap();
    store.delete(me, "/q/plain").unwrap();
    let (made, _) = store.create(me, "/q/n-", PersistentSequential).unwrap();
    assert_eq!(made.as_str(), "/q/n-0000000001");
}

#[test]
fn a_multi_sees_its_own_operations_or_does_nothing() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/a", Persistent).unwrap();
    let watch = store.watch(me, get_children("/a"));
    let delete = |at| Op::Delete {
        path: path(at),
        version: Some(0),
    };
    let before = store.core.dump();
    let failing = vec![
        Op::Create(create("/a/b", Persistent)),
        Op::Create(create("/a/b/n-", EphemeralSequential)),
        delete("/a/b"),
    ];
    let failed = store
        .submit(me, Request::Multi(failing.clone()))
        .unwrap_err();
    let source = Error::NotEmpty {
        path: "/a/b".into(),
    }
    .into();
    assert_eq!(failed, Error::MultiFailed { index: 2, source });
    assert_eq!(store.core.dump(), before);
    assert_eq!(store.fired(), []);

    let mut ops = failing[..2].to_vec();
    ops.push(delete("/a/b/n-0000000000"));
    ops.push(Op::SetData {
        path: path("/a/b"),
        data: "x".into(),
        version: Some(0),
    });
    ops.push(Op::Check {
        path: path("/a/b"),
        version: Some(1),
    });
    ops.push(Op::Delete {
        path: path("/a/b"),
        version: Some(1),
    });
    ops.push(Op::Create(create("/a/n-", PersistentSequential)));
    let Ok(Reply::Multi(replies)) = store.submit(me, Request::Multi(ops)) else {
        panic!()
    };
    let OpReply::Created {
        path: made,
        stat: Some(stat),
    } = &replies[6]
    else {
        panic!()
    };
    assert_eq!(
        (made.as_str(), stat.czxid),
        ("/a/n-0000000001", store.core.last_zxid())
    );
    assert_eq!(store.fired(), [(watch, NodeChildrenChanged, "/a".into())]);
}

#[test]
fn a_multi_read_fails_one_by_one() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/a", Persistent).unwrap();
    let ops = vec![ReadOp::GetData(path("/b")), ReadOp::GetChildren(path("/"))];
    let Ok(Reply::MultiRead(replies)) = store.submit(me, Request::MultiRead(ops)) else {
        panic!()
    };
    assert_eq!(
        replies[0],
        ReadReply::Failed(Error::NoNode { path: "/b".into() })
    );
    assert_eq!(
        replies[1],
        ReadReply::Children(vec!["zookeeper".into(), "a".into()])
    );
}

/// zkCli's setquota creates these znodes. The store refuses them, because nothing enforces quotas here.
#[test]
fn a_quota_is_refused() {
    const LIMITS: &str = "/zookeeper/quota/a/zookeeper_limits";
    let mut store = Harness::new();
    let me = store.remote();
    let is_refused = |refused: Result<CoreReply>| match refused {
        Err(Error::Unimplemented { what }) => what.contains("quota"),
        Err(Error::MultiFailed { source, .. }) => {
            matches!(*source, Error::Unimplemented { what } if what.contains("quota"))
        }
        _ => false,
    };
    for at in ["/zookeeper/quota/a", LIMITS] {
        for mode in [Persistent, PersistentSequential, Ephemeral, Container] {
            let refused = store.submit(me, Request::Create(create(at, mode)));
            assert!(is_refused(refused), "{at} {mode:?}");
            let ops = vec![Op::Create(create(at, mode))];
            let refused = store.submit(me, Request::Multi(ops));
            assert!(is_refused(refused), "{at} {mode:?}");
        }
    }
    let at = store.core.stamp(store.now, LogMode::None);
    for old in ["/zookeeper/quota/a", LIMITS] {
        let new = NewNode {
            path: path(old),
            data: Bytes::new(),
            acl: Acl::open(),
            kind: NodeKind::Persistent,
            sequence: None,
            creates: 1,
        };
        let (session, effects) = (SessionId(0), &mut store.effects);
        store.core.apply(session, TxnOp::Create(new), at, effects);
    }
    let set = Request::SetData {
        path: path(LIMITS),
        data: "count=1,bytes=-1".into(),
        version: None,
    };
    assert!(is_refused(store.submit(me, set)));
    let set = Op::SetData {
        path: path(LIMITS),
        data: "count=1,bytes=-1".into(),
        version: None,
    };
    assert!(is_refused(store.submit(me, Request::Multi(vec![set]))));
    assert!(store.stat(me, LIMITS).is_some());
    for old in [LIMITS, "/zookeeper/quota/a"] {
        store.delete(me, old).unwrap();
    }
    store.set(me, "/zookeeper/quota", None).unwrap();
    store.create(me, "/zookeeper/quotas", Persistent).unwrap();
}

#[test]
fn a_path_leads_to_no_later_znode() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/a", Persistent).unwrap();
    assert!(store.stat(me, "/a").is_some());
    store.delete(me, "/a").unwrap();
    store.create(me, "/b", Persistent).unwrap();
    assert_eq!(store.stat(me, "/a"), None);
    assert!(store.stat(me, "/b").is_some());

    let delete = |at| Op::Delete {
        path: path(at),
        version: None,
    };
    let ops = vec![
        delete("/b"),
        Op::Create(create("/c", Persistent)),
        Op::Create(create("/c/d", Persistent)),
        delete("/c/d"),
        delete("/c"),
        Op::Create(create("/e", Persistent)),
    ];
    store.submit(me, Request::Multi(ops)).unwrap();
    for gone in ["/a", "/b", "/c", "/c/d", "/e/d"] {
        assert_eq!(store.stat(me, gone), None, "{gone}");
    }
    assert!(store.stat(me, "/e").is_some());
}

fn any_path(random: &mut Random) -> String {
    let mut at = String::new();
    for _ in 0..=random.below(4) {
        at.push('/');
        at.push_str(["a", "b", "c", "name"][random.below(4) as usize]);
        if random.below(8) == 0 {
            at.push_str(&"x".repeat(250));
        }
    }
    at
}

#[test]
fn paths_that_were_looked_up_lead_where_they_lead() {
    for seed in 0..50 {
        let mut random = Random(seed);
        let mut store = Harness::new();
        let me = store.session();
        let mut made = std::collections::BTreeMap::new();
        for step in 0..400 {
            let at = any_path(&mut random);
            match random.below(4) {
                0 => {
                    let mode = [Persistent, Ephemeral, Container][random.below(3) as usize];
                    if let Ok((_, stat)) = store.create(me, &at, mode) {
                        made.insert(at, stat.czxid);
                    }
                }
                1 => {
                    if store.delete(me, &at).is_ok() {
                        made.remove(&at).unwrap();
                    }
                }
                _ => {
                    let found = store.stat(me, &at).map(|stat| stat.czxid);
                    assert_eq!(
                        found,
                        made.get(&at).copied(),
                        "seed {seed}, step {step}: {at}"
                    );
                }
            }
        }
        assert!(!made.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_child_is_found_whatever_its_siblings_are() {
    let mut store = Harness::new();
    let me = store.session();
    store.create(me, "/q", Persistent).unwrap();
    let (entry, _) = store.enqueue(me, "/q", "w-", Blockers::All);
    for mode in [Persistent, Ephemeral] {
        let again = store.create(me, entry.as_str(), mode).unwrap_err();
        assert!(matches!(again, Error::NodeExists { .. }), "{again}");
    }
    for _ in 0..3 {
        store.create(me, "/q/named", Persistent).unwrap();
        assert!(store.stat(me, "/q/named").is_some());
        assert!(store.stat(me, entry.as_str()).is_some());
        store.delete(me, "/q/named").unwrap();
        assert_eq!(store.stat(me, "/q/named"), None);
        assert!(store.stat(me, entry.as_str()).is_some());
    }
    store.delete(me, entry.as_str()).unwrap();
    assert_eq!(store.stat(me, entry.as_str()), None);
    store.delete(me, "/q").unwrap();
}
