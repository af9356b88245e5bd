//! TLS of a server: [`TlsOptions`], the TLS handshake, and the reload of certificates.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection;
use super::connection_table::{ConnectionGuard, Count};
use super::listener::listen;
use super::transport::run_until_closed;
use super::{Server, ServerError, ServerOptions, Shared};
use crate::model::identity::Identity;
use crate::tls::{Authorities, Pem, TlsError, alternative_name, key_pair, provider, subject, uri};

/// TLS options of a server: its certificate, and optionally the authorities of its clients' certificates. The server
/// supports TLS 1.2 and 1.3.
///
/// Files are read once, when they are passed to a method. To renew certificates, pass new options to
/// [`Server::reload_tls`](super::Server::reload_tls).
///
/// A client's certificate proves an identity of the scheme `x509`. The identity's id is the subject in the form of RFC
/// 2253, such as `CN=alice,OU=Locks,O=Example`. As in ZooKeeper, an attribute without a keyword in RFC 2253 appears as
/// a number with its value in hex (`1.2.840.113549.1.9.1=#1611…` for an e-mail address). So access control lists made
/// for ZooKeeper stay valid.
///
/// If the certificate has no subject, the id is its only URI (`URI:spiffe://example/a`), or else its only DNS name
/// (`DNS:a.example`). A certificate without any of these names proves no identity. With
/// [`clients_by_uri`](Self::clients_by_uri) the id is always the URI.
///
/// The authority is not part of the identity, so certificates with the same name identify the same client.
///
/// ```no_run
/// # async fn serve(store: &lockkeeper_store::Store) -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_store::{Server, ServerOptions, TlsOptions};
///
/// let tls = TlsOptions::from_pem_files("/etc/locks/server.pem", "/etc/locks/server.key")?
///     .client_ca("/etc/locks/clients-ca.pem")?;
/// let options = ServerOptions::new().tls(tls).tls_listen("0.0.0.0:2281".parse()?);
/// let server = Server::bind(store, options).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct TlsOptions {
    certificate: Arc<CertifiedKey>,
    what: Arc<str>,
    clients: Option<Authorities>,
    by_uri: bool,
}

const CERTIFICATE: &str = "the server's certificate";
const KEY: &str = "the server's key";
const CLIENT_AUTHORITY: &str = "the authority of clients' certificates";

impl TlsOptions {
    /// Reads the server's certificate chain and its key. Logs a warning if the certificate has expired.
    ///
    /// # Errors
    /// A [`TlsError`] that names the file and the reason.
    pub fn from_pem_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        Self::new(
            &Pem::file(CERTIFICATE, certificate.as_ref())?,
            &Pem::file(KEY, key.as_ref())?,
        )
    }

    /// Like [`from_pem_files`](Self::from_pem_files), but takes the PEM texts from memory.
    ///
    /// # Errors
    /// A [`TlsError`] with the reason.
    pub fn from_pem(
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Result<Self, TlsError> {
        Self::new(&Pem::given(CERTIFICATE, certificate), &Pem::given(KEY, key))
    }

    fn new(certificate: &Pem, key: &Pem) -> Result<Self, TlsError> {
        Ok(Self {
            certificate: Arc::new(key_pair(certificate, key)?),
            what: certificate.what.clone(),
            clients: None,
            by_uri: false,
        })
    }

    /// Requires every client to have a valid certificate signed by one of these authorities. The PEM file contains one
    /// or more certificates, and optionally revocation lists (`X509 CRL`). Further calls add authorities.
    ///
    /// # Errors
    /// A [`TlsError`] that names the file and the reason.
    pub fn client_ca(self, file: impl AsRef<Path>) -> Result<Self, TlsError> {
        self.with_clients(&Pem::file(CLIENT_AUTHORITY, file.as_ref())?)
    }

    /// Like [`client_ca`](Self::client_ca), but takes the PEM text from memory.
    ///
    /// # Errors
    /// A [`TlsError`] with the reason.
    pub fn client_ca_pem(self, pem: impl Into<Vec<u8>>) -> Result<Self, TlsError> {
        self.with_clients(&Pem::given(CLIENT_AUTHORITY, pem))
    }

    fn with_clients(mut self, pem: &Pem) -> Result<Self, TlsError> {
        let clients = self.clients.get_or_insert_with(Authorities::none);
        clients.add(pem)?;
        Ok(self)
    }

    /// Sets whether the certificate's URI identifies the client, as SPIFFE requires. By default, the subject does. With
    /// the URI, the id of a client with an X.509-SVID is `URI:spiffe://example/a`. A certificate with no URI or several
    /// proves no identity.
    pub fn clients_by_uri(mut self, by_uri: bool) -> Self {
        self.by_uri = by_uri;
        self
    }

    pub(super) fn asks_clients(&self) -> bool {
        self.clients.is_some()
    }

    fn lists_end(&self) -> Option<SystemTime> {
        self.clients.as_ref()?.lists_end()
    }

    fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let unusable = |reason: String| TlsError::Unusable {
            what: self.what.to_string(),
            reason,
        };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(error.to_string()))?;
        let builder = match self.clients.clone() {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(clients.roots.into(), provider())
                        .with_crls(clients.revoked)
                        // Accept certificates of authorities that publish no revocation list.
                        .allow_unknown_revocation_status()
                        .build();
                let verifier = verifier.map_err(|error| TlsError::Unusable {
                    what: CLIENT_AUTHORITY.to_owned(),
                    reason: error.to_string(),
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config =
            builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(self.certificate.clone())));
        // Disable resumption, because a resumed TLS session checks no certificate. It would admit a client whose
        // certificate has expired or been revoked since the first handshake.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("certificate", &self.what)
            .field("asks_clients", &self.asks_clients())
            .finish_non_exhaustive()
    }
}

const NO_ADDRESS: &str = "address (tls_listen)";

impl ServerOptions {
    /// Sets the certificates for [`tls_listen`](Self::tls_listen).
    #[must_use]
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the address for TLS connections, in addition to the plain address. For port 0,
    /// [`Server::tls_addr`](super::Server::tls_addr) returns the chosen port.
    #[must_use]
    pub fn tls_listen(mut self, address: SocketAddr) -> Self {
        self.tls_listen = Some(address);
        self
    }

    pub(super) fn check_tls(&self, tls: Option<&TlsOptions>) -> Result<(), ServerError> {
        let missing = match (self.tls_listen, tls) {
            (None, None) => return Ok(()),
            (Some(address), Some(tls)) => {
                return self.check_exposure(Some(address), tls.asks_clients());
            }
            (None, Some(_)) => NO_ADDRESS,
            (Some(_), None) => "certificate (tls)",
        };
        Err(ServerError::TlsIncomplete { missing })
    }

    /// Serves only TLS connections.
    #[must_use]
    pub fn tls_only(mut self) -> Self {
        self.listen = None;
        self
    }
}

pub(super) struct Acceptor {
    config: RwLock<(Arc<ServerConfig>, bool)>,
    /// Time at which the first revocation list expires. `None` if no list expires or if the expiry is already logged.
    lists_end: Mutex<Option<SystemTime>>,
}

impl Acceptor {
    pub(super) fn new(options: &TlsOptions) -> Result<Self, TlsError> {
        let acceptor = Self {
            config: RwLock::new((options.config()?, options.by_uri)),
            lists_end: Mutex::new(options.lists_end()),
        };
        acceptor.warn_of_lists();
        Ok(acceptor)
    }

    pub(super) fn reload(&self, options: &TlsOptions) -> Result<(), TlsError> {
        // Do everything that can fail first, so that after an error the old certificates stay in use.
        let config = options.config()?;
        *self.config.write() = (config, options.by_uri);
        *self.lists_end.lock() = options.lists_end();
        self.warn_of_lists();
        Ok(())
    }

    /// Logs a warning once a revocation list has expired. The server keeps using the list and still admits clients with
    /// other certificates, because a late renewal must not cause an outage.
    fn warn_of_lists(&self) {
        let mut lists_end = self.lists_end.lock();
        if lists_end.is_some_and(|end| end < SystemTime::now()) {
            *lists_end = None;
            let hint = "certificates revoked since are accepted: renew the list, and reload the certificates";
            tracing::warn!(hint, "revocation list expired");
        }
    }

    pub(super) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Option<Identity>)> {
        expect_handshake(&stream).await?;
        // Check for expired lists here and not on a timer, because a list matters only when a client connects.
        self.warn_of_lists();
        let (config, by_uri) = self.config.read().clone();
        let acceptor = TlsAcceptor::from(config);
        let stream = match acceptor.accept(stream).into_fallible().await {
            Ok(stream) => stream,
            Err((error, stream)) => {
                close_after_alert(stream).await;
                return Err(error);
            }
        };
        let identity = holder(&stream, by_uri)?;
        Ok((stream, identity))
    }
}

pub(super) struct TlsListener {
    pub(super) address: SocketAddr,
    pub(super) acceptor: Arc<Acceptor>,
    /// [`Server::reload_tls`] checks these options together with new certificates.
    options: ServerOptions,
}

impl TlsListener {
    pub(super) fn listen(
        options: &ServerOptions,
    ) -> Result<Option<(TcpListener, Self)>, ServerError> {
        let (Some(address), Some(tls)) = (options.tls_listen, &options.tls) else {
            return Ok(None);
        };
        let acceptor = Arc::new(Acceptor::new(tls)?);
        let (listener, address) = listen(address)?;
        let secured = Self {
            address,
            acceptor,
            options: options.clone(),
        };
        Ok(Some((listener, secured)))
    }
}

impl Server {
    /// Returns the address for TLS connections, or `None` if the server has none.
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        Some(self.tls.as_ref()?.address)
    }

    /// Replaces the certificates for later connections.
    ///
    /// # Errors
    /// [`ServerError::TlsIncomplete`] if the server has no TLS, [`ServerError::Exposed`] if clients would no longer
    /// need a certificate at an address that other machines can reach, and [`ServerError::Tls`] if the new certificates
    /// cannot be used. After an error the old certificates stay in use.
    pub fn reload_tls(&self, tls: TlsOptions) -> Result<(), ServerError> {
        let Some(secured) = &self.tls else {
            return Err(ServerError::TlsIncomplete {
                missing: NO_ADDRESS,
            });
        };
        secured.options.check_tls(Some(&tls))?;
        secured.acceptor.reload(&tls)?;
        tracing::info!(certificate = &*tls.what, "certificates reloaded");
        Ok(())
    }
}

pub(super) async fn serve(
    acceptor: Arc<Acceptor>,
    stream: TcpStream,
    guard: ConnectionGuard,
    shared: Arc<Shared>,
    deadline: Instant,
) {
    let accepting = tokio::time::timeout_at(deadline, acceptor.accept(stream));
    let Some(accepted) = run_until_closed(guard.close_requested(), accepting).await else {
        return;
    };
    let address = guard.address();
    match accepted {
        Ok(Ok((stream, identity))) => {
            tracing::debug!(%address, holder = identity.as_ref().map(Identity::shown), "TLS handshake done");
            // Box this future, so that the task does not need space for both the TLS handshake and the connection.
            Box::pin(connection::serve(stream, guard, shared, deadline, identity)).await;
        }
        Ok(Err(error)) => {
            shared.table.count(Count::HandshakeFailed);
            // `InvalidData` means that we or rustls refuse the client. After any other error the client has
            // disconnected.
            if error.kind() != io::ErrorKind::InvalidData {
                tracing::debug!(%address, %error, "TLS handshake ended by the client");
            } else if let Some(suppressed) = shared
                .table
                .log_throttle
                .tls_handshake_refused
                .allow(shared.clock().now())
            {
                tracing::info!(%address, %error, suppressed, "TLS handshake refused");
            }
        }
        Err(_) => {
            shared.table.count(Count::HandshakeTimedOut);
            tracing::debug!(%address, "TLS handshake timed out");
        }
    }
}

/// First byte of a TLS handshake. ZooKeeper's frames start with 0, and four-letter words with letters.
const HANDSHAKE: u8 = 22;

/// Immediately refuses a client that does not speak TLS. rustls would wait for more bytes than a four-letter word has,
/// so a client without TLS would get no answer until the timeout.
async fn expect_handshake(stream: &TcpStream) -> io::Result<()> {
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ if first[0] == HANDSHAKE => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the client does not speak TLS",
        )),
    }
}

const LINGER_BYTES: u64 = 64 << 10;

/// Closes a refused client's connection so that the TLS alert still arrives. If we closed the socket with unread bytes,
/// TCP would reset the connection, and the alert could be lost.
async fn close_after_alert(mut stream: TcpStream) {
    if stream.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut stream.take(LINGER_BYTES), &mut tokio::io::sink()).await;
    }
}

/// Returns the identity that the client's verified certificate proves. Certificates without a name prove nothing,
/// because they would all share an empty identity.
fn holder(stream: &TlsStream<TcpStream>, by_uri: bool) -> io::Result<Option<Identity>> {
    let (_, connection) = stream.get_ref();
    let Some(certificate) = connection
        .peer_certificates()
        .and_then(|chain| chain.first())
    else {
        return Ok(None);
    };
    let id = match by_uri {
        true => uri(certificate),
        false => {
            let unreadable = "the name of the certificate's holder cannot be read";
            let subject = subject(certificate)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, unreadable))?;
            match subject.is_empty() {
                true => alternative_name(certificate),
                false => Some(subject),
            }
        }
    };
    let Some(id) = id else {
        return Ok(None);
    };
    let identity = Identity::x509(&id);
    let within_limit = identity.check_size();
    within_limit.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some(identity))
}
