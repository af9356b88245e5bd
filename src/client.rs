//! The way from a connection URL to a session, and sessions at a server over the wire protocol.

pub(crate) mod connect;
#[cfg(feature = "client")]
pub(crate) mod protocol_probe;
#[cfg(feature = "client")]
pub(crate) mod served;
pub(crate) mod session;
pub(crate) mod target;

// ALIASES
#[cfg(feature = "client")]
use crate::backend::{
    Backend, ConnectOptions, Connector, DEFAULT_SESSION_TIMEOUT, FLUSH_LIMIT, Flushed,
    LAST_DROP_LIMIT, SessionStatus, read_or_create_store_id,
};
// END
