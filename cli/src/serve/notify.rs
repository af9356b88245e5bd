//! Reports the state of a `Type=notify` service to systemd over the socket in `NOTIFY_SOCKET` (sd_notify(3)), if any.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::warn;

pub(crate) fn ready() {
    tell("READY=1");
}

pub(crate) fn stopping() {
    tell("STOPPING=1");
}

pub(crate) fn alive() {
    tell("WATCHDOG=1");
}

/// Returns the time after which systemd restarts a server that sends no sign of life. `None` if systemd does not watch
/// this process (sd_watchdog_enabled(3)).
pub(crate) fn watchdog_limit() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    // Check the pid, because a parent process may have passed its own variables on to us.
    let is_meant = match std::env::var_os("WATCHDOG_PID") {
        Some(_) => number("WATCHDOG_PID") == Some(std::process::id().into()),
        None => true,
    };
    let limit = number("WATCHDOG_USEC").filter(|us| *us > 0 && is_meant);
    // Use at least 2 ms, because we send two signs of life within the limit, and their interval must be at least 1 ms.
    limit.map(|us| Duration::from_micros(us).max(Duration::from_millis(2)))
}

fn tell(word: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&name, word) {
        warn!(%error, word, "NOTIFY_SOCKET refused a notification");
    }
}

fn send(name: &OsStr, word: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(word.as_bytes(), &address)?;
    Ok(())
}
