//! The real `lockkeeper serve` in a separate process.

use std::fs;
use std::net::SocketAddr;

use rustix::process::{Pid, Signal, kill_process};
use testkit::{ServerProcess, serve};

/// Environment variable that names another server to attack instead of ours, for example a ZooKeeper. The value has the
/// form `ADDRESS/PID`.
pub(crate) const OTHER: &str = "LOCKKEEPER_HOSTILE_TO";

pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pid: Pid,
    /// The process of our server. `None` if another server is attacked.
    process: Option<ServerProcess>,
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) now: u64,
    pub(crate) peak: u64,
}

impl Served {
    pub(crate) fn start(options: &[&str]) -> Self {
        if let Ok(other) = std::env::var(OTHER) {
            let (address, pid) = other.split_once('/').expect("ADDRESS/PID");
            return Self {
                address: address.parse().expect("an address"),
                pid: Pid::from_raw(pid.parse().expect("a pid")).expect("a pid"),
                process: None,
            };
        }
        let mut command = serve(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(["--listen", "127.0.0.1:0", "--data", "memory"]);
        let process = ServerProcess::start(command.args(options));
        Self {
            address: process.address().parse().unwrap(),
            pid: process.pid(),
            process: Some(process),
        }
    }

    /// Returns `true` if the attacked server is from this repository. Some expectations do not apply to other servers.
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_some()
    }

    pub(crate) fn memory(&self) -> Memory {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            kib.unwrap().trim().parse::<u64>().unwrap() * 1024
        };
        Memory {
            now: field("VmRSS:"),
            peak: field("VmHWM:"),
        }
    }

    /// Sends a signal to the server. After SIGSTOP, waits until the server is stopped.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
        let is_stopped = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        while signal == Signal::STOP && !is_stopped() {
            std::thread::yield_now();
        }
    }

    /// Stops the server, checks that its log contains no panic, and returns the log.
    pub(crate) fn stop(self) -> Vec<String> {
        let Some(process) = self.process else {
            return Vec::new();
        };
        let ended = process.end(Signal::TERM);
        assert!(ended.status.success(), "{ended:?}");
        assert!(!ended.log.contains("panicked"), "{ended:?}");
        ended.log.lines().map(str::to_owned).collect()
    }
}
