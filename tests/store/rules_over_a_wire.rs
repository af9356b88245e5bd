//! Rules that are only visible over a wire, on a real ZooKeeper and on our server.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_store::{
    Acl, AclEntry, Client, ConnectOptions, CreateMode, Error, EventKind, OpReply, Session,
    SessionState, WatchMode, connect_with,
};
use testkit::{self, Proxy, unique, within_reason};

use crate::common::*;

/// A server that a test can cut clients off from.
enum Server {
    ZooKeeper(&'static testkit::ZooKeeper),
    Ours(Box<testkit::Served>),
}

impl Server {
    fn zookeeper() -> Self {
        Self::ZooKeeper(testkit::zookeeper())
    }

    fn served() -> Self {
        Self::Ours(Box::new(testkit::Served::start(testkit::SWEEP)))
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::ZooKeeper(server) => server.address(),
            Self::Ours(server) => server.address(),
        }
    }

    fn url(&self, hosts: &str) -> String {
        match self {
            Self::ZooKeeper(_) => format!("zookeeper://{hosts}"),
            Self::Ours(_) => format!("lockkeeper://{hosts}"),
        }
    }

    async fn session(&self, options: ConnectOptions) -> Session {
        let chroot = unique("rule");
        let url = format!("{}/{chroot}", self.url(&self.address().to_string()));
        let client = connect_with(url.as_str(), options.create_chroot()).await;
        client.unwrap().session().await.unwrap()
    }

    /// Opens a client behind a proxy, and a direct session.
    async fn wired(&self, options: ConnectOptions) -> (Proxy, Client, Session) {
        let proxy = Proxy::to(self.address());
        let chroot = unique("rule");
        let url = format!("{}/{chroot}", self.url(&proxy.hosts()));
        let client = connect_with(url.as_str(), options.create_chroot())
            .await
            .unwrap();
        let url = format!("{}/{chroot}", self.url(&self.address().to_string()));
        let other = connect_with(url.as_str(), ConnectOptions::new())
            .await
            .unwrap();
        (proxy, client, other.session().await.unwrap())
    }
}

/// Generates `name::zookeeper` and `name::served` from each `async fn name(server: Server)`.
macro_rules! on_every_server {
    ($(async fn $name:ident($server:ident: Server) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn test($server: Server) $body

            #[tokio::test]
            async fn zookeeper() {
                within_reason(test(Server::zookeeper())).await;
            }

            #[tokio::test]
            async fn served() {
                within_reason(test(Server::served())).await;
            }
        }
    )*};
}

on_every_server! {
    async fn rule_13_a_session_is_taken_up_again_or_is_over_and_never_another(server: Server) {
        // Long enough to outlive a reconnection on a busy machine.
        let timeout = Duration::from_secs(3);
        let options = ConnectOptions::new().session_timeout(timeout);
        let (proxy, client, other) = server.wired(options).await;
        let session = client.session().await.unwrap();
        let (id, lease) = (session.id(), session.lease());
        create(&session, "/e", CreateMode::Ephemeral).await;
        let mut states = session.states();

        proxy.break_off();
        reconnected(&mut states).await;
        assert_eq!(stat(&session, "/e").await.ephemeral_owner, id);

        let (_, gone) = other.watch_exists(&path("/e")).await.unwrap();
        proxy.cut();
        assert_eq!(states.next().await, Some(SessionState::Suspended));
        assert!(!session.state().is_connected());
        assert_eq!(
            event(within_reason(gone).await),
            seen(EventKind::NodeDeleted, "/e")
        );
        assert!(
            !lease.is_valid(),
            "it had stopped to believe before the server let go"
        );
        proxy.mend();
        assert_eq!(
            within_reason(states.next()).await,
            Some(SessionState::Expired)
        );
        assert_eq!(states.next().await, None);
        assert_eq!(session.id(), id);
        assert_eq!(
            session.exists(&path("/e")).await,
            Err(Error::SessionExpired { session: id })
        );
        let new = client.session().await.unwrap();
        assert_ne!(new.id(), id);
        assert!(!is_there(&new, "/e").await);
    }

    async fn rule_17_a_container_goes_after_its_last_child_on_a_server(server: Server) {
        let session = server.session(ConnectOptions::new()).await;
        create(&session, "/c", CreateMode::Container).await;
        let (child, _) = create(&session, "/c/n-", CreateMode::EphemeralSequential).await;
        let (_, gone) = session.watch_exists(&path("/c")).await.unwrap();
        session.delete(&child, None).await.unwrap();
        assert_eq!(
            event(within_reason(gone).await),
            seen(EventKind::NodeDeleted, "/c")
        );
    }

    async fn rule_18_a_ttl_znode_goes_when_its_time_has_passed_on_a_server(server: Server) {
        let session = server.session(ConnectOptions::new()).await;
        create(
            &session,
            "/t",
            CreateMode::PersistentTtl(Duration::from_millis(1)),
        )
        .await;
        let (stat, gone) = session.watch_exists(&path("/t")).await.unwrap();
        // The sweep may have run before we set the watch.
        if stat.is_some() {
            assert_eq!(
                event(within_reason(gone).await),
                seen(EventKind::NodeDeleted, "/t")
            );
        }
        assert!(!is_there(&session, "/t").await);
    }

    async fn rule_19_changes_while_disconnected_fire_the_watches(server: Server) {
        let (proxy, client, other) = server.wired(ConnectOptions::new()).await;
        let session = client.session().await.unwrap();
        for at in ["/changed", "/deleted", "/parent", "/parent/b", "/same"] {
            make(&session, at).await;
        }
        let (_, _, changed) = session.watch_data(&path("/changed")).await.unwrap();
        let (_, _, deleted) = session.watch_data(&path("/deleted")).await.unwrap();
        let (_, missing) = session.watch_exists(&path("/deleted")).await.unwrap();
        let (_, _, list) = session.watch_children(&path("/parent")).await.unwrap();
        let (_, made) = session.watch_exists(&path("/made")).await.unwrap();
        let (_, _, mut same) = session.watch_data(&path("/same")).await.unwrap();
        let (_, mut never) = session.watch_exists(&path("/never")).await.unwrap();
        let mut states = session.states();
        proxy.cut();
        assert_eq!(states.next().await, Some(SessionState::Suspended));
        other
            .set_data(&path("/changed"), "new", None)
            .await
            .unwrap();
        other.delete(&path("/deleted"), None).await.unwrap();
        other.delete(&path("/parent/b"), None).await.unwrap();
        make(&other, "/made").await;
        proxy.mend();
        assert_eq!(
            event(changed.await),
            seen(EventKind::NodeDataChanged, "/changed")
        );
        assert_eq!(
            event(deleted.await),
            seen(EventKind::NodeDeleted, "/deleted")
        );
        assert_eq!(
            event(missing.await),
            seen(EventKind::NodeDeleted, "/deleted")
        );
        assert_eq!(
            event(list.await),
            seen(EventKind::NodeChildrenChanged, "/parent")
        );
        assert_eq!(event(made.await), seen(EventKind::NodeCreated, "/made"));

        barrier(&session).await;
        assert_eq!((fired(&mut same), fired(&mut never)), (None, None));
        other.set_data(&path("/same"), "new", None).await.unwrap();
        make(&other, "/never").await;
        assert_eq!(event(same.await), seen(EventKind::NodeDataChanged, "/same"));
        assert_eq!(event(never.await), seen(EventKind::NodeCreated, "/never"));
    }

    async fn rule_21_a_chroot_shows_in_no_answer_and_no_event(server: Server) {
        let (top, chroot) = (
            server.url(&server.address().to_string()),
            unique("chroot"),
        );
        let session_at = async |url: &str| {
            let client = connect_with(url, ConnectOptions::new().create_chroot())
                .await
                .unwrap();
            client.session().await.unwrap()
        };
        let (root, inner) = (
            session_at(&top).await,
            session_at(&format!("{top}/{chroot}/app")).await,
        );
        let outside = |at: &str| format!("/{chroot}/app{at}");

        let (_, made) = inner.watch_exists(&path("/a")).await.unwrap();
        let mut all = inner
            .add_watch(&path("/"), WatchMode::PersistentRecursive)
            .await
            .unwrap();
        make(&root, &outside("/a")).await;
        assert_eq!(event(made.await), seen(EventKind::NodeCreated, "/a"));
        let (numbered, _) = create(&inner, "/a/n-", CreateMode::EphemeralSequential).await;
        assert_eq!(numbered.as_str(), "/a/n-0000000000");
        let replies = inner
            .multi([create_op("/a/n-", CreateMode::PersistentSequential)])
            .await
            .unwrap();
        let [OpReply::Created { path: in_multi, .. }] = &replies[..] else {
            panic!("{replies:?}")
        };
        assert_eq!(in_multi.as_str(), "/a/n-0000000001");
        assert_eq!(inner.get_ephemerals(&path("/")).await.unwrap(), [numbered]);
        assert!(is_there(&root, &outside("/a/n-0000000001")).await);
        assert_eq!(
            inner.get_data(&path("/b")).await.unwrap_err(),
            no_node("/b")
        );
        let expected = ["/a", "/a/n-0000000000", "/a/n-0000000001"];
        assert_eq!(
            all_fired(&mut all),
            expected.map(|at| seen(EventKind::NodeCreated, at))
        );
    }

    async fn rule_22_an_address_may_have_rights(server: Server) {
        let session = server.session(ConnectOptions::new()).await;
        make(&session, "/a").await;
        let list = |id: &str| {
            let entry = |permissions, id: &str| AclEntry {
                permissions,
                scheme: "ip".into(),
                id: id.into(),
            };
            Acl::new([entry(AclEntry::ADMIN, "127.0.0.1"), entry(AclEntry::ALL, id)])
        };
        for (id, is_meant) in [("127.0.0.1", true), ("127.1.2.3/8", true), ("10.0.0.0/8", false)] {
            session.set_acl(&path("/a"), list(id), None).await.unwrap();
            let read = session.get_data(&path("/a")).await;
            assert_eq!(read.is_ok(), is_meant, "{id}");
        }
        let auth = Acl::creator_all();
        let proves_nothing = session.set_acl(&path("/a"), auth, None).await;
        assert_eq!(proves_nothing, Err(Error::InvalidAcl { path: "/a".into() }));
    }

    async fn rule_23_a_proof_holds_on_the_next_connection_too(server: Server) {
        let options = ConnectOptions::new().auth("digest", "alice:secret");
        let (proxy, client, other) = server.wired(options).await;
        let session = client.session().await.unwrap();
        session.add_auth("digest", "bob:secret").await.unwrap();
        make(&session, "/a").await;
        session.set_acl(&path("/a"), Acl::creator_all(), None).await.unwrap();
        let both = session.get_acl(&path("/a")).await.unwrap().0;
        assert_eq!(both.entries().unwrap().len(), 2);
        assert!(other.get_data(&path("/a")).await.is_err());
        let (_, _, changed) = session.watch_data(&path("/a")).await.unwrap();
        let mut states = session.states();
        proxy.break_off();
        reconnected(&mut states).await;
        for user in ["alice", "bob"] {
            let hers = both.entries().unwrap().iter().find(|entry| entry.id.starts_with(user));
            let alone = Acl::new([hers.unwrap().clone()]);
            session.set_acl(&path("/a"), alone, None).await.unwrap();
            session.get_data(&path("/a")).await.unwrap();
        }
        session.set_data(&path("/a"), "new", None).await.unwrap();
        assert_eq!(event(changed.await), seen(EventKind::NodeDataChanged, "/a"));
    }
}
