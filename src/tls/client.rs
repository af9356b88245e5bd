//! [`ClientTls`].

use std::path::Path;

use super::{Pem, TlsError};

/// How a client of `lockkeeper://` and `zookeeper://` proves to whom it speaks, and who it is itself:
/// [`ConnectOptions::tls`](crate::ConnectOptions::tls).
///
/// The server's certificate has to come from one of the authorities that are named here (the system's are not
/// asked), to be valid at the time, and to be made out to the host that the URL names: for an IP address, to
/// that address. There is no way to leave this out.
///
/// Whether the certificates and the key can be used is found out when connecting:
/// [`Error::Tls`](crate::Error::Tls).
///
/// rustls wants one provider of cryptography to be chosen for the whole process
/// (`CryptoProvider::install_default`), and zookeeper-client uses that one. Where the program has chosen none
/// by the first connection with TLS, it is *ring*.
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_store::{ClientTls, ConnectOptions, connect_with};
///
/// let tls = ClientTls::new()
///     .ca_file("/etc/locks/ca.pem")?
///     .client_certificate_files("/etc/locks/me.pem", "/etc/locks/me.key")?;
/// let client = connect_with("lockkeeper://locks.example:2281", ConnectOptions::new().tls(tls)).await?;
/// # client.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ClientTls {
    pub(crate) authorities: Vec<Pem>,
    /// The certificate and its key.
    pub(crate) identity: Option<(Pem, Pem)>,
}

const AUTHORITY: &str = "the certificate authority";
const CERTIFICATE: &str = "the client certificate";
const KEY: &str = "the client's key";

impl ClientTls {
    /// No authority yet, and no certificate of one's own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Believes the certificates that these authorities signed, too: one or several certificates, as PEM.
    /// Revocation lists (`X509 CRL`) may stand beside them.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(Pem::given(AUTHORITY, pem));
        self
    }

    /// As [`ca_pem`](Self::ca_pem), from a file, which is read at once.
    ///
    /// # Errors
    /// [`TlsError::Unreadable`].
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Result<Self, TlsError> {
        self.authorities.push(Pem::file(AUTHORITY, path.as_ref())?);
        Ok(self)
    }

    /// The client's own certificate, with those between it and its authority behind it, and its key; as PEM.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((Pem::given(CERTIFICATE, certificate), Pem::given(KEY, key)));
        self
    }

    /// As [`client_certificate`](Self::client_certificate), from files, which are read at once.
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
