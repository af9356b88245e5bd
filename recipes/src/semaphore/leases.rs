//! Leases: the znodes of the permits that one request asks for, under names that are known before they are created.

use lockkeeper_store::{Error, LARGEST_REQUEST_BYTES, ZnodePath};

use crate::names::{EntryId, Kind};

/// Least size of the create of a lease, beside its parent's path and without its data.
const LEASE_BYTES: usize = 64 + "/_c_00000000-0000-4000-8000-000000000000-lease-0000000000".len();

/// Refuses so many that no request can make them, before the names of all are written out. Those that
/// this lets pass may still be too large with their data, which the sending tells.
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

/// Returns the paths of so many leases, under names that no other request uses.
pub(super) fn fresh_leases(parent: &ZnodePath, count: u32) -> Result<Vec<ZnodePath>, Error> {
    let name = Kind::Lease.name(EntryId::fresh());
    let paths = (0..count).map(|index| parent.join(&format!("{name}{index:010}")));
    paths.collect()
}
