//! TLS: which clients and servers are trusted, and the identities of certificates.

mod certificates;
mod clients;
mod refusals;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lockkeeper_store::{
    Acl, AclEntry, Client, ClientTls, ConnectOptions, CreateMode, Error, EventKind, Server,
    ServerError, ServerOptions, Session, Store, TlsError, TlsOptions, connect_with,
};

use rcgen::SanType;
use testkit::{TempFolder, within_reason};

use self::certificates::{ADDRESS, Authority, Signed, When};
use crate::common::*;

/// A TLS-only server on a fresh store, and the authority that signed its certificate.
struct World {
    authority: Authority,
    server: Server,
    store: Store,
}

fn somewhere() -> SocketAddr {
    (std::net::Ipv4Addr::LOCALHOST, 0).into()
}

async fn serve(store: &Store, tls: TlsOptions) -> Server {
    let options = ServerOptions::new().tls(tls).tls_listen(somewhere());
    Server::bind(store, options.tls_only()).await.unwrap()
}

impl World {
    /// Starts a server that needs no client certificates.
    async fn open() -> Self {
        let authority = Authority::new("the tests' authority");
        Self::with(authority.server(ADDRESS, When::Now).options(), authority).await
    }

    /// Starts a server that requires them.
    async fn guarded() -> Self {
        let authority = Authority::new("the tests' authority");
        let tls = authority.server(ADDRESS, When::Now).options();
        Self::with(
            tls.client_ca_pem(authority.pem.as_str()).unwrap(),
            authority,
        )
        .await
    }

    async fn with(tls: TlsOptions, authority: Authority) -> Self {
        let store = Store::memory();
        Self {
            authority,
            server: serve(&store, tls).await,
            store,
        }
    }

    fn url(&self) -> String {
        format!("lockkeeper://{}", self.server.tls_addr().unwrap())
    }

    async fn client(&self, options: ConnectOptions, tls: ClientTls) -> Client {
        let connected = connect_with(self.url().as_str(), options.tls(tls)).await;
        connected.unwrap()
    }

    async fn session_of(&self, name: &str) -> Session {
        self.session_with(&self.authority.client(name, When::Now))
            .await
    }

    async fn session_with(&self, certificate: &Signed) -> Session {
        let tls = certificate.shown(self.authority.believed());
        let client = self.client(ConnectOptions::new(), tls).await;
        client.session().await.unwrap()
    }
}

fn x509(name: &str) -> Acl {
    Acl::new([AclEntry {
        permissions: AclEntry::ALL,
        scheme: "x509".into(),
        id: format!("CN={name},O=Example"),
    }])
}

fn no_auth<T>(at: &str) -> Result<T, Error> {
    Err(Error::NoAuth { path: at.into() })
}

#[tokio::test]
async fn everything_goes_over_tls_as_without() {
    let world = World::open().await;
    let client = world
        .client(ConnectOptions::new(), world.authority.believed())
        .await;
    let session = client.session().await.unwrap();
    let here = session_at(&world.store).await;

    let large: Vec<u8> = (0..1_000_000u32).map(|at| at as u8).collect();
    let created = session.create(&path("/large"), large.clone(), CreateMode::Persistent);
    created.await.unwrap();
    let (data, _, changed) = session.watch_data(&path("/large")).await.unwrap();
    assert_eq!(data, large);
    here.set_data(&path("/large"), "", None).await.unwrap();
    assert_eq!(
        event(within_reason(changed).await),
        seen(EventKind::NodeDataChanged, "/large")
    );

    create(&session, "/e", CreateMode::Ephemeral).await;
    client.close().await.unwrap();
    assert!(!is_there(&here, "/e").await);
}

#[tokio::test]
async fn a_url_asks_for_tls_and_is_never_connected_without() {
    let world = World::guarded().await;
    let url = format!("lockkeeper+tls://{}/app", world.server.tls_addr().unwrap());
    let alice = world.authority.client("alice", When::Now);
    let tls = alice.shown(world.authority.believed());
    let options = ConnectOptions::new().tls(tls).create_chroot();
    let client = connect_with(url.as_str(), options).await.unwrap();
    assert_eq!(client.target(), url);
    make(&client.session().await.unwrap(), "/n").await;

    // On a server that accepts plain connections too.
    let plain = ServerOptions::new().listen(somewhere());
    let plain = Server::bind(&world.store, plain).await.unwrap();
    for scheme in ["lockkeeper+tls", "zookeeper+tls"] {
        let url = format!("{scheme}://{}", plain.local_addr().unwrap());
        match connect_with(url.as_str(), ConnectOptions::new()).await {
            Err(Error::Tls(TlsError::NoAuthority)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_session_that_expires_over_tls_is_over() {
    let world = World::open().await;
    let client = world
        .client(ConnectOptions::new(), world.authority.believed())
        .await;
    let session = client.session().await.unwrap();
    let expired = client.connector().expire(session.backend()).await;
    expired.unwrap();
    let again = client.session().await.unwrap();
    assert_ne!(again.id(), session.id());
    make(&again, "/n").await;
}

#[tokio::test]
async fn a_connection_that_breaks_is_made_again_with_tls() {
    let world = World::guarded().await;
    let session = world.session_of("alice").await;
    create(&session, "/e", CreateMode::Ephemeral).await;
    let (_, gone) = session.watch_exists(&path("/n")).await.unwrap();
    let address = world.server.tls_addr().unwrap();
    let tls = world.authority.server(ADDRESS, When::Now).options();
    world.server.shutdown().await;

    make(&session_at(&world.store).await, "/n").await;
    let tls = tls.client_ca_pem(world.authority.pem.as_str()).unwrap();
    let options = ServerOptions::new().tls(tls).tls_listen(address).tls_only();
    let _server = Server::bind(&world.store, options).await.unwrap();
    assert_eq!(
        event(within_reason(gone).await),
        seen(EventKind::NodeCreated, "/n")
    );
    assert_eq!(stat(&session, "/e").await.ephemeral_owner, session.id());
}

#[tokio::test]
async fn a_certificate_identifies_its_holder() {
    let world = World::guarded().await;
    let (alice, bob) = (
        world.session_of("alice").await,
        world.session_of("bob").await,
    );
    let (n, own) = (path("/n"), path("/own"));
    make(&alice, "/n").await;
    alice.set_acl(&n, x509("alice"), None).await.unwrap();
    assert_eq!(bob.get_data(&n).await.map(drop), no_auth("/n"));
    assert_eq!(bob.set_data(&n, "", None).await.map(drop), no_auth("/n"));
    alice.set_data(&n, "a", None).await.unwrap();

    // Grants the creator access by any of its identities.
    make(&bob, "/own").await;
    bob.set_acl(&own, Acl::creator_all(), None).await.unwrap();
    let (acl, _) = bob.get_acl(&own).await.unwrap();
    assert_eq!(acl, x509("bob"));
    assert_eq!(alice.get_data(&own).await.map(drop), no_auth("/own"));
}

#[tokio::test]
async fn certificates_without_a_subject_are_not_one_identity() {
    let world = World::guarded().await;
    let uri = |uri: &str| SanType::URI(uri.try_into().unwrap());
    let dns = || SanType::DnsName("b.example".try_into().unwrap());
    let mut sessions = Vec::new();
    for names in [
        vec![uri("spiffe://example/a"), dns()],
        vec![dns()],
        vec![uri("spiffe://example/a"), uri("spiffe://example/b")],
        vec![],
    ] {
        let certificate = world.authority.client_without_subject(names);
        sessions.push(world.session_with(&certificate).await);
    }
    for (own, id) in ["URI:spiffe://example/a", "DNS:b.example"]
        .into_iter()
        .enumerate()
    {
        let node = path(&format!("/{own}"));
        make(&sessions[own], node.as_str()).await;
        let only_own = Acl::new([AclEntry {
            permissions: AclEntry::ALL,
            scheme: "x509".into(),
            id: id.into(),
        }]);
        let creators = sessions[own].set_acl(&node, Acl::creator_all(), None);
        creators.await.unwrap();
        assert_eq!(sessions[own].get_acl(&node).await.unwrap().0, only_own);
        sessions[own].set_acl(&node, only_own, None).await.unwrap();
        for (other, session) in sessions.iter().enumerate() {
            let read = session.get_data(&node).await.map(drop);
            match own == other {
                true => read.unwrap(),
                false => assert_eq!(read, no_auth(node.as_str()), "{other}"),
            }
        }
    }
    for nobody in &sessions[2..] {
        let create = nobody.set_acl(&path("/"), Acl::creator_all(), None).await;
        assert_eq!(
            create.map(drop),
            Err(Error::InvalidAcl { path: "/".into() })
        );
    }
}

/// Like the certificates of SPIRE, which all have the same subject.
#[tokio::test]
async fn a_server_may_identify_clients_by_their_uris_instead_of_their_subjects() {
    let authority = Authority::new("the tests' authority");
    let tls = authority.server(ADDRESS, When::Now).options();
    let tls = tls.client_ca_pem(authority.pem.as_str()).unwrap();
    let world = World::with(tls.clone().clients_by_uri(true), authority).await;
    let uri = |uri: &str| SanType::URI(uri.try_into().unwrap());
    let dns = SanType::DnsName("a.example".try_into().unwrap());
    let of = |names| world.authority.client_of("SPIRE", names);
    let certificate = of(vec![uri("spiffe://example/a"), dns.clone()]);
    let one = world.session_with(&certificate).await;
    make(&one, "/n").await;
    let n = path("/n");
    one.set_acl(&n, Acl::creator_all(), None).await.unwrap();
    let only_own = Acl::new([AclEntry {
        permissions: AclEntry::ALL,
        scheme: "x509".into(),
        id: "URI:spiffe://example/a".into(),
    }]);
    assert_eq!(one.get_acl(&n).await.unwrap().0, only_own);
    for names in [
        vec![uri("spiffe://example/b")],
        vec![uri("spiffe://example/a"), uri("spiffe://example/b")],
        vec![dns],
    ] {
        let other = world.session_with(&of(names)).await;
        assert_eq!(other.get_data(&n).await.map(drop), no_auth("/n"));
    }
    // A reload changes this too.
    world.server.reload_tls(tls).unwrap();
    let by_subject = world.session_with(&certificate).await;
    assert_eq!(by_subject.get_data(&n).await.map(drop), no_auth("/n"));
}

#[tokio::test]
async fn names_and_passwords_go_over_tls() {
    let world = World::open().await;
    let alice = ConnectOptions::new().auth("digest", "alice:secret");
    let alice = world.client(alice, world.authority.believed()).await;
    let alice = alice.session().await.unwrap();
    let other = world
        .client(ConnectOptions::new(), world.authority.believed())
        .await;
    let other = other.session().await.unwrap();
    make(&alice, "/n").await;
    let n = path("/n");
    alice.set_acl(&n, Acl::creator_all(), None).await.unwrap();
    alice.set_data(&n, "a", None).await.unwrap();
    assert_eq!(other.get_data(&n).await.map(drop), no_auth("/n"));
}

#[tokio::test]
async fn a_certificate_is_proof_enough_for_a_server_that_wants_one() {
    let authority = Authority::new("the tests' authority");
    let tls = authority.server(ADDRESS, When::Now).options();
    let tls = tls.client_ca_pem(authority.pem.as_str()).unwrap();
    let store = Store::memory();
    let options = ServerOptions::new()
        .listen(somewhere())
        .tls(tls)
        .tls_listen(somewhere())
        .require_auth(true);
    let server = Server::bind(&store, options).await.unwrap();
    let plain = format!("lockkeeper://{}", server.local_addr().unwrap());
    let world = World {
        authority,
        server,
        store,
    };
    let alice = world.session_of("alice").await;
    make(&alice, "/n").await;

    let options = ConnectOptions::new().connect_timeout(Duration::from_secs(60));
    let nobody = connect_with(plain.as_str(), options).await.unwrap();
    let nobody = nobody.session().await.unwrap();
    nobody.get_data(&path("/n")).await.unwrap_err();
}

#[tokio::test]
async fn renewed_certificates_hold_for_those_that_come_after() {
    let authority = Authority::new("the tests' authority");
    let first = authority.server(ADDRESS, When::Now).options();
    let world = World::with(first, authority).await;
    let early = world
        .client(ConnectOptions::new(), world.authority.believed())
        .await;

    let other = Authority::new("another authority");
    let renewed = other.server(ADDRESS, When::Now).options();
    world.server.reload_tls(renewed).unwrap();
    let late = world.client(ConnectOptions::new(), other.believed()).await;
    make(&late.session().await.unwrap(), "/late").await;
    make(&early.session().await.unwrap(), "/early").await;

    let plain = ServerOptions::new().listen(somewhere());
    let plain = Server::bind(&world.store, plain).await.unwrap();
    let renewed = other.server(ADDRESS, When::Now).options();
    assert!(matches!(
        plain.reload_tls(renewed),
        Err(ServerError::TlsIncomplete { .. })
    ));
    assert_eq!(plain.tls_addr(), None);
}
