//! A real etcd for tests: Debian's package `etcd-server`, on free loopback ports.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{ChildProcess, with_death_signal};
use crate::{TempFolder, four_letter_word, free_address, open_log};

const PATIENCE: Duration = Duration::from_secs(120);

/// A member of a cluster. Dropping it ends it.
pub struct Etcd {
    address: SocketAddr,
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

    fn start_members<const COUNT: usize>(tls: &[(&str, &Path)]) -> [Self; COUNT] {
        assert!(
            Path::new("/usr/bin/etcd").exists(),
            "etcd is missing: run tests/run, which installs what the tests need"
        );
        let peers = [(); COUNT].map(|()| format!("http://{}", free_address()));
        let cluster: Vec<_> = peers.iter().map(|peer| format!("{peer}={peer}")).collect();
        let members = peers.map(|peer| Self::launch(&peer, &cluster.join(","), tls));
        let start = Instant::now();
        for member in &members {
            while TcpStream::connect(member.address).is_err() {
                assert!(start.elapsed() < PATIENCE, "etcd has not started");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        members
    }

    /// Starts a member that the others reach at the URL `peer`, which is also its name.
    fn launch(peer: &str, cluster: &str, tls: &[(&str, &Path)]) -> Self {
        let (folder, address) = (TempFolder::short(), free_address());
        let scheme = if tls.is_empty() { "http" } else { "https" };
        let clients = format!("{scheme}://{address}");
        let mut command = with_death_signal("/usr/bin/etcd");
        command.arg("--data-dir").arg(folder.at("data"));
        command.args(["--name", peer]);
        command.args(["--listen-client-urls", &clients]);
        command.args(["--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", peer]);
        command.args(["--initial-advertise-peer-urls", peer]);
        command.args(["--initial-cluster", cluster]);
        for (option, file) in tls {
            command.arg(option).arg(file);
        }
        if !tls.is_empty() {
            command.arg("--client-cert-auth");
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(open_log(&folder.at("log")));
        Self {
            address,
            process: ChildProcess::spawn(&mut command),
            _folder: folder,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn is_leader(&self) -> bool {
        let metrics = four_letter_word(self.address, "GET /metrics HTTP/1.0\r\n\r\n");
        metrics.is_ok_and(|metrics| metrics.contains("\netcd_server_is_leader 1\n"))
    }

    /// Stops the process, like a long pause of its machine.
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }
}
