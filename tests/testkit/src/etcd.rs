//! A real etcd for tests: Debian's package `etcd-server`, on free loopback ports.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{ChildProcess, with_death_signal};
use crate::zookeeper::exchange;
use crate::{TempFolder, four_letter_word, free_address, open_log};

const PATIENCE: Duration = Duration::from_secs(120);

/// The configuration of a member of a cluster.
pub struct EtcdConfig {
    pub address: SocketAddr,
    folder: PathBuf,
    data: PathBuf,
    /// Address at which it listens to the other members.
    listen: SocketAddr,
    /// URL at which the other members reach it, and its name.
    peer: String,
    cluster: String,
    hosts: Option<PathBuf>,
    tls: Vec<(&'static str, PathBuf)>,
}

impl EtcdConfig {
    /// Returns the configuration of a member that serves clients at a free port, with its log in the folder. `cluster`
    /// has the URLs of all members, this one at `place`.
    pub fn new(folder: &Path, listen: SocketAddr, cluster: &[String], place: usize) -> Self {
        let members = cluster.iter().map(|peer| format!("{peer}={peer}"));
        Self {
            address: free_address(),
            folder: folder.to_owned(),
            data: folder.join("data"),
            listen,
            peer: cluster[place].clone(),
            cluster: members.collect::<Vec<_>>().join(","),
            hosts: None,
            tls: Vec::new(),
        }
    }

    pub fn data(mut self, folder: PathBuf) -> Self {
        self.data = folder;
        self
    }

    /// Sets the file that this member sees as `/etc/hosts`. The process needs the right to mount.
    pub fn hosts(mut self, file: PathBuf) -> Self {
        self.hosts = Some(file);
        self
    }

    pub fn log(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Starts the member, without waiting until it is ready.
    pub fn start(&self) -> ChildProcess {
        const ETCD: &str = "/usr/bin/etcd";
        assert!(
            Path::new(ETCD).exists(),
            "etcd is missing: run tests/run, which installs what the tests need"
        );
        let mut command = match &self.hosts {
            None => with_death_signal(ETCD),
            Some(hosts) => {
                let mut command = with_death_signal("unshare");
                let script = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
                command.args(["--mount", "sh", "-c", script]);
                command.arg(hosts).arg(ETCD);
                command
            }
        };
        let scheme = if self.tls.is_empty() { "http" } else { "https" };
        let clients = format!("{scheme}://{}", self.address);
        command.arg("--data-dir").arg(&self.data);
        command.args(["--name", &self.peer]);
        command.args(["--listen-client-urls", &clients]);
        command.args(["--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &format!("http://{}", self.listen)]);
        command.args(["--initial-advertise-peer-urls", &self.peer]);
        command.args(["--initial-cluster", &self.cluster]);
        for (option, file) in &self.tls {
            command.arg(option).arg(file);
        }
        if !self.tls.is_empty() {
            command.arg("--client-cert-auth");
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(open_log(&self.folder.join("log")));
        ChildProcess::spawn(&mut command)
    }

    /// Sends a request to the JSON gateway, with the token of a user or without one.
    ///
    /// # Errors
    /// The refusal, or that there is no answer in time.
    pub fn post(
        &self,
        method: &str,
        token: Option<&str>,
        body: &str,
        limit: Duration,
    ) -> Result<String, String> {
        let length = body.len();
        let token = token.map(|token| format!("Authorization: {token}\r\n"));
        let token = token.unwrap_or_default();
        let request =
            format!("POST /v3/{method} HTTP/1.0\r\n{token}Content-Length: {length}\r\n\r\n{body}");
        let answer = exchange(self.address, &request, limit);
        let answer = answer.map_err(|error| format!("{method}: {error}"))?;
        match answer.starts_with("HTTP/1.0 200 ") {
            true => Ok(answer),
            false => Err(format!("{method}: {answer}")),
        }
    }

    /// Returns whether it leads the cluster. `None` if it has no leader, or does not answer.
    pub fn is_leader(&self) -> Option<bool> {
        let metrics = four_letter_word(self.address, "GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let shows = |line: &str| metrics.contains(&format!("\netcd_server_{line}\n"));
        shows("has_leader 1").then(|| shows("is_leader 1"))
    }
}

/// A member of a cluster. Dropping it ends it.
pub struct Etcd {
    config: EtcdConfig,
    process: ChildProcess,
    _folder: TempFolder,
}

impl Etcd {
    /// Starts a cluster of one member, and waits until it answers.
    pub fn start() -> Self {
        let [member] = Self::start_members(&[]);
        member
    }

    /// Starts a member with this certificate that requires clients' certificates. The arguments are PEM files.
    pub fn start_secure(certificate: &Path, key: &Path, authority: &Path) -> Self {
        let [member] = Self::start_members(&[
            ("--cert-file", certificate),
            ("--key-file", key),
            ("--trusted-ca-file", authority),
        ]);
        member
    }

    /// Starts a cluster of three members, and waits until all of them answer.
    pub fn start_cluster() -> [Self; 3] {
        Self::start_members(&[])
    }

    fn start_members<const COUNT: usize>(tls: &[(&'static str, &Path)]) -> [Self; COUNT] {
        let peers = [(); COUNT].map(|()| free_address());
        let cluster = peers.map(|peer| format!("http://{peer}"));
        let members = std::array::from_fn(|place| {
            let folder = TempFolder::short();
            let mut config = EtcdConfig::new(folder.path(), peers[place], &cluster, place);
            let tls = tls
                .iter()
                .map(|(option, file)| (*option, (*file).to_owned()));
            config.tls.extend(tls);
            Self {
                process: config.start(),
                config,
                _folder: folder,
            }
        });
        let start = Instant::now();
        for member in &members {
            while TcpStream::connect(member.config.address).is_err() {
                assert!(start.elapsed() < PATIENCE, "etcd has not started");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        members
    }

    pub fn address(&self) -> SocketAddr {
        self.config.address
    }

    /// Sends a request to the JSON gateway, which must succeed.
    pub fn post(&self, method: &str, token: Option<&str>, body: &str) -> String {
        let answer = self.config.post(method, token, body, PATIENCE);
        answer.unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn is_leader(&self) -> bool {
        self.config.is_leader() == Some(true)
    }

    /// Stops the process, like a long pause of its machine.
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }
}
