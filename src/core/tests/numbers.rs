//! Sequence numbers: names that are only numbers, and numbers of more than ten digits.

use super::*;

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
        kind: NodeKind::Persistent,
        owner: SessionId(0),
        czxid: Zxid(1),
        mzxid: Zxid(1),
        pzxid: Zxid(1),
        ctime: 0,
        mtime: 0,
        version: 0,
        aversion: 0,
        creates: 9_999_999_999,
        queue_key: None,
    };
    let other = NodeImage {
        path: path("/s"),
        ..near.clone()
    };
    store.core.restore_node(near).unwrap();
    store.core.restore_node(other).unwrap();
    let in_multi = |count| {
        Request::Multi(vec![
            Op::Create(create("/s/n-", PersistentSequential));
            count
        ])
    };
    let refused = store.submit(remote, in_multi(2)).unwrap_err();
    let source = Box::new(Error::SequenceExhausted { path: "/s".into() });
    assert_eq!(refused, Error::MultiFailed { index: 1, source });
    let Ok(Reply::Multi(replies)) = store.submit(remote, in_multi(1)) else {
        panic!()
    };
    assert_eq!(made(&replies[0]), "/s/n-9999999999");
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
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
        queue_data: None,
    });
    assert_eq!(store.submit(remote, enqueue).unwrap_err(), used_up);
    store.create(remote, "/r/plain", Persistent).unwrap();
    let (beyond, _) = store.create(me, "/r/n-", PersistentSequential).unwrap();
    assert_eq!(beyond.as_str(), "/r/n-10000000001");
}
