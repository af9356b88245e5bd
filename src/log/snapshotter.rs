//! Snapshots are made aside: the previous one is loaded into a core of its own, the segments that
//! were sealed since are replayed, and the outcome is written. So whatever a snapshot is made of has
//! been read back from the disk, by the very code that recovers a store, and the writer and those who
//! use the store share nothing with it: no lock, no memory.
//!
//! What it takes: the memory of the store's content once more, for as long as it lasts; on the disk
//! the new snapshot, before the oldest goes.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::disk::{Disk, failed, no_room};
use super::epoch;
use super::frame::Scanner;
use super::recovery::{self, Facts, Source, Start, bare_core};
use super::segment::log_number;
use super::snapshot::{self, Form, Head, Loaded, UNFINISHED, snapshot_name};
use crate::clock::Clock;
use crate::core::{Core, Damage};
use crate::error::Result;
use crate::platform;

/// A snapshot that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    /// Its size.
    pub(crate) bytes: u64,
    /// The numbers of the segments that are no longer needed, not even if this snapshot should turn
    /// out to be damaged.
    pub(crate) superfluous: Vec<u64>,
}

/// A log whose sealed segments are to be replaced by a snapshot.
pub(crate) struct Order<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) store: [u8; 16],
    /// The number of the segment that is being written; all before it are sealed.
    pub(crate) current: u64,
    /// When this is set, the snapshot is given up.
    pub(crate) ends: &'a AtomicBool,
}

/// Makes a snapshot of all that stands in the sealed segments. It is durable when this returns; only
/// it and the one that it was made from are left.
///
/// It runs in the calling thread, at the lowest priority from then on.
///
/// # Errors
/// Of the disk; `StoreDamaged` when a sealed segment is. Nothing is lost by it: the log stays.
pub(crate) fn make(order: &Order<'_>) -> Result<Made> {
    yield_to_others();
    let Order { disk, store, .. } = *order;
    let pause = &mut || order.pause();
    let (mut core, base) = recovery::newest(disk, store, &bare_core, pause)?;
    let start = base.map_or_else(Start::default, |base| base.head.start);
    let facts = order.replay(start, &mut core)?;
    let head = Head {
        store,
        start: Start {
            segment: order.current,
            facts,
        },
        made: epoch::of_clock(Clock::system().unix_ms()),
    };
    let bytes = order.write(&head, &core).inspect_err(|_| {
        // Else it would take room until the store is opened again.
        let _ = disk.remove(UNFINISHED);
    })?;
    let failed_here = |error| failed(disk.path(""), "cannot be tidied up", &error);
    let superfluous = order.tidy_up(&head, base).map_err(failed_here)?;
    Ok(Made { bytes, superfluous })
}

impl Order<'_> {
    fn pause(&self) -> io::Result<()> {
        if self.ends.load(Ordering::Acquire) {
            return Err(io::Error::other("the store is being closed"));
        }
        std::thread::yield_now();
        Ok(())
    }

    /// Replays the sealed segments.
    fn replay(&self, start: Start, core: &mut Core) -> Result<Facts> {
        let source = Source {
            disk: self.disk,
            store: self.store,
            start,
        };
        let last = self.last_frame()?;
        let mut each = |txn| {
            if self.ends.load(Ordering::Relaxed) {
                return Err(Damage("the store is being closed".into()));
            }
            core.replay(txn)
        };
        recovery::read_up_to(&source, last, &mut each)
    }

    /// The number of the last frame in the sealed segments.
    fn last_frame(&self) -> Result<u64> {
        let mut current = Scanner::open(self.disk, self.current, &self.store)?;
        match current.head_at(Scanner::FIRST)? {
            Some(head) if current.frame_at(Scanner::FIRST)?.is_some() => Ok(head.chain - 1),
            _ => Err(current.damaged(Scanner::FIRST, "neither a frame nor a mark is there")),
        }
    }

    fn write(&self, head: &Head, core: &Core) -> Result<u64> {
        let write = || {
            let file = self.disk.create(UNFINISHED)?;
            let pause = &mut || self.pause();
            let bytes = snapshot::write(&*file, Form::Snapshot, head, core, pause)?;
            let name = snapshot_name(head.start.facts.zxid);
            self.disk.rename(UNFINISHED, &name)?;
            self.disk.sync_folder()?;
            Ok(bytes)
        };
        write().map_err(|error: io::Error| no_room(self.disk, &error))
    }

    /// Removes the snapshots that are older than those two; which segments these two do not need.
    fn tidy_up(&self, new: &Head, base: Option<Loaded>) -> io::Result<Vec<u64>> {
        let name_of = |head: &Head| snapshot_name(head.start.facts.zxid);
        let kept = [Some(name_of(new)), base.map(|base| name_of(&base.head))];
        let names = self.disk.list()?;
        let is_snapshot = |name: &&String| snapshot::snapshot_zxid(name).is_some();
        for name in names.iter().filter(is_snapshot) {
            if !kept.iter().flatten().any(|kept| kept == name) {
                self.disk.remove(name)?;
            }
        }
        self.disk.sync_folder()?;
        let needed_from = base.map_or(0, |base| base.head.start.segment);
        let numbers = names.iter().filter_map(|name| log_number(name));
        let mut superfluous: Vec<u64> = numbers.filter(|number| *number < needed_from).collect();
        superfluous.sort_unstable();
        Ok(superfluous)
    }
}

/// Lets every other thread of the machine go first: nobody waits for a snapshot.
fn yield_to_others() {
    if let Err(error) = platform::yield_to_others() {
        tracing::debug!(%error, "snapshots are made at the priority of everything else");
    }
}
