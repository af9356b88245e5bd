//! The durable log of a store in a folder. `docs/durability.md` describes its formats, and why no acknowledged write is
//! lost.
//!
//! A write passes through [`WriteQueue`] → [`writer`] → [`DurabilityBarrier`]. Transactions wait in batches. One thread
//! writes each batch as one frame with one sync, and only then does the barrier release the replies and events that
//! show the batch's transactions. Two more threads prepare segments ([`segment_allocator`]) and make snapshots
//! ([`snapshotter`]). [`open()`] reads the newest snapshot and the segments after it ([`recovery`]).

pub(crate) mod backup;
mod codec;
pub(crate) mod disk;
mod durability_barrier;
pub(crate) mod epoch;
mod frame;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod fuzz;
mod header;
mod identity;
pub(crate) mod inspect;
mod lock;
mod open;
#[cfg_attr(
    not(any(test, feature = "server")),
    allow(dead_code, reason = "only a server knows processes")
)]
mod processes;
mod recovery;
pub(crate) mod salvage;
mod segment;
mod segment_allocator;
#[cfg(any(test, feature = "simulation"))]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "the fuzz targets use a disk that does not fail")
)]
mod sim;
mod snapshot;
mod snapshotter;
#[cfg(any(test, feature = "simulation"))]
mod step_writer;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod write_queue;
mod writer;

pub(crate) use self::codec::Record;
pub(crate) use self::disk::{Disk, Folder, make_folder};
pub(crate) use self::durability_barrier::{DurabilityBarrier, DurabilityWait};
pub(crate) use self::lock::Lock;
#[cfg(feature = "simulation")]
pub(crate) use self::open::wait_to_open;
pub(crate) use self::open::{RemoteSessions, check_folder, open};
#[cfg(any(test, feature = "server"))]
pub(crate) use self::processes::Known;
pub(crate) use self::processes::ProcessFile;
pub(crate) use self::segment::Sizes;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::sim::{Boot, Faults, SimDisk};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::step_writer::StepWriter;
#[cfg(test)]
pub(crate) use self::testing::{TempFolder, backed_up};
#[cfg(any(test, feature = "server"))]
pub(crate) use self::write_queue::LogStats;
pub(crate) use self::write_queue::WriteQueue;
pub(crate) use self::writer::{Exclusive, Log, LogParts, spawn};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) syncs: bool,
    /// True if a change requested by another process's session is acknowledged only once it is in the log. Sessions of
    /// other processes then survive a kill of the store's process.
    pub(crate) keeps_sessions: bool,
    pub(crate) longest_timeout_ms: u64,
    pub(crate) sizes: Sizes,
}
