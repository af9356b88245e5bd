//! The changes that an audit log keeps.

use super::super::introspection::{Change, ChangeKind};
use super::acl::{ADMIN, everybody, set_acl};
use super::room::delete;
use super::*;

fn deleted(at: &str, owner: Option<SessionRef>) -> Change {
    Change {
        path: path(at),
        kind: ChangeKind::Delete {
            owner: owner.map(|session| session.id),
        },
    }
}

fn store() -> (Harness, SessionRef, SessionRef) {
    let mut store = Harness::new();
    let (me, other) = (store.remote(), store.remote());
    store.create(me, "/kept", Persistent).unwrap();
    store.create(me, "/mine", Ephemeral).unwrap();
    store.create(other, "/other's", Ephemeral).unwrap();
    (store, me, other)
}

#[test]
fn a_delete_is_kept_but_for_that_of_an_own_ephemeral_znode() {
    let (store, me, other) = store();
    let kept = [
        ("/kept", vec![deleted("/kept", None)]),
        ("/other's", vec![deleted("/other's", Some(other))]),
        ("/mine", vec![]),
        ("/missing", vec![deleted("/missing", None)]),
    ];
    for (at, changes) in kept {
        assert_eq!(store.core.changes_of(me, &delete(at)), changes, "{at}");
        let withdraw = Request::Withdraw { entry: path(at) };
        assert_eq!(store.core.changes_of(me, &withdraw), changes, "{at}");
    }
}

#[test]
fn the_deletes_of_a_multi_are_kept_each() {
    let (store, me, other) = store();
    let delete = |at| Op::Delete {
        path: path(at),
        version: None,
    };
    let check = Op::Check {
        path: path("/kept"),
        version: None,
    };
    let ops = vec![delete("/mine"), check, delete("/other's"), delete("/kept")];
    assert_eq!(
        store.core.changes_of(me, &Request::Multi(ops)),
        [deleted("/other's", Some(other)), deleted("/kept", None)]
    );
}

#[test]
fn a_new_list_is_kept_and_nothing_else_is() {
    let (store, me, _) = store();
    let acl = everybody(ADMIN);
    let change = Change {
        path: path("/kept"),
        kind: ChangeKind::SetAcl(acl.clone()),
    };
    let request = set_acl("/kept", acl, None);
    assert_eq!(store.core.changes_of(me, &request), [change]);
    let reads = Request::GetAcl {
        path: path("/kept"),
    };
    assert_eq!(store.core.changes_of(me, &reads), []);
}
