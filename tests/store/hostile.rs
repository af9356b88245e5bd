//! Hostile and mistaken use is refused with a clear error and loses no data.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{
    Acl, AclEntry, Backend, Blockers, BoxFuture, Client, Clock, ConnectOptions, Connector, Create,
    CreateMode, Enqueue, Error, LARGEST_REQUEST_BYTES, Op, Request, Result, Store, TargetError,
    WatchMode, ZnodePath, connect, connect_with,
};
use parking_lot::Mutex;
use testkit::{free_address, on_every_znode_store};

use crate::common::*;

#[test]
fn bad_paths_are_refused_before_anything_is_sent() {
    let bad = [
        ("", "it is empty"),
        ("relative", "it must start with `/`"),
        ("./relative", "it must start with `/`"),
        ("//", "it must not end with `/`"),
        ("/a//b", "a part of it is empty (`//`)"),
        ("/a/", "it must not end with `/`"),
        ("/.", "relative parts (`.`, `..`) are not allowed"),
        ("/a/../b", "relative parts (`.`, `..`) are not allowed"),
        ("/a/./b", "relative parts (`.`, `..`) are not allowed"),
        ("/a\0", "it contains a NUL"),
        ("/a\u{7f}", "it contains a control character"),
    ];
    for (text, reason) in bad {
        let refused = Error::InvalidPath {
            path: text.into(),
            reason,
        };
        assert_eq!(ZnodePath::new(text), Err(refused.clone()));
        assert!(
            refused.to_string().contains(&format!("{text:?}")),
            "{refused}"
        );
    }
    for good in ["/...", "/.a", "/a..", "/é/日本", "/a b"] {
        assert!(ZnodePath::new(good).is_ok(), "{good}");
    }
}

on_every_znode_store! {
    async fn a_request_that_is_too_large_is_refused_and_nothing_else_is_lost(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let before = stat(&session, "/a").await;
        let (_, _, mut watcher) = session.watch_data(&path("/a")).await.unwrap();
        let huge = vec![b'x'; 2 << 20];
        let create = Create {
            path: path("/a/b"),
            data: huge.clone().into(),
            mode: CreateMode::Persistent,
            acl: Acl::open(),
        };
        let enqueue = Enqueue {
            parent: path("/a"),
            name: "n-".into(),
            data: huge.clone().into(),
            acl: Acl::open(),
            blockers: Blockers::All,
            conditions: Vec::new(),
            count: false, queue_data: None, };
        let set = |data: Vec<u8>| Request::SetData { path: path("/a"), data: data.into(), version: None };
        let check = Op::Check { path: path("/a"), version: None };
        for request in [
            Request::Create(create.clone()),
            set(huge),
            set(vec![b'x'; LARGEST_REQUEST_BYTES]),
            Request::Multi(vec![check.clone(), Op::Create(create)]),
            Request::Multi(vec![check; 20_000]),
            Request::Enqueue(enqueue),
        ] {
            match session.submit(request).await {
                Err(Error::TooLarge { actual, limit, .. }) => assert!(actual > limit),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(stat(&session, "/a").await, before);
        assert_eq!(fired(&mut watcher), None);
    }

    async fn the_largest_request_is_kept(env: Env) {
        let session = env.session().await;
        let mut data = vec![b'x'; LARGEST_REQUEST_BYTES - "/a".len()];
        let mut made = session.create(&path("/a"), data.clone(), CreateMode::Persistent).await;
        // The path's chroot counts too.
        if let Err(Error::TooLarge { actual, limit, .. }) = made {
            data.truncate(data.len() - (actual - limit));
            made = session.create(&path("/a"), data.clone(), CreateMode::Persistent).await;
        }
        made.unwrap();
        session.set_data(&path("/a"), data.clone(), None).await.unwrap();
        let (read, stat) = session.get_data(&path("/a")).await.unwrap();
        assert!(read == data);
        assert_eq!(stat.data_length as usize, data.len());
    }

    async fn a_long_access_control_list_counts_as_data_does(env: Env) {
        let session = env.session().await;
        make(&session, "/q").await;
        let connection = session.status().connection();
        let everybody = AclEntry { permissions: AclEntry::ALL, scheme: "world".into(), id: "anyone".into() };
        let acl = Acl::new(vec![everybody; 200]);
        let create = |bytes: usize| Create {
            path: path("/a"),
            data: vec![b'x'; bytes].into(),
            mode: CreateMode::Persistent,
            acl: acl.clone(),
        };
        let enqueue = |bytes: usize| Enqueue {
            parent: path("/q"),
            name: "n-".into(),
            data: vec![b'x'; bytes].into(),
            acl: acl.clone(),
            blockers: Blockers::All,
            conditions: Vec::new(),
            count: false, queue_data: None, };
        let bytes = LARGEST_REQUEST_BYTES - 100;
        let requests: [&dyn Fn(usize) -> Request; 3] = [
            &|bytes| Request::Enqueue(enqueue(bytes)),
            &|bytes| Request::Multi(vec![Op::Create(create(bytes)), Op::Delete { path: path("/a"), version: None }]),
            &|bytes| Request::Create(create(bytes)),
        ];
        for request in requests {
            let Err(Error::TooLarge { actual, limit, .. }) = session.submit(request(bytes)).await else {
                panic!("{bytes} bytes of data and a list of 200 are too many");
            };
            session.submit(request(bytes - (actual - limit))).await.unwrap();
        }
        assert_eq!(session.status().connection(), connection);
    }

    async fn create_names_its_errors(env: Env) {
        let session = env.session().await;
        let create = async |at, mode| session.create(&path(at), "", mode).await.map(|(path, _)| path);
        assert_eq!(create("/a/b/c", CreateMode::Persistent).await, Err(no_node("/a/b")));
        make(&session, "/a").await;
        let exists = Error::NodeExists { path: "/a".into() };
        assert_eq!(create("/a", CreateMode::Ephemeral).await, Err(exists));
    }

    async fn delete_names_its_errors(env: Env) {
        let session = env.session().await;
        let delete = async |at, version| session.delete(&path(at), version).await;
        assert_eq!(delete("/a", None).await, Err(no_node("/a")));
        make(&session, "/a").await;
        make(&session, "/a/b").await;
        let stale = Error::BadVersion { path: "/a".into(), expected: 7 };
        assert_eq!(delete("/a", Some(7)).await, Err(stale));
        assert_eq!(delete("/a", Some(0)).await, Err(Error::NotEmpty { path: "/a".into() }));
    }

    async fn reads_and_sets_name_a_missing_znode(env: Env) {
        let session = env.session().await;
        let (none, missing) = (path("/none/x"), no_node("/none/x"));
        assert_eq!(session.get_data(&none).await.unwrap_err(), missing);
        assert_eq!(session.get_children(&none).await.unwrap_err(), missing);
        assert_eq!(session.set_data(&none, "", None).await.unwrap_err(), missing);
        assert_eq!(session.exists(&none).await, Ok(None));
        let failed = Error::MultiFailed { index: 0, source: Box::new(missing) };
        assert_eq!(session.check(&none, None).await.unwrap_err(), failed);
        assert_eq!(session.get_queue(&none, 0).await.unwrap_err(), no_node("/none/x"));
    }

    async fn an_empty_multi_is_done(env: Env) {
        let session = env.session().await;
        let (done, read) = (session.submit(Request::Multi(vec![])), session.multi_read([]));
        assert!(matches!(done.await, Ok(lockkeeper_store::Reply::Multi(replies)) if replies.is_empty()));
        assert_eq!(read.await, Ok(vec![]));
    }

    async fn an_empty_list_of_rights_is_refused(env: Env) {
        let session = env.session().await;
        let create = Create {
            path: path("/a"),
            data: "".into(),
            mode: CreateMode::Persistent,
            acl: Acl::new([]),
        };
        let refused = session.submit(Request::Create(create)).await.unwrap_err();
        assert_eq!(refused, Error::InvalidAcl { path: "/a".into() });
        assert!(!is_there(&session, "/a").await);
    }

    async fn an_unread_watcher_reports_lost_events(env: Env) {
        let session = env.session().await;
        make(&session, "/a").await;
        let mut watcher = session.add_watch(&path("/a"), WatchMode::Persistent).await.unwrap();
        let (backlog, more) = (16_384, 100);
        let sets: Vec<_> = (0..backlog + more).map(|_| session.set_data(&path("/a"), "", None)).collect();
        for set in sets {
            set.await.unwrap();
        }
        barrier(&session).await;
        for _ in 0..backlog {
            assert!(matches!(now(watcher.next()), Some(Some(Ok(_)))));
        }
        if env.is_embedded() {
            let lost = now(watcher.next()).unwrap().unwrap();
            assert!(matches!(lost, Err(Error::LimitReached { limit: 16_384, .. })), "{lost:?}");
        }
        while now(watcher.next()).is_some() {}
        session.set_data(&path("/a"), "", None).await.unwrap();
        assert!(matches!(now(watcher.next()), Some(Some(Ok(_)))), "it goes on");
    }
}

#[tokio::test]
async fn a_timeout_of_zero_is_refused() {
    for options in [
        ConnectOptions::new().session_timeout(Duration::ZERO),
        ConnectOptions::new().session_timeout(Duration::MAX),
        ConnectOptions::new().connect_timeout(Duration::ZERO),
    ] {
        for url in ["memory:zero", "zookeeper://127.0.0.1:1"] {
            let refused = connect_with(url, options.clone()).await;
            assert!(
                matches!(refused, Err(Error::BadArguments(_))),
                "{refused:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_bad_url_is_refused_with_the_faulty_part() {
    let target = async |url: &str| match connect(url).await {
        Err(Error::Target(error)) => error,
        other => panic!("{url}: {other:?}"),
    };
    let url = "redis://localhost".to_owned();
    let unknown = TargetError::UnknownScheme {
        url: url.clone(),
        scheme: "redis".into(),
    };
    assert_eq!(target(&url).await, unknown);
    let url = "zookeeper:///app".to_owned();
    assert_eq!(target(&url).await, TargetError::NoHost { url });
    let ports = ["0", "65536", "two", "-1", ""]
        .map(|port| (format!("zookeeper://localhost:{port}"), "port"));
    let others = [
        ("zookeeper://a/b//c", "chroot"),
        ("zookeeper://a b", "host"),
        ("memory:a/b", "store name"),
    ];
    let others = others.map(|(url, part)| (url.to_owned(), part));
    for (url, expected) in ports.into_iter().chain(others) {
        let error = target(&url).await;
        assert!(
            matches!(error, TargetError::BadPart { part, .. } if part == expected),
            "{error:?}"
        );
    }
    let secret = target("zookeeper://user:secret@localhost").await;
    assert_eq!(secret, TargetError::Credentials);
}

async fn servers() -> Vec<testkit::Env> {
    vec![
        testkit::Env::zookeeper().await,
        testkit::Env::served().await,
    ]
}

/// Asserts that connecting fails with `ConnectFailed`, naming the address and the timeout.
async fn nobody_answers_at(address: std::net::SocketAddr) {
    nobody_answers("zookeeper", address).await;
    nobody_answers("lockkeeper", address).await;
}

async fn nobody_answers(scheme: &str, address: std::net::SocketAddr) {
    let timeout = Duration::from_millis(700);
    let options = ConnectOptions::new().connect_timeout(timeout);
    let url = format!("{scheme}://{address}/app");
    let connecting = connect_with(&url, options);
    // Generous for a slow machine, but an error after minutes would be a bug.
    let refused = tokio::time::timeout(timeout + Duration::from_secs(20), connecting)
        .await
        .unwrap();
    let error = refused.unwrap_err();
    let Error::ConnectFailed {
        hosts,
        timeout: stated,
        ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(
        (hosts.as_str(), *stated),
        (address.to_string().as_str(), timeout)
    );
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_running_is_an_error_within_the_connect_timeout() {
    // Not an ephemeral port, which another test's server could get.
    nobody_answers_at(free_address()).await;
}

#[tokio::test]
async fn a_server_that_never_answers_is_an_error_within_the_connect_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    nobody_answers_at(listener.local_addr().unwrap()).await;
}

#[tokio::test]
async fn a_missing_chroot_is_an_error_unless_its_making_is_asked_for() {
    for env in servers().await {
        let url = format!("{}/{}/b", env.target(), testkit::unique("chroot"));
        let refused = connect(&url).await.unwrap_err();
        let Error::NoChroot { path, hosts } = &refused else {
            panic!("{refused:?}")
        };
        assert!(url.ends_with(path.as_str()), "{path}");
        assert!(url.contains(hosts.as_str()), "{hosts}");
        let made = connect_with(&url, ConnectOptions::new().create_chroot())
            .await
            .unwrap();
        made.close().await.unwrap();
        connect(&url).await.unwrap().close().await.unwrap();
    }
}

/// One address behind which the store can be replaced.
#[derive(Debug)]
struct Switched {
    now: Mutex<Arc<dyn Connector>>,
    clock: Clock,
}

impl Connector for Switched {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        self.now.lock().open(options)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        self.now.lock().expire(backend)
    }
}

#[tokio::test]
async fn another_store_at_the_old_address_is_refused() {
    let (first, second) = (Store::memory(), Store::memory());
    let connector = async |store: &Store| store.connect().await.unwrap().connector().clone();
    let switched = Arc::new(Switched {
        now: Mutex::new(connector(&first).await),
        clock: Clock::system(),
    });
    let options = ConnectOptions::new();
    let client = Client::open(switched.clone(), "there".into(), options)
        .await
        .unwrap();
    let session = client.session().await.unwrap();
    client.connector().expire(session.backend()).await.unwrap();
    let again = client.session().await.unwrap();
    assert_ne!(again.id(), session.id());
    client.connector().expire(again.backend()).await.unwrap();
    let other = connector(&second).await;
    *switched.now.lock() = other;
    let refused = client.session().await.unwrap_err();
    let Error::StoreChanged {
        target,
        expected,
        found,
    } = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!(target, "there");
    assert_eq!(Some(expected.as_str()), client.store_id());
    assert_ne!(expected, found);
}

#[tokio::test]
async fn the_root_of_a_store_cannot_be_deleted() {
    let session = session_at(&Store::memory()).await;
    let refused = session.delete(&ZnodePath::root(), None).await;
    assert!(
        matches!(refused, Err(Error::BadArguments(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_znode_without_read_permission_is_not_read() {
    for env in servers().await {
        let options = ConnectOptions::new()
            .auth("digest", "owner:secret")
            .acl(Acl::creator_all());
        let (owner, other) = (env.session_with(options).await, env.session().await);
        make(&owner, "/a").await;
        owner.get_data(&path("/a")).await.unwrap();
        let refused = Error::NoAuth { path: "/a".into() };
        assert_eq!(
            other.get_data(&path("/a")).await.unwrap_err(),
            refused.clone()
        );
        let set = other.set_data(&path("/a"), "", None).await;
        assert_eq!(set.unwrap_err(), refused);
    }
}

#[tokio::test]
async fn a_proof_of_identity_that_the_server_refuses_is_an_error() {
    for env in servers().await {
        let options = ConnectOptions::new().auth("no-such-scheme", "secret");
        let refused = connect_with(env.target(), options).await.unwrap_err();
        assert_eq!(refused, Error::AuthFailed);
        assert!(!refused.to_string().contains("secret"));
    }
}
