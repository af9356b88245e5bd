//! The test environment: fresh stores of each kind, a real ZooKeeper, and a network connection that can be cut.

mod ask;
pub mod contender;
mod corpus;
mod etcd;
mod etcd_rules;
mod folder;
mod intercept;
pub mod keys;
mod lent;
pub mod linearizable;
mod logs;
mod mortal;
mod process;
mod proxy;
pub mod recipe;
pub mod resource;
mod served;
mod server_process;
mod unindexed;
pub mod wire;
mod zookeeper;

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_store::{
    Client, ConnectOptions, Connector, Session, Store, StoreOptions, connect_with,
};
use tokio::runtime::{Builder, Runtime};

pub use ask::{ask, up_to_date};
pub use corpus::{Fuzzer, mutated, run_mutations};
pub use etcd::{Etcd, EtcdConfig};
pub use etcd_rules::etcd_rules;
pub use folder::TempFolder;
pub use intercept::{Intercept, intercepted};
pub use lent::{connect_to, end_session, lendable};
pub use lockkeeper_store::testing::Random;
pub use logs::{Line, Log};
pub use mortal::Mortal;
pub use process::{ChildProcess, Lines, again, again_at, alone, with_death_signal};
pub use proxy::{Counts, Direction, Fault, Frame, Hurt, Proxy};
pub use served::Served;
pub use server_process::{Ended, ServerProcess, last_lines, serve};
pub use unindexed::unindexed;
pub use zookeeper::{JARS, ZooKeeper, ZooKeeperConfig, four_letter_word, open_log};

/// Interval at which servers remove containers and expired TTL znodes.
pub const SWEEP: Duration = Duration::from_millis(200);

/// Returns the folder in the build directory for what tests write.
pub fn target_tmp() -> PathBuf {
    let program = std::env::current_exe().expect("the system knows the program");
    let mut folders = program.ancestors();
    // Cargo writes the tag only into a folder that it has created.
    let marks = ["CACHEDIR.TAG", ".rustc_info.json"];
    let target = folders.find(|folder| marks.iter().any(|mark| folder.join(mark).exists()));
    target.expect("cargo has built it").join("tmp")
}

/// The server that the tests of this binary share. It often removes containers and TTL nodes.
pub fn zookeeper() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| ZooKeeper::start_with(SWEEP))
}

/// The etcd that the tests of this binary share.
pub fn etcd() -> &'static Etcd {
    static SERVER: OnceLock<Etcd> = OnceLock::new();
    SERVER.get_or_init(Etcd::start)
}

/// Returns a ZooKeeper that removes nothing on its own, so that its answers depend only on its requests.
pub fn differential_server() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| ZooKeeper::start_with(Duration::from_secs(24 * 60 * 60)))
}

/// Like `differential_server`, for our server.
pub fn differential_served() -> &'static Served {
    static SERVER: OnceLock<Served> = OnceLock::new();
    SERVER.get_or_init(|| Served::start(Duration::from_secs(24 * 60 * 60)))
}

/// Returns the runtime of servers and proxies, because a test may block its own.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build();
        runtime.expect("a runtime can be made")
    })
}

/// Returns a name that is unique in this process.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns a number that identifies this process. The pid would not do, because containers on one machine share pids.
pub fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| RandomState::new().hash_one(()))
}

/// Returns a free address for a server that is started later or repeatedly. This process never returns it twice, and
/// concurrent test processes draw from different blocks of ports, because a second may pass before the server binds
/// it. The ports are below the system's ephemeral range. Otherwise a client that reconnects to a stopped server could
/// be given that same port, and connect to itself.
pub fn free_address() -> SocketAddr {
    const BLOCK: u64 = 64;
    const BLOCKS: u64 = 190;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + (process_number() % BLOCKS * BLOCK) as u16;
    std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed))
        .map(|port| (Ipv4Addr::LOCALHOST, port).into())
        .find(|address| TcpListener::bind(address).is_ok())
        .expect("loopback has a free port")
}

/// Returns `count`, or ten times that with `tests/run --full`.
pub fn scaled(count: u64) -> u64 {
    let full = std::env::var_os("LOCKKEEPER_FULL").is_some_and(|full| full == "1");
    if full { count * 10 } else { count }
}

/// Rounds of a repeated test: `scaled(count)` or as many as fit into its share of time, but at least one.
pub fn rounds(count: u64) -> impl Iterator<Item = u64> {
    let seconds = std::env::var("LOCKKEEPER_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    let share = Duration::from_secs(seconds.unwrap_or(u64::MAX));
    let start = Instant::now();
    (0..scaled(count)).take_while(move |round| *round == 0 || start.elapsed() < share)
}

/// Prints how much such a test has done. Writes to stderr directly, because the harness shows captured output only if
/// the test fails.
pub fn report(done: std::fmt::Arguments<'_>) {
    // Ignore an error, because the reader may be gone.
    let _ = writeln!(std::io::stderr(), "{done}");
}

/// A fresh store for one test, to which it can open clients.
pub struct Env {
    first: Client,
    embedded: Option<Store>,
    served: Option<Served>,
    /// Folder of the store, if any. Removed at the end.
    _folder: Option<TempFolder>,
}

impl Env {
    /// A fresh embedded store in memory.
    pub async fn memory() -> Self {
        let store = Store::memory();
        let first = store.connect().await.expect("memory is always there");
        Self {
            first,
            embedded: Some(store),
            served: None,
            _folder: None,
        }
    }

    /// A fresh embedded store in a folder. Its first segment just fits the largest request.
    pub async fn file() -> Self {
        let folder = TempFolder::new("env");
        let options = StoreOptions::new().segment_bytes(5 << 20, 5 << 20);
        let store = Store::file_with(folder.path(), options).expect("the folder is fresh");
        let first = store.connect().await.expect("the store is open");
        Self {
            first,
            embedded: Some(store),
            served: None,
            _folder: Some(folder),
        }
    }

    /// A fresh store in a folder, reached through its server. Swept as often as the shared ZooKeeper.
    pub async fn served() -> Self {
        let served = Served::start(SWEEP);
        let url = format!("lockkeeper://{}/{}", served.hosts(), unique("env"));
        Self::reached(&url).await.serving(served)
    }

    /// A fresh store in a folder, reached through its server by a lent client of the crate zookeeper-client.
    pub async fn foreign() -> Self {
        let served = Served::start(SWEEP);
        Self::lent_at(served.hosts()).await.serving(served)
    }

    /// Like `served`, over a Unix socket.
    pub async fn unix() -> Self {
        let served = Served::start(SWEEP);
        let (socket, chroot) = (served.socket().display(), unique("env"));
        let url = format!("lockkeeper+unix://{socket}?chroot=/{chroot}");
        Self::reached(&url).await.serving(served)
    }

    /// A fresh chroot on the shared ZooKeeper.
    pub async fn zookeeper() -> Self {
        let url = format!("zookeeper://{}/{}", zookeeper().hosts(), unique("env"));
        Self::reached(&url).await
    }

    /// A fresh prefix on the shared etcd.
    pub async fn etcd() -> Self {
        let url = format!("etcd://{}/{}", etcd().address(), unique("env"));
        Self::reached(&url).await
    }

    /// A fresh chroot on the shared ZooKeeper, reached by lent clients of the crate zookeeper-client.
    pub async fn lent() -> Self {
        Self::lent_at(zookeeper().hosts()).await
    }

    async fn lent_at(hosts: String) -> Self {
        let url = format!("lent://{hosts}/{}", unique("env"));
        let options = ConnectOptions::new().create_chroot();
        let options = options.connect_timeout(Duration::from_secs(60));
        let first = connect_to(&url, options).await;
        Self {
            first: first.expect("the server answers"),
            embedded: None,
            served: None,
            _folder: None,
        }
    }

    async fn reached(url: &str) -> Self {
        // A busy machine may delay a server for longer than the default.
        let options = ConnectOptions::new().create_chroot();
        let options = options.connect_timeout(Duration::from_secs(60));
        let first = connect_with(url, options).await;
        Self {
            first: first.expect("the server answers"),
            embedded: None,
            served: None,
            _folder: None,
        }
    }

    /// Keeps the server for as long as its store is used.
    fn serving(self, served: Served) -> Self {
        let served = Some(served);
        Self { served, ..self }
    }

    /// Another fresh store of the same kind, or in memory if this one is embedded.
    pub async fn another(&self) -> Self {
        match self.target().split(':').next() {
            Some("lockkeeper") => Self::served().await,
            Some("lockkeeper+unix") => Self::unix().await,
            Some("zookeeper") => Self::zookeeper().await,
            Some("lent") => Self::lent().await,
            Some("etcd") => Self::etcd().await,
            _ => Self::memory().await,
        }
    }

    /// Returns `true` if the store is in this process.
    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    pub fn served_address(&self) -> std::net::SocketAddr {
        self.served.as_ref().expect("it is served").address()
    }

    /// Returns `true` for a real ZooKeeper, and for our server behind a ZooKeeper client.
    pub fn is_zookeeper(&self) -> bool {
        let scheme = self.target().split(':').next();
        matches!(scheme, Some("zookeeper" | "lent"))
    }

    pub fn is_etcd(&self) -> bool {
        self.target().starts_with("etcd:")
    }

    /// Returns `true` if the sessions are lent by the crate zookeeper-client.
    pub fn is_lent(&self) -> bool {
        self.target().starts_with("lent:")
    }

    /// Returns `true` if the store itself finds an entry's predecessor and passes a lock on by an event.
    pub fn has_index(&self) -> bool {
        !self.is_zookeeper()
    }

    /// Returns the store if it is embedded.
    pub fn store(&self) -> Option<&Store> {
        self.embedded.as_ref()
    }

    /// Returns the connector, for wrappers.
    pub fn connector(&self) -> &std::sync::Arc<dyn Connector> {
        self.first.connector()
    }

    pub fn target(&self) -> &str {
        self.first.target()
    }

    pub async fn client(&self) -> Client {
        self.client_with(ConnectOptions::new()).await
    }

    pub async fn client_with(&self, options: ConnectOptions) -> Client {
        let client =
            Client::open(self.connector().clone(), self.target().to_owned(), options).await;
        client.expect("the test's store answers")
    }

    pub async fn session(&self) -> Session {
        self.client()
            .await
            .session()
            .await
            .expect("the session was opened just now")
    }

    pub async fn session_with(&self, options: ConnectOptions) -> Session {
        let client = self.client_with(options).await;
        client
            .session()
            .await
            .expect("the session was opened just now")
    }

    /// Ends a client's session as its store would after the timeout.
    pub async fn expire(&self, client: &Client) {
        let session = client.current_session();
        let expired = self.connector().expire(session.backend()).await;
        expired.expect("the session can be ended");
    }
}

/// Runs a test, and fails if it hangs.
pub async fn within_reason<T>(test: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(300);
    tokio::time::timeout(limit, test)
        .await
        .unwrap_or_else(|_| panic!("the test hung for {limit:?}"))
}

/// Turns each `async fn name(env: Env)` into the tests `name::memory`, `name::file`, `name::served`, `name::unix`,
/// `name::zookeeper`, `name::lent` and `name::etcd`.
#[macro_export]
macro_rules! on_every_backend {
    ($($(#[$meta:meta])* async fn $name:ident($env:ident: Env) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            use super::*;

            async fn test($env: $crate::Env) $body

            $crate::on_backends_without_users! {}
            $crate::on_backends! { unix etcd }
        }
    )*};
}

/// Like `on_every_backend`, without `etcd`: for tests about znodes that no recipe creates, about znodes as ZooKeeper
/// numbers them, and about the number of requests.
#[macro_export]
macro_rules! on_every_znode_store {
    ($($(#[$meta:meta])* async fn $name:ident($env:ident: Env) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            use super::*;

            async fn test($env: $crate::Env) $body

            $crate::on_backends_without_users! {}
            $crate::on_backends! { unix }
        }
    )*};
}

/// Like `on_every_backend`, without `unix`, where all clients of this process share their user's identity.
#[macro_export]
macro_rules! on_every_backend_without_users {
    ($($(#[$meta:meta])* async fn $name:ident($env:ident: Env) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            use super::*;

            async fn test($env: $crate::Env) $body

            $crate::on_backends_without_users! {}
        }
    )*};
}

#[macro_export]
macro_rules! on_backends_without_users {
    () => {
        $crate::on_backends! { memory file served zookeeper lent }
    };
}

/// Turns the function `test` into a test on each of these backends.
#[macro_export]
macro_rules! on_backends {
    ($($backend:ident)*) => {$(
        #[tokio::test]
        async fn $backend() {
            let env = $crate::Env::$backend().await;
            $crate::within_reason(test(env)).await;
        }
    )*};
}
