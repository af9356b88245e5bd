//! Access control lists, through sessions.
//!
//! The embedded store behaves like ZooKeeper 3.9. ZooKeeper 3.8 checks no permission for exists. Both hide watch events
//! from clients that may not read the znode since 3.8.4 and 3.9.2 (CVE-2024-23944). Debian backported that to its
//! 3.8.0.

use lockkeeper_store::{
    Acl, AclEntry, ConnectOptions, Create, CreateMode, Error, EventKind, Op, ReadOp, ReadReply,
    Session, Store, StoreOptions, WatchMode, connect_with,
};
use testkit::on_every_backend_without_users as on_every_backend;

use crate::common::*;

fn entry(permissions: u8, scheme: &str, id: &str) -> AclEntry {
    AclEntry {
        permissions,
        scheme: scheme.into(),
        id: id.into(),
    }
}

/// Grants these permissions to everyone, and all permissions to the creator.
fn others(permissions: u8) -> Acl {
    Acl::new([
        entry(permissions, "world", "anyone"),
        entry(AclEntry::ALL, "auth", ""),
    ])
}

fn alice() -> ConnectOptions {
    ConnectOptions::new().auth("digest", "alice:secret")
}

/// Digest id for `alice:secret`.
const ALICE: &str = "alice:aYXlLOpEooaV1cRAvUL1fp9Qt7E=";

fn denied<T>(at: &str) -> Result<T, Error> {
    Err(Error::NoAuth { path: at.into() })
}

fn invalid<T>(at: &str) -> Result<T, Error> {
    Err(Error::InvalidAcl { path: at.into() })
}

async fn alone(session: &Session, op: Op) -> Result<(), Error> {
    match session.multi([op]).await {
        Ok(_) => Ok(()),
        Err(Error::MultiFailed { source, .. }) => Err(*source),
        Err(error) => Err(error),
    }
}

on_every_backend! {
    async fn rule_22_each_right_is_asked_for(env: Env) {
        let (owner, other) = (env.session_with(alice()).await, env.session().await);
        make(&owner, "/p").await;
        make(&owner, "/p/n").await;
        let (p, n) = (path("/p"), path("/p/n"));
        let all = AclEntry::ALL;

        owner.set_acl(&n, others(all - AclEntry::READ), None).await.unwrap();
        assert_eq!(other.get_data(&n).await.map(drop), denied("/p/n"));
        assert_eq!(other.watch_data(&n).await.map(drop), denied("/p/n"));
        assert_eq!(other.get_children(&n).await.map(drop), denied("/p/n"));
        assert_eq!(other.watch_children(&n).await.map(drop), denied("/p/n"));
        assert_eq!(other.get_all_children_number(&n).await.map(drop), denied("/p/n"));
        let check = Op::Check { path: n.clone(), version: None };
        assert_eq!(alone(&other, check).await, denied("/p/n"));
        let reads = [ReadOp::GetData(n.clone()), ReadOp::GetChildren(p.clone())];
        let reads = other.multi_read(reads).await.unwrap();
        assert_eq!(reads[0], ReadReply::Failed(Error::NoAuth { path: "/p/n".into() }));
        assert_eq!(reads[1], ReadReply::Children(vec!["n".into()]));
        other.set_data(&n, "", None).await.unwrap();

        owner.set_acl(&n, others(all - AclEntry::WRITE), None).await.unwrap();
        assert_eq!(other.set_data(&n, "", None).await.map(drop), denied("/p/n"));
        assert_eq!(other.set_data(&n, "", Some(9)).await.map(drop), denied("/p/n"));
        let set = Op::SetData { path: n.clone(), data: "".into(), version: None };
        assert_eq!(alone(&other, set).await, denied("/p/n"));
        other.get_data(&n).await.unwrap();

        owner.set_acl(&n, others(all - AclEntry::ADMIN), None).await.unwrap();
        assert_eq!(other.set_acl(&n, Acl::open(), None).await.map(drop), denied("/p/n"));
        other.get_acl(&n).await.unwrap();
        owner.set_acl(&n, others(all - AclEntry::ADMIN - AclEntry::READ), None).await.unwrap();
        assert_eq!(other.get_acl(&n).await.map(drop), denied("/p/n"));
        owner.set_acl(&n, others(AclEntry::ADMIN), None).await.unwrap();
        other.get_acl(&n).await.unwrap();

        owner.set_acl(&p, others(all - AclEntry::CREATE), None).await.unwrap();
        let numbered = other.create(&path("/p/x-"), "", CreateMode::EphemeralSequential).await;
        assert_eq!(numbered.map(drop), denied("/p/x-"));
        assert_eq!(alone(&other, create_op("/p/x", CreateMode::Persistent)).await, denied("/p/x"));
        assert_eq!(other.enqueue(crate::common::entry("/p", "x-")).await.map(drop), denied("/p/x-"));
        make(&owner, "/p/m").await;
        other.delete(&path("/p/m"), None).await.unwrap();

        owner.set_acl(&p, others(all - AclEntry::DELETE), None).await.unwrap();
        assert_eq!(other.delete(&n, None).await, denied("/p/n"));
        assert_eq!(other.delete(&path("/p/gone"), None).await, denied("/p/gone"));
        let delete = Op::Delete { path: n.clone(), version: None };
        assert_eq!(alone(&other, delete).await, denied("/p/n"));
        make(&other, "/p/m").await;
        owner.delete(&n, None).await.unwrap();
    }

    async fn rule_22_an_acl_has_its_own_version(env: Env) {
        let session = env.session_with(alice()).await;
        let before = make(&session, "/a").await;
        assert_eq!(session.get_acl(&path("/a")).await.unwrap(), (Acl::open(), before));
        let (_, _, mut watcher) = session.watch_data(&path("/a")).await.unwrap();
        let after = session.set_acl(&path("/a"), Acl::creator_all(), Some(0)).await.unwrap();
        assert_eq!((after.aversion, after.version), (1, 0));
        assert_eq!((after.mzxid, after.pzxid, after.mtime), (before.mzxid, before.pzxid, before.mtime));
        let of_alice = Acl::new([entry(AclEntry::ALL, "digest", ALICE)]);
        assert_eq!(session.get_acl(&path("/a")).await.unwrap(), (of_alice, after));
        let stale = session.set_acl(&path("/a"), Acl::open(), Some(0)).await;
        assert_eq!(stale, Err(Error::BadVersion { path: "/a".into(), expected: 0 }));
        let missing = session.set_acl(&path("/b"), Acl::open(), None).await;
        assert_eq!(missing, Err(no_node("/b")));
        assert_eq!(session.get_acl(&path("/b")).await, Err(no_node("/b")));
        barrier(&session).await;
        assert_eq!(fired(&mut watcher), None);
        session.set_acl(&path("/a"), Acl::open(), None).await.unwrap();
        assert_eq!(session.get_acl(&path("/a")).await.unwrap().0, Acl::open());
    }

    async fn rule_22_bad_lists_are_refused_before_anything_else(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        for list in [
            vec![],
            vec![entry(31, "auth", "")],
            vec![entry(31, "world", "me")],
            vec![entry(31, "digest", "alice")],
            vec![entry(31, "ip", "10.0.0.0/33")],
            vec![entry(31, "nonsense", "")],
            vec![entry(31, "world", "anyone"), entry(31, "digest", "a:b:c")],
        ] {
            let list = Acl::new(list);
            assert_eq!(session.set_acl(&path("/a"), list.clone(), None).await, invalid("/a"), "{list:?}");
            let missing = session.set_acl(&path("/b"), list.clone(), None).await;
            assert_eq!(missing, invalid("/b"), "{list:?}");
            let create = Create {
                path: path("/a/b"),
                data: "".into(),
                mode: CreateMode::Persistent,
                acl: list.clone(),
            };
            assert_eq!(alone(&session, Op::Create(create)).await, invalid("/a/b"), "{list:?}");
        }
        let (one, two) = (entry(1, "world", "anyone"), entry(31, "ip", "127.0.0.1/8"));
        let list = Acl::new([one.clone(), two.clone(), one.clone()]);
        session.set_acl(&path("/a"), list, None).await.unwrap();
        assert_eq!(session.get_acl(&path("/a")).await.unwrap().0, Acl::new([one, two]));
    }

    async fn rule_22_a_multi_goes_by_its_own_lists(env: Env) {
        let session = env.session_with(alice()).await;
        let create = |at: &str, rights| Op::Create(Create {
            path: path(at),
            data: "".into(),
            mode: CreateMode::Persistent,
            acl: Acl::new([entry(rights, "world", "anyone")]),
        });
        let refused = session.multi([create("/a", AclEntry::READ), create("/a/b", 31)]).await;
        let source = Box::new(Error::NoAuth { path: "/a/b".into() });
        assert_eq!(refused, Err(Error::MultiFailed { index: 1, source }));
        assert!(!is_there(&session, "/a").await);
        session.multi([create("/a", AclEntry::CREATE), create("/a/b", 31)]).await.unwrap();
    }

    async fn rule_23_a_session_that_proves_nothing_sees_no_digest(env: Env) {
        let (owner, other) = (env.session_with(alice()).await, env.session().await);
        make(&owner, "/a").await;
        let list = others(AclEntry::READ);
        owner.set_acl(&path("/a"), list, None).await.unwrap();
        let shown = |id| Acl::new([entry(1, "world", "anyone"), entry(31, "digest", id)]);
        assert_eq!(owner.get_acl(&path("/a")).await.unwrap().0, shown(ALICE));
        assert_eq!(other.get_acl(&path("/a")).await.unwrap().0, shown("alice:x"));
        other.add_auth("digest", "alice:wrong").await.unwrap();
        assert_eq!(other.get_acl(&path("/a")).await.unwrap().0, shown("alice:x"));
        let proving = other.add_auth("digest", "alice:secret");
        let at_once = other.set_data(&path("/a"), "hers", None);
        proving.await.unwrap();
        assert_eq!(at_once.await.unwrap().version, 1, "it holds for the very next request");
        assert_eq!(other.get_acl(&path("/a")).await.unwrap().0, shown(ALICE));
    }

    async fn rule_23_an_unknown_scheme_proves_nothing(env: Env) {
        let options = ConnectOptions::new().auth("nonsense", "alice:secret");
        let refused = env.connector().open(&options).await.map(drop);
        assert_eq!(refused, Err(Error::AuthFailed));
        let session = env.session().await;
        assert_eq!(session.add_auth("nonsense", "alice:secret").await, Err(Error::AuthFailed));
        let mut states = session.states();
        while !session.state().is_final() {
            states.next().await;
        }
        let over = session.get_data(&path("/")).await.unwrap_err();
        assert!(over.is_session_end(), "{over:?}");
    }

    async fn rule_22_a_session_without_the_right_to_read_is_not_told_of_a_znode(env: Env) {
        let (owner, other) = (env.session_with(alice()).await, env.session().await);
        make(&owner, "/a").await;
        let (_, mut once) = other.watch_exists(&path("/a")).await.unwrap();
        let mut lasting = other.add_watch(&path("/"), WatchMode::PersistentRecursive).await.unwrap();
        owner.set_acl(&path("/a"), Acl::creator_all(), None).await.unwrap();
        owner.set_data(&path("/a"), "new", None).await.unwrap();
        let exists = other.exists(&path("/a")).await.map(|stat| stat.is_some());
        // 3.8 checks no permission here.
        let expected = if env.is_zookeeper() { Ok(true) } else { denied("/a") };
        assert_eq!(exists, expected);
        assert_eq!((fired(&mut once), all_fired(&mut lasting)), (None, vec![]));
        other.add_auth("digest", "alice:secret").await.unwrap();
        owner.set_data(&path("/a"), "newer", None).await.unwrap();
        barrier(&other).await;
        assert_eq!(all_fired(&mut lasting), [seen(EventKind::NodeDataChanged, "/a")]);
    }
}

#[tokio::test]
async fn a_session_in_process_has_the_identities_it_was_opened_with() {
    let store = Store::memory();
    let client = store
        .connect_with(alice().acl(Acl::creator_all()))
        .await
        .unwrap();
    let session = client.session().await.unwrap();
    make(&session, "/a").await;
    let stranger = session_at(&store).await;
    assert_eq!(stranger.get_data(&path("/a")).await.map(drop), denied("/a"));
    client.connector().expire(session.backend()).await.unwrap();
    let session = client.session().await.unwrap();
    session.get_data(&path("/a")).await.unwrap();
}

#[tokio::test]
async fn the_super_user_of_a_store_may_do_everything() {
    let digest = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";
    let options = StoreOptions::new().super_digest(digest).unwrap();
    assert!(!format!("{options:?}").contains("InIH"), "{options:?}");
    let store = Store::memory_with(options);
    let session = session_at(&store).await;
    make(&session, "/a").await;
    let nobody = Acl::new([entry(0, "world", "anyone")]);
    session.set_acl(&path("/a"), nobody, None).await.unwrap();
    assert_eq!(session.get_data(&path("/a")).await.map(drop), denied("/a"));
    session.add_auth("digest", "super:test").await.unwrap();
    session.get_data(&path("/a")).await.unwrap();
    session
        .set_acl(&path("/a"), Acl::open(), None)
        .await
        .unwrap();
}

#[test]
fn a_password_is_refused_for_a_digest_and_not_told() {
    let refused = StoreOptions::new().super_digest("super:hidden");
    let Err(Error::BadArguments(reason)) = refused else {
        panic!("{refused:?}");
    };
    assert!(!reason.contains("hidden"), "{reason}");
}

#[tokio::test]
async fn lists_are_there_when_a_folder_is_opened_again() {
    let folder = testkit::TempFolder::new("acl");
    for round in 0..3 {
        let url = format!("file:{}", folder.path().display());
        let client = connect_with(url.as_str(), alice()).await.unwrap();
        let session = client.session().await.unwrap();
        if round == 0 {
            make(&session, "/a").await;
            session
                .set_acl(&path("/a"), others(AclEntry::READ), None)
                .await
                .unwrap();
        }
        let (acl, stat) = session.get_acl(&path("/a")).await.unwrap();
        let hers = entry(31, "digest", ALICE);
        assert_eq!(acl, Acl::new([entry(1, "world", "anyone"), hers]));
        assert_eq!(stat.aversion, 1);
        client.close().await.unwrap();
    }
}
