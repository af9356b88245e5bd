//! Server processes that a benchmark starts for itself, and that end with it.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server. Dropping it ends it, and removes its folder.
pub(crate) struct Process {
    child: Child,
    /// Ends the server, and removes its folder, when this process dies without dropping anything.
    leash: Child,
    signal: &'static str,
    folder: PathBuf,
}

impl Process {
    /// Starts a server that keeps its files in `folder`.
    pub(crate) fn spawn(command: &mut Command, folder: PathBuf) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let spawned = command.stdin(Stdio::null()).spawn();
        let child = spawned.map_err(|error| format!("{program}: {error}"))?;
        Ok(Self {
            leash: leash(&child, "KILL", &folder),
            child,
            signal: "KILL",
            folder,
        })
    }

    /// Chooses the signal that ends the server.
    pub(crate) fn end_with(&mut self, signal: &'static str) {
        self.leash.kill().expect("it waits for this process");
        let _ = self.leash.wait();
        self.leash = leash(&self.child, signal, &self.folder);
        self.signal = signal;
    }

    /// Waits until `is_ready` returns true.
    pub(crate) fn wait_until(&mut self, is_ready: impl Fn() -> bool) -> Result<(), String> {
        let start = Instant::now();
        // No peer reports that it is ready, so this polls.
        while !is_ready() {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if let Some(status) = ended {
                let said = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                return Err(format!("the server ended: {status}\n{said}"));
            }
            if start.elapsed() > PATIENCE {
                return Err("the server is not ready, and does not get ready".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Returns the first line of the server's standard output, which must be piped.
    pub(crate) fn first_line(&mut self) -> Result<String, String> {
        let stdout = self.child.stdout.take().expect("piped");
        let mut line = String::new();
        let mut lines = BufReader::new(stdout);
        lines
            .read_line(&mut line)
            .map_err(|error| error.to_string())?;
        Ok(line.trim_end().to_owned())
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The leash first: it would signal a process id that the kernel may reuse once the child is awaited.
        let _ = self.leash.kill();
        let _ = self.leash.wait();
        if self.signal == "KILL" {
            let _ = self.child.kill();
        } else {
            let mut kill = Command::new("sh");
            kill.args(["-c", "kill -s $0 $1", self.signal]);
            let _ = kill.arg(self.child.id().to_string()).status();
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn leash(child: &Child, signal: &str, folder: &Path) -> Child {
    // The server may still write to its folder while it ends, so the folder is removed after two seconds at the latest.
    let script = "cat >/dev/null; kill -s $0 $1
        for try in 1 2 3 4 5 6 7 8 9 10; do kill -0 $1 2>/dev/null || break; sleep 0.2; done
        rm -rf \"$2\"";
    Command::new("sh")
        .args(["-c", script, signal])
        .arg(child.id().to_string())
        .arg(folder)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("there is a shell")
}

/// Time within which a server must be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    let address = probe.local_addr();
    address.expect("a bound socket has an address").port()
}

/// Creates a fresh folder for a server's data and log.
pub(crate) fn fresh_folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("bench-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for a server");
    folder
}

/// Redirects a server's output to its log, which is shown if the server fails.
pub(crate) fn log_to(folder: &Path, command: &mut Command) {
    let log = std::fs::File::create(folder.join("log")).expect("a file in a new folder");
    let again = log.try_clone().expect("a file is cloned");
    command.stdout(log).stderr(again);
}

/// Installs a Debian package unless `is_there` finds it, or `LOCKKEEPER_INSTALL=no` forbids it.
///
/// # Errors
/// A message with the package's name, where it is missing and cannot be installed.
pub(crate) fn need(package: &str, is_there: impl Fn() -> bool) -> Result<(), String> {
    if is_there() {
        return Ok(());
    }
    let install = "if [ \"$(id -u)\" = 0 ]; then as=; else as='sudo -n'; fi; \
        $as apt-get update && $as env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends \"$0\"";
    if std::env::var_os("LOCKKEEPER_INSTALL").is_some_and(|install| install == "no") {
        return Err(format!("the package {package} is missing"));
    }
    eprintln!("installing {package}");
    let installed = Command::new("sh")
        .args(["-c", install, package])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    match installed {
        Ok(status) if status.success() && is_there() => Ok(()),
        _ => Err(format!(
            "the package {package} is missing, and could not be installed"
        )),
    }
}

/// Returns a memory figure of a process, as `/proc/PROCESS/status` has it.
pub(crate) fn memory_bytes(process: impl Display, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024.0)
}
