//! [`ClientTls`]: TLS options of a client.

use std::path::Path;

use super::{Pem, TlsError};

/// TLS options for `lockkeeper+tls://` and `zookeeper+tls://`: trusted authorities and an optional client certificate.
/// Pass them to [`ConnectOptions::tls`](crate::ConnectOptions::tls).
///
/// The server's certificate must be valid now, be signed by one of these authorities (the system's authorities are not
/// used), and name the host or IP address in the URL. This check cannot be disabled.
///
/// Certificates and keys are checked when the client connects. If they cannot be used, connecting fails with
/// [`Error::Tls`](crate::Error::Tls).
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_store::{ClientTls, ConnectOptions, connect_with};
///
/// let tls = ClientTls::new()
///     .ca_file("/etc/locks/ca.pem")?
///     .client_certificate_files("/etc/locks/me.pem", "/etc/locks/me.key")?;
/// let client = connect_with("lockkeeper+tls://locks.example:2281", ConnectOptions::new().tls(tls)).await?;
/// # client.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ClientTls {
    pub(crate) authorities: Vec<Pem>,
    pub(crate) identity: Option<(Pem, Pem)>,
    /// Name to expect in the server's certificate instead of the URL's host.
    pub(crate) server_name: Option<String>,
}

const AUTHORITY: &str = "the certificate authority";
const CERTIFICATE: &str = "the client certificate";
const KEY: &str = "the client's key";

impl ClientTls {
    /// Creates options without authorities and without a client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the PEM certificates of one or more additional authorities. The text may also contain revocation lists
    /// (`X509 CRL`).
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(Pem::given(AUTHORITY, pem));
        self
    }

    /// Like [`ca_pem`](Self::ca_pem), but reads the PEM text from a file immediately.
    ///
    /// # Errors
    /// [`TlsError::Unreadable`].
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Result<Self, TlsError> {
        self.authorities.push(Pem::file(AUTHORITY, path.as_ref())?);
        Ok(self)
    }

    /// Sets the DNS name or IP address to expect in the server's certificate. The default is the URL's host. Set
    /// another name to reach a server through a tunnel.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Sets the client's certificate chain and key, as PEM.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((Pem::given(CERTIFICATE, certificate), Pem::given(KEY, key)));
        self
    }

    /// Like [`client_certificate`](Self::client_certificate), but reads the PEM texts from files immediately.
    ///
    /// # Errors
    /// [`TlsError::Unreadable`].
    pub fn client_certificate_files(
        mut self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        let certificate = Pem::file(CERTIFICATE, certificate.as_ref())?;
        self.identity = Some((certificate, Pem::file(KEY, key.as_ref())?));
        Ok(self)
    }
}
