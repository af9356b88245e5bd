//! Notifies systemd of the state of a service of `Type=notify`, over the socket of `NOTIFY_SOCKET` (sd_notify(3)).
//! Does nothing elsewhere.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

pub(crate) fn ready() {
    tell("READY=1");
}

pub(crate) fn stopping() {
    tell("STOPPING=1");
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
