//! The user's own store, which commands use where no URL is given: `lockkeeper serve` in the background, behind a Unix
//! socket, started by the first command that needs it, as gpg-agent and adb do. It ends when it is idle.
//!
//! A user has one store on one machine, since two would give one lock to two holders. So nothing that differs between a
//! login shell and cron, as `$XDG_RUNTIME_DIR`, may decide which store it is:
//!
//! - The *data folder* is the store: `$XDG_STATE_HOME/lockkeeper/MACHINE`, by default below `~/.local/state`. The store in
//!   it is locked by the server that has it open, so there is at most one, whoever starts another. `MACHINE` is made of
//!   the machine's id: where machines share a home, each has its own store. (A lock across machines needs a URL.)
//! - The link `socket` in the data folder leads to the socket of the server: in `$XDG_RUNTIME_DIR` where its starter had
//!   one, otherwise in the data folder. All clients use the link's path, so they find the server wherever it listens, also
//!   the next one, after systemd has removed the folder of a user who has logged out.
//! - The file `start` is locked (`flock`) while a server is being started. The lock is inherited as stdin down to the
//!   server, which drops it when it listens: none of the processes in between can be killed so that two servers start at
//!   once. No decision relies on a stored pid.
//!
//! The data folder, and the one in `$XDG_RUNTIME_DIR`, must belong to the user and be closed to others; anything else is
//! refused ([`folder`]). A client talks to a server of its own user alone.
//!
//! Each process may be killed at any moment. A client's locks are free at once, since the server watches its process. A
//! server's sessions and tokens are in the log: its clients start the next one, and their sessions go on
//! ([`connector`]). A server that was started by an older version serves newer clients, as the protocol agrees on what both
//! know, until it ends.

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

/// The user's own store.
#[derive(Clone, Debug)]
pub(crate) struct LocalStore {
    folder: Arc<Folder>,
}

/// The server at the other end of a connection. While this lives, the server is not idle.
#[derive(Debug)]
struct Peer {
    /// `None` where the system does not tell.
    pid: Option<i32>,
    connection: Option<UnixStream>,
}

impl Peer {
    /// Waits until the server has ended, at most for this time. Returns true if it has, or if that is not known.
    fn ended_within(&self, limit: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(connection) = &self.connection else {
            std::thread::sleep(limit);
            return true;
        };
        // It says nothing before it is spoken to: what can be read is the end.
        let mut end = [PollFd::new(connection, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        };
        poll(&mut end, Some(&limit)) != Ok(0)
    }
}

impl LocalStore {
    /// Finds the store of this user, and creates its folder. Starts nothing.
    pub(crate) fn find() -> Result<Self, Failure> {
        let folder = Folder::find().map_err(Failure::Unreachable)?;
        Ok(Self {
            folder: Arc::new(folder),
        })
    }

    /// Returns the store's URL, the same in every environment of this user.
    pub(crate) fn url(&self) -> String {
        format!("lockkeeper+unix://{}", self.folder.link().display())
    }

    /// Connects a client, and starts the server where none runs, now and whenever the client finds it gone.
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
            // The library advises to serve the socket, which this command has done.
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

    /// Waits until a server listens, and returns it. The work goes on when this is dropped.
    async fn started(&self) -> Result<Peer, String> {
        if let Some(peer) = self.peer()? {
            return Ok(peer);
        }
        let (store, (tell, told)) = (self.clone(), tokio::sync::oneshot::channel());
        // No blocking task: a runtime that shuts down would wait for it.
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
            // One that was stopped keeps all others waiting.
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

    /// Returns the server that listens at the link; `None` if there is none.
    ///
    /// # Errors
    /// It is another user's, or the system refuses the connection.
    fn peer(&self) -> Result<Option<Peer>, String> {
        peer_at(&self.folder.link())
    }
}

/// Returns the server that listens at this path. Never waits for it: one that hangs takes no connection.
fn peer_at(path: &Path) -> Result<Option<Peer>, String> {
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    match connect(path) {
        Ok(stream) => peer(stream, path).map(Some),
        Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Ok(None),
        // Its queue of connections is full, so it listens.
        Err(error) if error.kind() == WouldBlock => Ok(Some(Peer {
            pid: None,
            connection: None,
        })),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Connects without waiting for room in the server's queue, which `UnixStream::connect` would do.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket: OwnedFd = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(true)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

/// Checks the user at the other end of a connection: another user's server could grant any lock.
#[cfg(target_os = "linux")]
fn peer(stream: UnixStream, path: &Path) -> Result<Peer, String> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    // Not rustix's, which has no result for a process without a number: the server of another pid namespace.
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

/// The folders' owner and mode vouch for the server's user.
#[cfg(not(target_os = "linux"))]
fn peer(stream: UnixStream, _path: &Path) -> Result<Peer, String> {
    Ok(Peer {
        pid: None,
        connection: Some(stream),
    })
}
