//! [`TlsError`]: reasons why TLS options cannot be used.

/// An error in a certificate, a key or another part of TLS. `what` names the part and, if there is one, its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{what} cannot be read: {reason}")]
    Unreadable {
        /// Name of the certificate, key or file.
        what: String,
        /// The operating system's reason.
        reason: String,
    },
    /// The text is not PEM.
    #[error("{what} is not PEM: {reason}")]
    BadPem {
        /// Name of the certificate, key or file.
        what: String,
        /// The reason.
        reason: String,
    },
    /// The text contains no certificate.
    #[error("{what} holds no certificate: expected a block `-----BEGIN CERTIFICATE-----`")]
    NoCertificate {
        /// Name of the certificate, key or file.
        what: String,
    },
    /// The text contains no private key.
    #[error("{what} holds no key: expected a block `-----BEGIN PRIVATE KEY-----` or the like")]
    NoKey {
        /// Name of the certificate, key or file.
        what: String,
    },
    /// The private key is encrypted. The library never asks for a passphrase.
    #[error("{what} is encrypted: remove the passphrase, as with `openssl pkey`")]
    EncryptedKey {
        /// Name of the certificate, key or file.
        what: String,
    },
    /// The private key does not match the certificate.
    #[error("{key} does not belong to {certificate}")]
    KeyMismatch {
        /// The certificate.
        certificate: String,
        /// The key.
        key: String,
    },
    /// The part is well-formed but unusable.
    #[error("{what} cannot be used: {reason}")]
    Unusable {
        /// Name of the certificate, key or file.
        what: String,
        /// The reason.
        reason: String,
    },
    /// There is no authority, so the client would have to trust every server.
    #[error(
        "no certificate authority by which to verify the server: add one with ClientTls::ca_file"
    )]
    NoAuthority,
    /// Client and server do not trust each other: one of them has refused or not received the other's certificate.
    #[error("{host}: TLS: {reason}")]
    Refused {
        /// The server, as `host:port`.
        host: String,
        /// The reason.
        reason: String,
    },
    /// The server requires TLS, but the client does not use it.
    #[error("{host} speaks TLS: write lockkeeper+tls:// or zookeeper+tls:// in the URL")]
    Required {
        /// The server, as `host:port`.
        host: String,
    },
    /// The client uses TLS, but the server answers without it.
    #[error("{host} does not speak TLS: give the server's port for TLS, or a URL without +tls")]
    NotSpoken {
        /// The server, as `host:port`.
        host: String,
    },
    /// The host is neither a DNS name nor an IP address, so no certificate can name it.
    #[error(
        "no certificate can be made out to the host \"{host}\": expected a DNS name or an IP address",
        host = .host.escape_debug()
    )]
    BadHost {
        /// The host.
        host: String,
    },
}
