//! `lockkeeper local`: shows the per-user store, and stops its server.

use std::fmt::Write;

use clap::Args;
#[cfg(target_os = "linux")]
use rustix::event::Timespec;
use serde_json::json;

use super::{LocalStore, Peer};
use crate::exit::Failure;

/// The arguments of `local`.
#[derive(Args, Debug)]
pub(crate) struct Local {
    /// Shuts the server down cleanly. The next command starts it again, as does any command that is still running
    #[arg(long)]
    stop: bool,
    /// Prints one JSON object
    #[arg(long, conflicts_with = "stop")]
    json: bool,
}

impl Local {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let store = LocalStore::find()?;
        let peer = store.peer().map_err(Failure::Unreachable)?;
        if self.stop {
            return stop(&store, peer);
        }
        let text = match self.json {
            true => format!("{}\n", shown_as_json(&store, peer.as_ref())),
            false => shown(&store, peer.as_ref()),
        };
        Ok(crate::output::print(&text)?)
    }
}

fn shown(store: &LocalStore, peer: Option<&Peer>) -> String {
    let mut text = String::new();
    let server = match peer {
        None => "not running; the first command that needs it starts it".to_owned(),
        Some(Peer { pid: None, .. }) => "running".to_owned(),
        Some(Peer { pid: Some(pid), .. }) => format!("pid {pid}"),
    };
    for (name, value) in [
        ("url", store.url()),
        ("server", server),
        ("data", store.folder.store().display().to_string()),
        ("log", store.folder.log().display().to_string()),
    ] {
        let _ = writeln!(text, "{name:<7} {value}");
    }
    text
}

fn shown_as_json(store: &LocalStore, peer: Option<&Peer>) -> serde_json::Value {
    json!({
        "url": store.url(),
        "is_running": peer.is_some(),
        "pid": peer.and_then(|peer| peer.pid),
        "data": store.folder.store().display().to_string(),
        "log": store.folder.log().display().to_string(),
    })
}

fn stop(store: &LocalStore, peer: Option<Peer>) -> Result<(), Failure> {
    let Some(peer) = peer else {
        crate::output::print("not running\n")?;
        return Ok(());
    };
    let pid = end(store, &peer)?;
    crate::output::print(&format!("stopped the server, pid {pid}\n"))?;
    Ok(())
}

/// Time for an orderly shutdown. After this time we kill the server, which loses nothing that it has acknowledged.
#[cfg(target_os = "linux")]
const IN_ORDER: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

#[cfg(target_os = "linux")]
fn end(store: &LocalStore, peer: &Peer) -> Result<i32, Failure> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    let failed = |error: rustix::io::Errno| Failure::Other(format!("cannot stop it: {error}"));
    let pid = peer.pid.and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::Other(
            "the server's process is unknown: the server accepts no connection now, or runs in another pid namespace".into(),
        ))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    // Ask again now that we hold the pidfd, because the pid may have been reused since the first answer.
    let still = store.peer().map_err(Failure::Unreachable)?;
    if still.and_then(|still| still.pid) != peer.pid {
        return Err(Failure::Other("the server has ended just now".into()));
    }
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    pidfd_send_signal(&process, Signal::CONT).map_err(failed)?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    if poll(&mut ended, Some(&IN_ORDER)).map_err(failed)? == 0 {
        pidfd_send_signal(&process, Signal::KILL).map_err(failed)?;
        poll(&mut ended, None).map_err(failed)?;
    }
    Ok(pid.as_raw_nonzero().get())
}

#[cfg(not(target_os = "linux"))]
fn end(store: &LocalStore, _peer: &Peer) -> Result<i32, Failure> {
    let lock = store.folder.store().join("LOCK");
    let lock = lock.display();
    Err(Failure::Other(format!(
        "this system does not show the server's process: end it with `kill`, its pid is in {lock}"
    )))
}
