//! [`Work`]: the meter of what requests make the core touch, by which a turn under the store's lock ends
//! (invariant 10).

use std::cell::Cell;

/// Meter of units of work since the store was opened: a znode, watch or entry of an access control list that was looked
/// at, or [`UNIT_BYTES`] of text or data. A unit takes some 10 to 100 ns. The fixed cost of a request is not counted
/// here, so that taking a lock in memory counts nothing; a loop adds its length once.
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
