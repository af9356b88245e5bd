//! [`Stream`]: a non-blocking connection to a server, with TLS or without.

use std::io;
use std::sync::Arc;

use super::socket::Socket;
use super::tls::TlsStream;

/// A non-blocking connection.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Arc<dyn Socket>,
    tls: Option<TlsStream>,
}

impl Stream {
    pub(super) fn new(socket: Arc<dyn Socket>, tls: Option<TlsStream>) -> Self {
        Self { socket, tls }
    }

    /// Returns the socket, to wait for it.
    pub(super) fn socket(&self) -> Arc<dyn Socket> {
        self.socket.clone()
    }

    /// Returns true for a connection without TLS.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Returns the socket of a connection without TLS: any thread may write to it.
    pub(super) fn plain_socket(&self) -> Option<Arc<dyn Socket>> {
        self.is_plain().then(|| self.socket.clone())
    }

    /// Returns true while the handshake of TLS is under way.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(TlsStream::is_handshaking)
    }

    /// Reads what has arrived; 0 at the end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.socket.read(buffer),
            Some(tls) => tls.read(&*self.socket, buffer),
        }
    }

    /// Writes as much as the system takes now. With TLS, bytes that are taken may still have to be
    /// [flushed](Self::flush).
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.socket.write(bytes),
            Some(tls) => tls.write(&*self.socket, bytes),
        }
    }

    /// Writes what TLS holds back.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => Ok(()),
            Some(tls) => tls.flush(&*self.socket),
        }
    }
}

impl Drop for Stream {
    /// Ends the connection, although other handles to the socket may be left.
    fn drop(&mut self) {
        // In the child of a fork the connection is the parent's.
        if !crate::runtime::fork::is_forked() {
            let _ = self.socket.shutdown();
        }
    }
}
