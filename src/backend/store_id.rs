//! The id of a store at a server: a persistent znode under the chroot, which the first client creates.
//!
//! The id is the znode's data and its czxid together, since a tool that copies the data to another store cannot copy
//! the czxid.

use crate::acl::Acl;
use crate::random::{hex, random};
use crate::types::{AclEntry, Zxid};

/// Path of the znode.
pub(crate) const PATH: &str = "/lockkeeper.id";

/// Returns data for a new one: 128 random bits in hexadecimal digits.
pub(super) fn new_data() -> String {
    hex(random())
}

/// Returns the id.
pub(super) fn text(data: &[u8], czxid: Zxid) -> String {
    format!("{}-{:x}", String::from_utf8_lossy(data), czxid.0)
}

/// Returns the list, with the permission to read for everybody: the id is no secret, and all clients must find the
/// same.
pub(super) fn readable(acl: &Acl) -> Acl {
    let Some(entries) = acl.entries() else {
        return Acl::open();
    };
    let anyone = AclEntry {
        permissions: AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    };
    Acl::new([entries, &[anyone]].concat())
}
