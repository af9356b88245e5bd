//! A store in this process that tests reach over TCP or a Unix socket, as other processes would.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_store::{Server, ServerOptions, Store, StoreOptions};

use crate::TempFolder;

/// A fresh store in a folder, and its server. The fields are dropped in this order.
pub struct Served {
    server: Server,
    store: Store,
    _folder: TempFolder,
}

impl Served {
    /// Starts a server with the tick and the maximum session timeout of the tests' ZooKeeper (`ZooKeeperConfig`). It
    /// removes containers and expired znodes once per `sweep`. Its first segment just fits the largest request.
    pub fn start(sweep: Duration) -> Self {
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
        let (store, (sender, bound)) = (store.clone(), std::sync::mpsc::channel());
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let options = ServerOptions::new().listen(listen).unix_listen(socket);
        let options = options.four_letter_words("*");
        let options = options.expect("these are all words");
        crate::runtime().spawn(async move { sender.send(Server::bind(&store, options).await) });
        let bound = bound.recv().expect("it was tried");
        bound.expect("loopback has a free port")
    }

    pub fn address(&self) -> SocketAddr {
        self.server.local_addr().expect("it listens")
    }

    pub fn socket(&self) -> &Path {
        self.server.unix_path().expect("it was asked for one")
    }

    /// Returns its address as `host:port`.
    pub fn hosts(&self) -> String {
        self.address().to_string()
    }

    pub fn store(&self) -> &Store {
        &self.store
    }
}
