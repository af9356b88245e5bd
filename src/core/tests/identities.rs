//! Proved identities: their limits, the superuser, and their end with the connection.

use super::acl::*;
use super::*;
use crate::model::identity::Secret;

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
fn the_super_user_can_be_replaced() {
    let mut store = Harness::new();
    let (former, later) = (store.session(), store.session());
    store.make(former, "/a", everybody(0));
    assert_eq!(store.core.superuser(), None);
    for (session, secret) in [(former, "super:former"), (later, "super:later")] {
        let digest = Identity::digest(secret.as_bytes());
        store.core.set_superuser(Some(digest.clone()));
        assert_eq!(store.core.superuser(), Some(&digest));
        assert_eq!(store.set(session, "/a", None), Err(denied("/a")));
        store.prove(session, secret);
        store.set(session, "/a", None).unwrap();
    }
    store.set(former, "/a", None).unwrap();
    let late = store.session();
    store.prove(late, "super:former");
    assert_eq!(store.set(late, "/a", None), Err(denied("/a")));
}

#[test]
fn a_wrong_proof_ends_the_session() {
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
