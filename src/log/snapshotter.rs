//! The snapshotter: loads the previous snapshot into a separate core, replays the segments sealed since, and writes the
//! result.
//!
//! Everything in a new snapshot has therefore been read back from disk by the code that recovers a store. The
//! snapshotter shares neither locks nor memory with the running store. The price is a second copy of the content in
//! memory, and disk space for the new snapshot before the oldest one is removed.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::disk::{Disk, failed, no_room, publish};
use super::epoch;
use super::frame::Scanner;
use super::recovery::{self, Facts, LogSource, Start, bare_core};
use super::segment::log_number;
use super::snapshot::{self, Form, Head, Loaded, UNFINISHED, snapshot_name};
use crate::core::{Core, Damage};
use crate::model::error::Result;
use crate::runtime::clock::Clock;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotOutcome {
    pub(crate) bytes: u64,
    /// The segments that are no longer needed, even if this snapshot turns out to be damaged.
    pub(crate) obsolete: Vec<u64>,
}

pub(crate) struct SnapshotJob<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) store: [u8; 16],
    pub(crate) current: u64,
    pub(crate) ends: &'a AtomicBool,
}

/// Makes a durable snapshot of the content up to the end of the sealed segments. Then removes all other snapshots
/// except its base, which is the previous snapshot. After an error, the log is unchanged.
pub(crate) fn make(job: &SnapshotJob<'_>) -> Result<SnapshotOutcome> {
    let SnapshotJob { disk, store, .. } = *job;
    let pause = &mut || job.pause();
    let (mut core, base) = recovery::newest(disk, store, &bare_core, pause)?;
    let start = base.map_or_else(Start::default, |base| base.head.start);
    let facts = job.replay(start, &mut core)?;
    let head = Head {
        store,
        start: Start {
            segment: job.current,
            facts,
        },
        made: epoch::of_clock(Clock::system().unix_ms()),
    };
    let bytes = job.write(&head, &core).inspect_err(|_| {
        let _ = disk.remove(UNFINISHED);
    })?;
    let failed_here = |error| failed(disk.path(""), "old snapshots cannot be removed", &error);
    let obsolete = job.prune_snapshots(&head, base).map_err(failed_here)?;
    Ok(SnapshotOutcome { bytes, obsolete })
}

impl SnapshotJob<'_> {
    /// Aborts when the log ends, because a close must not wait for a snapshot.
    fn pause(&self) -> io::Result<()> {
        if self.ends.load(Ordering::Acquire) {
            return Err(io::Error::other("the store is being closed"));
        }
        std::thread::yield_now();
        Ok(())
    }

    fn replay(&self, start: Start, core: &mut Core) -> Result<Facts> {
        let source = LogSource {
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

    fn last_frame(&self) -> Result<u64> {
        let mut current = Scanner::open(self.disk, self.current, &self.store)?;
        // Before the writer seals a segment, it writes a mark at the start of the next one. The mark has the number of
        // the next frame, so the last sealed frame has this number minus one.
        match current.head_at(Scanner::FIRST)? {
            Some(head) if current.frame_at(Scanner::FIRST)?.is_some() => Ok(head.chain - 1),
            _ => Err(current.damaged(Scanner::FIRST, "neither a frame nor a mark is found")),
        }
    }

    fn write(&self, head: &Head, core: &Core) -> Result<u64> {
        let write = || {
            let file = self.disk.create(UNFINISHED)?;
            let pause = &mut || self.pause();
            let bytes = snapshot::write(&*file, Form::Snapshot, head, core, pause)?;
            let name = snapshot_name(head.start.facts.zxid);
            publish(self.disk, UNFINISHED, &name)?;
            Ok(bytes)
        };
        write().map_err(|error: io::Error| no_room(self.disk, &error))
    }

    /// Removes all snapshots except the new one and its base. Returns the segments that neither of them needs. The base
    /// is kept in case the new snapshot turns out to be damaged.
    fn prune_snapshots(&self, new: &Head, base: Option<Loaded>) -> io::Result<Vec<u64>> {
        let name_of = |head: &Head| snapshot_name(head.start.facts.zxid);
        let kept = [Some(name_of(new)), base.map(|base| name_of(&base.head))];
        let names = self.disk.list()?;
        let is_snapshot = |name: &&String| snapshot::snapshot_zxid(name).is_some();
        for name in names.iter().filter(is_snapshot) {
            if !kept.iter().flatten().any(|kept| kept == name) {
                self.disk.remove(name)?;
            }
        }
        // Make the removals durable before the caller gives up the segments. Otherwise an old snapshot could reappear
        // after a power loss, without the segments that it needs.
        self.disk.sync_folder()?;
        let needed_from = base.map_or(0, |base| base.head.start.segment);
        let numbers = names.iter().filter_map(|name| log_number(name));
        let mut obsolete: Vec<u64> = numbers.filter(|number| *number < needed_from).collect();
        obsolete.sort_unstable();
        Ok(obsolete)
    }
}
