//! [`RequestCounters`]: numbers of requests by operation, answer code and duration.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::model::error::Error;
#[cfg(feature = "metrics")]
use crate::runtime::histogram::Distribution;
use crate::runtime::histogram::{Histogram, LATENCY_BOUNDS_NS};
use crate::wire::Code;
#[cfg(any(test, feature = "metrics"))]
use crate::wire::Op;

#[derive(Debug)]
pub(super) struct RequestCounters {
    by_op: [AtomicU64; OPS],
    by_code: [AtomicU64; CODES],
    durations: Histogram<{ LATENCY_BOUNDS_NS.len() }>,
    over_limit: AtomicU64,
    disk_full: AtomicU64,
}

/// Number of operation slots. Operations up to whoAmI use their number as the slot. closeSession and Lockkeeper's own
/// operations use the slots after that.
const OPS: usize = OWN_SLOT + 8;
const CLOSE_SLOT: usize = 108;
const OWN_SLOT: usize = 109;

const FIRST_OWN: i32 = 4_001;

/// Slot of operations that the server does not know. No request has the number 0.
const UNKNOWN_SLOT: usize = 0;

/// ZooKeeper's lowest code is -127.
const CODES: usize = 128;

fn slot_of(op: i32) -> usize {
    let slot = match op {
        0..=107 => op as usize,
        -11 => CLOSE_SLOT,
        FIRST_OWN.. => OWN_SLOT.saturating_add((op - FIRST_OWN) as usize),
        _ => UNKNOWN_SLOT,
    };
    if slot < OPS { slot } else { UNKNOWN_SLOT }
}

impl Default for RequestCounters {
    fn default() -> Self {
        Self {
            by_op: std::array::from_fn(|_| AtomicU64::new(0)),
            by_code: std::array::from_fn(|_| AtomicU64::new(0)),
            durations: Histogram::new(&LATENCY_BOUNDS_NS),
            over_limit: AtomicU64::new(0),
            disk_full: AtomicU64::new(0),
        }
    }
}

impl RequestCounters {
    pub(super) fn count(&self, op: i32, code: Code, took: Duration) {
        self.by_op[slot_of(op)].fetch_add(1, Ordering::Relaxed);
        self.durations.add(took);
        if code != Code::Ok {
            self.by_code[code_slot(code)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a request that was refused because a limit was reached or the disk was full. All such refusals have the
    /// same code, so `by_code` does not distinguish them.
    pub(super) fn count_refusal(&self, error: &Error) {
        let count = match error {
            Error::LimitReached { .. } => &self.over_limit,
            Error::DiskFull { .. } => &self.disk_full,
            // A multi is refused because of one of its parts, so count the part's reason.
            Error::MultiFailed { source, .. } => return self.count_refusal(source),
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(feature = "metrics")]
impl RequestCounters {
    pub(super) fn of(&self, op: Option<Op>) -> u64 {
        let slot = op.map_or(UNKNOWN_SLOT, |op| slot_of(op.number()));
        self.by_op[slot].load(Ordering::Relaxed)
    }

    pub(super) fn with(&self, code: Code) -> u64 {
        self.by_code[code_slot(code)].load(Ordering::Relaxed)
    }

    pub(super) fn durations(&self) -> Distribution {
        self.durations.read()
    }

    pub(super) fn over_limit(&self) -> u64 {
        self.over_limit.load(Ordering::Relaxed)
    }

    pub(super) fn disk_full(&self) -> u64 {
        self.disk_full.load(Ordering::Relaxed)
    }
}

fn code_slot(code: Code) -> usize {
    code.number().unsigned_abs() as usize % CODES
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_operation_and_each_code_has_a_slot_of_its_own() {
        let ops: BTreeSet<_> = Op::ALL.iter().map(|op| slot_of(op.number())).collect();
        assert_eq!(ops.len(), Op::ALL.len());
        assert!(!ops.contains(&UNKNOWN_SLOT));
        let codes: BTreeSet<_> = Code::ALL.iter().map(|code| code_slot(*code)).collect();
        assert_eq!(codes.len(), Code::ALL.len());
        for op in [i32::MIN, -1, 0, 108, 4_000, 4_009, i32::MAX] {
            assert_eq!(slot_of(op), UNKNOWN_SLOT, "{op}");
        }
    }
}
