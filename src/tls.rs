//! TLS certificates, keys and errors, for both server and client. The public API names no rustls type, so a rustls
//! upgrade does not change the API.

#![cfg_attr(
    not(all(feature = "tls", feature = "server", feature = "client")),
    allow(dead_code, unused_imports, reason = "an end of it is left out")
)]

#[cfg(feature = "tls")]
mod certificate;
mod client;
#[cfg(all(feature = "tls", feature = "client"))]
mod client_config;
#[cfg(feature = "tls")]
mod der;
mod error;
#[cfg(feature = "tls")]
mod load;
#[cfg(feature = "tls")]
mod name;
mod pem;

pub use self::client::ClientTls;
#[cfg(all(feature = "tls", feature = "client"))]
pub(crate) use self::client_config::{client_config, server_names};
pub use self::error::TlsError;
#[cfg(feature = "tls")]
pub(crate) use self::load::{Authorities, alternative_name, key_pair, provider, subject, uri};
pub(crate) use self::pem::Pem;
