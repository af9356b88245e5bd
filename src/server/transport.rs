//! [`Transport`]: the byte stream of a connection, and how to close it so that its last bytes arrive.

use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::task::Poll;
#[cfg(feature = "simulation")]
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// Returns true if the kernel has unread bytes of the client, or the end of the stream.
    ///
    /// A pending read is not enough to return false, because the runtime may not have polled the socket yet. The server
    /// would then let the client's session expire while its ping waits in the kernel.
    fn is_readable(&self) -> bool;

    fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Transport for TcpStream {
    fn is_readable(&self) -> bool {
        has_unread(self)
    }
}

impl Transport for UnixStream {
    fn is_readable(&self) -> bool {
        has_unread(self)
    }

    fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

fn has_unread(socket: impl AsFd) -> bool {
    let peeked = recv(
        socket,
        &mut [0_u8; 1],
        RecvFlags::PEEK | RecvFlags::DONTWAIT,
    );
    // After any other error, return true. The next read reports the error, and closes the connection.
    !matches!(peeked, Err(rustix::io::Errno::AGAIN))
}

#[cfg(feature = "tls")]
impl Transport for tokio_rustls::server::TlsStream<TcpStream> {
    fn is_readable(&self) -> bool {
        self.get_ref().0.is_readable()
    }
}

impl<T: Transport> Transport for &mut T {
    fn is_readable(&self) -> bool {
        (**self).is_readable()
    }

    fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        (**self).unix_socket()
    }
}

#[cfg(feature = "simulation")]
impl Transport for crate::runtime::simnet::SimSocket {
    fn is_readable(&self) -> bool {
        self.poll_readable(&Context::from_waker(Waker::noop()))
            .is_ready()
    }
}

/// In-process stream for tests. No kernel holds bytes for it.
#[cfg(test)]
impl Transport for tokio::io::DuplexStream {
    fn is_readable(&self) -> bool {
        false
    }
}

/// Time limit for a client to close its end of the connection. Until then the connection keeps its task and its place
/// in the connection table.
const LINGER: Duration = Duration::from_secs(1);

/// Limit of the bytes that a client may send before it closes its end. If the client sends more, its connection is
/// reset.
const LINGER_BYTES: usize = 64 << 10;

/// Closes a connection so that the last bytes arrive.
///
/// TCP resets a connection that is closed with unread bytes, and the client may then lose an answer that it has already
/// received. So we shut the connection down for writing and then read it to its end, within limits.
pub(super) async fn linger_close<S>(stream: &mut S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let closing = async {
        let mut bytes = [0; 512];
        let mut left = LINGER_BYTES;
        if stream.shutdown().await.is_err() {
            return;
        }
        while let Ok(count @ 1..) = stream.read(&mut bytes).await {
            left = left.saturating_sub(count);
            if left == 0 {
                return;
            }
        }
    };
    // The limit covers the shutdown, which over TLS writes an alert to a client that may not read.
    let _ = tokio::time::timeout(LINGER, closing).await;
}

/// Runs `work`, or returns `None` if `closed` completes first.
///
/// `closed` is polled first, so that work that is always ready does not delay a request to close.
pub(super) async fn run_until_closed<T, U>(
    closed: impl Future<Output = U>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut closed, mut work) = (pin!(closed), pin!(work));
    poll_fn(|context| {
        if closed.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}
