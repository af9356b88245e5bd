//! Values shared by all layers: paths, znode states, requests and replies, watches, errors.

pub(crate) mod acl;
pub(crate) mod data;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod identity;
pub(crate) mod path;
pub(crate) mod protocol;
pub(crate) mod size;
pub(crate) mod types;
pub(crate) mod watch;
