//! The durable log: its formats, how a store comes back from them, and the threads that write it.

pub(crate) mod backup;
mod codec;
mod content;
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
mod scan;
mod segment;
mod segment_allocator;
mod segment_room;
#[cfg(any(test, feature = "test-util"))]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "the fuzz targets use a disk that does not fail")
)]
mod sim;
mod sizes;
mod snapshot;
mod snapshotter;
mod stats;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod trouble;
mod view;
mod write_queue;
mod writer;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

pub(crate) use self::codec::Record;
pub(crate) use self::disk::{Disk, Folder, make_folder};
pub(crate) use self::durability_barrier::{DurabilityBarrier, Passage};
pub(crate) use self::lock::Lock;
pub(crate) use self::open::{RemoteSessions, check_folder, open};
#[cfg(test)]
pub(crate) use self::sim::{Boot, Faults, SimDisk};
pub(crate) use self::sizes::Sizes;
#[cfg(any(test, feature = "server"))]
pub(crate) use self::stats::Done;
#[cfg(test)]
pub(crate) use self::testing::{Hand, TempFolder, backed_up};
pub(crate) use self::write_queue::WriteQueue;

use self::frame::Batch;
use self::segment_allocator::{Segment, SegmentAllocator};
use self::segment_room::SegmentRoom;
use self::trouble::{failed, no_room};
use self::writer::{LogPosition, Writer};
use crate::error::{Error, Result};
use crate::types::Zxid;

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

/// What only one store may have, such as the lock of a folder. It goes when nothing is written any
/// more: with the last of the log's threads, and of whoever else has it.
pub(crate) type Held = Arc<dyn Any + Send + Sync>;

/// A log that is being written. Dropping it writes what is left.
pub(crate) struct Log {
    line: Arc<WriteQueue>,
    upkeep: Arc<SegmentAllocator>,
    /// The writer's is the first.
    threads: Vec<JoinHandle<()>>,
}

/// What a log begins with.
struct Start {
    disk: Arc<dyn Disk>,
    /// Where it goes on, and in which segments after that.
    place: LogPosition,
    prepared: VecDeque<Segment>,
    /// The first batch; it is durable when the log has started.
    first: Batch,
    /// The last zxid that was used or given away before.
    last: Zxid,
    sizes: Sizes,
    syncs: bool,
    /// How many bytes of segments there are since the last snapshot, and how many that has.
    sealed_bytes: u64,
    snapshot_bytes: u64,
}

/// What writes a log, before it has threads of its own.
pub(crate) struct LogParts {
    pub(crate) line: Arc<WriteQueue>,
    upkeep: Arc<SegmentAllocator>,
    writer: Writer,
}

impl LogParts {
    /// Writes the first batch.
    fn new(mut start: Start) -> Result<Self> {
        let disk = start.disk.clone();
        let gate = Arc::new(DurabilityBarrier::new(start.last));
        let room = SegmentRoom::found(
            &start.sizes,
            start.place.position(),
            start.prepared.iter().map(|(header, _)| header),
            start.first.frame_bytes() as u64,
        );
        let line = WriteQueue::new(gate, !start.syncs, start.sizes, room, start.last);
        let line = Arc::new(line);
        let upkeep = Arc::new(SegmentAllocator::new(&mut start, line.clone()));
        let mut writer = Writer {
            line: line.clone(),
            upkeep: upkeep.clone(),
            place: start.place,
            syncs: start.syncs,
        };
        if !writer.has_room_for(&start.first) {
            let made = upkeep.make_room();
            made.map_err(|error| no_room(&*disk, &error))?;
        }
        let written = writer
            .write(&mut start.first)
            .and_then(|()| writer.settle());
        written.map_err(|error| failed(disk.path(""), "cannot be written", &error))?;
        // Else the first requests would be refused until there is more. Without it the store opens, too.
        while line.is_short() && upkeep.make_room().is_ok() {}
        if line.is_low(writer.place.header.size) {
            upkeep.ask_for_room();
        }
        Ok(Self {
            line,
            upkeep,
            writer,
        })
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::StoreFailed`] when the system refuses one: then none is left.
    pub(crate) fn start(self, held: &Held) -> Result<Log> {
        let Self {
            line,
            upkeep,
            writer,
        } = self;
        let mut log = Log {
            line,
            upkeep,
            threads: Vec::new(),
        };
        log.spawn("lockkeeper-log", held, move |_| writer.run_to_the_end())?;
        log.spawn("lockkeeper-room", held, |upkeep| upkeep.prepare_segments())?;
        log.spawn("lockkeeper-snap", held, |upkeep| upkeep.make_snapshots())?;
        Ok(log)
    }
}

impl Log {
    fn spawn(
        &mut self,
        name: &str,
        held: &Held,
        run: impl FnOnce(&SegmentAllocator) + Send + 'static,
    ) -> Result<()> {
        let (upkeep, held) = (self.upkeep.clone(), held.clone());
        self.threads.push(spawn(name, move || {
            run(&upkeep);
            drop(held);
        })?);
        Ok(())
    }

    /// Writes what is left, says that the store was closed in order, and ends the threads.
    pub(crate) fn close(self) {
        if self.line.gate.failure().is_none() {
            self.line.append_clean();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.line.end();
        self.upkeep.hurry();
        let here = std::thread::current().id();
        // The last handle to a store may go in one of these threads, in which whoever waited for the log
        // is woken. They end by themselves, then.
        if self
            .threads
            .iter()
            .all(|thread| thread.thread().id() != here)
        {
            for thread in self.threads.drain(..) {
                // It has said what it had to say.
                let _ = thread.join();
            }
        }
    }
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map_err(|error| Error::StoreFailed {
        path: name.into(),
        reason: format!("the system refuses a thread: {error}"),
    })
}
