//! Stores that the commands reach by a URL: one served by the command itself, and a real ZooKeeper.

#![allow(
    dead_code,
    reason = "the parts of the support that these tests do not need"
)]

#[path = "../../../tests/support/server.rs"]
mod zookeeper;

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use lockkeeper::{Client, ConnectOptions};

use super::server::{Server, serve};
use zookeeper::ZooKeeper;

/// A store, and its URL.
pub(crate) struct StoreAt {
    pub(crate) url: String,
    _server: Option<Server>,
}

impl StoreAt {
    /// A store of this test, served by the command.
    pub(crate) fn served() -> Self {
        let server = Server::start(serve().args(["--data", "memory"]));
        Self {
            url: format!("lockkeeper://{}", server.address()),
            _server: Some(server),
        }
    }

    /// A folder of this test on a real ZooKeeper, which the tests share.
    pub(crate) fn zookeeper() -> Self {
        static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let hosts = SERVER.get_or_init(ZooKeeper::start).hosts();
        let folder = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            url: format!("zookeeper://{hosts}/test-{folder}"),
            _server: None,
        }
    }

    /// A store at a URL.
    pub(crate) fn at(url: String) -> Self {
        Self { url, _server: None }
    }

    /// Connects. The first to do so creates the folder.
    pub(crate) async fn connect(&self) -> Client {
        let options = ConnectOptions::new().create_chroot();
        lockkeeper::connect_with(&self.url, options).await.unwrap()
    }

    /// The command with these arguments, at this store.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(arguments).env("LOCKKEEPER_URL", &self.url);
        command.env_remove("LOCKKEEPER_LOG").stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

/// Returns a free port. Test processes that run at the same time draw from different blocks.
fn port_of_a_server() -> u16 {
    const BLOCK: u32 = 16;
    const BLOCKS: u32 = 190;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 26_000 + (std::process::id() % BLOCKS * BLOCK) as u16;
    std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .unwrap()
}

/// Makes of each `async fn name(store: StoreAt)` the tests `name::served` and `name::zookeeper`.
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
        }
    )*};
}
pub(crate) use on_each_store;
