//! [`Work`]: a meter of the work that requests cause in the core. Limits on this work bound how long a request holds
//! the store's lock (invariant 10).
//!
//! `core::tests::bounds` runs each operation in a small and a large store and compares the units. A search in an index
//! takes O(log n) and counts as part of the fixed cost.
//!
//! | operation | bound of its work |
//! |---|---|
//! | an operation on one znode, except the following | levels of the path; entries of an access control list at its first check |
//! | enqueue, getPredecessor | the same; if the client asks for the count, also one unit for every 4,096 entries ahead |
//! | multi, multiRead, setWatches | the sum of their parts |
//! | getChildren, getQueue | names in the reply |
//! | getEphemerals | ephemeral znodes of the session, in pieces |
//! | a change, in addition to the operation itself | watches on the znode, its parent and, if recursive, its ancestors; entries that wait for a condition on the znode |
//! | the end of a session | its watches, in pieces; its ephemeral znodes, in one transaction |
//! | a connection that opens, moves or leaves a session | watches of the session, in pieces |
//! | a tick | 16,384 units, and the ephemeral znodes of one session |
//! | a sweep of the reaper | 10,000 candidates, and 200 deletes |
//! | an insert into a growing table | a thousandth of the table's entries |
//! | counts and lists for operators | fixed, or in pieces |

use std::cell::Cell;

/// Meter of work. One unit is a visited znode, watch or access control entry, or [`UNIT_BYTES`] of text or data. A unit
/// takes about 10 to 100 ns. The fixed cost of a request is not counted.
///
/// A `Cell`, because reads also add work but only borrow the core immutably.
#[derive(Debug, Default)]
pub(super) struct Work(Cell<u64>);

/// Bytes of a request or an answer that count as one unit.
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
