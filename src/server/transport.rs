//! [`Transport`]: the byte stream of a connection. Also closes a connection so that its last bytes arrive.

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
    /// Returns true if the kernel has unread bytes from the client, or the end of the stream.
    ///
    /// A pending read does not prove that nothing has arrived, because the runtime may not have polled the socket yet.
    /// Without this check, the server could let a session expire while the client's ping waits in the kernel.
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
    // Treat any other error as readable, because the next read returns the error.
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

#[cfg(test)]
impl Transport for tokio::io::DuplexStream {
    fn is_readable(&self) -> bool {
        false
    }
}

const LINGER: Duration = Duration::from_secs(1);

/// Limit of the bytes that a client may send before it closes its end. Above the limit, the connection is reset.
const LINGER_BYTES: usize = 64 << 10;

/// Closes a connection so that the last bytes arrive.
///
/// TCP resets a connection that is closed with unread bytes, and the client may then lose an answer that its kernel has
/// already received. So we shut the connection down for writing and then read it to its end, within limits.
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
    // The time limit includes the shutdown. Over TLS, the shutdown writes an alert to a client that may not read.
    let _ = tokio::time::timeout(LINGER, closing).await;
}

/// Runs `work`, or returns `None` if `closed` completes first. Polls `closed` first, so that work that is always ready
/// does not delay a request to close.
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
