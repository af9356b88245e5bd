//! [`Work`]: the meter of what requests make the core touch, by which a turn under the store's lock ends
//! (invariant 10).

use std::cell::Cell;

/// Counts units of work since the store was opened: znodes, watches and entries of access control lists that were
/// looked at, and [`UNIT_BYTES`] of text or data each. A unit takes some 10 to 100 ns. What a request costs in any case
/// is not counted here, so that the way of a lock in memory has nothing to count; a loop adds its length once.
///
/// Reads count, too, so it is a cell.
#[derive(Debug, Default)]
pub(super) struct Work(Cell<u64>);

/// As many bytes of a request or an answer are one unit.
#[cfg(any(test, feature = "server"))]
pub(crate) const UNIT_BYTES: usize = 64;

impl Work {
    #[inline]
    pub(super) fn add(&self, units: usize) {
        self.0.set(self.0.get().wrapping_add(units as u64));
    }

    pub(super) fn total(&self) -> u64 {
        self.0.get()
    }
}
