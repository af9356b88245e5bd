//! [`ServerError`]: the reasons why a server does not start.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::model::error::Error;

/// Reason why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Other machines could reach the server, and clients would not have to authenticate.
    #[error(
        "{address} can be reached from other machines, and no client would have to authenticate: require authentication or client certificates, or allow this with the option `insecure`"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// The limit of a frame's length is out of range.
    #[error(
        "a limit of {bytes} bytes for a frame is out of range: expected {} to {}, the largest request that a store can keep",
        .expected.start(), .expected.end()
    )]
    FrameLimit {
        /// The requested limit.
        bytes: usize,
        /// The accepted limits.
        expected: RangeInclusive<usize>,
    },
    /// No address to listen on is given.
    #[error("no address to listen on: set one for plain connections, one for TLS or a Unix socket")]
    NoAddress,
    /// There is a certificate but no address for TLS, or an address for TLS but no certificate.
    #[cfg(feature = "tls")]
    #[error("a certificate and an address for TLS belong together: {missing} is missing")]
    TlsIncomplete {
        /// The missing part.
        missing: &'static str,
    },
    /// A certificate or a key cannot be used.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
    /// Another program listens on the address.
    #[error("{address} is in use by another program")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The operating system refuses to listen on the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// Another server listens on the Unix socket.
    #[error("{path} is in use: another server listens there", path = .path.display())]
    UnixSocketInUse {
        /// The path.
        path: PathBuf,
    },
    /// The path cannot be used for a Unix socket.
    #[error("cannot listen on the Unix socket {path}: {reason}", path = .path.display())]
    UnixSocket {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The store does not accept sessions of other processes.
    #[error(transparent)]
    Store(#[from] Error),
    /// There is no tokio runtime with IO and time.
    #[error("a server needs a tokio runtime with IO and time enabled: call this within one")]
    NoRuntime,
}
