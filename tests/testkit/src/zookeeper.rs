//! A real ZooKeeper for tests: Debian's package `zookeeper`, run by java on a free loopback port.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{ChildProcess, with_death_signal};
use crate::{TempFolder, free_address};

/// Debian's jars, with the parts of Netty that `zookeeper.jar` does not list.
pub const JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar:\
    /usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar:\
    /usr/share/java/netty-transport-native-unix-common.jar";

/// A start takes one or two seconds, but much longer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Java options for a small server that does not sync. Tests lose no power, and a kill loses nothing that has reached
/// the system.
const SMALL: &[&str] = &[
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.extendedTypesEnabled=true",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=64",
];

/// Configuration of a server, which can be started repeatedly over the same folder.
pub struct ZooKeeperConfig {
    pub address: SocketAddr,
    folder: PathBuf,
    data: PathBuf,
    settings: Vec<String>,
    java: &'static [&'static str],
    properties: Vec<String>,
    class_path: String,
    number: Option<usize>,
}

impl ZooKeeperConfig {
    /// Returns the configuration of a server on a free port, with its log in the folder.
    pub fn new(folder: &Path) -> Self {
        let settings = [
            "tickTime=200",
            "maxSessionTimeout=60000",
            "maxClientCnxns=0",
        ];
        Self {
            address: free_address(),
            folder: folder.to_owned(),
            data: folder.join("data"),
            settings: settings.map(str::to_owned).to_vec(),
            java: SMALL,
            properties: Vec::new(),
            class_path: JARS.to_owned(),
            number: None,
        }
    }

    /// Adds a setting of `zoo.cfg`. The last one with a name counts.
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push(format!("{name}={}", value.to_string()));
        self
    }

    /// Replaces the java options of a small server.
    pub fn java(mut self, options: &'static [&'static str]) -> Self {
        self.java = options;
        self
    }

    /// Adds a java property, whose name starts with `zookeeper` or `znode`. The last one with a name counts.
    pub fn property(mut self, name: &str, value: impl ToString) -> Self {
        self.properties
            .push(format!("-D{name}={}", value.to_string()));
        self
    }

    pub fn data(mut self, folder: PathBuf) -> Self {
        self.data = folder;
        self
    }

    /// Sets the class path of another version.
    pub fn class_path(mut self, class_path: &str) -> Self {
        self.class_path = class_path.to_owned();
        self
    }

    /// Makes it a member of an ensemble, numbered by its place among the members. A member is
    /// `HOST:PORT:ELECTION_PORT`.
    pub fn member(mut self, place: usize, members: &[String]) -> Self {
        self.number = Some(place + 1);
        self.settings.push("initLimit=100\nsyncLimit=50".to_owned());
        for (place, member) in members.iter().enumerate() {
            self = self.set(&format!("server.{}", place + 1), member);
        }
        self
    }

    /// Also serves TLS, to clients with a certificate. `server` is a file with the server's key and certificate, and
    /// `authority` is a file with the certificate authority of its clients.
    fn secure(self, address: SocketAddr, server: &Path, authority: &Path) -> Self {
        const FACTORY: &str = "org.apache.zookeeper.server.NettyServerCnxnFactory";
        const PROVIDER: &str = "org.apache.zookeeper.server.auth.X509AuthenticationProvider";
        self.set("secureClientPort", address.port())
            .set("secureClientPortAddress", address.ip())
            .set("serverCnxnFactory", FACTORY)
            .set("authProvider.x509", PROVIDER)
            .set("ssl.keyStore.location", server.display())
            .set("ssl.keyStore.type", "PEM")
            .set("ssl.trustStore.location", authority.display())
            .set("ssl.trustStore.type", "PEM")
    }

    /// Starts the server, without waiting until it is ready.
    pub fn start(&self) -> ChildProcess {
        for jar in self.class_path.split(':') {
            assert!(
                Path::new(jar.trim_end_matches('*')).exists(),
                "{jar} is missing: run tests/run, which installs what the tests need"
            );
        }
        let file = self.folder.join("zoo.cfg");
        fs::create_dir_all(&self.data).expect("the folder can be written");
        if let Some(number) = self.number {
            fs::write(self.data.join("myid"), number.to_string()).expect("the same");
        }
        let settings = format!(
            "dataDir={}\nclientPort={}\nclientPortAddress={}\n4lw.commands.whitelist=*\n{}\n",
            self.data.display(),
            self.address.port(),
            self.address.ip(),
            self.settings.join("\n")
        );
        fs::write(&file, settings).expect("the same");
        let log = open_log(&self.folder.join("log"));
        let mut java = with_death_signal("java");
        java.args(self.java)
            .arg("-Dzookeeper.admin.enableServer=false")
            .args(&self.properties)
            .args(["-cp", &self.class_path])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file is cloned"))
            .stderr(log);
        ChildProcess::spawn(&mut java)
    }

    /// Waits until the server answers. The error is the log of a server that has ended or is not ready after two
    /// minutes.
    pub fn await_ready(&self, server: &mut ChildProcess) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let answer = four_letter_word(self.address, "srvr");
            if answer.is_ok_and(|answer| answer.starts_with("Zookeeper version")) {
                return Ok(());
            }
            let ended = server.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                return Err(self.log());
            }
            // The server does not announce that it is ready, so keep asking.
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the log of all runs of the server.
    pub fn log(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }
}

/// Opens a log for appending.
pub fn open_log(log: &Path) -> File {
    let log = File::options().create(true).append(true).open(log);
    log.expect("the folder can be written")
}

/// A running server. Dropping it ends it.
pub struct ZooKeeper {
    process: ChildProcess,
    config: ZooKeeperConfig,
    secure: Option<SocketAddr>,
    _folder: TempFolder,
}

impl ZooKeeper {
    /// A server for a single test.
    pub fn start() -> Self {
        Self::start_with(Duration::from_secs(60))
    }

    /// A server that also serves TLS, to clients with a certificate. `server` is a file with the server's key and
    /// certificate, and `authority` is a file with the certificate authority of its clients.
    pub fn start_secure(server: &Path, authority: &Path) -> Self {
        retried(|| {
            let secure = free_address();
            let mut started = Self::launch(|config| config.secure(secure, server, authority));
            started.secure = Some(secure);
            started.ready()
        })
    }

    /// A server that removes empty containers and expired TTL nodes once per `sweep`.
    pub fn start_with(sweep: Duration) -> Self {
        retried(|| {
            let sweep = sweep.as_millis();
            Self::launch(|config| config.property("znode.container.checkIntervalMs", sweep)).ready()
        })
    }

    /// The members of an ensemble of three, once all of them answer.
    pub fn start_ensemble() -> Vec<Self> {
        retried(|| {
            let member = |_| format!("{}:{}", free_address(), free_address().port());
            let members: [_; 3] = std::array::from_fn(member);
            let launch = |place| Self::launch(|config| config.member(place, &members));
            let servers: Vec<_> = (0..3).map(launch).collect();
            servers.into_iter().map(Self::ready).collect()
        })
    }

    fn launch(configure: impl FnOnce(ZooKeeperConfig) -> ZooKeeperConfig) -> Self {
        let folder = TempFolder::new("zookeeper");
        let config = configure(ZooKeeperConfig::new(folder.path()));
        Self {
            process: config.start(),
            config,
            secure: None,
            _folder: folder,
        }
    }

    fn ready(mut self) -> Result<Self, String> {
        self.config.await_ready(&mut self.process)?;
        Ok(self)
    }

    pub fn is_leader(&self) -> bool {
        self.admin("srvr").contains("Mode: leader")
    }

    /// Stops the process, like a long pause of its machine.
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Returns its address as `host:port`.
    pub fn hosts(&self) -> String {
        self.address().to_string()
    }

    /// Returns its address for TLS as `host:port`.
    pub fn secure_hosts(&self) -> String {
        self.secure_address().to_string()
    }

    pub fn address(&self) -> SocketAddr {
        self.config.address
    }

    pub fn secure_address(&self) -> SocketAddr {
        self.secure.expect("it serves TLS")
    }

    /// Returns the answer to a four-letter word (`srvr`, `cons`, `wchs`, …).
    pub fn admin(&self, word: &str) -> String {
        four_letter_word(self.address(), word).expect("the server answers its four-letter words")
    }
}

/// Starts servers, and retries if another process has taken a free port before java did.
fn retried<T>(mut start: impl FnMut() -> Result<T, String>) -> T {
    let mut started = start();
    for _ in 1..5 {
        if started.is_err() {
            started = start();
        }
    }
    started.unwrap_or_else(|log| panic!("ZooKeeper does not start: {log}"))
}

pub fn four_letter_word(address: SocketAddr, word: &str) -> std::io::Result<String> {
    // A server that is starting may neither answer nor hang up, and neither does a stopped one.
    exchange(address, word, Duration::from_secs(1))
}

/// Sends a text, and returns all that the server answers. Fails if the server pauses for longer than the limit.
pub(crate) fn exchange(
    address: SocketAddr,
    text: &str,
    limit: Duration,
) -> std::io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&address, limit)?;
    connection.set_read_timeout(Some(limit))?;
    connection.write_all(text.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}
