//! Notifies systemd of the state of a service of `Type=notify`, over the socket of `NOTIFY_SOCKET` (sd_notify(3)).
//! Does nothing elsewhere.

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

/// Tells systemd's watchdog that the server is alive.
pub(crate) fn alive() {
    tell("WATCHDOG=1");
}

/// Returns the time after which systemd takes a silent server for dead, where it watches this process
/// (sd_watchdog_enabled(3)).
pub(crate) fn watchdog_limit() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    // A parent that is watched may have left its variables to this process.
    let is_meant = match std::env::var_os("WATCHDOG_PID") {
        Some(_) => number("WATCHDOG_PID") == Some(std::process::id().into()),
        None => true,
    };
    let limit = number("WATCHDOG_USEC").filter(|us| *us > 0 && is_meant);
    // Two signs within the limit, a millisecond apart at least.
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
