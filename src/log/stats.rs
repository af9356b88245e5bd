//! [`Stats`]: what the log has done since it was opened, for whoever watches over it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counted by the writer alone, read by anybody.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    syncs: AtomicU64,
    sync_ns: AtomicU64,
    longest_sync_ns: AtomicU64,
    batches: AtomicU64,
    bytes: AtomicU64,
}

/// What a log has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "what a server tells")
)]
pub(crate) struct Done {
    pub(crate) syncs: u64,
    /// How long all of them took.
    pub(crate) sync_time: Duration,
    pub(crate) longest_sync: Duration,
    pub(crate) batches: u64,
    /// Of the batches, as they were written.
    pub(crate) bytes: u64,
    /// Replies that could not leave at once.
    pub(crate) waits: u64,
}

impl Stats {
    pub(super) fn count_sync(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(took_ns, Ordering::Relaxed);
        self.longest_sync_ns.fetch_max(took_ns, Ordering::Relaxed);
    }

    pub(super) fn count_batch(&self, bytes: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    #[cfg_attr(
        not(any(test, feature = "server")),
        allow(dead_code, reason = "what a server tells")
    )]
    pub(super) fn done(&self, waits: u64) -> Done {
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        Done {
            syncs: read(&self.syncs),
            sync_time: Duration::from_nanos(read(&self.sync_ns)),
            longest_sync: Duration::from_nanos(read(&self.longest_sync_ns)),
            batches: read(&self.batches),
            bytes: read(&self.bytes),
            waits,
        }
    }
}
