//! [`Transport`]: the stream of a connection, plain or secured.

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A stream whose client is not taken for dead as long as anything that it has sent is unread.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// Returns true if there is something to read, be it the end. A read that has to wait does not say that there is not:
    /// the runtime may not have asked the system yet, least of all after a stop.
    fn is_readable(&self) -> bool;
}

impl Transport for TcpStream {
    fn is_readable(&self) -> bool {
        let peeked = recv(self, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        // Of any other error the next read will tell.
        !matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }
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
}

/// No system is between its two ends.
#[cfg(test)]
impl Transport for tokio::io::DuplexStream {
    fn is_readable(&self) -> bool {
        false
    }
}
