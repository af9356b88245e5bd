//! The per-user store, which commands use if no URL is given.
//!
//! The first command that needs the store starts a `lockkeeper serve` process in the background. This server listens on
//! a Unix socket and exits when it is idle.
//!
//! A user must have only one store on a machine, because two stores could grant the same lock to two holders. The
//! choice of the store must therefore not depend on a variable that differs between a login shell and cron, such as
//! `$XDG_RUNTIME_DIR`. The store has these parts:
//!
//! - The *data folder* identifies the store: `$XDG_STATE_HOME/lockkeeper/MACHINE`, by default below `~/.local/state`.
//!   The server locks the store in this folder, so at most one server runs. `MACHINE` is derived from the machine's id,
//!   so machines that share a home directory have separate stores.
//! - The link `socket` in the data folder leads to the server's socket, which may be in `$XDG_RUNTIME_DIR`. Clients use
//!   only the link, so they also find the next server after systemd has removed the runtime folder at a logout.
//! - The file `start` is locked (`flock`) while a server is being started. The server inherits the lock as its stdin,
//!   and drops the lock when it listens. Two servers therefore never start simultaneously, even if a process that takes
//!   part in a start is killed.
//!
//! Each process may be killed at any moment. The server watches the processes of its clients and releases the locks of
//! a killed client immediately. A killed server leaves its sessions and tokens in its log, so the clients start the
//! next server and continue their sessions ([`connector`]).

mod command;
mod connector;
mod detach;
mod folder;
mod start;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, Error};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

pub(crate) use self::command::Local;
use self::connector::LocalConnector;
pub(crate) use self::detach::detach;
use self::folder::Folder;
pub(crate) use self::folder::home;
use crate::exit::Failure;
use crate::locks::table::duration;

#[derive(Clone, Debug)]
pub(crate) struct LocalStore {
    folder: Arc<Folder>,
}

/// The server at the other end of a connection. While we hold this connection, the server is not idle and does not
/// exit.
#[derive(Debug)]
struct Peer {
    /// `None` if the system does not report the pid.
    pid: Option<i32>,
    connection: Option<UnixStream>,
}

impl Peer {
    /// Waits up to `limit` for the server to end. Returns `true` if the server has ended or if we cannot detect its
    /// end.
    fn ended_within(&self, limit: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(connection) = &self.connection else {
            std::thread::sleep(limit);
            return true;
        };
        // A server sends nothing without a request, so the connection becomes readable only when it is closed.
        let mut end = [PollFd::new(connection, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        };
        poll(&mut end, Some(&limit)) != Ok(0)
    }
}

impl LocalStore {
    pub(crate) fn find() -> Result<Self, Failure> {
        let folder = Folder::find().map_err(Failure::Unreachable)?;
        Ok(Self {
            folder: Arc::new(folder),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("lockkeeper+unix://{}", self.folder.link().display())
    }

    pub(crate) async fn connect(
        &self,
        options: ConnectOptions,
        timeout: Duration,
    ) -> Result<Client, Failure> {
        let started = tokio::time::timeout(timeout, self.started()).await;
        let _peer = started
            .unwrap_or_else(|_| Err(self.too_late(timeout)))
            .map_err(Failure::Unreachable)?;
        let connector = LocalConnector::new(self.clone());
        let opened = Client::open(Arc::new(connector), self.url(), options).await;
        opened.map_err(|error| match error {
            // The library's message advises the user to start a server, which we have already done.
            Error::ConnectFailed {
                timeout, reason, ..
            } => Failure::Unreachable(format!(
                "the server of {} does not answer within {}: {reason}; see {}, or end it with `lockkeeper local \
                 --stop`",
                self.folder.path().display(),
                duration(timeout),
                self.folder.log().display()
            )),
            error => error.into(),
        })
    }

    /// Returns the running server, or starts one and waits until it listens. Dropping this future does not stop
    /// a server that is starting.
    async fn started(&self) -> Result<Peer, String> {
        if let Some(peer) = self.peer()? {
            return Ok(peer);
        }
        let (store, (tell, told)) = (self.clone(), tokio::sync::oneshot::channel());
        // Use a plain thread, because the runtime would wait for a `spawn_blocking` task at shutdown.
        std::thread::Builder::new()
            .name("lockkeeper-start".into())
            .spawn(move || drop(tell.send(store.start())))
            .map_err(|error| format!("the system refuses a thread: {error}"))?;
        let ended = |_| "the thread that starts the server has panicked".to_owned();
        told.await.map_err(ended)?
    }

    fn too_late(&self, timeout: Duration) -> String {
        let start = self.folder.start_lock();
        let is_locked = std::fs::File::open(&start).is_ok_and(|start| start.try_lock().is_err());
        let hint = match is_locked {
            // Name the lock file, so that the user can find a process that is stopped (SIGSTOP) while it holds this
            // lock. Such a process blocks all other starts.
            true => format!(
                "; another process is starting it, which `fuser {}` shows",
                start.display()
            ),
            false => String::new(),
        };
        format!(
            "the server of {} does not listen within {}: see {}{hint}",
            self.folder.path().display(),
            duration(timeout),
            self.folder.log().display()
        )
    }

    fn peer(&self) -> Result<Option<Peer>, String> {
        peer_at(&self.folder.link())
    }
}

fn peer_at(path: &Path) -> Result<Option<Peer>, String> {
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    match connect(path) {
        Ok(stream) => peer(stream, path).map(Some),
        Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Ok(None),
        // `WouldBlock` means that the server's queue of connections is full, so a server listens.
        Err(error) if error.kind() == WouldBlock => Ok(Some(Peer {
            pid: None,
            connection: None,
        })),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Connects without waiting for room in the server's queue, unlike `UnixStream::connect`.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket: OwnedFd = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(true)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

/// Checks the user who runs the server, because another user's server could grant any lock.
#[cfg(target_os = "linux")]
fn peer(stream: UnixStream, path: &Path) -> Result<Peer, String> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    // For a server in another pid namespace, nix returns pid 0, which rustix cannot represent.
    let credentials = getsockopt(&stream, PeerCredentials)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let own = rustix::process::geteuid().as_raw();
    if credentials.uid() != own {
        return Err(format!(
            "the server at {} is run by user {}, and this process by user {own}",
            path.display(),
            credentials.uid(),
        ));
    }
    Ok(Peer {
        pid: (credentials.pid() != 0).then_some(credentials.pid()),
        connection: Some(stream),
    })
}

/// Does not check the server's user, because the owner and mode of the folders were checked before.
#[cfg(not(target_os = "linux"))]
fn peer(stream: UnixStream, _path: &Path) -> Result<Peer, String> {
    Ok(Peer {
        pid: None,
        connection: Some(stream),
    })
}
