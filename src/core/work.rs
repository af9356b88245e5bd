//! [`Work`]: the meter of what requests make the core touch, by which a turn under the store's lock ends
//! (invariant 10).
//!
//! `core::tests::bounds` carries out each operation in a small and in a large store and compares the units. A search in an
//! index takes O(log n) and counts as part of the fixed cost.
//!
//! | operation | bound of its work |
//! |---|---|
//! | create, delete, setData, exists, getData, getACL, setACL, addWatch, checkWatches, removeWatches, addAuth, sync, ping, getAllChildrenNumber | levels of the path; entries of a list at the first look at it |
//! | enqueue, getPredecessor, withdraw, forgetWatch; an entry by reference | the same; with `count` one unit for 4,096 entries ahead |
//! | multi, multiRead, setWatches | the sum of their parts; setWatches in pieces |
//! | getChildren, getQueue, a queue that is listed | names in the reply, up to the limit of a reply |
//! | getEphemerals | ephemeral znodes of the session, in pieces |
//! | a change that is watched, in addition | watches on the znode, its parent and, if recursive, its ancestors; entries that wait for a condition on it |
//! | the end of a session | its watches, in pieces; its ephemeral znodes, in one transaction |
//! | a connection that opens, moves or leaves a session | watches of the session, in pieces |
//! | a tick | 16,384 units, and the ephemeral znodes of one session |
//! | a sweep of the reaper | 10,000 candidates, and 200 deletes |
//! | an insert into a table that grows | a thousandth of its entries |
//! | counts and lists for operators | fixed; in pieces of the slots |

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
