//! [`Writer`]: the only thread that writes batches to the log, each as one frame with one sync.
//!
//! A batch is acknowledged ([`DurabilityBarrier::open`]) only after its frame is synced, and a frame claims `synced: n`
//! only after frame n is synced. [`Writer::write`] ensures both, and recovery relies on them.

use std::collections::VecDeque;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::disk::{Disk, DiskFile, failed, no_room};
use super::durability_barrier::DurabilityBarrier;
use super::frame::{Batch, FrameChain, HEAD_BYTES, mark};
use super::segment::{Header, Sizes};
use super::segment_allocator::{Segment, SegmentAllocator, SegmentRoom};
use super::write_queue::WriteQueue;
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;

/// A resource that only one store may have, such as a folder's lock. The log's threads share the resource with other
/// owners. It is released when the last owner drops it, so the log writes nothing after the release.
pub(crate) trait Exclusive: Send + Sync {
    fn check(&self) -> Result<()>;
}

#[cfg(test)]
impl Exclusive for () {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// A log that is being written. Dropping it writes the remaining batches.
pub(crate) struct Log {
    queue: Arc<WriteQueue>,
    allocator: Arc<SegmentAllocator>,
    threads: Vec<JoinHandle<()>>,
}

pub(super) struct LogStart {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) position: LogPosition,
    pub(super) prepared: VecDeque<Segment>,
    pub(super) first: Batch,
    pub(super) last: Zxid,
    pub(super) sizes: Sizes,
    pub(super) syncs: bool,
    pub(super) sealed_bytes: u64,
    pub(super) snapshot_bytes: u64,
}

pub(crate) struct LogParts {
    pub(crate) queue: Arc<WriteQueue>,
    pub(super) allocator: Arc<SegmentAllocator>,
    pub(super) writer: Writer,
}

impl LogParts {
    pub(super) fn new(mut start: LogStart) -> Result<Self> {
        let disk = start.disk.clone();
        // The barrier is open to everything that was recovered, because `Recovered::repair` has made it durable.
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
        // Make room now. Otherwise the first requests would be refused until the allocator's thread has made room.
        // Ignore a failure, because the store must open and answer reads and deletes even on a full disk.
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

    /// Starts the threads. If one cannot be started, ends the others before returning.
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

    /// Writes the remaining batches, records a clean close, and ends the threads.
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
        // Waking a task on one of these threads may run it, and the task may drop the last handle to the store. A
        // thread cannot join itself, so in this case we join none of them. They end soon anyway.
        if self
            .threads
            .iter()
            .all(|thread| thread.thread().id() != here)
        {
            for thread in self.threads.drain(..) {
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

pub(crate) struct LogPosition {
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) header: Header,
    pub(crate) offset: u64,
    pub(crate) chain: u64,
    pub(crate) synced: u64,
    pub(crate) last: Zxid,
}

/// Limit of [`Writer::sync_time`]. Without it, the next batch after a disk stall would wait for more requests about as
/// long as the stall lasted. The limit is long enough for nearby clients to send their next requests.
const MAX_SYNC_TIME: Duration = Duration::from_millis(2);

pub(super) struct Writer {
    pub(super) queue: Arc<WriteQueue>,
    pub(super) allocator: Arc<SegmentAllocator>,
    pub(super) position: LogPosition,
    pub(super) syncs: bool,
    pub(super) last_sync: Duration,
}

impl Writer {
    pub(super) fn run_to_the_end(self, held: &dyn Exclusive) {
        let (queue, allocator) = (self.queue.clone(), self.allocator.clone());
        // Wakers are user code and run on this thread. If a waker panics, the log must fail with an error, because
        // otherwise clients would wait forever (invariant 11).
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| self.run(held)));
        let written = run.unwrap_or_else(|_| {
            let panicked = io::Error::other("the thread of the log panicked");
            Err(allocator.failed(&panicked))
        });
        if let Err(error) = written {
            queue.fail(error);
        }
        // End the allocator last, because until here the writer may have needed another segment.
        allocator.end();
    }

    /// Writes until the queue ends. The first error is final, because the contents of the disk are unknown from then on
    /// (invariant 12).
    fn run(mut self, held: &dyn Exclusive) -> Result<()> {
        let allocator = self.allocator.clone();
        let failed = |error| allocator.failed(&error);
        let mut used = None;
        while let Some(batch) = self.queue.next(used.take(), self.sync_time()) {
            if self.queue.is_short() {
                // Do not answer the batch before more room is made. Clients that wait for their answers then send no
                // further requests, so they are not refused if the disk is merely slow, not full.
                self.allocator.wait_for_room();
            }
            // Check that we still hold the lock. Otherwise another store may be writing the same files by now.
            held.check()?;
            used = Some(self.write_batch(batch).map_err(failed)?);
        }
        held.check()?;
        self.sync_and_mark().map_err(failed)
    }

    fn sync_time(&self) -> Duration {
        match self.syncs {
            true => self.last_sync.min(MAX_SYNC_TIME),
            false => Duration::ZERO,
        }
    }

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

    pub(super) fn sync_and_mark(&mut self) -> io::Result<()> {
        // Sync the frames first. If the mark reached the disk without them, the next start would refuse the log as
        // damaged.
        self.sync()?;
        self.mark()?;
        // This is the only mark that is synced. After a clean close, recovery needs it to distinguish a damaged last
        // frame from a frame that was being written.
        self.position.file.sync()
    }

    fn sync(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        self.position.file.sync()?;
        self.last_sync = begun.elapsed();
        self.queue.stats.count_sync(self.last_sync);
        // Set `synced` only after a successful sync, because every later frame repeats it. It also covers the frames of
        // earlier segments, because the writer syncs each segment before it enters the next segment.
        self.position.synced = self.position.chain - 1;
        Ok(())
    }

    pub(super) fn has_room_for(&self, batch: &Batch) -> bool {
        let end = self.position.offset + (batch.frame_bytes() + HEAD_BYTES) as u64;
        end <= self.position.header.size
    }

    pub(super) fn write(&mut self, batch: &mut Batch) -> io::Result<()> {
        if !self.has_room_for(batch) {
            self.enter_next_segment()?;
        }
        // This cannot happen, because the core refuses larger transactions, and `Sizes` makes every frame fit into
        // every segment.
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
        // Sync before the barrier opens, because an acknowledged write must survive a power loss (invariant 2).
        if self.syncs {
            self.sync()?;
        }
        // Update the room before the barrier opens. Otherwise a client's next write might be refused because the last
        // batch still counts as queued.
        self.queue
            .note_written(batch.frame_bytes(), self.position.segment_and_offset());
        self.queue.barrier.open(self.position.last);
        // Write the mark after the barrier opens, so that no answer waits for it. If another batch is queued, its frame
        // will state the same, so no mark is needed. Without syncs, there is nothing to state.
        if self.syncs && self.queue.is_idle() {
            self.mark()?;
        }
        Ok(())
    }

    /// Writes a mark at the position of the next frame. The mark states that all frames before it are synced. Without
    /// it, recovery could not distinguish a damaged last frame from a frame that was never acknowledged.
    fn mark(&self) -> io::Result<()> {
        let mark = mark(self.position.link(), self.position.last);
        self.position.file.write_at(self.position.offset, &mark)
    }

    pub(super) fn enter_next_segment(&mut self) -> io::Result<()> {
        if !self.syncs {
            // With syncs, every frame is already durable. Without syncs, we sync each segment when it is sealed,
            // because recovery needs the segment if the next snapshot turns out to be damaged.
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
        // Write the mark before the previous segment is sealed, because the snapshotter derives the last sealed frame
        // from the number in this mark.
        self.mark()?;
        self.allocator.seal(&self.position.header);
        Ok(())
    }
}

impl LogPosition {
    pub(super) fn segment_and_offset(&self) -> (&Header, u64) {
        (&self.header, self.offset)
    }

    fn link(&self) -> FrameChain {
        FrameChain {
            salt: self.header.salt,
            chain: self.chain,
            synced: self.synced,
        }
    }
}
