//! A served store reports the same errors as one in this process.

use std::net::Ipv4Addr;
use std::time::Duration;

use lockkeeper_store::{
    AccessOptions, Acl, AclEntry, ConnectOptions, Create, CreateMode, Error, Op, Request, Server,
    ServerOptions, Session, SessionState, Store, StoreOptions, connect, connect_with,
};
use testkit::Proxy;

use crate::common::*;

/// Runs a test with a session in the store's process, and with one over a server.
async fn with_both<F: Future<Output = ()>>(
    options: impl Fn() -> StoreOptions,
    test: impl Fn(Session) -> F,
) {
    let store = Store::memory_with(options());
    test(session_at(&store).await).await;
    let store = Store::memory_with(options());
    let at = ServerOptions::new().listen((Ipv4Addr::LOCALHOST, 0).into());
    let server = Server::bind(&store, at.max_outgoing_bytes(64 << 10)).await;
    let server = server.unwrap();
    let url = format!("lockkeeper://{}", server.local_addr().unwrap());
    let client = connect(&url).await.unwrap();
    test(client.session().await.unwrap()).await;
    server.shutdown().await;
}

async fn refused(session: &Session, request: Request) -> Error {
    session.backend().submit(request).await.unwrap_err()
}

fn create_with(acl: Acl) -> Request {
    Request::Create(Create {
        path: path("/a"),
        data: "".into(),
        mode: CreateMode::Persistent,
        acl,
    })
}

#[tokio::test]
async fn a_limit_of_the_store_is_named() {
    const LIMIT: usize = 20;
    with_both(
        || StoreOptions::new().max_znodes(LIMIT),
        async |session| {
            let mut number = 0;
            let refused = loop {
                let at = path(&format!("/{number}"));
                number += 1;
                match session.create(&at, "", CreateMode::Persistent).await {
                    Err(error) => break error,
                    Ok(_) => assert!(number < LIMIT),
                }
            };
            let (what, limit) = ("znodes", LIMIT);
            assert_eq!(refused, Error::LimitReached { what, limit });
            assert!(!refused.is_ambiguous(), "nothing was created");
        },
    )
    .await;
}

/// Other operations and senders of a request make no difference.
#[tokio::test]
async fn a_limit_that_an_operation_of_a_multi_reaches_is_named() {
    const LIMIT: usize = 20;
    with_both(
        || StoreOptions::new().max_znodes(LIMIT),
        async |session| {
            let create = |number| {
                Op::Create(Create {
                    path: path(&format!("/{number}")),
                    data: "".into(),
                    mode: CreateMode::Persistent,
                    acl: Acl::open(),
                })
            };
            let ops: Vec<_> = (0..LIMIT).map(create).collect();
            let refused = session.multi(ops).await.unwrap_err();
            let Error::MultiFailed { source, .. } = refused else {
                panic!("{refused}");
            };
            let (what, limit) = ("znodes", LIMIT);
            assert_eq!(*source, Error::LimitReached { what, limit });
        },
    )
    .await;
}

#[tokio::test]
async fn one_identity_too_many_is_named() {
    with_both(StoreOptions::new, async |session| {
        let mut number = 0;
        let refused = loop {
            let proof = session.add_auth("digest", format!("u{number}:secret"));
            number += 1;
            match proof.await {
                Err(error) => break error,
                Ok(()) => assert!(number < 100),
            }
        };
        let (what, limit) = ("identities of a session", 64);
        assert_eq!(refused, Error::LimitReached { what, limit });
    })
    .await;
}

#[tokio::test]
async fn a_list_with_too_many_entries_is_told_from_other_mistakes() {
    with_both(StoreOptions::new, async |session| {
        let user = |number| AclEntry {
            permissions: AclEntry::ALL,
            scheme: "digest".into(),
            id: format!("u{number}:aGFzaA=="),
        };
        let acl = Acl::new((0..2_000).map(user).collect::<Vec<_>>());
        let refused = refused(&session, create_with(acl)).await;
        let what = "entries of an access control list";
        let limit = 1_024;
        assert_eq!(refused, Error::LimitReached { what, limit });
    })
    .await;
}

/// So the reader can ask for less, and does not take it for a failure of the store.
#[tokio::test]
async fn an_answer_that_is_too_large_for_its_connection_is_named() {
    let store = Store::memory();
    let at = ServerOptions::new().listen((Ipv4Addr::LOCALHOST, 0).into());
    let server = Server::bind(&store, at.max_outgoing_bytes(64 << 10)).await;
    let server = server.unwrap();
    let own = session_at(&store).await;
    let data = "x".repeat(100 << 10);
    let mode = CreateMode::Persistent;
    own.create(&path("/large"), data, mode).await.unwrap();
    let url = format!("lockkeeper://{}", server.local_addr().unwrap());
    let client = connect(&url).await.unwrap();
    let session = client.session().await.unwrap();
    let refused = session.get_data(&path("/large")).await.unwrap_err();
    let (what, limit) = ("bytes of an answer", 64 << 10);
    assert_eq!(refused, Error::LimitReached { what, limit });
    server.shutdown().await;
}

/// Sending it would close the connection, and a recipe would retry it forever.
#[tokio::test]
async fn a_request_above_the_servers_limit_of_a_frame_is_not_sent() {
    const LIMIT: usize = 8 << 10;
    let store = Store::memory();
    let at = ServerOptions::new().listen((Ipv4Addr::LOCALHOST, 0).into());
    let server = Server::bind(&store, at.max_frame_bytes(LIMIT)).await;
    let server = server.unwrap();
    let proxy = Proxy::to(server.local_addr().unwrap());
    let url = format!("lockkeeper://{}", proxy.hosts());
    let client = connect(&url).await.unwrap();
    let session = client.session().await.unwrap();
    let data = "x".repeat(LIMIT);
    let mode = CreateMode::Persistent;
    let refused = session.create(&path("/a"), data, mode).await.unwrap_err();
    let Error::TooLarge { what, limit, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!(what, "a request");
    assert!((LIMIT - 100..=LIMIT).contains(&limit), "{limit}");
    // The client restores its watches on the next connection in several frames.
    let mut watches = Vec::new();
    for number in 0..100 {
        let at = path(&format!("/{number}-{}", "x".repeat(200)));
        let (_, watch) = session.watch_exists(&at).await.unwrap();
        watches.push((at, watch));
    }
    proxy.break_off();
    let own = session_at(&store).await;
    for (at, watch) in watches {
        own.create(&at, "", mode).await.unwrap();
        watch.await.unwrap();
    }
    server.shutdown().await;
}

/// Callers write "no limit" like this.
#[tokio::test]
async fn a_server_without_limits_of_time_serves() {
    const NONE: Duration = Duration::MAX;
    let options = StoreOptions::new().tick(NONE).reaper_interval(NONE);
    let store = Store::memory_with(options.session_timeouts(NONE, NONE));
    let at = ServerOptions::new().listen((Ipv4Addr::LOCALHOST, 0).into());
    let at = at.handshake_timeout(NONE).busy_poll(NONE);
    let server = Server::bind(&store, at).await.unwrap();
    let url = format!("lockkeeper://{}", server.local_addr().unwrap());
    let client = connect(&url).await.unwrap();
    let session = client.session().await.unwrap();
    let mode = CreateMode::EphemeralSequential;
    session.create(&path("/e-"), "", mode).await.unwrap();
    tokio::select! {
        () = server.idle(NONE) => panic!("it is in use"),
        closed = client.close() => closed.unwrap(),
    }
    server.shutdown().await;
}

/// Zero, and the value that callers use for "no limit".
#[tokio::test]
async fn limits_may_be_at_their_ends() {
    type OfStore = fn(StoreOptions, usize) -> StoreOptions;
    type OfServer = fn(ServerOptions, usize) -> ServerOptions;
    const OF_STORES: [OfStore; 5] = [
        StoreOptions::max_znodes,
        StoreOptions::max_bytes,
        StoreOptions::max_sessions,
        StoreOptions::max_watches_per_session,
        |options, limit| options.segment_bytes(limit as u64, limit as u64),
    ];
    const OF_SERVERS: [OfServer; 7] = [
        ServerOptions::max_connections,
        ServerOptions::max_connections_per_address,
        ServerOptions::max_half_open,
        ServerOptions::max_in_flight,
        ServerOptions::max_unfinished_bytes,
        ServerOptions::max_outgoing_bytes,
        ServerOptions::max_all_outgoing_bytes,
    ];
    for limit in [0, 1, usize::MAX - 1, usize::MAX] {
        for (number, set) in OF_STORES.iter().enumerate() {
            let used = use_once(set(StoreOptions::new(), limit), ServerOptions::new()).await;
            assert!(
                is_fair(&used, limit),
                "{number} of stores, {limit}: {used:?}"
            );
        }
        for (number, set) in OF_SERVERS.iter().enumerate() {
            let used = use_once(StoreOptions::new(), set(ServerOptions::new(), limit)).await;
            assert!(
                is_fair(&used, limit),
                "{number} of servers, {limit}: {used:?}"
            );
        }
    }
}

fn is_fair(used: &Result<(), Error>, limit: usize) -> bool {
    match used {
        Ok(()) => true,
        Err(Error::LimitReached { .. } | Error::ConnectFailed { .. }) => limit <= 1,
        Err(_) => false,
    }
}

/// Uses a served store, which may refuse everything but must keep running.
async fn use_once(of_store: StoreOptions, of_server: ServerOptions) -> Result<(), Error> {
    let store = Store::memory_with(of_store);
    let at = of_server.listen((Ipv4Addr::LOCALHOST, 0).into());
    let server = Server::bind(&store, at).await.unwrap();
    let url = format!("lockkeeper://{}", server.local_addr().unwrap());
    let options = ConnectOptions::new().connect_timeout(Duration::from_millis(300));
    let used = async {
        let client = connect_with(&url, options).await?;
        let session = client.session().await?;
        let mode = CreateMode::EphemeralSequential;
        session.create(&path("/e-"), "some data", mode).await?;
        let _watch = session.watch_children(&path("/")).await?;
        client.close().await
    };
    let used = used.await;
    server.shutdown().await;
    let own = store.connect().await?.session().await?;
    own.exists(&path("/")).await?;
    used
}

/// The first user's password is `secret`.
#[tokio::test]
async fn a_user_who_is_added_again_in_time_has_its_session_back() {
    let users = |user| AccessOptions::new().user(user).unwrap();
    let (orders, other) = (
        "orders:08sob9dMDb87qFrxEU6Yzq8j3HU=",
        "other:08sob9dMDb87qFrxEU6Yzq8j3HU=",
    );
    let options = ServerOptions::new().listen((Ipv4Addr::LOCALHOST, 0).into());
    let store = Store::memory();
    let server = Server::bind(&store, options.require_auth(true)).await;
    let server = server.unwrap();
    server.reload_access(users(orders));
    let url = format!("lockkeeper://{}", server.local_addr().unwrap());
    let client = connect_with(
        &url,
        ConnectOptions::new()
            .session_timeout(Duration::from_secs(60))
            .auth("digest", "orders:secret"),
    );
    let session = client.await.unwrap().session().await.unwrap();
    let lock = path("/lock");
    let creating = session.create(&lock, "", CreateMode::Ephemeral);
    creating.await.unwrap();

    let mut states = session.states();
    server.reload_access(users(other));
    let refused = loop {
        match session.exists(&lock).await {
            Err(error) if error != Error::ConnectionLoss => break error,
            _ => {}
        }
    };
    assert_eq!(refused, Error::AuthFailed);
    assert_eq!(session.state(), SessionState::Suspended);

    server.reload_access(users(orders));
    while states.next().await != Some(SessionState::Reconnected) {
        assert!(!session.state().is_final());
    }
    let stat = session.exists(&lock).await.unwrap();
    assert_eq!(stat.unwrap().ephemeral_owner, session.id());
}
