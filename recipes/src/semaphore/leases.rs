//! Leases: the znodes of a request's permits.
//!
//! We choose the full names before the create. If the store appended a number, we would not know the names after a lost
//! reply.

use lockkeeper_store::{Error, LARGEST_REQUEST_BYTES, ZnodePath};

use crate::names::{EntryId, Kind};

/// Minimum number of bytes to create one lease, without its parent's path and its data.
const LEASE_BYTES: usize = 64 + "/_c_00000000-0000-4000-8000-000000000000-lease-0000000000".len();

/// Refuses a count that does not fit into one request before we allocate the paths, because a count of 2^32 would
/// exhaust the memory.
pub(super) fn check_count(parent: &ZnodePath, count: u32) -> Result<(), Error> {
    let each = LEASE_BYTES + parent.as_str().len();
    let actual = each.saturating_mul(usize::try_from(count).unwrap_or(usize::MAX));
    if actual <= LARGEST_REQUEST_BYTES {
        return Ok(());
    }
    Err(Error::TooLarge {
        what: "a request",
        actual,
        limit: LARGEST_REQUEST_BYTES,
    })
}

pub(super) fn fresh_leases(parent: &ZnodePath, count: u32) -> Result<Vec<ZnodePath>, Error> {
    let name = Kind::Lease.name(EntryId::fresh());
    let paths = (0..count).map(|index| parent.join(&format!("{name}{index:010}")));
    paths.collect()
}
