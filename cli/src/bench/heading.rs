//! [`Heading`]: the machine, store and load of a run.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper::{Client, LockPath};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::{Bench, Workload};
use crate::exit::Failure;
use crate::locks::json::ms;
use crate::locks::names::escaped;
use crate::locks::table::duration;
use lockkeeper_cli::bench::times::{Times, rounded};

pub(super) struct Heading {
    cores: usize,
    system: String,
    load: Option<String>,
    threads: u32,
    url: String,
    server: Option<Server>,
    session_timeout: Option<Duration>,
    round_trip_us: f64,
    clients: u32,
    keys: u32,
    seconds: Duration,
    znode: String,
}

/// Version and mode of a server, from its answer to the four-letter word `srvr`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Server {
    version: String,
    mode: Option<String>,
}

impl Heading {
    pub(super) async fn new(
        bench: &Bench,
        keeper: &Client,
        server: Option<Server>,
        folder: &LockPath,
        round_trip: &Times,
    ) -> Result<Self, Failure> {
        let uname = rustix::system::uname();
        let system = [uname.sysname(), uname.release(), uname.machine()];
        let load = std::fs::read_to_string("/proc/loadavg").ok();
        let sessions = bench.workloads();
        let keys = match sessions.contains(&Workload::Keys) {
            true => bench.keys,
            false => 0,
        };
        Ok(Self {
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            system: system.map(|it| it.to_string_lossy()).join(" "),
            load: load.and_then(|text| text.split(' ').next().map(str::to_owned)),
            threads: bench.threads,
            url: keeper.target().to_owned(),
            server,
            session_timeout: keeper.session().await?.timeout(),
            round_trip_us: round_trip.p50_us(),
            clients: bench.clients,
            keys,
            seconds: bench.seconds,
            znode: folder.as_znode().to_string(),
        })
    }

    pub(super) fn object(&self) -> Value {
        let server = self.server.as_ref();
        json!({
            "event": "started",
            "version": env!("CARGO_PKG_VERSION"),
            "cores": self.cores,
            "system": self.system,
            "load": self.load.as_ref().and_then(|load| load.parse::<f64>().ok()),
            "threads": self.threads,
            "url": self.url,
            "server_version": server.map(|it| &it.version),
            "server_mode": server.and_then(|it| it.mode.as_ref()),
            "session_timeout_ms": self.session_timeout.map(ms),
            "round_trip_us": rounded(self.round_trip_us),
            "clients": self.clients,
            "keys": self.keys,
            "seconds": rounded(self.seconds.as_secs_f64()),
            "znode": self.znode,
        })
    }
}

impl fmt::Display for Heading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = self.load.as_ref();
        let load = load.map_or_else(String::new, |load| format!(", load {load}"));
        let server = self.server.as_ref().map_or_else(String::new, |server| {
            let mode = server.mode.as_ref();
            let mode = mode.map_or_else(String::new, |mode| format!(", {mode}"));
            format!(", {}{mode}", server.version)
        });
        let timeout = match self.session_timeout {
            Some(timeout) => format!("timeout {}", duration(timeout)),
            None => "no timeout".into(),
        };
        let round_trip = super::report::us(self.round_trip_us);
        writeln!(f, "lockkeeper {} bench", env!("CARGO_PKG_VERSION"))?;
        writeln!(
            f,
            "client   {} cores, {}{load}, {} threads",
            self.cores, self.system, self.threads
        )?;
        writeln!(f, "store    {}{}", escaped(&self.url), escaped(&server))?;
        writeln!(f, "session  {timeout}, round trip {round_trip}")?;
        let seconds = self.seconds.as_secs_f64();
        let locks = match self.keys {
            0 | 1 => "one lock".to_owned(),
            keys => format!("{keys} locks"),
        };
        writeln!(
            f,
            "run      {} sessions, {locks}, {seconds} s a workload, below {}, which is removed",
            self.clients,
            escaped(&self.znode)
        )
    }
}

const PATIENCE: Duration = Duration::from_secs(1);

const MAX_ANSWER_BYTES: u64 = 64 << 10;

impl Server {
    pub(super) async fn ask(url: &str) -> Option<Self> {
        for address in Address::all(url) {
            let answer = tokio::time::timeout(PATIENCE, address.ask()).await;
            if let Ok(Ok(text)) = answer
                && let Some(server) = Self::parse(&text)
            {
                return Some(server);
            }
        }
        None
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let version = field("Zookeeper version: ")?;
        // A commit and a date follow the version.
        let version = version.split(',').next()?.trim();
        let version = match version.split_once("-lockkeeper-") {
            Some((_, version)) => format!("Lockkeeper {version}"),
            None => format!("ZooKeeper {}", version.split('-').next()?),
        };
        let mode = field("Mode: ").map(|mode| mode.trim().to_owned());
        Some(Self { version, mode })
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl Address {
    /// Returns the addresses in a URL. Expects a URL as printed by a client, which includes every port.
    fn all(url: &str) -> Vec<Self> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Vec::new();
        };
        match scheme {
            "lockkeeper+unix" => {
                let path = rest.split('?').next().unwrap_or_default();
                vec![Self::Unix(path.into())]
            }
            // Servers with TLS are skipped, because we have no TLS client for four-letter words.
            "lockkeeper" | "zookeeper" => {
                let hosts = rest.split('/').next().unwrap_or_default();
                hosts
                    .split(',')
                    .map(|host| Self::Tcp(host.into()))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    async fn ask(&self) -> std::io::Result<String> {
        match self {
            Self::Tcp(host) => asked(TcpStream::connect(host).await?).await,
            Self::Unix(path) => asked(UnixStream::connect(path).await?).await,
        }
    }
}

async fn asked(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<String> {
    stream.write_all(b"srvr").await?;
    let mut text = String::new();
    stream
        .take(MAX_ANSWER_BYTES)
        .read_to_string(&mut text)
        .await?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_apart() {
        let theirs = "Zookeeper version: 3.8.0-1, built on 2022-02-25\nLatency min/avg/max: 0/0/0\nMode: follower\nNode count: 5\n";
        let theirs = Server::parse(theirs).unwrap();
        assert_eq!(theirs.version, "ZooKeeper 3.8.0");
        assert_eq!(theirs.mode.as_deref(), Some("follower"));
        let ours = "Zookeeper version: 3.9.3-lockkeeper-0.1.0, built on 2026\n";
        let ours = Server::parse(ours).unwrap();
        assert_eq!((&*ours.version, ours.mode), ("Lockkeeper 0.1.0", None));
        let refusal = "srvr is not executed because it is not in the whitelist.\n";
        assert_eq!(Server::parse(refusal), None);
    }

    #[test]
    fn addresses_are_those_of_the_url() {
        let tcp = |host: &str| Address::Tcp(host.into());
        let of = Address::all;
        assert_eq!(of("zookeeper://a:1,b:2/app"), [tcp("a:1"), tcp("b:2")]);
        assert_eq!(of("lockkeeper://[::1]:2181"), [tcp("[::1]:2181")]);
        let unix = Address::Unix("/run/a b.sock".into());
        assert_eq!(of("lockkeeper+unix:///run/a b.sock?chroot=/app"), [unix]);
        assert_eq!(of("zookeeper+tls://a:1"), []);
        assert_eq!(of("memory:"), []);
        assert_eq!(of("file:/data"), []);
    }
}
