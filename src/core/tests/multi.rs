//! Multis: each operation sees the changes of the operations before it.

use super::*;

fn with_data(at: &str, data: &'static str) -> Op {
    Op::Create(Create {
        data: data.into(),
        ..create(at, Persistent)
    })
}

fn failed(refused: Result<CoreReply>) -> (usize, Error) {
    match refused.unwrap_err() {
        Error::MultiFailed { index, source } => (index, *source),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_condition_on_data_sees_what_the_multi_has_written() {
    let mut store = Harness::new();
    let me = store.remote();
    store
        .submit(me, Request::Multi(vec![with_data("/a", "one")]))
        .unwrap();
    let ops = vec![
        has("/a", "one"),
        set("/a", "two"),
        has("/a", "two"),
        with_data("/b", "new"),
        has("/b", "new"),
        set("/b", "newer"),
        has("/b", "newer"),
        has("/a", "two"),
    ];
    store.submit(me, Request::Multi(ops)).unwrap();
    for stale in [
        vec![has("/a", "one")],
        vec![set("/a", "three"), has("/a", "two")],
        vec![with_data("/c", "new"), has("/c", "")],
        vec![with_data("/c", "new"), set("/c", "newer"), has("/c", "new")],
    ] {
        let at = match stale.last().unwrap() {
            Op::Require(condition) => condition.znode().to_string(),
            other => panic!("{other:?}"),
        };
        let last = stale.len() - 1;
        let (index, error) = failed(store.submit(me, Request::Multi(stale)));
        let expected = Error::BadVersion {
            path: at,
            expected: -1,
        };
        assert_eq!((index, error), (last, expected));
    }
    let missing = Request::Multi(vec![has("/gone", "")]);
    let expected = Error::NoNode {
        path: "/gone".into(),
    };
    assert_eq!(failed(store.submit(me, missing)), (0, expected));
}

#[test]
fn a_condition_on_children_sees_what_the_multi_has_created() {
    let mut store = Harness::new();
    let me = store.remote();
    store.create(me, "/a", Persistent).unwrap();
    let child = |name: &str| with_data(&format!("/a/{name}"), "");
    let ops = vec![
        has_at_most("/a", 0),
        child("one"),
        has_at_most("/a", 1),
        child("two"),
        has_at_most("/a", 2),
        has_at_most("/gone", 0),
    ];
    store.submit(me, Request::Multi(ops)).unwrap();
    for (limit, is_allowed) in [(0, false), (1, false), (2, true), (3, true)] {
        let asked = store.submit(me, Request::Multi(vec![has_at_most("/a", limit)]));
        match is_allowed {
            true => drop(asked.unwrap()),
            false => {
                let path = "/a".into();
                assert_eq!(failed(asked), (0, Error::NotEmpty { path }));
            }
        }
    }
}

#[test]
fn a_check_changes_nothing_and_is_answered() {
    let mut store = Harness::new();
    let me = store.remote();
    let (_, before) = store.create(me, "/a", Persistent).unwrap();
    let check = Op::Check {
        path: path("/a"),
        version: Some(0),
    };
    let kept = store.core.kept().len();
    let reply = store.submit(
        me,
        Request::Multi(vec![check.clone(), set("/a", "new"), check.clone()]),
    );
    assert_eq!(failed(reply).0, 2);
    let reply = store
        .submit(me, Request::Multi(vec![check, has("/a", "data")]))
        .unwrap();
    let Reply::Multi(replies) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!(replies, [OpReply::Checked, OpReply::Checked]);
    assert_eq!(store.stat(me, "/a"), Some(before));
    assert_eq!(store.core.kept().len(), kept);
}
