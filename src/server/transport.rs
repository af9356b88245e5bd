//! [`Transport`]: the byte stream of a connection, plain or TLS, and how one is closed so that its last bytes arrive.

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

/// Byte stream of a connection, plain or TLS.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// Returns true if the kernel has unread bytes of the client, or the end of the stream.
    ///
    /// A pending read is no proof of the contrary: the runtime may not have polled the socket yet, least of all after a
    /// pause of the whole process. The client's session would expire while its ping waits in the kernel.
    fn is_readable(&self) -> bool;

    /// Returns the socket, if it is one of Unix.
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
    // Any other error is left to the next read, which closes the connection.
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

/// In-process stream for tests: no kernel holds bytes between its ends.
#[cfg(test)]
impl Transport for tokio::io::DuplexStream {
    fn is_readable(&self) -> bool {
        false
    }
}

/// Time limit for a client to close its end, after the last byte was sent to it. The task and its place in the
/// connection table are held for so long.
const LINGER: Duration = Duration::from_secs(1);

/// Limit of the bytes that it may send meanwhile: one that never stops sending is reset.
const LINGER_BYTES: usize = 64 << 10;

/// Closes a connection so that the last bytes arrive.
///
/// A connection that is closed with unread bytes is reset by TCP, and the client's kernel may then drop an answer that
/// it has received already. So the connection is shut down for writing, and then read to its end, within limits.
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
    // The limit covers the shutdown: over TLS it writes an alert, perhaps to a client that does not read.
    let _ = tokio::time::timeout(LINGER, closing).await;
}

/// Runs `work`, unless `closed` completes first; then returns `None`.
///
/// `closed` is polled first: a request to close is not delayed by work that is always ready.
pub(super) async fn unless_closed<T, U>(
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
