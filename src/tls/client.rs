//! [`ClientTls`]: the TLS options of a client.

use std::path::Path;

use super::{Pem, TlsError};

/// TLS options of a client of `lockkeeper+tls://` and `zookeeper+tls://`: the authorities that it trusts, and its own
/// certificate. See [`ConnectOptions::tls`](crate::ConnectOptions::tls).
///
/// The server's certificate must be signed by one of these authorities (the system's are not used), be valid at the
/// time, and name the host of the URL; for an IP address, that address. The check cannot be switched off.
///
/// Certificates and keys are checked when connecting: [`Error::Tls`](crate::Error::Tls).
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
    /// The certificate and its key.
    pub(crate) identity: Option<(Pem, Pem)>,
    /// The name that the server's certificate must have, if it is not the host of the URL.
    pub(crate) server_name: Option<String>,
}

const AUTHORITY: &str = "the certificate authority";
const CERTIFICATE: &str = "the client certificate";
const KEY: &str = "the client's key";

impl ClientTls {
    /// Returns options without an authority and without a certificate of the client.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts further authorities: one or several certificates, as PEM. Revocation lists (`X509 CRL`) may be among
    /// them.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(Pem::given(AUTHORITY, pem));
        self
    }

    /// As [`ca_pem`](Self::ca_pem), from a file, which is read by this call.
    ///
    /// # Errors
    /// [`TlsError::Unreadable`].
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Result<Self, TlsError> {
        self.authorities.push(Pem::file(AUTHORITY, path.as_ref())?);
        Ok(self)
    }

    /// Sets the DNS name or the IP address that the server's certificate must have, for a server that is reached by
    /// another one, as through a tunnel or by its address. By default it is the host of the URL.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Sets the client's certificate chain and its key, as PEM.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((Pem::given(CERTIFICATE, certificate), Pem::given(KEY, key)));
        self
    }

    /// As [`client_certificate`](Self::client_certificate), from files, which are read by this call.
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
