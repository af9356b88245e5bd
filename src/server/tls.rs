//! [`TlsOptions`], and the handshake that comes before ZooKeeper's.

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

use super::connection::{self, unless_closed};
use super::connection_table::{ConnectionGuard, Count};
use super::listener::listen;
use super::{Server, ServerError, ServerOptions, Shared};
use crate::identity::Identity;
use crate::tls::{Authorities, Pem, TlsError, key_pair, provider, subject};

/// The server's certificate, and whose certificates its clients need: for TLS 1.2 and 1.3.
///
/// The files are read once, when this is made. When they are renewed, make it anew, and give it to
/// [`Server::reload_tls`](super::Server::reload_tls).
///
/// A client's certificate is its proof of identity, of the scheme `x509`, with the holder's name in the words of RFC 2253
/// for its id: `CN=alice,OU=Locks,O=Example`. What RFC 2253 has no word for is shown by number and in
/// hex (`1.2.840.113549.1.9.1=#1611…` for an e-mail address): so does ZooKeeper, and lists made for it go on to hold.
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
    /// What errors call the certificate.
    what: Arc<str>,
    clients: Option<Authorities>,
}

const CERTIFICATE: &str = "the server's certificate";
const KEY: &str = "the server's key";
const CLIENT_AUTHORITY: &str = "the authority of clients' certificates";

impl TlsOptions {
    /// The server's certificate, with those between it and its authority behind it, and its key.
    /// A certificate whose time is over is taken, with a warning: its clients will refuse it.
    ///
    /// # Errors
    /// A [`TlsError`] that says which file and what is wrong with it.
    pub fn from_pem_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        Self::new(
            &Pem::file(CERTIFICATE, certificate.as_ref())?,
            &Pem::file(KEY, key.as_ref())?,
        )
    }

    /// As [`from_pem_files`](Self::from_pem_files), for what has been read already.
    ///
    /// # Errors
    /// A [`TlsError`] that says what is wrong.
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
        })
    }

    /// Lets in only clients with a certificate that one of these authorities signed and that is valid at the time.
    /// A file of one or several certificates, as PEM; revocation lists (`X509 CRL`) may stand beside them.
    /// Called again, it adds others.
    ///
    /// # Errors
    /// A [`TlsError`] that says what is wrong with the file.
    pub fn client_ca(self, file: impl AsRef<Path>) -> Result<Self, TlsError> {
        self.with_clients(&Pem::file(CLIENT_AUTHORITY, file.as_ref())?)
    }

    /// As [`client_ca`](Self::client_ca), for what has been read already.
    ///
    /// # Errors
    /// A [`TlsError`] that says what is wrong.
    pub fn client_ca_pem(self, pem: impl Into<Vec<u8>>) -> Result<Self, TlsError> {
        self.with_clients(&Pem::given(CLIENT_AUTHORITY, pem))
    }

    fn with_clients(mut self, pem: &Pem) -> Result<Self, TlsError> {
        let clients = self.clients.get_or_insert_with(Authorities::none);
        clients.add(pem)?;
        Ok(self)
    }

    /// Whether every client needs a certificate.
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
                        // Not every authority has a list.
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
        // A certificate is looked at for each connection: taking up an earlier TLS session again would let one in
        // that has expired or been revoked since. Connections last; little is saved by it.
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

/// What a server without an address for TLS has not.
const NO_ADDRESS: &str = "address (tls_listen)";

impl ServerOptions {
    /// The certificates for [`tls_listen`](Self::tls_listen).
    #[must_use]
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The address to listen on for clients that speak TLS, beside the one for those that do not. Port 0 takes a
    /// free one, which [`Server::tls_addr`](super::Server::tls_addr) tells.
    #[must_use]
    pub fn tls_listen(mut self, address: SocketAddr) -> Self {
        self.tls_listen = Some(address);
        self
    }

    /// Certificates and address belong together, and at an address that others can reach somebody asks who they are.
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

    /// Listens for clients that speak TLS alone.
    #[must_use]
    pub fn tls_only(mut self) -> Self {
        self.listen = None;
        self
    }
}

/// The server's end of TLS. What a renewal changes holds for the connections that come after it.
pub(super) struct Acceptor {
    config: RwLock<Arc<ServerConfig>>,
    /// The time by which the lists of revoked certificates were to be renewed; `None` once that was warned of, or if
    /// there is none.
    lists_end: Mutex<Option<SystemTime>>,
}

impl Acceptor {
    pub(super) fn new(options: &TlsOptions) -> Result<Self, TlsError> {
        let acceptor = Self {
            config: RwLock::new(options.config()?),
            lists_end: Mutex::new(options.lists_end()),
        };
        acceptor.warn_of_lists();
        Ok(acceptor)
    }

    pub(super) fn reload(&self, options: &TlsOptions) -> Result<(), TlsError> {
        let config = options.config()?;
        *self.config.write() = config;
        *self.lists_end.lock() = options.lists_end();
        self.warn_of_lists();
        Ok(())
    }

    /// Warns, once, of a list of revoked certificates that has expired. It goes on to be heeded: without it those that
    /// it names would be let in, and with none but fresh lists everybody would be kept out when one is late.
    fn warn_of_lists(&self) {
        let mut lists_end = self.lists_end.lock();
        if lists_end.is_some_and(|end| end < SystemTime::now()) {
            *lists_end = None;
            tracing::warn!(
                "a revocation list has expired: certificates that were revoked since are let in; renew it, and have the certificates read again"
            );
        }
    }

    /// Goes through the handshake, and tells who the client is, where it shows a certificate. Sets no limit of time:
    /// who calls this does, and dropping it ends the connection.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Option<Identity>)> {
        begins_a_handshake(&stream).await?;
        self.warn_of_lists();
        let acceptor = TlsAcceptor::from(self.config.read().clone());
        let stream = match acceptor.accept(stream).into_fallible().await {
            Ok(stream) => stream,
            Err((error, stream)) => {
                bid_farewell(stream).await;
                return Err(error);
            }
        };
        let identity = holder(&stream)?;
        Ok((stream, identity))
    }
}

/// Where TLS is spoken, and with which certificates.
pub(super) struct Secured {
    pub(super) address: SocketAddr,
    pub(super) acceptor: Arc<Acceptor>,
    /// What was asked for, to hold other certificates against.
    options: ServerOptions,
}

impl Secured {
    /// Begins to listen, if that is asked for.
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
    /// Where it listens for clients that speak TLS; `None` if it does not.
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        Some(self.tls.as_ref()?.address)
    }

    /// Takes other certificates: renewed ones, mostly. They hold for the connections that come from now on; those that
    /// there are stay.
    ///
    /// # Errors
    /// [`ServerError::TlsIncomplete`] for a server that does not listen for TLS, [`ServerError::Exposed`] when they
    /// ask nobody for a certificate and the address would be open by that, [`ServerError::Tls`]. Then
    /// those that there were go on to hold.
    pub fn reload_tls(&self, tls: TlsOptions) -> Result<(), ServerError> {
        let Some(secured) = &self.tls else {
            return Err(ServerError::TlsIncomplete {
                missing: NO_ADDRESS,
            });
        };
        secured.options.check_tls(Some(&tls))?;
        secured.acceptor.reload(&tls)?;
        tracing::info!(
            certificate = &*tls.what,
            "new connections get other certificates"
        );
        Ok(())
    }
}

/// One connection, from its first byte to its last: [`connection::serve`], after the handshake of TLS.
pub(super) async fn serve(
    acceptor: Arc<Acceptor>,
    stream: TcpStream,
    guard: ConnectionGuard,
    shared: Arc<Shared>,
    until: Instant,
) {
    let accepting = tokio::time::timeout_at(until, acceptor.accept(stream));
    let Some(accepted) = unless_closed(guard.close_requested(), accepting).await else {
        return;
    };
    let address = guard.address();
    match accepted {
        Ok(Ok((stream, identity))) => {
            tracing::debug!(%address, holder = ?identity.as_ref().map(Identity::shown), "TLS");
            // A connection's greatest part by far stands in its task: boxed, what comes before takes no room beside it.
            Box::pin(connection::serve(stream, guard, shared, until, identity)).await;
        }
        Ok(Err(error)) => {
            shared.table.count(Count::HandshakeFailed);
            // Of any other kind is the end of a connection whose client has gone.
            if error.kind() != io::ErrorKind::InvalidData {
                tracing::debug!(%address, %error, "no TLS handshake");
            } else if let Some(suppressed) = shared
                .table
                .log_throttle
                .tls_handshake_refused
                .allow(shared.clock().now())
            {
                tracing::info!(%address, %error, suppressed, "a TLS handshake is refused");
            }
        }
        Err(_) => {
            shared.table.count(Count::HandshakeTimedOut);
            tracing::debug!(%address, "no TLS handshake in time");
        }
    }
}

/// A record of a handshake begins with this byte. ZooKeeper's frames begin with 0, and its four-letter words with letters.
const HANDSHAKE: u8 = 22;

/// Looks at the first byte. rustls would wait for more than a four-letter word has.
async fn begins_a_handshake(stream: &TcpStream) -> io::Result<()> {
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

/// What a client that is refused may still send before it is closed regardless, in bytes.
const FAREWELL_BYTES: u64 = 64 << 10;

/// Lets the client read why it is refused: closing with something unread would reset the connection, and take
/// the alert with it.
async fn bid_farewell(mut stream: TcpStream) {
    if stream.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut stream.take(FAREWELL_BYTES), &mut tokio::io::sink()).await;
    }
}

/// Who the client's certificate, verified already, says that it is.
fn holder(stream: &TlsStream<TcpStream>) -> io::Result<Option<Identity>> {
    let (_, connection) = stream.get_ref();
    let Some(certificate) = connection
        .peer_certificates()
        .and_then(|chain| chain.first())
    else {
        return Ok(None);
    };
    let Some(id) = subject(certificate) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the name of the certificate's holder cannot be read",
        ));
    };
    let identity = Identity::x509(&id);
    let within_limit = identity.check_size();
    within_limit.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some(identity))
}
