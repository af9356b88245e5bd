//! The server that is killed and started again, always on the same port and over the same folder.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use testkit::{ChildProcess, TempFolder, ZooKeeperConfig, open_log, serve};

/// Sessions have timeouts of multiples of this, from twice to twenty times.
const TICK_MS: u64 = 500;

/// The server under test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// `lockkeeper serve`, with this durability.
    Lockkeeper(&'static str),
    /// ZooKeeper itself, as the reference.
    ZooKeeper,
}

/// Address and folder of the server, in all its lives.
pub(crate) struct Place {
    kind: Kind,
    zookeeper: ZooKeeperConfig,
    folder: TempFolder,
}

impl Place {
    pub(crate) fn new(kind: Kind) -> Self {
        let folder = TempFolder::new("kill");
        Self {
            kind,
            zookeeper: ZooKeeperConfig::new(folder.path()).set("tickTime", TICK_MS),
            folder,
        }
    }

    pub(crate) fn hosts(&self) -> String {
        self.address().to_string()
    }

    pub(crate) fn url(&self) -> String {
        match self.kind {
            Kind::Lockkeeper(_) => format!("lockkeeper://{}", self.address()),
            Kind::ZooKeeper => format!("zookeeper://{}", self.address()),
        }
    }

    fn address(&self) -> SocketAddr {
        self.zookeeper.address
    }

    /// Starts the server; it is not ready yet.
    pub(crate) fn start(&self) -> ChildProcess {
        let Kind::Lockkeeper(durability) = self.kind else {
            return self.zookeeper.start();
        };
        let mut command = serve(lockkeeper());
        command
            .args(["--listen", &self.hosts(), "--data"])
            .arg(self.folder.at("data"))
            .args(["--durability", durability])
            .args(["--tick", &format!("{TICK_MS}ms")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(open_log(&self.folder.at("log")));
        ChildProcess::spawn(&mut command)
    }

    /// Waits until the server listens.
    pub(crate) fn await_ready(&self, life: &mut ChildProcess) {
        let is_ready = match self.kind {
            Kind::Lockkeeper(_) => {
                let ready = format!("lockkeeper ready {}", self.address());
                life.lines().next() == Some(ready)
            }
            Kind::ZooKeeper => self.zookeeper.await_ready(life).is_ok(),
        };
        assert!(is_ready, "the server does not start: {}", self.log());
    }

    /// Returns the log of all lives of the server.
    pub(crate) fn log(&self) -> String {
        self.zookeeper.log()
    }
}

/// The command, as the build made it beside this test's binary.
fn lockkeeper() -> PathBuf {
    let target = std::env::current_exe().unwrap();
    let target = target.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let command = target.join("lockkeeper");
    assert!(
        command.exists(),
        "{} is missing: run `tests/run build`",
        command.display()
    );
    command
}
