//! A real ZooKeeper for tests: Debian's package `zookeeper`, run by java on a free loopback port.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::port_of_a_server;

const JARS: [&str; 2] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
];

/// Starting takes a second or two; a machine that is busy may need much longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs java, and ends it with this process, however that dies.
const SCRIPT: &str = include_str!("../zookeeper.sh");

/// A running server. Dropping it ends it.
pub(crate) struct ZooKeeper {
    port: u16,
    secure_port: Option<u16>,
    folder: PathBuf,
    watcher: Child,
}

impl ZooKeeper {
    /// A server of a test's own.
    pub(crate) fn start() -> Self {
        Self::start_with(Duration::from_secs(60))
    }

    /// A server that also serves TLS, to clients with a certificate. `server` is a file with its key and its certificate,
    /// `authority` one with the authority of its clients.
    pub(crate) fn start_secure(server: &Path, authority: &Path) -> Self {
        let secured = || {
            let (port, secure) = (port_of_a_server(), port_of_a_server());
            let mut command = Self::script(port, Duration::from_secs(60));
            command.env("SECURE_PORT", secure.to_string());
            command.env("SERVER_PEM", server).env("CA_PEM", authority);
            let mut server = Self::spawn(&mut command, port)?;
            server.secure_port = Some(secure);
            server.wait_until_it_answers()?;
            Ok::<_, String>(server)
        };
        (0..5)
            .find_map(|_| secured().ok())
            .expect("ZooKeeper starts on some ports")
    }

    /// A server that looks for containers and TTL nodes to remove once in `sweep`.
    pub(crate) fn start_with(sweep: Duration) -> Self {
        for jar in JARS {
            assert!(
                Path::new(jar).exists(),
                "{jar} is missing: run tests/run, which installs what the tests need"
            );
        }
        // Another process may take the free port before java does; then the next one is tried.
        (0..5)
            .find_map(|_| Self::try_start(sweep).ok())
            .expect("ZooKeeper starts on some port")
    }

    /// The members of an ensemble of three, once all of them answer.
    pub(crate) fn start_ensemble() -> Vec<Self> {
        (0..5)
            .find_map(|_| Self::try_start_ensemble().ok())
            .expect("an ensemble starts on some ports")
    }

    fn try_start_ensemble() -> Result<Vec<Self>, String> {
        let port = port_of_a_server;
        let members: [_; 3] = std::array::from_fn(|_| format!("127.0.0.1:{}:{}", port(), port()));
        let started: Result<Vec<_>, _> = (1..=3)
            .map(|number: usize| {
                let number = number.to_string();
                let args = std::iter::once(number).chain(members.iter().cloned());
                Self::launch(port(), Duration::from_secs(60), args)
            })
            .collect();
        let mut servers = started?;
        for server in &mut servers {
            server.wait_until_it_answers()?;
        }
        Ok(servers)
    }

    fn try_start(sweep: Duration) -> Result<Self, String> {
        let mut server = Self::launch(port_of_a_server(), sweep, [])?;
        server.wait_until_it_answers()?;
        Ok(server)
    }

    fn launch(
        port: u16,
        sweep: Duration,
        member: impl IntoIterator<Item = String>,
    ) -> Result<Self, String> {
        let mut command = Self::script(port, sweep);
        Self::spawn(command.args(member), port)
    }

    fn folder(port: u16) -> PathBuf {
        let name = format!("zookeeper-{:x}-{port}", super::process_number());
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
    }

    fn script(port: u16, sweep: Duration) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "zookeeper"]);
        command.arg(port.to_string()).arg(Self::folder(port));
        command.arg(sweep.as_millis().to_string());
        command
    }

    fn spawn(command: &mut Command, port: u16) -> Result<Self, String> {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let watcher = command.spawn().map_err(|error| format!("sh: {error}"))?;
        Ok(Self {
            port,
            secure_port: None,
            folder: Self::folder(port),
            watcher,
        })
    }

    fn wait_until_it_answers(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            if self
                .try_admin("srvr")
                .is_ok_and(|answer| answer.starts_with("Zookeeper version"))
            {
                return Ok(());
            }
            let ended = self
                .watcher
                .try_wait()
                .map_err(|error| error.to_string())?
                .is_some();
            if ended || start.elapsed() > PATIENCE {
                return Err(fs::read_to_string(self.folder.join("log")).unwrap_or_default());
            }
            // The server says nothing of itself when it is ready: it must be asked again.
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns true if it leads its ensemble.
    pub(crate) fn is_leader(&self) -> bool {
        self.admin("srvr").contains("Mode: leader")
    }

    /// Stops the process, as a long pause of its machine would.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
    }

    /// Lets a stopped process go on.
    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = fs::read_to_string(self.folder.join("pid")).expect("the script has written it");
        let sent = Command::new("kill").args([signal, pid.trim()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Its address, as `host:port`.
    pub(crate) fn hosts(&self) -> String {
        self.address().to_string()
    }

    /// Its address for TLS, as `host:port`.
    pub(crate) fn secure_hosts(&self) -> String {
        let port = self.secure_port.expect("it serves TLS");
        format!("127.0.0.1:{port}")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the answer to a four-letter word (`srvr`, `cons`, `wchs`, …).
    pub(crate) fn admin(&self, word: &str) -> String {
        self.try_admin(word)
            .expect("the server answers its four-letter words")
    }

    fn try_admin(&self, word: &str) -> std::io::Result<String> {
        four_letter_word(self.address(), word)
    }
}

/// Asks a server by a four-letter word.
pub(crate) fn four_letter_word(address: SocketAddr, word: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address)?;
    // A server that is just starting may forget to answer, and to hang up.
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    connection.write_all(word.as_bytes())?;
    connection.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
