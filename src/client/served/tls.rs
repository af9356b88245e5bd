//! TLS for a connection, using rustls' sans-IO session.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::socket::Socket;
use crate::model::error::{Error, Result};
use crate::tls::{ClientTls, TlsError, client_config, server_names};

#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    names: Vec<ServerName<'static>>,
}

impl Tls {
    pub(super) fn new(tls: &ClientTls, hosts: &[String], _url: &str) -> Result<Self> {
        Ok(Self {
            names: server_names(tls, hosts)?,
            config: client_config(tls)?,
        })
    }

    pub(super) fn start(&self, server: usize) -> Result<TlsStream> {
        let name = self.names[server].clone();
        let connection = ClientConnection::new(self.config.clone(), name);
        let connection = connection.map_err(|error| Error::Protocol(format!("TLS: {error}")))?;
        Ok(TlsStream(Box::new(connection)))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

#[derive(Debug)]
pub(super) struct TlsStream(Box<ClientConnection>);

impl TlsStream {
    pub(super) fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    pub(super) fn read(&mut self, mut socket: &dyn Socket, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            let count = self.0.read_tls(&mut socket)?;
            let processed = self.0.process_new_packets();
            // Send the next part of the handshake. If the handshake has failed, send the alert before returning the
            // error.
            if self.0.wants_write() {
                match self.flush(socket) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock && processed.is_ok() => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            if count == 0 {
                return Ok(0);
            }
        }
    }

    pub(super) fn write(&mut self, socket: &dyn Socket, bytes: &[u8]) -> io::Result<usize> {
        // Flush first, because rustls buffers only a limited number of bytes.
        match self.flush(socket) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        match self.0.writer().write(bytes)? {
            0 if !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            count => match self.flush(socket) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
                _ => Ok(count),
            },
        }
    }

    pub(super) fn flush(&mut self, mut socket: &dyn Socket) -> io::Result<()> {
        while self.0.wants_write() {
            self.0.write_tls(&mut socket)?;
        }
        socket.flush()
    }
}

pub(super) fn refused(host: &str, error: &io::Error) -> Option<TlsError> {
    let tls = error.get_ref().and_then(|error| error.downcast_ref());
    match tls {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)) => {
            Some(TlsError::Refused {
                host: host.to_owned(),
                reason: error.to_string(),
            })
        }
        _ => None,
    }
}
