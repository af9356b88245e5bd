//! [`Writer`]: the one thread that writes batches to the log, one frame and one sync each. [`Log`] owns the writer's
//! thread and the threads beside it.
//!
//! A batch is acknowledged ([`DurabilityBarrier::open`]) only after its frame is synced, and a frame claims
//! `synced: n` only after frame n is: both orders are those of [`Writer::write`], and recovery relies on them.

use std::collections::VecDeque;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::disk::{Disk, DiskFile, failed, no_room};
use super::durability_barrier::DurabilityBarrier;
use super::frame::{Batch, HEAD_BYTES, Link, mark};
use super::segment::{Header, Sizes};
use super::segment_allocator::{Segment, SegmentAllocator, SegmentRoom};
use super::write_queue::WriteQueue;
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;

/// Resource that only one store may have, such as the lock of a folder. It is released when nothing is written any
/// more: with the last of the log's threads and other holders.
pub(crate) trait Exclusive: Send + Sync {
    /// Checks that the store still has it. Nothing may be written or acknowledged without it.
    fn check(&self) -> Result<()>;
}

/// Of a store that nothing else can open.
#[cfg(test)]
impl Exclusive for () {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// A log that is being written. Dropping it writes the batches that are left.
pub(crate) struct Log {
    queue: Arc<WriteQueue>,
    allocator: Arc<SegmentAllocator>,
    /// The writer's is the first.
    threads: Vec<JoinHandle<()>>,
}

/// Initial state of a log.
pub(super) struct LogStart {
    pub(super) disk: Arc<dyn Disk>,
    /// The position at which it goes on, and the segments after that.
    pub(super) position: LogPosition,
    pub(super) prepared: VecDeque<Segment>,
    /// The first batch; it is durable when the log has started.
    pub(super) first: Batch,
    /// The last zxid that was used or given away before.
    pub(super) last: Zxid,
    pub(super) sizes: Sizes,
    pub(super) syncs: bool,
    /// Bytes of segments since the last snapshot, and bytes of that.
    pub(super) sealed_bytes: u64,
    pub(super) snapshot_bytes: u64,
}

/// Parts of a log before its threads are started.
pub(crate) struct LogParts {
    pub(crate) queue: Arc<WriteQueue>,
    pub(super) allocator: Arc<SegmentAllocator>,
    pub(super) writer: Writer,
}

impl LogParts {
    /// Writes the first batch.
    pub(super) fn new(mut start: LogStart) -> Result<Self> {
        let disk = start.disk.clone();
        // Open to everything recovered: `Recovered::repair` has made that durable.
        let barrier = Arc::new(DurabilityBarrier::new(start.last));
        let room = SegmentRoom::compute(
            &start.sizes,
            start.position.segment_and_offset(),
            start.prepared.iter().map(|(header, _)| header),
            start.first.frame_bytes() as u64,
        );
        let queue = WriteQueue::new(barrier, !start.syncs, start.sizes, room, start.last);
        let queue = Arc::new(queue);
        let allocator = Arc::new(SegmentAllocator::new(&mut start, queue.clone()));
        let mut writer = Writer {
            queue: queue.clone(),
            allocator: allocator.clone(),
            position: start.position,
            syncs: start.syncs,
            last_sync: Duration::ZERO,
        };
        if !writer.has_room_for(&start.first) {
            let made = allocator.make_room();
            made.map_err(|error| no_room(&*disk, &error))?;
        }
        let written = writer
            .write(&mut start.first)
            .and_then(|()| writer.sync_and_mark());
        written.map_err(|error| failed(disk.path(""), "cannot be written", &error))?;
        // Otherwise the first requests would be refused until the allocator's thread has made room. A failure is no
        // error here: on a full disk the store opens, too, and answers reads and deletes.
        while queue.is_short() && allocator.make_room().is_ok() {}
        if queue.is_low(writer.position.header.size) {
            allocator.request_room();
        }
        Ok(Self {
            queue,
            allocator,
            writer,
        })
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::StoreFailed`] when the system refuses one: then none is left.
    pub(crate) fn start(self, held: &Arc<dyn Exclusive>) -> Result<Log> {
        let Self {
            queue,
            allocator,
            writer,
        } = self;
        let mut log = Log {
            queue,
            allocator,
            threads: Vec::new(),
        };
        log.spawn("lockkeeper-log", held, move |_, held| {
            writer.run_to_the_end(held)
        })?;
        log.spawn("lockkeeper-room", held, |allocator, held| {
            allocator.prepare_segments(held)
        })?;
        log.spawn("lockkeeper-snap", held, |allocator, _| {
            allocator.make_snapshots()
        })?;
        Ok(log)
    }
}

impl Log {
    fn spawn(
        &mut self,
        name: &str,
        held: &Arc<dyn Exclusive>,
        run: impl FnOnce(&SegmentAllocator, &dyn Exclusive) + Send + 'static,
    ) -> Result<()> {
        let (allocator, held) = (self.allocator.clone(), held.clone());
        self.threads.push(spawn(name, move || {
            run(&allocator, &*held);
            drop(held);
        })?);
        Ok(())
    }

    /// Writes the batches that are left, records a clean close, and ends the threads.
    pub(crate) fn close(self) {
        if self.queue.barrier.failure().is_none() {
            self.queue.append_clean();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.end();
        self.allocator.begin_close();
        let here = std::thread::current().id();
        // The last handle to a store may be dropped on one of these threads, which wake the tasks that waited for the
        // log. Joining there would be a thread that waits for itself; the threads end without it.
        if self
            .threads
            .iter()
            .all(|thread| thread.thread().id() != here)
        {
            for thread in self.threads.drain(..) {
                // The writer catches its own panics, and reports them through the barrier.
                let _ = thread.join();
            }
        }
    }
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
    spawned.map_err(|error| Error::StoreFailed {
        path: name.into(),
        reason: format!("the thread cannot be started: {error}"),
    })
}

/// Position of the writer in the log.
pub(crate) struct LogPosition {
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) header: Header,
    pub(crate) offset: u64,
    /// The number of the next frame.
    pub(crate) chain: u64,
    /// The last frame that is known to be synced.
    pub(crate) synced: u64,
    /// The last zxid in the log.
    pub(crate) last: Zxid,
}

/// Limit of [`Writer::sync_time`]: the answers of a disk that has stalled must not be late for that alone. Clients near the
/// server have sent their next requests by then.
const MAX_SYNC_TIME: Duration = Duration::from_millis(2);

/// Writer of the log. It alone writes frames, so their order is that of the zxids.
pub(super) struct Writer {
    pub(super) queue: Arc<WriteQueue>,
    pub(super) allocator: Arc<SegmentAllocator>,
    pub(super) position: LogPosition,
    /// True if each batch is synced, false if none is.
    pub(super) syncs: bool,
    /// Duration of the last sync.
    pub(super) last_sync: Duration,
}

impl Writer {
    /// Writes until nothing will follow, or the disk fails; says so, and ends the allocator.
    pub(super) fn run_to_the_end(self, held: &dyn Exclusive) {
        let (queue, allocator) = (self.queue.clone(), self.allocator.clone());
        // Wakers run on this thread, and are the users' code: a panic of one must fail the log with an error, not
        // leave clients waiting for ever (invariant 11).
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| self.run(held)));
        let written = run.unwrap_or_else(|_| {
            let panicked = io::Error::other("the thread of the log panicked");
            Err(allocator.failed(&panicked))
        });
        if let Err(error) = written {
            queue.fail(error);
        }
        // Only now: until its end the writer may need another segment.
        allocator.end();
    }

    /// Writes until nothing will follow.
    ///
    /// # Errors
    /// The first one is final: the contents of the disk are unknown from then on, and writing again could not change
    /// that (invariant 12).
    fn run(mut self, held: &dyn Exclusive) -> Result<()> {
        let allocator = self.allocator.clone();
        let failed = |error| allocator.failed(&error);
        let mut used = None;
        while let Some(batch) = self.queue.next(used.take(), self.sync_time()) {
            if self.queue.is_short() {
                // The batch's answers wait here until room is made, and with them the clients' next requests: so a disk
                // that is slow, but not full, refuses no client that waits for its answers.
                self.allocator.wait_for_room();
            }
            // Before the write: another store may be writing the same files by now.
            held.check()?;
            used = Some(self.write_batch(batch).map_err(failed)?);
        }
        held.check()?;
        self.sync_and_mark().map_err(failed)
    }

    /// Returns the time that a batch saves where others share its sync; zero if there is none.
    fn sync_time(&self) -> Duration {
        match self.syncs {
            true => self.last_sync.min(MAX_SYNC_TIME),
            false => Duration::ZERO,
        }
    }

    /// Writes a batch of the queue; it can be used again.
    pub(super) fn write_batch(&mut self, mut batch: Batch) -> io::Result<Batch> {
        if self.queue.is_low(self.position.header.size) {
            self.allocator.request_room();
        }
        self.write(&mut batch)?;
        #[cfg(debug_assertions)]
        self.allocator
            .check_room(self.position.segment_and_offset());
        Ok(batch)
    }

    /// Makes everything written durable, and leaves a durable mark that says so.
    pub(super) fn sync_and_mark(&mut self) -> io::Result<()> {
        // The frames first: the mark claims that they are synced, and one that reached the disk without them would have
        // the next start refuse the log as damaged.
        self.sync()?;
        self.mark()?;
        // The mark itself, which is otherwise never synced: after a clean close, damage of the last frame is told from
        // a frame that was being written.
        self.position.file.sync()
    }

    fn sync(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        self.position.file.sync()?;
        self.last_sync = begun.elapsed();
        self.queue.stats.count_sync(self.last_sync);
        // Only after the sync has returned, and only here: every later frame repeats the claim. Frames of earlier
        // segments are included, since `enter_next_segment` syncs a segment before it leaves it.
        self.position.synced = self.position.chain - 1;
        Ok(())
    }

    /// Returns true if a batch fits the segment, with room for a mark behind it.
    pub(super) fn has_room_for(&self, batch: &Batch) -> bool {
        let end = self.position.offset + (batch.frame_bytes() + HEAD_BYTES) as u64;
        end <= self.position.header.size
    }

    /// Writes one batch.
    pub(super) fn write(&mut self, batch: &mut Batch) -> io::Result<()> {
        if !self.has_room_for(batch) {
            self.enter_next_segment()?;
        }
        // Cannot happen: the core refuses larger transactions, and `Sizes` derives the largest batch from them.
        if !self.has_room_for(batch) {
            return Err(io::Error::other("a batch is larger than a segment"));
        }
        let position = &mut self.position;
        let frame = batch.seal(position.link());
        position.file.write_at(position.offset, frame)?;
        position.offset += frame.len() as u64;
        self.queue.stats.count_batch(frame.len());
        position.chain += 1;
        position.last = batch.last();
        // Before the barrier opens: an acknowledged write must survive a power loss (invariant 2).
        if self.syncs {
            self.sync()?;
        }
        // Before the barrier opens: a client that waits for each answer must find room for its next write, and never
        // be refused for the room that its own last batch still seems to take.
        self.queue
            .note_written(batch.frame_bytes(), self.position.segment_and_offset());
        self.queue.barrier.open(self.position.last);
        // After the barrier: no answer waits for a mark. Under load none is needed, since the next frame makes the same
        // claim; and without syncs there is nothing to claim.
        if self.syncs && self.queue.is_idle() {
            self.mark()?;
        }
        Ok(())
    }

    /// Writes a mark where the next frame will be: all frames before it are synced. Without one, recovery could not
    /// tell damage of the last frame from a frame that was never acknowledged.
    fn mark(&self) -> io::Result<()> {
        let mark = mark(self.position.link(), self.position.last);
        self.position.file.write_at(self.position.offset, &mark)
    }

    /// Goes on in the next segment.
    pub(super) fn enter_next_segment(&mut self) -> io::Result<()> {
        if !self.syncs {
            // With syncs every frame is on the disk already. Without, each segment gets this one sync as it is sealed:
            // should the snapshot that is made from it turn out to be damaged, the segment and the snapshot before are
            // what is left.
            self.sync()?;
        }
        let Some((header, file)) = self.allocator.next_segment() else {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the store was closed before there was space for its last changes",
            ));
        };
        self.position.file = file;
        self.position.header = header;
        self.position.offset = super::segment::HEADER_BYTES;
        self.queue.note_entered(&self.position.header);
        // Before the segment is sealed: the snapshotter learns from this mark's number which frame was the last of the
        // sealed segments.
        self.mark()?;
        self.allocator.seal(&self.position.header);
        Ok(())
    }
}

impl LogPosition {
    /// Returns the segment, and the offset of the next frame.
    pub(super) fn segment_and_offset(&self) -> (&Header, u64) {
        (&self.header, self.offset)
    }

    fn link(&self) -> Link {
        Link {
            salt: self.header.salt,
            chain: self.chain,
            synced: self.synced,
        }
    }
}
