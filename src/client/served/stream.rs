//! [`Stream`]: a non-blocking connection to a server, with or without TLS.

use std::io;
use std::sync::Arc;

use super::socket::Socket;
use super::tls::TlsStream;

#[derive(Debug)]
pub(super) struct Stream {
    socket: Arc<dyn Socket>,
    tls: Option<TlsStream>,
}

impl Stream {
    pub(super) fn new(socket: Arc<dyn Socket>, tls: Option<TlsStream>) -> Self {
        Self { socket, tls }
    }

    pub(super) fn socket(&self) -> Arc<dyn Socket> {
        self.socket.clone()
    }

    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Returns the socket if the connection does not use TLS. Any thread may write to this socket.
    pub(super) fn plain_socket(&self) -> Option<Arc<dyn Socket>> {
        self.is_plain().then(|| self.socket.clone())
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(TlsStream::is_handshaking)
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.socket.read(buffer),
            Some(tls) => tls.read(&*self.socket, buffer),
        }
    }

    /// Writes as much as the system accepts. With TLS, accepted bytes may still need a [`flush`](Self::flush).
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.socket.write(bytes),
            Some(tls) => tls.write(&*self.socket, bytes),
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => Ok(()),
            Some(tls) => tls.flush(&*self.socket),
        }
    }
}

impl Drop for Stream {
    /// Ends the connection even if other handles to the socket exist.
    fn drop(&mut self) {
        // In a forked child, the connection belongs to the parent.
        if !crate::runtime::process::is_forked() {
            let _ = self.socket.shutdown();
        }
    }
}
