//! A store of this process that tests reach over TCP or a Unix socket, as other processes would.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_store::{Server, ServerOptions, Store, StoreOptions};
use tokio::runtime::{Builder, Runtime};

use super::TempFolder;

/// A fresh store in a folder, and its server. The fields are dropped in this order.
pub(crate) struct Served {
    server: Server,
    store: Store,
    _folder: TempFolder,
}

/// Returns the servers' runtime: not their clients', which a test may hold up.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build();
        runtime.expect("a runtime can be made")
    })
}

impl Served {
    /// With the real server's tick and longest timeout (`zookeeper.sh`), and swept as often as it is told.
    /// The first segment is just large enough for the largest request.
    pub(crate) fn start(sweep: Duration) -> Self {
        let tick = Duration::from_millis(200);
        let folder = TempFolder::new("served");
        let options = StoreOptions::new()
            .tick(tick)
            .session_timeouts(2 * tick, Duration::from_secs(60))
            .reaper_interval(sweep)
            .segment_bytes(5 << 20, 5 << 20);
        let store = Store::file_with(folder.path(), options).expect("the folder is fresh");
        let server = Self::serve(&store, folder.path().join("socket"));
        Self {
            server,
            store,
            _folder: folder,
        }
    }

    fn serve(store: &Store, socket: PathBuf) -> Server {
        let (store, (tell, told)) = (store.clone(), std::sync::mpsc::channel());
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let options = ServerOptions::new().listen(listen).unix_listen(socket);
        let options = options.four_letter_words("*");
        let options = options.expect("these are all words");
        runtime().spawn(async move { tell.send(Server::bind(&store, options).await) });
        let bound = told.recv().expect("it was tried");
        bound.expect("loopback has a free port")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.local_addr().expect("it listens")
    }

    /// The path of its Unix socket.
    pub(crate) fn socket(&self) -> &Path {
        self.server.unix_path().expect("it was asked for one")
    }

    /// Its address, as `host:port`.
    pub(crate) fn hosts(&self) -> String {
        self.address().to_string()
    }

    /// The store that it serves.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }
}
