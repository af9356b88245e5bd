//! [`TlsError`].

/// What is wrong with a certificate, a key or another part of TLS that was given. `what` says which of
/// them, with the file where it came from one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{what} cannot be read: {reason}")]
    Unreadable {
        /// Which.
        what: String,
        /// What the system says.
        reason: String,
    },
    /// The text is no PEM.
    #[error("{what} is no PEM: {reason}")]
    BadPem {
        /// Which.
        what: String,
        /// Where it goes wrong.
        reason: String,
    },
    /// There is no certificate in it.
    #[error("{what} holds no certificate: expected a block `-----BEGIN CERTIFICATE-----`")]
    NoCertificate {
        /// Which.
        what: String,
    },
    /// There is no private key in it.
    #[error("{what} holds no key: expected a block `-----BEGIN PRIVATE KEY-----` or the like")]
    NoKey {
        /// Which.
        what: String,
    },
    /// The private key has a passphrase, which nobody could be asked for.
    #[error("{what} is encrypted: give it without a passphrase (`openssl pkey` takes it off)")]
    EncryptedKey {
        /// Which.
        what: String,
    },
    /// The private key is another certificate's.
    #[error("{key} does not belong to {certificate}")]
    KeyMismatch {
        /// Which certificate.
        certificate: String,
        /// Which key.
        key: String,
    },
    /// It was read, and cannot be used.
    #[error("{what} cannot be used: {reason}")]
    Unusable {
        /// Which.
        what: String,
        /// Why not.
        reason: String,
    },
    /// A client was told of no authority, so that it would have to believe every server.
    #[error(
        "no certificate authority to hold the server's certificate against: name one with ClientTls::ca_file"
    )]
    NoAuthority,
    /// Client and server do not believe each other: one has refused the other's certificate, or there is none.
    #[error("{host}: TLS: {reason}")]
    Refused {
        /// The server, as `host:port`.
        host: String,
        /// Who refused what.
        reason: String,
    },
    /// Certificates are made out to no such host.
    #[error(
        "no certificate can be made out to the host {host:?}: expected a DNS name or an IP address"
    )]
    BadHost {
        /// The host.
        host: String,
    },
}
