//! The server that is killed and started again, always on the same port and over the same folder.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    ChildProcess, TempFolder, four_letter_word, port_of_a_server, until_stdin_ends,
};

/// Longer than any start takes on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

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

/// Port and folder of the server, in all its lives.
pub(crate) struct Place {
    kind: Kind,
    port: u16,
    folder: TempFolder,
}

impl Place {
    pub(crate) fn new(kind: Kind) -> Self {
        let place = Self {
            kind,
            port: port_of_a_server(),
            folder: TempFolder::new("kill"),
        };
        if kind == Kind::ZooKeeper {
            place.configure_zookeeper();
        }
        place
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
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Starts the server; it is not ready yet.
    pub(crate) fn start(&self) -> ChildProcess {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .unwrap();
        let mut command = match self.kind {
            Kind::Lockkeeper(durability) => {
                let mut command = until_stdin_ends(lockkeeper());
                command
                    .args(["serve", "--listen", &self.hosts()])
                    .arg("--data")
                    .arg(self.folder.path().join("data"))
                    .args(["--durability", durability])
                    .args(["--tick", &format!("{TICK_MS}ms")])
                    .stdout(Stdio::piped());
                command
            }
            Kind::ZooKeeper => {
                let mut command = zookeeper();
                command
                    .arg(self.folder.path().join("zoo.cfg"))
                    .stdout(log.try_clone().unwrap());
                command
            }
        };
        ChildProcess::spawn_until_stdin_ends(command.stderr(log))
    }

    /// Waits until the server listens.
    pub(crate) fn await_ready(&self, life: &mut ChildProcess) {
        let is_ready = match self.kind {
            Kind::Lockkeeper(_) => {
                let mut line = String::new();
                let output = life.stdout.take().expect("it was not read yet");
                let read = BufReader::new(output).read_line(&mut line);
                read.is_ok() && line.trim_end() == format!("lockkeeper ready {}", self.address())
            }
            Kind::ZooKeeper => self.is_answered_by(life),
        };
        assert!(is_ready, "the server does not start: {}", self.log());
    }

    /// ZooKeeper says nothing of itself when it is ready: it must be asked again and again.
    fn is_answered_by(&self, life: &mut ChildProcess) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let answer = four_letter_word(self.address(), "srvr").unwrap_or_default();
            if answer.starts_with("Zookeeper version") {
                return true;
            }
            if life.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// Returns the log of all lives of the server.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A sync of this one's disk costs time, and nothing that it would save is lost by a kill.
    fn configure_zookeeper(&self) {
        let folder = self.folder.path();
        let text = format!(
            "dataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\ntickTime={TICK_MS}\n\
             maxClientCnxns=0\n4lw.commands.whitelist=*\n",
            folder.join("data").display(),
            self.port
        );
        fs::write(folder.join("zoo.cfg"), text).unwrap();
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

fn zookeeper() -> Command {
    let jars = ["zookeeper.jar", "slf4j-simple.jar"].map(|jar| format!("/usr/share/java/{jar}"));
    for jar in &jars {
        assert!(
            Path::new(jar).exists(),
            "{jar} is missing: run tests/run, which installs what the tests need"
        );
    }
    let mut command = until_stdin_ends("java");
    command
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData"])
        .args(["-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"])
        .args([
            "-Dzookeeper.preAllocSize=64",
            "-Dzookeeper.admin.enableServer=false",
        ])
        .args(["-cp", &jars.join(":")])
        .arg("org.apache.zookeeper.server.ZooKeeperServerMain");
    command
}
