//! Leases: the znodes of the permits of one request, under names that are drawn before they are created.
//!
//! They have no number of the store's, but where no reply can be lost ([`local`](super::local)): it would leave their names
//! unknown.

use lockkeeper_store::{Error, LARGEST_REQUEST_BYTES, ZnodePath};

use crate::names::{EntryId, Kind};

/// Least size of the create of a lease, beside its parent's path and without its data.
const LEASE_BYTES: usize = 64 + "/_c_00000000-0000-4000-8000-000000000000-lease-0000000000".len();

/// Refuses a count that no request can carry, before a path is allocated for each: a count of 2^32 must be an error,
/// not a loss of memory. A count that passes may still be too large with its data; sending it then fails.
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

/// Returns the paths of `count` leases, under names that no other request uses.
pub(super) fn fresh_leases(parent: &ZnodePath, count: u32) -> Result<Vec<ZnodePath>, Error> {
    let name = Kind::Lease.name(EntryId::fresh());
    let paths = (0..count).map(|index| parent.join(&format!("{name}{index:010}")));
    paths.collect()
}
