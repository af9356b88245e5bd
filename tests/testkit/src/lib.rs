//! Environment of all tests: a fresh store of each kind, a real ZooKeeper, a wire that can be cut.

mod ask;
pub mod contender;
mod corpus;
mod folder;
pub mod gate;
mod intercept;
pub mod keys;
mod lent;
pub mod linearizable;
mod logs;
mod mortal;
mod process;
mod proxy;
pub mod recipe;
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

/// Interval at which servers look for containers and TTL znodes to remove.
pub const SWEEP: Duration = Duration::from_millis(200);

/// Returns the folder for what tests write, among the build's.
pub fn target_tmp() -> PathBuf {
    let program = std::env::current_exe().expect("the system knows the program");
    let mut folders = program.ancestors();
    // Cargo writes the tag only into a folder that it makes itself.
    let marks = ["CACHEDIR.TAG", ".rustc_info.json"];
    let target = folders.find(|folder| marks.iter().any(|mark| folder.join(mark).exists()));
    target.expect("cargo has built it").join("tmp")
}

/// The server that the tests of this binary share. Containers and TTL nodes are swept often.
pub fn zookeeper() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| ZooKeeper::start_with(SWEEP))
}

/// Returns a server that sweeps nothing by itself, so that its answers depend on its requests alone.
pub fn differential_server() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| ZooKeeper::start_with(Duration::from_secs(24 * 60 * 60)))
}

/// The same of ours.
pub fn differential_served() -> &'static Served {
    static SERVER: OnceLock<Served> = OnceLock::new();
    SERVER.get_or_init(|| Served::start(Duration::from_secs(24 * 60 * 60)))
}

/// Returns the runtime of servers and proxies: not that of a test, which may block its own.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build();
        runtime.expect("a runtime can be made")
    })
}

/// A name that no other test of this process has.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns a number of this process's own. Not its pid: in containers on one machine many processes have the same.
pub fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| RandomState::new().hash_one(()))
}

/// Returns a free address for a server that is started later, or more than once. No test of this process is given it
/// twice, and test processes that run at the same time draw from different blocks of ports: between this look and the
/// server's own bind a second may pass. The ports lie below those that the system gives to clients by itself: a
/// client that tries to reconnect to a server that is down could be given that very port, and then be connected with
/// itself.
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

/// `count`, or ten times that with `tests/run --full`.
pub fn scaled(count: u64) -> u64 {
    let full = std::env::var_os("LOCKKEEPER_FULL").is_some_and(|full| full == "1");
    if full { count * 10 } else { count }
}

/// Rounds of a test that repeats itself: `scaled(count)` times, but no longer than its
/// share of time; at least once in any case.
pub fn rounds(count: u64) -> impl Iterator<Item = u64> {
    let seconds = std::env::var("LOCKKEEPER_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    let share = Duration::from_secs(seconds.unwrap_or(u64::MAX));
    let start = Instant::now();
    (0..scaled(count)).take_while(move |round| *round == 0 || start.elapsed() < share)
}

/// Says how much such a test has done. Straight to the descriptor: a test's own output is shown
/// only when it fails.
pub fn report(done: std::fmt::Arguments<'_>) {
    // The reader may have gone.
    let _ = writeln!(std::io::stderr(), "{done}");
}

/// A fresh store for one test, to which it can open clients.
pub struct Env {
    first: Client,
    embedded: Option<Store>,
    served: Option<Served>,
    /// Folder of the store, if it is in one; removed at the end.
    _folder: Option<TempFolder>,
}

impl Env {
    /// A fresh store of this process.
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

    /// A fresh store in a folder. Its first segment is just large enough for the largest request.
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

    /// The same over a Unix socket.
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

    /// A fresh chroot at a server.
    async fn reached(url: &str) -> Self {
        // A busy machine may keep a server from its work for longer than the default.
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

    /// Another fresh store, reached in the same way; in memory where this one is of this process.
    pub async fn another(&self) -> Self {
        match self.target().split(':').next() {
            Some("lockkeeper") => Self::served().await,
            Some("lockkeeper+unix") => Self::unix().await,
            Some("zookeeper") => Self::zookeeper().await,
            Some("lent") => Self::lent().await,
            _ => Self::memory().await,
        }
    }

    /// Returns true if sessions are in the store's own process.
    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// The address of the test's own server.
    pub fn served_address(&self) -> std::net::SocketAddr {
        self.served.as_ref().expect("it is served").address()
    }

    /// Returns true if the store is a real ZooKeeper, or reached by a client of ZooKeeper's.
    pub fn is_zookeeper(&self) -> bool {
        let scheme = self.target().split(':').next();
        matches!(scheme, Some("zookeeper" | "lent"))
    }

    /// Returns true if sessions are those of lent clients of the crate zookeeper-client.
    pub fn is_lent(&self) -> bool {
        self.target().starts_with("lent:")
    }

    /// Returns true if the store finds an entry's predecessor itself, and passes a lock on by an event.
    pub fn has_index(&self) -> bool {
        !self.is_zookeeper()
    }

    /// The store, where it is one of this process.
    pub fn store(&self) -> Option<&Store> {
        self.embedded.as_ref()
    }

    /// Returns the connector that opens sessions here; for wrappers.
    pub fn connector(&self) -> &std::sync::Arc<dyn Connector> {
        self.first.connector()
    }

    /// The URL of the store.
    pub fn target(&self) -> &str {
        self.first.target()
    }

    /// Opens another client, with a new session.
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

    /// Ends a client's session as its store would when the timeout has passed.
    pub async fn expire(&self, client: &Client) {
        let session = client.current_session();
        let expired = self.connector().expire(session.backend()).await;
        expired.expect("the session can be ended");
    }
}

/// Runs a test, and fails one that hangs.
pub async fn within_reason<T>(test: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(300);
    tokio::time::timeout(limit, test)
        .await
        .unwrap_or_else(|_| panic!("the test hung for {limit:?}"))
}

/// Makes of each `async fn name(env: Env)` the tests `name::memory`, `name::file`, `name::served`, `name::unix`,
/// `name::zookeeper` and `name::lent`.
#[macro_export]
macro_rules! on_every_backend {
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

/// The same without `unix`: there all clients of this process have one identity in common, their user's.
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

/// Makes of the function `test` a test on these backends.
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
