//! A server's Unix socket: its clients' user identities, and the client's errors.

use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lockkeeper_store::{
    Acl, AclEntry, ConnectOptions, Create, CreateMode, Error, Op, Server, ServerOptions, Session,
    Store, ZnodePath, connect_with,
};
use testkit::wire::{self, Out, ask, request};
use testkit::{TempFolder, within_reason};

use crate::common::*;

/// An in-memory store, served over TCP and a Unix socket.
struct Served {
    server: Server,
    folder: TempFolder,
}

impl Served {
    async fn start(options: ServerOptions) -> Self {
        let folder = TempFolder::new("unix");
        let options = options.listen((Ipv4Addr::LOCALHOST, 0).into());
        let options = options.unix_listen(folder.path().join("s"));
        let server = Server::bind(&Store::memory(), options).await.unwrap();
        Self { server, folder }
    }

    fn unix_url(&self) -> String {
        format!(
            "lockkeeper+unix://{}",
            self.server.unix_path().unwrap().display()
        )
    }

    fn tcp_url(&self) -> String {
        format!("lockkeeper://{}", self.server.local_addr().unwrap())
    }
}

async fn session(url: &str, options: ConnectOptions) -> Result<Session, Error> {
    connect_with(url, options).await?.session().await
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn only(scheme: &str, id: &str) -> Acl {
    Acl::new([AclEntry {
        permissions: AclEntry::ALL,
        scheme: scheme.into(),
        id: id.into(),
    }])
}

fn is_denied<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::NoAuth { .. }))
}

async fn create_as(session: &Session, at: &ZnodePath, acl: Acl) -> Result<(), Error> {
    let create = Op::Create(Create {
        path: at.clone(),
        data: "".into(),
        mode: CreateMode::Persistent,
        acl,
    });
    match session.multi([create]).await {
        Ok(_) => Ok(()),
        Err(Error::MultiFailed { source, .. }) => Err(*source),
        Err(error) => Err(error),
    }
}

#[tokio::test]
async fn a_server_of_a_unix_socket_alone_has_no_other_address() {
    let folder = TempFolder::new("unix");
    let socket = folder.path().join("s");
    let options = ServerOptions::new().unix_listen(&socket).unix_only();
    let server = Server::bind(&Store::memory(), options).await.unwrap();
    assert_eq!((server.local_addr(), server.tls_addr()), (None, None));
    assert_eq!(server.unix_path(), Some(&*socket));
    let url = format!("lockkeeper+unix://{}", socket.display());
    session(&url, ConnectOptions::new()).await.unwrap();
}

#[tokio::test]
async fn a_list_can_name_the_user_of_a_unix_sockets_client() {
    let served = Served::start(ServerOptions::new()).await;
    let own = session(&served.unix_url(), ConnectOptions::new())
        .await
        .unwrap();
    let other = session(&served.tcp_url(), ConnectOptions::new())
        .await
        .unwrap();
    for (name, acl) in [
        ("/named", only("uid", &uid().to_string())),
        ("/creators", Acl::creator_all()),
    ] {
        let at = path(name);
        create_as(&own, &at, acl).await.unwrap();
        own.get_data(&at).await.unwrap();
        assert!(is_denied(other.get_data(&at).await));
        let (acl, _) = own.get_acl(&at).await.unwrap();
        assert_eq!(acl, only("uid", &uid().to_string()));
    }
    let foreign = only("uid", &(uid() + 1).to_string());
    let at = path("/foreign");
    create_as(&own, &at, foreign).await.unwrap();
    assert!(is_denied(own.get_data(&at).await));
    let wrong = only("uid", "root");
    let refused = create_as(&own, &path("/x"), wrong).await;
    assert!(
        matches!(refused, Err(Error::InvalidAcl { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn nobody_becomes_a_user_by_saying_so() {
    let served = Served::start(ServerOptions::new()).await;
    for url in [served.tcp_url(), served.unix_url()] {
        let uid = uid().to_string();
        let refused = session(&url, ConnectOptions::new().auth("uid", uid)).await;
        assert!(
            matches!(refused, Err(Error::AuthFailed)),
            "{url}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn the_user_is_authentication_where_that_is_required() {
    within_reason(async {
        let served = Served::start(ServerOptions::new().require_auth(true)).await;
        let own = session(&served.unix_url(), ConnectOptions::new())
            .await
            .unwrap();
        make(&own, "/a").await;
        let other = async {
            let session = session(&served.tcp_url(), ConnectOptions::new()).await?;
            session.get_data(&path("/a")).await
        };
        assert!(other.await.is_err());
    })
    .await;
}

/// Asks as a plain ZooKeeper client, which does not state its process.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn who_am_i_answers_with_the_user() {
    const WHO_AM_I: i32 = 107;
    let served = Served::start(ServerOptions::new()).await;
    let mut stream = UnixStream::connect(served.folder.path().join("s")).unwrap();
    let new = wire::Session::none(Duration::from_secs(10));
    ask(&mut stream, &new.handshake());
    let reply = ask(&mut stream, &request(1, WHO_AM_I, &Out::new()));
    let expected = Out::new().int(1).text("uid").text(&uid().to_string());
    assert_eq!(reply[16..], expected.0);
}

#[tokio::test]
async fn a_client_of_a_unix_socket_speaks_no_tls() {
    let served = Served::start(ServerOptions::new()).await;
    let options = ConnectOptions::new().tls(lockkeeper_store::ClientTls::new());
    let refused = session(&served.unix_url(), options).await;
    assert!(
        matches!(refused, Err(Error::BadArguments(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_socket_without_a_server_is_named_and_what_to_do() {
    let folder = TempFolder::new("unix");
    let socket = folder.path().join("s").display().to_string();
    let options = ConnectOptions::new().connect_timeout(Duration::from_millis(300));
    let refused = session(&format!("lockkeeper+unix://{socket}"), options).await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains(&socket), "{said}");
    assert!(
        said.contains(&format!("lockkeeper serve --listen unix:{socket}")),
        "{said}"
    );
}

#[tokio::test]
async fn a_chroot_is_an_option_of_the_url() {
    let served = Served::start(ServerOptions::new()).await;
    let url = format!("{}?chroot=/app/x", served.unix_url());
    let refused = session(&url, ConnectOptions::new()).await;
    assert!(
        matches!(refused, Err(Error::NoChroot { .. })),
        "{refused:?}"
    );
    let below = session(&url, ConnectOptions::new().create_chroot())
        .await
        .unwrap();
    make(&below, "/a").await;
    let root = session(&served.unix_url(), ConnectOptions::new())
        .await
        .unwrap();
    assert!(root.exists(&path("/app/x/a")).await.unwrap().is_some());
}
