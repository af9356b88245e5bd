//! Connection URLs, clients and their sessions.

pub(crate) mod connect;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(feature = "client")]
mod protocol_probe;
#[cfg(feature = "client")]
mod sequence_limit;
#[cfg(feature = "client")]
pub(crate) mod served;
pub(crate) mod session;
pub(crate) mod target;
