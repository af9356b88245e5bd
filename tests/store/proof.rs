//! Proof in an ensemble: which answers show that a session is alive, and since when.

use std::time::Duration;

use lockkeeper_store::testing::{Plan, TestStore};
use lockkeeper_store::{
    Acl, AclEntry, BootInstant, Client, Clock, ConnectOptions, Error, Session, Store, StoreOptions,
    ZnodePath,
};

use crate::common::*;

const TIMEOUT: Duration = Duration::from_secs(20);

/// How long a session is believed alive after its last proof.
const BELIEF: Duration = Duration::from_secs(18);

/// An ensemble's tick, which must lie between a write's answer and the write that proves it.
const TICK: Duration = Duration::from_secs(2);

const SECOND: Duration = Duration::from_secs(1);

/// A session in virtual time that takes its store for an ensemble.
struct World {
    store: TestStore,
    client: Client,
    session: Session,
}

impl World {
    async fn new() -> Self {
        let options = StoreOptions::new().clock(Clock::new_virtual());
        let store = Store::memory_with(options).connector();
        let store = TestStore::wrapping(store, "memory:ensemble", Plan::calm());
        store.prove_by_quorum();
        let options = ConnectOptions::new().session_timeout(TIMEOUT);
        let client = store.client_with(options).await.unwrap();
        let session = client.session().await.unwrap();
        assert!(session.status().quorum_only());
        Self {
            store,
            client,
            session,
        }
    }

    fn now(&self) -> BootInstant {
        self.store.clock().now()
    }

    /// The moment of the last proof.
    fn proved(&self) -> BootInstant {
        let held_until = self.session.held_until().unwrap().moment();
        let opened = BootInstant::default();
        opened.after(held_until.since(opened) - BELIEF)
    }

    /// Commits a write. Returns when it was sent.
    async fn write(&self) -> BootInstant {
        let sent = self.now();
        let checked = self.session.check(&ZnodePath::root(), None);
        checked.await.unwrap();
        sent
    }
}

#[tokio::test]
async fn two_writes_back_to_back_prove_nothing() {
    let world = World::new().await;
    let opened = world.proved();
    world.store.advance(SECOND).await;
    for _ in 0..3 {
        world.write().await;
    }
    assert_eq!(world.proved(), opened, "the leader may not know of any");
}

#[tokio::test]
async fn a_write_proves_the_one_before_it_and_not_itself() {
    let world = World::new().await;
    let opened = world.proved();
    world.store.advance(SECOND).await;
    let first = world.write().await;
    assert_eq!(world.proved(), opened, "a write does not prove itself");
    world.store.advance(TICK).await;
    let second = world.write().await;
    assert_eq!(world.proved(), first);
    world.store.advance(TICK).await;
    world.write().await;
    assert_eq!(world.proved(), second);
}

#[tokio::test]
async fn reads_prove_nothing() {
    let world = World::new().await;
    let opened = world.proved();
    for _ in 0..3 {
        world.store.advance(TICK).await;
        world.session.exists(&path("/a")).await.unwrap();
        world.session.sync(&path("/")).await.unwrap();
    }
    assert_eq!(world.proved(), opened, "a follower answers by itself");
}

#[tokio::test]
async fn a_write_of_an_older_connection_proves_nothing() {
    let world = World::new().await;
    let opened = world.proved();
    world.store.advance(SECOND).await;
    world.write().await;
    world.store.disconnect(&world.client);
    world.store.reconnect(&world.client);
    world.store.advance(TICK).await;
    let first = world.write().await;
    assert_eq!(
        world.proved(),
        opened,
        "another follower passed the older write on"
    );
    world.store.advance(TICK).await;
    world.write().await;
    assert_eq!(world.proved(), first);
}

/// A follower that was stopped for a while finds both writes in its socket and forwards them together.
#[tokio::test]
async fn a_write_sent_before_an_answer_does_not_prove_that_answer() {
    let world = World::new().await;
    let opened = world.proved();
    world.store.advance(SECOND).await;
    world.store.delay_replies(&world.client, 3 * SECOND);
    let root = ZnodePath::root();
    let first = world.session.check(&root, None);
    world.store.advance(TICK + SECOND / 2).await;
    let second = world.session.check(&root, None);
    world.store.delay_replies(&world.client, Duration::ZERO);
    world.store.advance(3 * SECOND).await;
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(
        world.proved(),
        opened,
        "the follower may have got both at the same moment"
    );
}

#[tokio::test]
async fn a_refusal_by_a_follower_proves_nothing() {
    let world = World::new().await;
    let opened = world.proved();
    world.store.advance(SECOND).await;
    let locked = path("/locked");
    make(&world.session, "/locked").await;
    let acl = Acl::new([AclEntry {
        permissions: AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    }]);
    world.session.set_acl(&locked, acl, None).await.unwrap();
    world.store.advance(TICK).await;
    let refused = world.session.set_data(&locked, "", None).await;
    assert!(matches!(refused, Err(Error::NoAuth { .. })), "{refused:?}");
    assert_eq!(
        world.proved(),
        opened,
        "with an eager check of rights a follower refuses by itself"
    );
}
