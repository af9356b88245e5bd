//! The sockets between front, guardian, reaper and launcher.
//!
//! The stdin of a new process is a socket, through which the process receives its open files. The processes therefore
//! need not agree on file descriptor numbers, and inherit no file by accident. The end of the stream means that the
//! other process has ended, for whatever reason.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

use super::deadline::Deadlines;

/// State of the guardian, as reported to the front. Each report replaces the previous report. The guardian never waits
/// for the front to read a report, because the front may be stopped indefinitely.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) waiting: Option<Waiting>,
    /// Number of grants so far. The front answers each grant with [`Order::Execute`].
    pub(super) granted: u64,
    /// `Some` from the start of the command until its last process has ended.
    pub(super) command: Option<Running>,
    /// Number of times that the command was stopped, and the signal that stopped it last.
    pub(super) stops: (u64, i32),
    pub(super) notes: Vec<String>,
    /// Number of all lines for the user so far, including lines that are no longer in `notes`.
    pub(super) noted: u64,
    pub(super) end: Option<End>,
}

const NOTES: usize = 16;

impl Report {
    pub(super) fn note(&mut self, text: String) {
        self.notes.push(text);
        self.noted += 1;
        if self.notes.len() > NOTES {
            self.notes.remove(0);
        }
    }

    pub(super) fn notes_after(&self, seen: u64) -> &[String] {
        let new = usize::try_from(self.noted.saturating_sub(seen)).unwrap_or(usize::MAX);
        &self.notes[self.notes.len().saturating_sub(new)..]
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) ahead: usize,
    pub(super) holder: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Running {
    /// Process id of the command's first process. The command's process group has the same id.
    pub(super) group: i32,
    pub(super) cgroup: Option<PathBuf>,
    /// `None` for a session without a timeout.
    pub(super) deadlines: Option<Deadlines>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) status: u8,
    pub(super) message: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Command {
    pub(super) granted: u64,
    pub(super) group: i32,
    pub(super) cgroup: Option<PathBuf>,
    pub(super) stops: (u64, i32),
    pub(super) over: Option<Over>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Over {
    Done(u8),
    Asked,
    /// The guardian has died, or has not reported a renewed lease in time.
    Unheard,
}

/// Orders from the front to the guardian, and from the guardian to the reaper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    /// The front is alive and knows the process group of this grant's command, so the command may be executed.
    Execute(u64),
    Signal(i32),
    Lease(Deadlines),
    End,
}

impl Order {
    fn replaces(&self, other: &Self) -> bool {
        self == other || matches!((self, other), (Self::Lease(_), Self::Lease(_)))
    }
}

pub(super) fn spawn_self(
    arguments: impl IntoIterator<Item = std::ffi::OsString>,
    configure: impl FnOnce(&mut std::process::Command),
) -> io::Result<(Child, UnixStream)> {
    let (own, other) = UnixStream::pair()?;
    let mut command = crate::executable::command()?;
    command.args(arguments);
    command.stdin(Stdio::from(OwnedFd::from(other)));
    // Use a separate group, so that a signal to our group does not reach the new process, and vice versa.
    command.process_group(0);
    configure(&mut command);
    Ok((command.spawn()?, own))
}

pub(super) fn asynchronous(socket: UnixStream) -> io::Result<tokio::net::UnixStream> {
    socket.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(socket)
}

pub(super) fn inherited() -> io::Result<UnixStream> {
    let stdin = rustix::stdio::stdin().try_clone_to_owned()?;
    Ok(stdin.into())
}

const MOST_FILES: usize = 4;

pub(super) fn send_files(socket: &UnixStream, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(files));
    let byte = [IoSlice::new(&[1])];
    sendmsg(socket, &byte, &mut ancillary, SendFlags::empty())?;
    Ok(())
}

pub(super) fn receive_files<const N: usize>(
    socket: &UnixStream,
) -> io::Result<Option<[OwnedFd; N]>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::empty();
    let received = rustix::io::retry_on_intr(|| recvmsg(socket, &mut into, &mut ancillary, flags))?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    for file in &files {
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok(files.try_into().ok())
}

pub(super) fn standard_files() -> [BorrowedFd<'static>; 3] {
    use rustix::stdio::{stderr, stdin, stdout};
    [stdin(), stdout(), stderr()]
}

pub(super) struct Incoming(Lines<BufReader<OwnedReadHalf>>);

impl Incoming {
    pub(super) fn new(half: OwnedReadHalf) -> Self {
        Self(BufReader::new(half).lines())
    }

    /// Waits for the next message. Returns `None` when the other process has ended. Cancel safe.
    pub(super) async fn next<T: for<'a> Deserialize<'a>>(&mut self) -> Option<T> {
        // Treat an error as the end of the stream. For example, a killed process may leave a truncated message.
        let line = self.0.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }
}

pub(super) async fn write_reports<T: Clone + Serialize>(
    mut half: OwnedWriteHalf,
    mut reports: watch::Receiver<T>,
) -> io::Result<()> {
    while reports.changed().await.is_ok() {
        let report = reports.borrow_and_update().clone();
        half.write_all(&line(&report)).await?;
    }
    half.shutdown().await
}

/// A queue of orders to another process. Sending an order never blocks, even if the other process does not read.
pub(super) struct Orders {
    half: OwnedWriteHalf,
    partial: Vec<u8>,
    /// A new order replaces an equal order, as with pending signals. A new lease replaces an older lease.
    queued: VecDeque<Order>,
}

impl Orders {
    pub(super) fn new(half: OwnedWriteHalf) -> Self {
        Self {
            half,
            partial: Vec::new(),
            queued: VecDeque::new(),
        }
    }

    pub(super) fn send(&mut self, order: Order) {
        self.queued.retain(|queued| !order.replaces(queued));
        self.queued.push_back(order);
        self.write();
    }

    fn write(&mut self) {
        loop {
            if self.partial.is_empty() {
                match self.queued.pop_front() {
                    Some(order) => self.partial = line(&order),
                    None => return,
                }
            }
            match self.half.try_write(&self.partial) {
                Ok(written) => drop(self.partial.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The other process has ended. Report no error here, because the task that reads that process's reports
                // notices the end.
                Err(_) => self.partial.clear(),
            }
        }
    }

    /// Writes the queued orders when the socket accepts more bytes. Waits forever if nothing is queued. Cancel safe.
    pub(super) async fn written(orders: &mut Option<Self>) {
        match orders {
            Some(orders) if !orders.partial.is_empty() => {
                let _ = orders.half.writable().await;
                orders.write();
            }
            _ => std::future::pending().await,
        }
    }
}

fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages are plain JSON");
    line.push(b'\n');
    line
}
