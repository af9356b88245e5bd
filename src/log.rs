//! The durable log: its formats, how a store comes back from them, and the threads that write it.

pub(crate) mod backup;
mod codec;
pub(crate) mod disk;
mod durability_barrier;
mod epoch;
mod frame;
#[cfg(feature = "test-util")]
pub(crate) mod fuzz;
mod identity;
pub(crate) mod inspect;
mod lock;
mod open;
mod recovery;
mod segment;
mod segment_allocator;
#[cfg(any(test, feature = "test-util"))]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "the fuzz targets use a disk that does not fail")
)]
mod sim;
mod snapshot;
mod snapshotter;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod write_queue;
mod writer;

pub(crate) use self::codec::Record;
pub(crate) use self::disk::{Disk, Folder, make_folder};
pub(crate) use self::durability_barrier::{DurabilityBarrier, Passage};
pub(crate) use self::lock::Lock;
pub(crate) use self::open::{RemoteSessions, check_folder, open};
pub(crate) use self::segment::Sizes;
#[cfg(test)]
pub(crate) use self::sim::{Boot, Faults, SimDisk};
#[cfg(test)]
pub(crate) use self::testing::{Hand, TempFolder, backed_up};
#[cfg(any(test, feature = "server"))]
pub(crate) use self::write_queue::Done;
pub(crate) use self::write_queue::WriteQueue;
pub(crate) use self::writer::{Held, Log, LogParts, spawn};

/// How many bits of a zxid count within an epoch.
pub(crate) const EPOCH_BITS: u32 = 32;

/// How a log is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Whether each batch is synced, or none.
    pub(crate) syncs: bool,
    /// True if nothing that is acknowledged to a session of another process leaves before the log has it.
    pub(crate) keeps_sessions: bool,
    /// The longest timeout that such sessions may be granted, in milliseconds.
    pub(crate) longest_timeout_ms: u64,
    pub(crate) sizes: Sizes,
}
