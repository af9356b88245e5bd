//! A real etcd for tests: Debian's package `etcd-server`, on free loopback ports.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::process::{ChildProcess, with_death_signal};
use crate::{TempFolder, free_address};

const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster of one member.
pub struct Etcd {
    address: SocketAddr,
    _process: ChildProcess,
    _folder: TempFolder,
}

impl Etcd {
    /// Starts a member, and waits until it answers.
    pub fn start() -> Self {
        Self::start_with("http", &[])
    }

    /// Starts a member with this certificate that requires clients' certificates. The arguments are PEM files.
    pub fn start_secure(certificate: &Path, key: &Path, authority: &Path) -> Self {
        let tls = [
            ("--cert-file", certificate),
            ("--key-file", key),
            ("--trusted-ca-file", authority),
        ];
        Self::start_with("https", &tls)
    }

    fn start_with(scheme: &str, tls: &[(&str, &Path)]) -> Self {
        assert!(
            Path::new("/usr/bin/etcd").exists(),
            "etcd is missing: run tests/run, which installs what the tests need"
        );
        let (folder, address) = (TempFolder::short(), free_address());
        let (clients, members) = (
            format!("{scheme}://{address}"),
            format!("http://{}", free_address()),
        );
        let mut command = with_death_signal("/usr/bin/etcd");
        command.arg("--data-dir").arg(folder.at("data"));
        command.args(["--listen-client-urls", &clients]);
        command.args(["--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &members]);
        command.args(["--initial-advertise-peer-urls", &members]);
        command.args(["--initial-cluster", &format!("default={members}")]);
        for (option, file) in tls {
            command.arg(option).arg(file);
        }
        if !tls.is_empty() {
            command.arg("--client-cert-auth");
        }
        let log = std::fs::File::create(folder.at("log")).expect("the folder can be written");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = ChildProcess::spawn(&mut command);
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < PATIENCE, "etcd has not started");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self {
            address,
            _process: process,
            _folder: folder,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
