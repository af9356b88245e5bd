//! Stores that the commands reach by a URL. The server is `lockkeeper serve` or a real ZooKeeper.

#![allow(
    dead_code,
    reason = "the parts of the support that these tests do not need"
)]

use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use lockkeeper::{Client, ConnectOptions};
use rustix::process::{Pid, Signal};
use testkit::{Etcd, ZooKeeper};

use super::server::{Server, serve};
use super::support::*;

/// A store, its URL, and a folder in which commands run.
pub(crate) struct StoreAt {
    pub(crate) url: String,
    pub(crate) folder: TempFolder,
    host: Host,
}

enum Host {
    Served(Server),
    /// A ZooKeeper that is used only by this test.
    ZooKeeper(ZooKeeper),
    /// A ZooKeeper or an etcd that the tests share.
    Shared,
    /// A server that this test has not started.
    Elsewhere,
    Dead,
}

impl StoreAt {
    /// A store that is used only by this test, served by `lockkeeper serve`.
    pub(crate) fn served() -> Self {
        Self::served_with(&[])
    }

    /// Like `served`, but without a practical limit on session timeouts.
    pub(crate) fn patient() -> Self {
        Self::served_with(&["--max-session-timeout", "1h"])
    }

    fn served_with(options: &[&str]) -> Self {
        let server = Server::start(serve().args(["--data", "memory"]).args(options));
        Self {
            url: format!("lockkeeper://{}", server.address()),
            folder: TempFolder::short(),
            host: Host::Served(server),
        }
    }

    /// A store on disk that is served at a Unix socket. It can be killed and started again.
    pub(crate) fn unix() -> Self {
        let folder = TempFolder::short();
        Self {
            url: format!("lockkeeper+unix://{}", folder.at("s").display()),
            host: Host::Served(Server::start(&mut served_at_socket(&folder))),
            folder,
        }
    }

    /// A chroot on the shared ZooKeeper. The chroot is used only by this test.
    pub(crate) fn zookeeper() -> Self {
        static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let hosts = SERVER.get_or_init(ZooKeeper::start).hosts();
        let folder = NEXT.fetch_add(1, Ordering::Relaxed);
        let store = Self {
            url: format!("zookeeper://{hosts}/test-{folder}"),
            folder: TempFolder::short(),
            host: Host::Shared,
        };
        let options = ConnectOptions::new().create_chroot();
        block_on(lockkeeper::connect_with(&store.url, options)).unwrap();
        store
    }

    /// A prefix in the shared etcd. The prefix is used only by this test.
    pub(crate) fn etcd() -> Self {
        static SERVER: OnceLock<Etcd> = OnceLock::new();
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let hosts = SERVER.get_or_init(Etcd::start).address();
        let folder = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            url: format!("etcd://{hosts}/test-{folder}"),
            folder: TempFolder::short(),
            host: Host::Shared,
        }
    }

    /// A real ZooKeeper that is used only by this test, and can be stopped and killed.
    pub(crate) fn mortal_zookeeper() -> Self {
        let server = ZooKeeper::start();
        Self {
            url: format!("zookeeper://{}", server.hosts()),
            folder: TempFolder::short(),
            host: Host::ZooKeeper(server),
        }
    }

    /// A store that this test does not serve, or that is not served at all.
    pub(crate) fn at(url: String) -> Self {
        Self {
            url,
            folder: TempFolder::short(),
            host: Host::Elsewhere,
        }
    }

    pub(crate) async fn connect(&self) -> Client {
        lockkeeper::connect(&self.url).await.unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(arguments).env("LOCKKEEPER_URL", &self.url);
        command.env_remove("LOCKKEEPER_LOG").stdin(Stdio::null());
        command.current_dir(self.folder.path());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn server(&self) -> Option<Pid> {
        match &self.host {
            Host::Served(server) => Some(server.pid()),
            _ => None,
        }
    }

    pub(crate) fn kill(&mut self) {
        match std::mem::replace(&mut self.host, Host::Dead) {
            Host::Served(server) => drop(server.end(Signal::KILL)),
            Host::ZooKeeper(server) => drop(server),
            Host::Shared | Host::Elsewhere | Host::Dead => panic!("it cannot be killed"),
        }
    }

    /// Starts the server of a store from [`unix`](Self::unix) again after it was killed.
    pub(crate) fn start_again(&mut self) {
        assert!(matches!(self.host, Host::Dead));
        self.host = Host::Served(Server::start(&mut served_at_socket(&self.folder)));
    }

    /// Stops the server (SIGSTOP), as if its machine paused for a long time.
    pub(crate) fn stop(&self) {
        match &self.host {
            Host::Served(server) => server.signal(Signal::STOP),
            Host::ZooKeeper(server) => server.stop(),
            Host::Shared | Host::Elsewhere | Host::Dead => panic!("it cannot be stopped"),
        }
    }

    pub(crate) fn resume(&self) {
        match &self.host {
            Host::Served(server) => server.signal(Signal::CONT),
            Host::ZooKeeper(server) => server.resume(),
            Host::Shared | Host::Elsewhere | Host::Dead => panic!("it was not stopped"),
        }
    }
}

impl StoreAt {
    /// Makes the store unreachable. Kills the server of a store from [`unix`](Self::unix), or stops a ZooKeeper.
    pub(crate) fn go_away(&mut self) {
        match self.host {
            Host::ZooKeeper(_) => self.stop(),
            _ => self.kill(),
        }
    }

    pub(crate) fn come_back(&mut self) {
        match self.host {
            Host::ZooKeeper(_) => self.resume(),
            _ => self.start_again(),
        }
    }
}

fn served_at_socket(folder: &TempFolder) -> Command {
    let mut command = serve();
    command.arg("--data").arg(folder.at("data"));
    command.args(["--listen", &format!("unix:{}", folder.at("s").display())]);
    command
}

/// Turns each `async fn name(store: StoreAt)` into the tests `name::served`, `name::zookeeper` and `name::etcd`.
macro_rules! on_each_store {
    ($($(#[$meta:meta])* async fn $name:ident($store:ident: StoreAt) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            use super::*;

            async fn test($store: StoreAt) $body

            #[test]
            fn served() {
                block_on(test(StoreAt::served()));
            }

            #[test]
            fn zookeeper() {
                block_on(test(StoreAt::zookeeper()));
            }

            #[test]
            fn etcd() {
                block_on(test(StoreAt::etcd()));
            }
        }
    )*};
}
pub(crate) use on_each_store;

/// Like `on_each_store`, without etcd.
macro_rules! on_each_znode_store {
    ($($(#[$meta:meta])* async fn $name:ident($store:ident: StoreAt) $body:block)*) => {
        $crate::stores::on_stores! {
            $($(#[$meta])* [served, zookeeper] fn $name($store: StoreAt) {
                block_on(async move { $body });
            })*
        }
    };
}
pub(crate) use on_each_znode_store;

/// Turns each `[STORE, …] fn name(store: StoreAt)` into one test for each of the listed stores.
macro_rules! on_stores {
    ($($(#[$meta:meta])* [$($at:ident),+] fn $name:ident($store:ident: StoreAt) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            use super::*;

            fn test($store: StoreAt) $body

            $(
                #[test]
                fn $at() {
                    test(StoreAt::$at());
                }
            )+
        }
    )*};
}
pub(crate) use on_stores;
