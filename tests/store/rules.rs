//! One test for each ZooKeeper rule that is visible through a session.

use std::time::Duration;

use lockkeeper_store::{
    Condition, CreateMode, Error, EventKind, Op, OpReply, ReadOp, ReadReply, WatchMode, sequence_of,
};
use testkit::on_every_znode_store;

use crate::common::*;

on_every_znode_store! {
    async fn rule_01_an_event_comes_before_data_that_is_newer(env: Env) {
        let (reader, writer) = (env.session().await, env.session().await);
        make(&reader, "/a").await;
        for round in 1..=20 {
            let (_, _, mut data) = reader.watch_data(&path("/a")).await.unwrap();
            let (_, _, mut children) = reader.watch_children(&path("/a")).await.unwrap();
            writer.set_data(&path("/a"), "new", None).await.unwrap();
            create(&writer, "/a/n-", CreateMode::PersistentSequential).await;
            let stat = stat(&reader, "/a").await;
            assert_eq!((stat.version, stat.num_children), (round, round));
            assert_eq!(fired(&mut data), Some(seen(EventKind::NodeDataChanged, "/a")));
            assert_eq!(fired(&mut children), Some(seen(EventKind::NodeChildrenChanged, "/a")));
        }
    }

    async fn rule_02_the_reply_that_armed_a_watch_comes_before_its_event(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let armed = session.watch_data(&path("/a"));
        let set = session.set_data(&path("/a"), "new", None);
        let (data, stat, watcher) = armed.await.unwrap();
        assert_eq!((data.as_ref(), stat.version), (&b""[..], 0));
        assert_eq!(event(watcher.await), seen(EventKind::NodeDataChanged, "/a"));
        set.await.unwrap();
    }

    async fn rule_03_create_fires_the_exists_watch_and_the_parents_list_watch(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let (stat, mut exists) = session.watch_exists(&path("/a/b")).await.unwrap();
        assert_eq!(stat, None);
        let (_, _, mut list) = session.watch_children(&path("/a")).await.unwrap();
        let (_, _, mut data) = session.watch_data(&path("/a")).await.unwrap();
        make(&session, "/a/b").await;
        assert_eq!(fired(&mut exists), Some(seen(EventKind::NodeCreated, "/a/b")));
        assert_eq!(fired(&mut list), Some(seen(EventKind::NodeChildrenChanged, "/a")));
        assert_eq!(fired(&mut data), None, "a child is not the parent's data");
    }

    async fn rule_03_delete_fires_each_watcher_once(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        make(&session, "/a/b").await;
        let (_, mut exists) = session.watch_exists(&path("/a/b")).await.unwrap();
        let (_, _, mut data) = session.watch_data(&path("/a/b")).await.unwrap();
        let (_, _, mut own_list) = session.watch_children(&path("/a/b")).await.unwrap();
        let (_, _, mut list) = session.watch_children(&path("/a")).await.unwrap();
        session.delete(&path("/a/b"), None).await.unwrap();
        for watcher in [&mut exists, &mut data, &mut own_list] {
            assert_eq!(fired(watcher), Some(seen(EventKind::NodeDeleted, "/a/b")));
        }
        assert_eq!(fired(&mut list), Some(seen(EventKind::NodeChildrenChanged, "/a")));
    }

    async fn rule_03_delete_fires_a_persistent_watch_once(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let mut watcher = session.add_watch(&path("/a"), WatchMode::Persistent).await.unwrap();
        session.delete(&path("/a"), None).await.unwrap();
        barrier(&session).await;
        assert_eq!(all_fired(&mut watcher), [seen(EventKind::NodeDeleted, "/a")]);
    }

    async fn rule_03_set_data_fires_data_watches_and_no_list_watch(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        make(&session, "/a/b").await;
        let (_, mut exists) = session.watch_exists(&path("/a/b")).await.unwrap();
        let (_, _, mut data) = session.watch_data(&path("/a/b")).await.unwrap();
        let (_, _, mut own_list) = session.watch_children(&path("/a/b")).await.unwrap();
        let (_, _, mut list) = session.watch_children(&path("/a")).await.unwrap();
        session.set_data(&path("/a/b"), "new", None).await.unwrap();
        assert_eq!(fired(&mut exists), Some(seen(EventKind::NodeDataChanged, "/a/b")));
        assert_eq!(fired(&mut data), Some(seen(EventKind::NodeDataChanged, "/a/b")));
        assert_eq!(fired(&mut own_list), None);
        assert_eq!(fired(&mut list), None);
    }

    async fn rule_03_only_exists_watches_a_missing_znode(env: Env) {
        let session = env.session().await;
        let missing = no_node("/a");
        assert_eq!(session.watch_data(&path("/a")).await.unwrap_err(), missing);
        assert_eq!(session.watch_children(&path("/a")).await.unwrap_err(), missing);
        let (_, mut exists) = session.watch_exists(&path("/a")).await.unwrap();
        make(&session, "/a").await;
        assert_eq!(fired(&mut exists), Some(seen(EventKind::NodeCreated, "/a")));
    }

    async fn rule_03_a_watch_fires_once(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let (_, _, mut first) = session.watch_data(&path("/a")).await.unwrap();
        session.set_data(&path("/a"), "1", None).await.unwrap();
        assert_eq!(fired(&mut first), Some(seen(EventKind::NodeDataChanged, "/a")));
        let (_, _, mut second) = session.watch_children(&path("/a")).await.unwrap();
        session.set_data(&path("/a"), "2", None).await.unwrap();
        assert_eq!(fired(&mut second), None);
    }

    async fn rule_03_watches_of_two_sessions_fire_apart(env: Env) {
        let (one, two) = (env.session().await, env.session().await);
        make(&one, "/a").await;
        let (_, _, mut first) = one.watch_data(&path("/a")).await.unwrap();
        let (_, _, second) = two.watch_data(&path("/a")).await.unwrap();
        drop(second);
        two.set_data(&path("/a"), "new", None).await.unwrap();
        barrier(&one).await;
        assert_eq!(fired(&mut first), Some(seen(EventKind::NodeDataChanged, "/a")));
    }

    async fn rule_04_sequence_numbers_count_the_creates_below_a_parent(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let number = async |prefix: &str, mode| create(&session, prefix, mode).await.0.to_string();
        assert_eq!(number("/a/x-", CreateMode::PersistentSequential).await, "/a/x-0000000000");
        make(&session, "/a/plain").await;
        assert_eq!(number("/a/y-", CreateMode::EphemeralSequential).await, "/a/y-0000000002");
        session.delete(&path("/a/plain"), None).await.unwrap();
        session.delete(&path("/a/y-0000000002"), None).await.unwrap();
        assert_eq!(number("/a/x-", CreateMode::PersistentSequential).await, "/a/x-0000000003");
        let failed = session.create(&path("/a/x-0000000003"), "", CreateMode::Persistent).await;
        assert_eq!(failed, Err(Error::NodeExists { path: "/a/x-0000000003".into() }));
        assert_eq!(number("/a/x-", CreateMode::PersistentSequential).await, "/a/x-0000000004");
        make(&session, "/a/x-0000000004/deep").await;
        assert_eq!(number("/a/x-", CreateMode::PersistentSequential).await, "/a/x-0000000005");
    }

    async fn rule_04_sequence_starts_again_with_a_new_parent(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let (first, first_stat) = create(&session, "/a/n-", CreateMode::EphemeralSequential).await;
        session.delete(&first, None).await.unwrap();
        session.delete(&path("/a"), None).await.unwrap();
        make(&session, "/a").await;
        let (second, second_stat) = create(&session, "/a/n-", CreateMode::EphemeralSequential).await;
        assert_eq!(first, second);
        assert!(second_stat.czxid > first_stat.czxid, "the zxid is what only grows");
    }

    async fn rule_06_cversion_is_twice_the_creates_less_the_children(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let cversion = async || stat(&session, "/a").await.cversion;
        assert_eq!(cversion().await, 0);
        make(&session, "/a/1").await;
        assert_eq!(cversion().await, 1);
        make(&session, "/a/2").await;
        assert_eq!(cversion().await, 2);
        session.delete(&path("/a/1"), None).await.unwrap();
        assert_eq!(cversion().await, 3);
        session.set_data(&path("/a/2"), "new", None).await.unwrap();
        assert_eq!(cversion().await, 3);
    }

    async fn rule_07_each_zxid_moves_with_its_own_kind_of_change(env: Env) {
        let session = env.session().await;
        let made = make(&session, "/a").await;
        assert_eq!((made.mzxid, made.pzxid), (made.czxid, made.czxid));
        let set = session.set_data(&path("/a"), "new", None).await.unwrap();
        assert!(set.mzxid > made.mzxid);
        assert_eq!((set.czxid, set.pzxid, set.version), (made.czxid, made.pzxid, 1));
        let child = make(&session, "/a/b").await;
        let after_create = stat(&session, "/a").await;
        assert_eq!(after_create.pzxid, child.czxid);
        assert_eq!((after_create.mzxid, after_create.mtime), (set.mzxid, set.mtime));
        session.set_data(&path("/a/b"), "new", None).await.unwrap();
        assert_eq!(stat(&session, "/a").await, after_create, "a child's data is not the parent's");
        session.delete(&path("/a/b"), None).await.unwrap();
        let after_delete = stat(&session, "/a").await;
        assert!(after_delete.pzxid > after_create.pzxid);
        assert_eq!((after_delete.mzxid, after_delete.version), (set.mzxid, 1));
    }

    async fn rule_07_grandchildren_leave_a_znode_alone(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        make(&session, "/a/b").await;
        let before = stat(&session, "/a").await;
        make(&session, "/a/b/c").await;
        assert_eq!(stat(&session, "/a").await, before);
    }

    async fn rule_08_a_version_guards_and_minus_one_is_any(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let stale = |expected| Error::BadVersion { path: "/a".into(), expected };
        let set = async |version| session.set_data(&path("/a"), "", version).await.map(|stat| stat.version);
        assert_eq!(set(Some(1)).await, Err(stale(1)));
        assert_eq!(set(Some(0)).await, Ok(1));
        assert_eq!(set(Some(-1)).await, Ok(2));
        assert_eq!(set(None).await, Ok(3));
        assert_eq!(session.delete(&path("/a"), Some(0)).await, Err(stale(0)));
        session.check(&path("/a"), Some(3)).await.unwrap();
        session.check(&path("/a"), None).await.unwrap();
        let failed = Error::MultiFailed { index: 0, source: Box::new(stale(2)) };
        assert_eq!(session.check(&path("/a"), Some(2)).await, Err(failed));
        session.delete(&path("/a"), Some(3)).await.unwrap();
    }

    async fn rule_09_zxids_only_grow(env: Env) {
        let sessions = [env.session().await, env.session().await];
        make(&sessions[0], "/a").await;
        let mut last = stat(&sessions[0], "/a").await.czxid;
        for round in 0..20 {
            let session = &sessions[round % 2];
            let (_, made) = create(session, "/a/n-", CreateMode::EphemeralSequential).await;
            assert!(made.czxid > last);
            let set = session.set_data(&path("/a"), "", None).await.unwrap();
            assert!(set.mzxid > made.czxid);
            last = set.mzxid;
        }
    }

    async fn rule_10_an_ephemeral_znode_names_its_owner_and_has_no_children(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let (_, ephemeral) = create(&session, "/a/e", CreateMode::Ephemeral).await;
        assert_eq!(ephemeral.ephemeral_owner, session.id());
        let refused = Error::NoChildrenForEphemerals { path: "/a/e/c".into() };
        for mode in [CreateMode::Persistent, CreateMode::Ephemeral] {
            assert_eq!(session.create(&path("/a/e/c"), "", mode).await, Err(refused.clone()));
        }
        for (name, mode) in [
            ("/a/p", CreateMode::Persistent),
            ("/a/c", CreateMode::Container),
            ("/a/t", CreateMode::PersistentTtl(Duration::from_secs(1_000))),
        ] {
            let (_, stat) = create(&session, name, mode).await;
            assert_eq!(stat.ephemeral_owner.0, 0, "{mode:?}");
        }
    }

    async fn rule_10_get_ephemerals_lists_the_sessions_own_by_a_prefix_of_text(env: Env) {
        let (one, two) = (env.session().await, env.session().await);
        for at in ["/a", "/ab", "/a/p"] {
            make(&one, at).await;
        }
        for at in ["/a/1", "/ab/2", "/a/p/3"] {
            create(&one, at, CreateMode::Ephemeral).await;
        }
        create(&two, "/a/4", CreateMode::Ephemeral).await;
        let list = async |prefix: &str| {
            let mut paths = one.get_ephemerals(&path(prefix)).await.unwrap();
            paths.sort();
            paths.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(list("/a").await, ["/a/1", "/a/p/3", "/ab/2"]);
        assert_eq!(list("/a/p").await, ["/a/p/3"]);
        assert_eq!(list("/a/1").await, ["/a/1"]);
        assert_eq!(list("/").await, ["/a/1", "/a/p/3", "/ab/2"]);
        assert_eq!(list("/none").await, [""; 0]);
        assert_eq!(one.get_all_children_number(&path("/a")).await, Ok(4));
        assert_eq!(one.get_all_children_number(&path("/none")).await, Err(no_node("/none")));
    }

    async fn rule_11_a_closed_sessions_ephemerals_go_under_one_zxid(env: Env) {
        // A lent client's session lives on, and its entries are deleted one by one.
        if env.is_lent() {
            return;
        }
        let (one, two) = (env.session().await, env.session().await);
        ephemerals_on_two_parents(&one).await;
        let (_, mut left) = two.watch_exists(&path("/a/1")).await.unwrap();
        one.close().await.unwrap();
        barrier(&two).await;
        assert_eq!(fired(&mut left), Some(seen(EventKind::NodeDeleted, "/a/1")));
        all_gone_under_one_zxid(&two).await;
        let closed = Error::SessionClosed { session: one.id() };
        assert_eq!(one.exists(&path("/a")).await, Err(closed.clone()));
        assert_eq!(one.create(&path("/a/5"), "", CreateMode::Persistent).await, Err(closed));
        assert_eq!(one.close().await, Ok(()), "to close twice is no error");
    }

    async fn rule_11_an_expired_sessions_ephemerals_go_under_one_zxid(env: Env) {
        let (client, two) = (env.client().await, env.session().await);
        let one = client.session().await.unwrap();
        ephemerals_on_two_parents(&one).await;
        let (_, left) = two.watch_exists(&path("/a/1")).await.unwrap();
        client.connector().expire(one.backend()).await.unwrap();
        assert_eq!(event(left.await), seen(EventKind::NodeDeleted, "/a/1"));
        all_gone_under_one_zxid(&two).await;
        let mut states = one.states();
        while !one.state().is_final() {
            states.next().await;
        }
        let expired = Error::SessionExpired { session: one.id() };
        assert_eq!(one.exists(&path("/a")).await, Err(expired));
    }

    async fn rule_16_a_multi_is_one_transaction_in_which_operations_see_earlier_ones(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let replies = session
            .multi([
                create_op("/a/b", CreateMode::Persistent),
                create_op("/a/b/n-", CreateMode::PersistentSequential),
                Op::SetData { path: path("/a/b"), data: "new".into(), version: Some(0) },
                Op::Check { path: path("/a/b"), version: Some(1) },
                create_op("/a/c", CreateMode::Ephemeral),
                Op::Delete { path: path("/a/c"), version: None },
            ])
            .await
            .unwrap();
        assert_eq!(replies.len(), 6);
        assert!(matches!(&replies[1], OpReply::Created { path, .. } if path.as_str() == "/a/b/n-0000000000"));
        let OpReply::Set(set) = &replies[2] else { panic!("{replies:?}") };
        assert_eq!((set.version, set.num_children), (1, 1));
        assert_eq!(replies[3..4], [OpReply::Checked]);
        assert_eq!(replies[5..], [OpReply::Deleted]);
        let (b, a) = (stat(&session, "/a/b").await, stat(&session, "/a").await);
        assert_eq!((b.mzxid, b.pzxid, a.pzxid), (b.czxid, b.czxid, b.czxid));
        assert_eq!((a.num_children, a.cversion), (1, 3));
        assert!(!is_there(&session, "/a/c").await);
    }

    async fn conditions_of_a_multi_are_held_against_what_the_operations_before_them_leave(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        make(&session, "/a/b").await;
        let data = |name: &str, data: &'static str| Op::Require(Condition::Data { znode: path(name), data: data.into() });
        let children = |name: &str, limit| Op::Require(Condition::Children { znode: path(name), limit });
        let set = |name: &str, data: &'static str| Op::SetData { path: path(name), data: data.into(), version: None };
        if env.is_zookeeper() {
            for condition in [data("/a", ""), children("/a", 9)] {
                let refused = session.multi([set("/a", "new"), condition]).await.unwrap_err();
                assert!(matches!(refused, Error::Unimplemented { .. }), "{refused}");
            }
            assert_eq!(stat(&session, "/a").await.version, 0);
            return;
        }
        let held = session
            .multi([
                data("/a", ""),
                children("/a", 1),
                children("/missing", 0),
                set("/a", "new"),
                data("/a", "new"),
                create_op("/a/c", CreateMode::Ephemeral),
                data("/a/c", ""),
                children("/a", 2),
                Op::Delete { path: path("/a/c"), version: None },
                children("/a", 1),
            ])
            .await
            .unwrap();
        assert_eq!(held.iter().filter(|it| **it == OpReply::Checked).count(), 7);
        let not_empty = |name: &str| Error::NotEmpty { path: name.into() };
        let other = |name: &str| Error::BadVersion { path: name.into(), expected: -1 };
        let missing = |name: &str| Error::NoNode { path: name.into() };
        for (first, condition, why) in [
            (None, children("/a", 0), not_empty("/a")),
            (None, data("/a", ""), other("/a")),
            (None, data("/a", "newer"), other("/a")),
            (None, data("/missing", ""), missing("/missing")),
            (Some(set("/a", "newest")), data("/a", "new"), other("/a")),
            (Some(create_op("/a/c", CreateMode::Ephemeral)), children("/a", 1), not_empty("/a")),
            (Some(create_op("/a/c", CreateMode::Ephemeral)), data("/a/c", "c"), other("/a/c")),
            (Some(Op::Delete { path: path("/a/b"), version: None }), data("/a/b", ""), missing("/a/b")),
        ] {
            let index = usize::from(first.is_some());
            let ops: Vec<_> = first.into_iter().chain([condition, set("/a", "not reached")]).collect();
            let failed = session.multi(ops).await.unwrap_err();
            assert_eq!(failed, Error::MultiFailed { index, source: Box::new(why) });
        }
        let (now, _) = session.get_data(&path("/a")).await.unwrap();
        assert_eq!(&now[..], b"new");
        assert!(is_there(&session, "/a/b").await && !is_there(&session, "/a/c").await);
    }

    async fn rule_16_a_failed_multi_does_nothing_and_says_which_operation_failed(env: Env) {
        let session = env.session().await;
        let before = make(&session, "/a").await;
        let (_, _, mut list) = session.watch_children(&path("/a")).await.unwrap();
        let failed = session
            .multi([
                create_op("/a/b", CreateMode::Persistent),
                create_op("/a/n-", CreateMode::PersistentSequential),
                Op::Delete { path: path("/a/none"), version: None },
                create_op("/a/c", CreateMode::Persistent),
            ])
            .await;
        let expected = Error::MultiFailed { index: 2, source: Box::new(no_node("/a/none")) };
        assert_eq!(failed, Err(expected));
        assert_eq!(stat(&session, "/a").await, before);
        assert_eq!(fired(&mut list), None);
        let (next, _) = create(&session, "/a/n-", CreateMode::PersistentSequential).await;
        assert_eq!(next.as_str(), "/a/n-0000000000", "no number was used up");
    }

    async fn rule_16_reads_of_a_multi_read_fail_one_by_one(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        session.create(&path("/a/b"), "data", CreateMode::Persistent).await.unwrap();
        let replies = session
            .multi_read([
                ReadOp::GetData(path("/a/b")),
                ReadOp::GetData(path("/none")),
                ReadOp::GetChildren(path("/a")),
                ReadOp::GetChildren(path("/none")),
            ])
            .await
            .unwrap();
        let expected = [
            ReadReply::Data { data: "data".into(), stat: stat(&session, "/a/b").await },
            ReadReply::Failed(no_node("/none")),
            ReadReply::Children(vec!["b".into()]),
            ReadReply::Failed(no_node("/none")),
        ];
        assert_eq!(replies, expected);
    }

    async fn rule_18_a_ttl_is_from_1_ms_to_2_to_the_40_less_1_ms(env: Env) {
        let session = env.session().await;
        let longest = Duration::from_millis((1 << 40) - 1);
        create(&session, "/longest", CreateMode::PersistentTtl(longest)).await;
        for ttl in [longest + Duration::from_millis(1), Duration::ZERO, Duration::MAX] {
            for mode in [CreateMode::PersistentTtl(ttl), CreateMode::PersistentSequentialTtl(ttl)] {
                let refused = session.create(&path("/bad"), "", mode).await;
                assert!(matches!(refused, Err(Error::BadArguments(_))), "{mode:?}: {refused:?}");
            }
        }
    }

    async fn rule_20_a_recursive_watch_tells_of_all_below_and_never_of_lists(env: Env) {
        let session = env.session().await;
        let other = env.session().await;
        let mut recursive =
            session.add_watch(&path("/a"), WatchMode::PersistentRecursive).await.unwrap();
        make(&other, "/a").await;
        make(&other, "/a/b").await;
        make(&other, "/a/b/c").await;
        make(&other, "/ab").await;
        other.set_data(&path("/a/b/c"), "1", None).await.unwrap();
        other.set_data(&path("/a/b/c"), "2", None).await.unwrap();
        other.delete(&path("/a/b/c"), None).await.unwrap();
        barrier(&session).await;
        let expected = [
            seen(EventKind::NodeCreated, "/a"),
            seen(EventKind::NodeCreated, "/a/b"),
            seen(EventKind::NodeCreated, "/a/b/c"),
            seen(EventKind::NodeDataChanged, "/a/b/c"),
            seen(EventKind::NodeDataChanged, "/a/b/c"),
            seen(EventKind::NodeDeleted, "/a/b/c"),
        ];
        assert_eq!(all_fired(&mut recursive), expected);
    }

    async fn a_persistent_watch_ends_with_its_session(env: Env) {
        let client = env.client().await;
        let session = client.session().await.unwrap();
        let watching = session.add_watch(&path("/a"), WatchMode::Persistent);
        let mut watcher = watching.await.unwrap();
        client.close().await.unwrap();
        let end = Error::SessionClosed {
            session: session.id(),
        };
        assert_eq!(watcher.next().await, Some(Err(end)));
        assert_eq!(watcher.next().await, None);
    }

    async fn rule_20_a_persistent_watch_tells_of_one_znode_and_its_list(env: Env) {
        let session = env.session().await;
        let mut watcher = session.add_watch(&path("/a"), WatchMode::Persistent).await.unwrap();
        make(&session, "/a").await;
        make(&session, "/a/b").await;
        make(&session, "/a/b/c").await;
        session.set_data(&path("/a"), "", None).await.unwrap();
        session.set_data(&path("/a/b"), "", None).await.unwrap();
        session.delete(&path("/a/b/c"), None).await.unwrap();
        session.delete(&path("/a/b"), None).await.unwrap();
        session.delete(&path("/a"), None).await.unwrap();
        make(&session, "/a").await;
        barrier(&session).await;
        let expected = [
            seen(EventKind::NodeCreated, "/a"),
            seen(EventKind::NodeChildrenChanged, "/a"),
            seen(EventKind::NodeDataChanged, "/a"),
            seen(EventKind::NodeChildrenChanged, "/a"),
            seen(EventKind::NodeDeleted, "/a"),
            seen(EventKind::NodeCreated, "/a"),
        ];
        assert_eq!(all_fired(&mut watcher), expected);
    }

    async fn rule_25_requests_are_answered_in_their_order(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let pairs: Vec<_> = (0..50)
            .map(|round| {
                let set = session.set_data(&path("/a"), round.to_string(), None);
                (round, set, session.get_data(&path("/a")))
            })
            .collect();
        // Awaited in reverse, because the order of sending counts.
        for (round, set, get) in pairs.into_iter().rev() {
            let (data, stat) = get.await.unwrap();
            assert_eq!((data, stat.version), (round.to_string().into(), round + 1));
            assert_eq!(set.await.unwrap(), stat);
        }
    }

    async fn rule_26_after_sync_a_session_sees_earlier_writes_of_others(env: Env) {
        let (reader, writer) = (env.session().await, env.session().await);
        make(&reader, "/a").await;
        for round in 1..=20 {
            writer.set_data(&path("/a"), "", None).await.unwrap();
            let sync = reader.sync(&path("/a"));
            let read = reader.exists(&path("/a"));
            sync.await.unwrap();
            assert_eq!(read.await.unwrap().unwrap().version, round);
        }
    }
}

async fn ephemerals_on_two_parents(session: &lockkeeper_store::Session) {
    for parent in ["/a", "/b"] {
        make(session, parent).await;
        for name in ["1", "2"] {
            create(session, &format!("{parent}/{name}"), CreateMode::Ephemeral).await;
        }
    }
    make(session, "/b/stays").await;
}

async fn all_gone_under_one_zxid(session: &lockkeeper_store::Session) {
    let (a, b) = (stat(session, "/a").await, stat(session, "/b").await);
    assert_eq!((a.num_children, b.num_children), (0, 1));
    assert_eq!((a.cversion, b.cversion), (4, 5));
    assert_eq!(a.pzxid, b.pzxid);
}

#[test]
fn rule_05_numbers_are_read_with_all_their_digits_and_their_sign() {
    let in_order = [
        "x--2147483648",
        "x--000000005",
        "x-0000000000",
        "x-0000000005",
        "x-2147483647",
        "x-2147483648",
        "x-9999999999",
        "x-10000000000",
    ];
    let numbers: Vec<_> = in_order
        .iter()
        .map(|name| sequence_of(name).unwrap())
        .collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    assert_eq!((numbers[1], numbers[3]), (-5, 5));
    for name in ["x", "x-5", "x-00000005", "0000000001x"] {
        assert_eq!(sequence_of(name), None, "{name}");
    }
}
