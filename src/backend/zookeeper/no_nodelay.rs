//! Stub of `nodelay.rs` for systems other than Linux: they have no safe way to the sockets of zookeeper-client, so a lock
//! takes a second round trip.

pub(super) fn set_nodelay(_: &str) {}
