//! [`WriteQueue`]: transactions that wait for the log writer, grouped into batches, and the room that limits them.
//!
//! Transactions are appended under the store's lock, so the queue is in zxid order (invariant 2). A write is refused
//! before it is applied if there is no room for it on disk. So the writer can write every queued transaction, and never
//! meets a full disk (invariant 12).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::codec::Record;
use super::durability_barrier::DurabilityBarrier;
use super::frame::{Batch, HEAD_BYTES};
use super::segment::{Header, Sizes};
use super::segment_allocator::SegmentRoom;
use crate::core::Txn;
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;
use crate::runtime::histogram::{Distribution, Histogram, LATENCY_BOUNDS_NS};

pub(crate) struct WriteQueue {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Notified of each append, for a [`StepWriter`](super::StepWriter).
    step: OnceLock<Arc<Notify>>,
    /// The bytes left in [`Queue::room`], copied here so that writes can check them without the lock.
    room: AtomicI64,
    room_changed: Notify,
    pub(crate) barrier: Arc<DurabilityBarrier>,
    /// True if no answer waits for the log while there is room (durability class `None`).
    is_relaxed: bool,
    /// True while no session is admitted, because clients may still consider their ended sessions alive.
    is_pausing: AtomicBool,
    pub(super) sizes: Sizes,
    pub(super) stats: LogCounters,
}

struct Queue {
    batches: VecDeque<Batch>,
    used: Vec<Batch>,
    room: SegmentRoom,
    /// The reason why the last attempt to make room failed.
    no_room: Option<Error>,
    last: Zxid,
    is_urgent: bool,
    /// Time at which the batches are written even if no client waits for them.
    due: Option<Instant>,
    /// Urgent requests since the last batch was taken.
    gathered: usize,
    /// Urgent requests in the last batch, whose clients are about to send the next requests.
    answered: usize,
    sleep: Sleep,
    ends: bool,
}

/// State of the writer: awake, or asleep until an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    Not,
    UntilWork,
    /// Until the batches are due or an urgent request arrives.
    UntilDue,
    /// Until enough requests have gathered to share the next sync, or the time limit for gathering has passed.
    UntilGathered,
}

/// Maximum number of empty batches that are kept so that their buffers can be reused.
const MAX_SPARE_BATCHES: usize = 4;

/// Maximum time in the queue for a batch that no client waits for. The durability classes promise this bound.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// If a batch has at least this many urgent requests, writes are limited by CPU time more than by the disk.
const LARGE_BATCH: usize = 8;

impl WriteQueue {
    pub(super) fn new(
        barrier: Arc<DurabilityBarrier>,
        is_relaxed: bool,
        sizes: Sizes,
        room: SegmentRoom,
        last: Zxid,
    ) -> Self {
        let queue = Self {
            queue: Mutex::new(Queue {
                batches: VecDeque::new(),
                used: Vec::new(),
                room,
                no_room: None,
                last,
                is_urgent: false,
                due: None,
                gathered: 0,
                answered: 0,
                sleep: Sleep::Not,
                ends: false,
            }),
            work: Condvar::new(),
            step: OnceLock::new(),
            room: AtomicI64::new(0),
            room_changed: Notify::new(),
            barrier,
            is_relaxed,
            is_pausing: AtomicBool::new(false),
            sizes,
            stats: LogCounters::new(),
        };
        queue.publish(&queue.queue.lock());
        queue
    }

    #[cfg(any(test, feature = "server"))]
    pub(crate) fn stats(&self) -> LogStats {
        self.stats.read(self.barrier.waits(), self.is_full())
    }

    pub(crate) fn takes_any(&self) -> bool {
        self.has_room(self.sizes.largest_txn + self.sizes.reserve)
    }

    /// Checks that there is room for a transaction of `bytes` bytes. If `frees` is true, the transaction frees room and
    /// may use half of the reserve. The other half is for ending dead sessions, whose locks no client can release.
    ///
    /// # Errors
    /// [`Error::DiskFull`], or [`Error::LimitReached`] if more room is being made.
    pub(crate) fn check_room(&self, bytes: usize, frees: bool) -> Result<()> {
        let bytes = bytes.min(self.sizes.largest_txn);
        let reserve = self.sizes.reserve / if frees { 2 } else { 1 };
        if self.has_room(bytes + reserve) {
            return Ok(());
        }
        let no_room = self.queue.lock().no_room.clone();
        Err(no_room.unwrap_or(Error::LimitReached {
            what: "bytes that wait for the disk",
            limit: self.sizes.largest_segment as usize,
        }))
    }

    /// Waits while [`check_room`](Self::check_room) returns `LimitReached`. Cancel safe.
    pub(crate) async fn wait_for_room(self: Arc<Self>, bytes: usize, frees: bool) {
        loop {
            let changed = self.room_changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let checked = self.check_room(bytes, frees);
            if !matches!(checked, Err(Error::LimitReached { .. }))
                || self.barrier.failure().is_some()
            {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn fail(&self, error: Error) {
        // Fail the barrier first, because a woken waiter for room checks whether the barrier has failed.
        self.barrier.fail(error);
        self.room_changed.notify_waiters();
    }

    /// Returns true if the store may start changes without a request, such as ending a dead session. The size of such
    /// changes is known only once they are applied, so a quarter of the reserve must be left.
    pub(crate) fn has_reserve(&self) -> bool {
        self.has_room(self.sizes.reserve / 4)
    }

    /// Returns true if the allocator should prepare another segment now. The threshold grows with the current segment,
    /// because a larger segment takes longer to prepare, while writes use up the room just as fast. Room is low before
    /// it is [short](Self::is_short).
    pub(super) fn is_low(&self, size: u64) -> bool {
        let size = size.max(self.sizes.first_segment);
        !self.has_room((size / 2) as usize)
    }

    /// Returns true if the largest request might be refused. The writer then waits for more room before it writes the
    /// next batch.
    pub(crate) fn is_short(&self) -> bool {
        let quarter = (self.sizes.first_segment / 4) as usize;
        !self.has_room(quarter.max(self.sizes.largest_txn + self.sizes.reserve))
    }

    pub(super) fn is_full(&self) -> bool {
        self.queue.lock().no_room.is_some()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.room.load(Ordering::Acquire) >= (bytes + HEAD_BYTES) as i64
    }

    /// Appends transactions in zxid order and empties the list. `is_urgent` is true if a client waits for them. The
    /// caller holds the store's lock, which orders the transactions of different sessions.
    pub(crate) fn append(&self, txns: &mut Vec<Txn>, is_urgent: bool) {
        if txns.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        for txn in txns.drain(..) {
            self.write(&mut queue, |batch| batch.push(&txn));
            queue.last = txn.zxid;
        }
        self.wake(&mut queue, is_urgent || self.is_short());
    }

    pub(crate) fn append_record(&self, record: &Record) {
        let mut queue = self.queue.lock();
        self.write(&mut queue, |batch| batch.push_record(record));
        self.wake(&mut queue, true);
    }

    pub(crate) fn set_pausing(&self, is_pausing: bool) {
        self.is_pausing.store(is_pausing, Ordering::Release);
    }

    /// Appends the record of a clean close. During a pause, appends nothing, because after a clean close the next start
    /// would skip the rest of the pause.
    pub(crate) fn append_clean(&self) {
        if !self.is_pausing.load(Ordering::Acquire) {
            self.append_record(&Record::Clean);
        }
    }

    /// Wakes the writer if there is an urgent transaction or a full batch. Other transactions wake the writer only if
    /// it sleeps without a deadline, so that many of them cost one wake.
    fn wake(&self, queue: &mut Queue, is_urgent: bool) {
        if let Some(step) = self.step.get() {
            step.notify_one();
        }
        queue.is_urgent |= is_urgent;
        queue.gathered += usize::from(is_urgent);
        let is_needed = match queue.sleep {
            Sleep::Not => false,
            Sleep::UntilWork => true,
            Sleep::UntilDue => queue.is_ready(),
            Sleep::UntilGathered => queue.is_gathered(),
        };
        if is_needed {
            queue.sleep = Sleep::Not;
            self.work.notify_one();
        }
    }

    fn write(&self, queue: &mut Queue, write: impl FnOnce(&mut Batch)) {
        let is_open = |batch: &Batch| batch.frame_bytes() < self.sizes.largest_batch;
        let mut before = 0;
        match queue.batches.back().filter(|batch| is_open(batch)) {
            Some(batch) => before = batch.frame_bytes(),
            None => {
                let mut batch = queue.used.pop().unwrap_or_default();
                batch.begin(queue.last);
                queue.batches.push_back(batch);
                queue.due.get_or_insert_with(|| Instant::now() + MAX_DELAY);
            }
        }
        if let Some(batch) = queue.batches.back_mut() {
            write(batch);
            let taken = batch.frame_bytes() - before;
            queue.room.queue(taken);
            self.publish(queue);
        }
    }

    fn publish(&self, queue: &Queue) {
        // The caller holds the lock of `queue`. Otherwise two threads could store their values in the wrong order.
        self.room.store(queue.room.left(), Ordering::Release);
        // Without syncs, clients do not wait for the log and could use up the room faster than it is made. So while
        // room is short, they must wait for the writer.
        if self.is_relaxed {
            self.barrier.set_relaxed(!self.is_short());
        }
    }

    pub(super) fn note_written(&self, bytes: usize, position: (&Header, u64)) {
        let mut queue = self.queue.lock();
        queue.room.write(&self.sizes, bytes, position);
        self.publish(&queue);
        // Notify without the lock, because a woken task may append immediately, which takes the lock.
        drop(queue);
        self.room_changed.notify_waiters();
    }

    pub(super) fn note_entered(&self, header: &Header) {
        let mut queue = self.queue.lock();
        queue.room.enter(&self.sizes, header);
        self.publish(&queue);
    }

    pub(super) fn note_prepared(&self, header: &Header) {
        let mut queue = self.queue.lock();
        queue.room.add(&self.sizes, header);
        // There is space again, so no write is refused as `DiskFull` any longer.
        queue.no_room = None;
        self.publish(&queue);
        drop(queue);
        self.room_changed.notify_waiters();
    }

    /// Panics if the room that we count differs from the room on disk. The caller has no batch in flight, and holds the
    /// allocator's lock so that nothing is prepared concurrently.
    #[cfg(debug_assertions)]
    pub(super) fn check_room_is<'a>(
        &self,
        position: (&Header, u64),
        prepared: impl Iterator<Item = &'a Header>,
    ) {
        let queue = self.queue.lock();
        let queued = queue.batches.iter().map(Batch::frame_bytes).sum::<usize>();
        let found = SegmentRoom::compute(&self.sizes, position, prepared, queued as u64);
        assert_eq!(queue.room, found, "the room in the log has drifted");
        assert_eq!(self.room.load(Ordering::Acquire), found.left());
    }

    pub(super) fn refuse(&self, error: Error) {
        self.queue.lock().no_room = Some(error);
        self.room_changed.notify_waiters();
    }

    pub(super) fn end(&self) {
        // Set `ends` under the lock. Otherwise the writer could check `ends`, miss the notification, and sleep forever.
        let mut queue = self.queue.lock();
        queue.ends = true;
        self.work.notify_one();
    }

    /// Waits until a batch should be written, and takes it. Returns `None` if no more batches will follow. Reuses the
    /// buffers of `used`, a batch that was written before.
    ///
    /// First waits for more requests to share the sync. The clients that the last batch answered send their next
    /// requests at slightly different times. If we took only the first request, all other clients would have to wait
    /// for the following sync. `sync` is the duration of a sync, and [bounds](Queue::patience) the wait.
    pub(super) fn next(&self, used: Option<Batch>, sync: Duration) -> Option<Batch> {
        let mut queue = self.queue.lock();
        if let Some(used) = used.filter(|_| queue.used.len() < MAX_SPARE_BATCHES) {
            queue.used.push(used);
        }
        let patience = queue.patience(sync);
        if !queue.is_gathered() && !patience.is_zero() {
            queue.sleep = Sleep::UntilGathered;
            let is_too_few = |queue: &mut Queue| !queue.is_gathered();
            let until = Instant::now() + patience;
            self.work.wait_while_until(&mut queue, is_too_few, until);
            queue.sleep = Sleep::Not;
        }
        loop {
            if (queue.is_ready() || queue.is_late())
                && let Some(batch) = queue.pop()
            {
                return Some(batch);
            }
            // Check `ends` after the batches, because the remaining batches must be written before the writer ends.
            if queue.ends {
                return None;
            }
            match queue.due {
                None => {
                    queue.sleep = Sleep::UntilWork;
                    self.work.wait(&mut queue);
                }
                Some(due) => {
                    queue.sleep = Sleep::UntilDue;
                    self.work.wait_until(&mut queue, due);
                }
            }
            queue.sleep = Sleep::Not;
        }
    }

    #[cfg(test)]
    pub(super) fn writer_gathers(&self) -> bool {
        self.queue.lock().sleep == Sleep::UntilGathered
    }

    #[cfg(feature = "simulation")]
    pub(super) fn steps(&self) -> Arc<Notify> {
        self.step.get_or_init(Arc::default).clone()
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn try_next(&self) -> Option<Batch> {
        self.queue.lock().pop()
    }

    #[cfg(test)]
    pub(crate) fn writer_sleeps(&self) -> bool {
        self.queue.lock().sleep == Sleep::UntilWork
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.lock().batches.is_empty()
    }
}

impl Queue {
    fn is_ready(&self) -> bool {
        self.is_urgent || self.ends || self.batches.len() > 1
    }

    fn is_gathered(&self) -> bool {
        self.gathered >= self.expected() || self.ends || self.batches.len() > 1
    }

    /// Returns the number of urgent requests that the next batch waits for.
    ///
    /// After a small batch, this is half of the requests that the batch answered. The clients then form two halves that
    /// take turns: one half works while the requests of the other half are synced. After a large batch, this is all of
    /// its requests, because the cores are busy anyway and each sync takes CPU time too.
    fn expected(&self) -> usize {
        match self.was_large() {
            true => self.answered,
            false => self.answered.div_ceil(2),
        }
    }

    /// Returns the maximum time to wait for the [expected](Self::expected) requests. The wait is bounded because the
    /// answered clients may not write again.
    fn patience(&self, sync: Duration) -> Duration {
        match self.was_large() {
            true => sync.saturating_mul(2),
            false => sync / 2,
        }
    }

    fn was_large(&self) -> bool {
        self.answered >= LARGE_BATCH
    }

    fn is_late(&self) -> bool {
        self.due.is_some_and(|due| due <= Instant::now())
    }

    /// Takes the next batch. If there are more batches, `is_urgent` and `due` stay set, so these batches may be written
    /// earlier than necessary.
    fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        if self.batches.is_empty() {
            self.is_urgent = false;
            self.due = None;
            self.answered = std::mem::take(&mut self.gathered);
        }
        Some(batch)
    }
}

#[derive(Debug)]
pub(crate) struct LogCounters {
    syncs: Histogram<{ LATENCY_BOUNDS_NS.len() }>,
    longest_sync_ns: AtomicU64,
    batches: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "what a server tells")
)]
pub(crate) struct LogStats {
    pub(crate) syncs: Distribution,
    pub(crate) longest_sync: Duration,
    pub(crate) batches: u64,
    pub(crate) bytes: u64,
    pub(crate) waits: u64,
    pub(crate) is_full: bool,
}

impl LogCounters {
    fn new() -> Self {
        Self {
            syncs: Histogram::new(&LATENCY_BOUNDS_NS),
            longest_sync_ns: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn count_sync(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.syncs.add(took);
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
    pub(super) fn read(&self, waits: u64, is_full: bool) -> LogStats {
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        LogStats {
            syncs: self.syncs.read(),
            longest_sync: Duration::from_nanos(read(&self.longest_sync_ns)),
            batches: read(&self.batches),
            bytes: read(&self.bytes),
            waits,
            is_full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(number: u64) -> Header {
        Header {
            salt: 0,
            number,
            size: 1 << 16,
            store: [0; 16],
        }
    }

    #[test]
    fn replies_ahead_of_the_log_wait_when_room_is_short() {
        let sizes = Sizes::new(1 << 16, 1 << 16);
        let barrier = Arc::new(DurabilityBarrier::new(Zxid(0)));
        let queue = WriteQueue::new(barrier, true, sizes, SegmentRoom::default(), Zxid(0));
        assert!(!queue.barrier.is_open_to(Zxid(1)), "there is no room yet");
        queue.note_prepared(&header(0));
        assert!(queue.barrier.is_open_to(Zxid(1_000_000)));
        while !queue.is_short() {
            assert!(queue.barrier.is_open_to(Zxid(1_000_000)));
            queue.append_record(&Record::Clean);
        }
        assert!(queue.check_room(sizes.reserve / 2, false).is_ok());
        assert!(!queue.barrier.is_open_to(Zxid(1)));
        queue.barrier.open(Zxid(1));
        assert!(queue.barrier.is_open_to(Zxid(1)), "it was written");
        queue.note_prepared(&header(1));
        assert!(queue.barrier.is_open_to(Zxid(1_000_000)));
        queue.barrier.fail(Error::BadArguments("it failed".into()));
        queue.note_prepared(&header(1));
        assert!(!queue.barrier.is_open_to(Zxid(0)));
    }
}
