//! Servers of other systems that a benchmark starts, and their packages.

use std::fmt::Display;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::{ChildProcess, TempFolder, open_log};

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a server with its log in the folder, and waits until `is_ready` returns true.
///
/// # Errors
/// The log of a server that ended or did not get ready.
pub(crate) fn start(
    command: &mut Command,
    folder: &TempFolder,
    is_ready: impl Fn() -> bool,
) -> Result<ChildProcess, String> {
    let log = open_log(&folder.at("log"));
    command.stdout(log.try_clone().expect("a file is cloned"));
    let mut server = ChildProcess::spawn(command.stdin(Stdio::null()).stderr(log));
    let start = Instant::now();
    // Poll, because no peer reports that it is ready.
    while !is_ready() {
        let ended = server.try_wait().map_err(|error| error.to_string())?;
        if ended.is_some() || start.elapsed() > PATIENCE {
            let said = std::fs::read_to_string(folder.at("log")).unwrap_or_default();
            return Err(format!("the server does not get ready\n{said}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}

/// Installs a Debian package unless `is_there` finds it or `LOCKKEEPER_INSTALL=no` forbids it.
///
/// # Errors
/// A message with the name of the missing package.
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

/// Returns a memory figure from `/proc/PROCESS/status`.
pub(crate) fn memory_bytes(process: impl Display, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024.0)
}
