//! [`ProcessWatch`]: ends a session immediately when the client's process at the other end of the Unix socket exits.
//!
//! A process is watched only if the client's handshake and the kernel name the same process. Otherwise the client may
//! be connected through another program, whose exit says nothing about the client.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};

use nix::sys::socket::{getsockopt, sockopt::PeerPidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::peer::{Credentials, PeerAddress};
use super::transport::run_until_closed;
use crate::engine::Follower;
use crate::runtime::process::{self, LocalProcess, ProcessIdentity};

pub(super) struct ProcessWatch {
    process: LocalProcess,
    exit: AsyncFd<OwnedFd>,
    /// Each watched process takes an open file.
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum NotWatched {
    #[error("the server does not know its own process")]
    NoIdentity,
    #[error("the client states another {what}")]
    Differs { what: Difference },
    #[error("the process has exited")]
    Exited,
    #[error("the server sees no number of the process")]
    NoNumber,
    #[error("/proc does not show the process to the server")]
    Hidden,
    #[error("too many processes are watched")]
    TooMany,
    #[error(transparent)]
    System(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    Boot,
    PidNamespace,
    Pid,
    StartTime,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boot => "boot id",
            Self::PidNamespace => "pid namespace",
            Self::Pid => "process",
            Self::StartTime => "start time",
        })
    }
}

/// Compares the process named by a client with the connected process, whose number is `pid`. Returns the first
/// difference. The start time is compared later.
fn difference(stated: &ProcessIdentity, server: &ProcessIdentity, pid: i32) -> Option<Difference> {
    [
        (stated.boot_id != server.boot_id, Difference::Boot),
        (
            stated.pid_namespace != server.pid_namespace,
            Difference::PidNamespace,
        ),
        (stated.pid != pid, Difference::Pid),
    ]
    .into_iter()
    .find_map(|(differs, what)| differs.then_some(what))
}

impl ProcessWatch {
    /// Watches the process at the other end of a socket, if the client names the same process.
    ///
    /// # Errors
    /// [`NotWatched::Exited`] if the process has exited. Any other error means that the process cannot be watched, so
    /// the session ends only with its timeout.
    pub(super) fn new(
        socket: impl AsFd,
        address: PeerAddress,
        stated: &ProcessIdentity,
        permits: &Arc<Semaphore>,
    ) -> Result<Self, NotWatched> {
        Self::opened_by(|pid| peer_pidfd(socket, pid), address, stated, permits)
    }

    fn opened_by(
        open: impl FnOnce(i32) -> Result<OwnedFd, NotWatched>,
        address: PeerAddress,
        stated: &ProcessIdentity,
        permits: &Arc<Semaphore>,
    ) -> Result<Self, NotWatched> {
        let PeerAddress::Unix(Credentials { pid: Some(pid), .. }) = address else {
            return Err(NotWatched::NoNumber);
        };
        let server = ProcessIdentity::own().ok_or(NotWatched::NoIdentity)?;
        if let Some(what) = difference(stated, &server, pid) {
            return Err(NotWatched::Differs { what });
        }
        let start_time = stated.start_time;
        Self::of(LocalProcess { pid, start_time }, open, permits)
    }

    /// Watches a process that an earlier server recorded. If the process with this number has another start time, the
    /// recorded process has exited and its number was reused.
    pub(super) fn recorded(
        process: LocalProcess,
        permits: &Arc<Semaphore>,
    ) -> Result<Self, NotWatched> {
        match Self::of(process, pidfd_of, permits) {
            Err(NotWatched::Differs { .. }) => Err(NotWatched::Exited),
            watch => watch,
        }
    }

    fn of(
        process: LocalProcess,
        open: impl FnOnce(i32) -> Result<OwnedFd, NotWatched>,
        permits: &Arc<Semaphore>,
    ) -> Result<Self, NotWatched> {
        let permit = permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| NotWatched::TooMany)?;
        let pidfd = open(process.pid)?;
        let start_time = process::start_time(process.pid);
        // Check for an exit last. No other process gets the number while this process lives, so the start time read
        // from /proc belongs to this process.
        if has_exited(&pidfd)? {
            return Err(NotWatched::Exited);
        }
        if start_time.ok_or(NotWatched::Hidden)? != process.start_time {
            let what = Difference::StartTime;
            return Err(NotWatched::Differs { what });
        }
        Ok(Self {
            process,
            exit: registered(pidfd)?,
            _permit: permit,
        })
    }

    pub(super) fn process(&self) -> LocalProcess {
        self.process
    }

    /// Ready once the process has exited, even if a child process still has the socket open.
    pub(super) fn poll_exit(&self, context: &mut Context<'_>) -> Poll<()> {
        // An error would mean that the runtime has ended.
        match self.exit.poll_read_ready(context) {
            Poll::Ready(Ok(_)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    /// Ends the session when the process exits. Stops if the session ends or is reattached first.
    pub(super) async fn follow(self, mut session: Follower) {
        let exited = poll_fn(|context| self.poll_exit(context));
        if run_until_closed(session.over(), exited).await.is_some() {
            session.end();
        }
    }
}

/// Returns a handle to the process that has connected. The handle stays valid when the process's number is reused.
fn peer_pidfd(socket: impl AsFd, pid: i32) -> Result<OwnedFd, NotWatched> {
    // Fall back to the pid, because Linux before 6.5 lacks this option, and in some later versions the option fails if
    // the process has exited.
    getsockopt(&socket, PeerPidfd).or_else(|_| pidfd_of(pid))
}

/// Returns a handle to the process that has this number now. If the number was reused, the caller notices that the
/// start time differs. The system call also finds processes that /proc hides.
fn pidfd_of(pid: i32) -> Result<OwnedFd, NotWatched> {
    let pid = Pid::from_raw(pid).ok_or(NotWatched::NoNumber)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => Err(NotWatched::Exited),
        opened => Ok(opened.map_err(io::Error::from)?),
    }
}

#[allow(
    deprecated,
    reason = "its successor is unsafe, for owners whose descriptor may change; that of an OwnedFd does not"
)]
fn registered(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd, Interest::READABLE)
}

fn has_exited(pidfd: &OwnedFd) -> io::Result<bool> {
    let mut watched = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    Ok(poll(&mut watched, Some(&now))? > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Child, Command, Stdio};
    use std::{env, fs};

    use super::*;

    fn stated() -> ProcessIdentity {
        ProcessIdentity {
            boot_id: "boot".into(),
            pid_namespace: 1,
            pid: 2,
            start_time: 3,
        }
    }

    #[test]
    fn every_part_of_the_identity_must_match() {
        let server = ProcessIdentity {
            pid: 77,
            start_time: 77,
            ..stated()
        };
        let found = |stated: ProcessIdentity| difference(&stated, &server, 2);
        assert_eq!(found(stated()), None);
        let boot_id = "other".into();
        let other = ProcessIdentity {
            boot_id,
            ..stated()
        };
        assert_eq!(found(other), Some(Difference::Boot));
        let pid_namespace = 9;
        let other = ProcessIdentity {
            pid_namespace,
            ..stated()
        };
        assert_eq!(found(other), Some(Difference::PidNamespace));
        let other = ProcessIdentity { pid: 9, ..stated() };
        assert_eq!(found(other), Some(Difference::Pid));
    }

    fn own_address() -> PeerAddress {
        PeerAddress::Unix(Credentials {
            uid: 0,
            pid: Some(std::process::id() as i32),
        })
    }

    #[tokio::test]
    async fn only_a_true_statement_is_watched() {
        let (socket, _client) = UnixStream::pair().unwrap();
        let permits = Arc::new(Semaphore::new(1));
        let own = ProcessIdentity::own().unwrap();
        let watch =
            |stated: &ProcessIdentity| ProcessWatch::new(&socket, own_address(), stated, &permits);
        let differs = |stated: ProcessIdentity| match watch(&stated) {
            Err(NotWatched::Differs { what }) => what,
            other => panic!("{:?}", other.map(drop)),
        };
        let start_time = own.start_time + 1;
        let reused = ProcessIdentity {
            start_time,
            ..own.clone()
        };
        assert_eq!(differs(reused), Difference::StartTime);
        let pid_namespace = own.pid_namespace + 1;
        let container = ProcessIdentity {
            pid_namespace,
            ..own.clone()
        };
        assert_eq!(differs(container), Difference::PidNamespace);
        let pid = own.pid + 1;
        assert_eq!(
            differs(ProcessIdentity { pid, ..own.clone() }),
            Difference::Pid
        );
        let boot_id = "another".into();
        assert_eq!(
            differs(ProcessIdentity {
                boot_id,
                ..own.clone()
            }),
            Difference::Boot
        );
        let watched = watch(&own).unwrap();
        assert!(matches!(watch(&own), Err(NotWatched::TooMany)));
        drop(watched);
        watch(&own).unwrap();
    }

    const SOCKET: &str = "LOCKKEEPER_WATCHED_SOCKET";

    const CLIENT: &str = "server::process_watch::tests::a_client_process";

    #[test]
    fn a_client_process() {
        let Ok(path) = env::var(SOCKET) else { return };
        let _connected = UnixStream::connect(path).unwrap();
        let _ = std::io::stdin().read(&mut [0]);
    }

    struct Client {
        process: Child,
        socket: UnixStream,
    }

    impl Client {
        fn start(test: &str) -> Self {
            let name = format!("lockkeeper-watched-{}-{test}", std::process::id());
            let path = env::temp_dir().join(name);
            let _ = fs::remove_file(&path);
            let listener = UnixListener::bind(&path).unwrap();
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", CLIENT, "--nocapture"]);
            command.env(SOCKET, &path).stdin(Stdio::piped());
            let process = command.stdout(Stdio::null()).spawn().unwrap();
            let (socket, _) = listener.accept().unwrap();
            fs::remove_file(&path).unwrap();
            Self { process, socket }
        }

        fn pid(&self) -> i32 {
            self.process.id() as i32
        }

        fn stated(&self) -> ProcessIdentity {
            ProcessIdentity {
                pid: self.pid(),
                start_time: process::start_time(self.pid()).unwrap(),
                ..ProcessIdentity::own().unwrap()
            }
        }

        fn watch(
            &self,
            is_by_number: bool,
            stated: &ProcessIdentity,
        ) -> Result<ProcessWatch, NotWatched> {
            let credentials = Credentials {
                uid: 0,
                pid: Some(self.pid()),
            };
            let open = |pid| match is_by_number {
                true => pidfd_of(pid),
                false => peer_pidfd(&self.socket, pid),
            };
            let permits = Arc::new(Semaphore::new(1));
            ProcessWatch::opened_by(open, PeerAddress::Unix(credentials), stated, &permits)
        }
    }

    impl Drop for Client {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[tokio::test]
    async fn the_exit_of_a_process_is_noticed_whichever_way_its_handle_was_opened() {
        let mut client = Client::start("exit");
        let stated = client.stated();
        let watches = [false, true].map(|by_number| client.watch(by_number, &stated).unwrap());
        for watch in &watches {
            assert!(!has_exited(watch.exit.get_ref()).unwrap());
        }
        // The child is not reaped yet, so it keeps its number and its start time in /proc.
        client.process.kill().unwrap();
        for watch in &watches {
            poll_fn(|context| watch.poll_exit(context)).await;
        }
        for by_number in [false, true] {
            let late = client.watch(by_number, &stated);
            assert!(matches!(late, Err(NotWatched::Exited)), "{by_number}");
        }
        client.process.wait().unwrap();
        for by_number in [false, true] {
            let gone = client.watch(by_number, &stated);
            assert!(matches!(gone, Err(NotWatched::Exited)), "{by_number}");
        }
    }

    #[tokio::test]
    async fn a_process_that_was_given_the_clients_number_is_not_watched() {
        let other = Client::start("number");
        let start_time = other.stated().start_time - 1;
        let stated = ProcessIdentity {
            start_time,
            ..other.stated()
        };
        for by_number in [false, true] {
            let what = match other.watch(by_number, &stated) {
                Err(NotWatched::Differs { what }) => what,
                other => panic!("{:?}", other.map(drop)),
            };
            assert_eq!(what, Difference::StartTime);
        }
    }

    #[tokio::test]
    async fn a_tcp_client_is_not_watched_whatever_it_states() {
        let (socket, _client) = UnixStream::pair().unwrap();
        let permits = Arc::new(Semaphore::new(1));
        let own = ProcessIdentity::own().unwrap();
        let tcp = PeerAddress::Tcp(([127, 0, 0, 1], 1).into());
        let refused = ProcessWatch::new(&socket, tcp, &own, &permits);
        assert!(matches!(refused, Err(NotWatched::NoNumber)));
    }
}
