//! [`ServerError`].

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use crate::error::Error;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Others than this machine could reach the server, and nobody would be asked who they are.
    #[error(
        "{address} can be reached by others, and nobody would be asked who they are: require authentication or client certificates, or say that this is meant to be insecure"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// A client could send what no store can keep, or could send next to nothing.
    #[error(
        "a limit of {bytes} bytes for a frame: expected {} to {}, the most that a store keeps of one request",
        .expected.start(), .expected.end()
    )]
    FrameLimit {
        /// The limit that was asked for.
        bytes: usize,
        /// The limits that are accepted.
        expected: RangeInclusive<usize>,
    },
    /// There is no address to listen on.
    #[error("no address to listen on")]
    NoAddress,
    /// There are certificates and no address to use them at, or the other way round.
    #[cfg(feature = "tls")]
    #[error("certificates and an address for TLS belong together, and there is no {missing}")]
    TlsIncomplete {
        /// What there is not.
        missing: &'static str,
    },
    /// A certificate or a key cannot be used.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
    /// Somebody else listens there.
    #[error("{address} is in use by another program")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The store does not take sessions of other processes.
    #[error(transparent)]
    Store(#[from] Error),
    /// There is no tokio runtime here, with IO and time.
    #[error("a server needs a tokio runtime with IO and time, and there is none here")]
    NoRuntime,
}
