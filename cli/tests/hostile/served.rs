//! The real command `lockkeeper serve`, in a separate process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

/// Names another server, as `ADDRESS/PID`, to run the attacks against it: a ZooKeeper, for example.
pub(crate) const OTHER: &str = "LOCKKEEPER_HOSTILE_TO";

/// A server.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pid: u32,
    /// `None` where the server is another.
    child: Option<Child>,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

/// A process's memory, in bytes.
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
                pid: pid.parse().expect("a pid"),
                child: None,
                log: Arc::default(),
                reader: None,
            };
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data", "memory"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let log = Arc::<Mutex<Vec<String>>>::default();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let to = log.clone();
        let reader = std::thread::spawn(move || {
            for line in lines {
                to.lock().unwrap().push(line.unwrap());
            }
        });
        let mut ready = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut ready).unwrap();
        let address = ready.trim_end().strip_prefix("lockkeeper ready ");
        let address = address.unwrap_or_else(|| panic!("{ready:?}: {:?}", log.lock()));
        Self {
            address: address.parse().unwrap(),
            pid: child.id(),
            child: Some(child),
            log,
            reader: Some(reader),
        }
    }

    /// True for this repository's server; some expectations do not apply to others.
    pub(crate) fn is_ours(&self) -> bool {
        self.child.is_some()
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

    /// Sends it a signal. Returns once a stop has taken effect.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid.cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
        let is_stopped = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        while signal == Signal::STOP && !is_stopped() {
            std::thread::yield_now();
        }
    }

    /// Ends the server in order, checks that its log has no panic, and returns the log.
    pub(crate) fn stop(mut self) -> Vec<String> {
        let Some(child) = &mut self.child else {
            return Vec::new();
        };
        kill_process(Pid::from_child(child), Signal::TERM).unwrap();
        let status = child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        let log = std::mem::take(&mut *self.log.lock().unwrap());
        assert!(status.success(), "{status}: {log:#?}");
        let panicked = log.iter().find(|line| line.contains("panicked"));
        assert_eq!(panicked, None, "{log:#?}");
        log
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let log = self.log.lock().unwrap();
                let last = &log[log.len().saturating_sub(20)..];
                eprintln!("the server's last words:\n{}", last.join("\n"));
            }
        }
    }
}
