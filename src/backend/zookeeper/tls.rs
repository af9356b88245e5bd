//! The client's side of TLS. zookeeper-client speaks it; here its options are checked before it gets them, since it
//! skips certificates that it cannot read and panics at an invalid host name, and a refused handshake is repeated to
//! learn the reason, which it does not tell.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use zookeeper_client as zk;

use super::Refusal;
use crate::error::{Error, Result};
use crate::tls::{ClientTls, Pem, TlsError, client_config, host_name, server_name};

/// Checked options.
#[derive(Clone)]
pub(super) struct Tls {
    options: zk::TlsOptions,
    /// The same, for handshakes of this module.
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Checks the options for these hosts, given as `host:port[,host:port…]`.
    pub(super) fn new(tls: &ClientTls, hosts: &str, _url: &str) -> Result<Self> {
        if tls.server_name.is_some() {
            let why = "the server name of TLS: the certificate of a ZooKeeper must name the host of the URL";
            return Err(Error::BadArguments(why.into()));
        }
        hosts
            .split(',')
            .try_for_each(|host| server_name(host_name(host)).map(|_| ()))?;
        let config = client_config(tls)?;
        // zookeeper-client uses the process's default provider. Two are compiled in, since both crates name theirs,
        // and rustls panics if none has been installed.
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster: then one is installed.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(Self {
            options: options(tls)?,
            config,
        })
    }

    pub(super) async fn connect(
        self,
        connector: zk::Connector,
        hosts: &str,
    ) -> Result<zk::Client, zk::Error> {
        connector.with_tls(self.options).secure_connect(hosts).await
    }

    /// Returns a TLS stream to a host.
    pub(super) fn over(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let name = server_name(host_name(host)).map_err(io::Error::other)?;
        let connection =
            ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        stream.conn.complete_io(&mut stream.sock)?;
        Ok(stream)
    }

    /// Returns the reason for which the TLS handshake with `host` fails; `None` if it succeeds.
    pub(super) fn refusal(
        &self,
        stream: TcpStream,
        host: &str,
        limit: Duration,
    ) -> Option<Refusal> {
        let limit = limit.min(LONGEST_HANDSHAKE);
        stream.set_read_timeout(Some(limit)).ok()?;
        stream.set_write_timeout(Some(limit)).ok()?;
        let mut stream = match self.over(stream, host) {
            Ok(stream) => stream,
            Err(error) => return Some(refused(host, &error)),
        };
        // With TLS 1.3 the server checks a client's certificate after the client's part of the handshake is done.
        stream.sock.set_read_timeout(Some(LONGEST_VERDICT)).ok()?;
        match stream.read(&mut [0]) {
            Ok(0) => Some(refused(host, &ErrorKind::UnexpectedEof.into())),
            Err(error) if !is_silence(&error) => Some(refused(host, &error)),
            _ => None,
        }
    }
}

fn refused(host: &str, error: &io::Error) -> Refusal {
    let reason = error.to_string();
    let tls = error.get_ref().and_then(|error| error.downcast_ref());
    match tls {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)) => {
            Refusal::Tls(TlsError::Refused {
                host: host.to_owned(),
                reason,
            })
        }
        _ => Refusal::Other(format!("{host}: TLS: {reason}")),
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Time limit of a handshake that is made only to learn the reason of a failure.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(2);

/// Time limit for a server to refuse a certificate. One that accepts it sends nothing.
const LONGEST_VERDICT: Duration = Duration::from_millis(500);

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Cannot fail: [`client_config`] has checked it.
fn options(tls: &ClientTls) -> Result<zk::TlsOptions, TlsError> {
    let mut all = String::new();
    for pem in &tls.authorities {
        all.push_str(text(pem)?);
        all.push('\n');
    }
    let refused = |error: zk::Error| TlsError::Unusable {
        what: "a certificate or key".into(),
        reason: error.to_string(),
    };
    let options = zk::TlsOptions::new().with_pem_ca(&all).map_err(refused)?;
    match &tls.identity {
        None => Ok(options),
        Some((certificate, key)) => options
            .with_pem_identity(text(certificate)?, text(key)?)
            .map_err(refused),
    }
}

fn text(pem: &Pem) -> Result<&str, TlsError> {
    std::str::from_utf8(&pem.text).map_err(|_| TlsError::BadPem {
        what: pem.what.to_string(),
        reason: "it is no UTF-8".into(),
    })
}
