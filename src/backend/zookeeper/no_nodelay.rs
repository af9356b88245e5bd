//! Stands for `nodelay.rs` on systems other than Linux: they have no safe way to the sockets that zookeeper-client
//! keeps to itself, so requests take the longer way.

pub(super) fn set_nodelay(_: &str) {}
