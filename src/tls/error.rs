//! [`TlsError`]: the reasons for which TLS options cannot be used.

/// An error of a certificate, a key or another part of TLS. `what` names the part, with its file if it came from one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{what} cannot be read: {reason}")]
    Unreadable {
        /// The part.
        what: String,
        /// The operating system's reason.
        reason: String,
    },
    /// The text is not PEM.
    #[error("{what} is not PEM: {reason}")]
    BadPem {
        /// The part.
        what: String,
        /// The reason.
        reason: String,
    },
    /// The text has no certificate.
    #[error("{what} holds no certificate: expected a block `-----BEGIN CERTIFICATE-----`")]
    NoCertificate {
        /// The part.
        what: String,
    },
    /// The text has no private key.
    #[error("{what} holds no key: expected a block `-----BEGIN PRIVATE KEY-----` or the like")]
    NoKey {
        /// The part.
        what: String,
    },
    /// The private key is encrypted: a passphrase cannot be asked for.
    #[error("{what} is encrypted: remove the passphrase, as with `openssl pkey`")]
    EncryptedKey {
        /// The part.
        what: String,
    },
    /// The private key does not belong to the certificate.
    #[error("{key} does not belong to {certificate}")]
    KeyMismatch {
        /// The certificate.
        certificate: String,
        /// The key.
        key: String,
    },
    /// The part was read, and cannot be used.
    #[error("{what} cannot be used: {reason}")]
    Unusable {
        /// The part.
        what: String,
        /// The reason.
        reason: String,
    },
    /// A client without an authority would have to trust every server.
    #[error(
        "no certificate authority by which to verify the server: add one with ClientTls::ca_file"
    )]
    NoAuthority,
    /// Client and server do not trust each other: one has refused the other's certificate, or there is none.
    #[error("{host}: TLS: {reason}")]
    Refused {
        /// The server, as `host:port`.
        host: String,
        /// The refusal.
        reason: String,
    },
    /// The server expects TLS, and the client was not asked for it.
    #[error("{host} speaks TLS: write lockkeeper+tls:// or zookeeper+tls:// in the URL")]
    Required {
        /// The server, as `host:port`.
        host: String,
    },
    /// The client was asked for TLS, and the server answers without.
    #[error("{host} does not speak TLS: give the server's port for TLS, or a URL without +tls")]
    NotSpoken {
        /// The server, as `host:port`.
        host: String,
    },
    /// The host is neither a name nor an address that a certificate could name.
    #[error(
        "no certificate can be made out to the host \"{host}\": expected a DNS name or an IP address",
        host = .host.escape_debug()
    )]
    BadHost {
        /// The host.
        host: String,
    },
}
