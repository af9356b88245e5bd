//! [`WriteQueue`]: transactions waiting for the log writer, grouped into batches, and the room in the log by which
//! writes are admitted.
//!
//! Transactions are appended under the store's lock, so the queue's order is that of the zxids (invariant 2). A write
//! is refused before it is applied, or else it is written: the writer never meets a full disk (invariant 12).

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

/// Transactions waiting for the log writer, in batches.
///
/// A write is admitted only if the room for it is on the disk already. So the writer never meets a full disk, and
/// every applied transaction can be written.
pub(crate) struct WriteQueue {
    queue: Mutex<Queue>,
    /// Wakes the writer.
    work: Condvar,
    /// Wakes a [`StepWriter`](super::StepWriter)'s caller, where one has asked for that.
    step: OnceLock<Arc<Notify>>,
    /// Copy of [`Queue::room`]'s sum, for readers without the lock: every write is checked against it.
    room: AtomicI64,
    /// Wakes the tasks in [`until_room`](Self::until_room).
    room_changed: Notify,
    pub(crate) barrier: Arc<DurabilityBarrier>,
    /// True if no answer has to wait for the log, as long as there is room in it (durability class `None`).
    is_relaxed: bool,
    /// True while the store admits no session, because earlier ones may still be believed.
    is_pausing: AtomicBool,
    pub(super) sizes: Sizes,
    pub(super) stats: LogCounters,
}

struct Queue {
    batches: VecDeque<Batch>,
    /// To be used again.
    used: Vec<Batch>,
    room: SegmentRoom,
    /// The error for which no more room can be made, as things are.
    no_room: Option<Error>,
    /// The last zxid that was handed over, or reserved before.
    last: Zxid,
    /// True if a client waits for any of the batches.
    is_urgent: bool,
    /// Time at which the batches are written although no client waits for them; `None` when there are none.
    due: Option<Instant>,
    /// Number of urgent requests since the last batch was taken.
    gathered: usize,
    /// Number of urgent requests of the last batch: their clients are about to send the next ones.
    answered: usize,
    sleep: Sleep,
    ends: bool,
}

/// The event that the writer sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// It is awake.
    Not,
    /// For anything to write.
    UntilWork,
    /// For the moment at which the batches are due, or anything urgent.
    UntilDue,
    /// For enough requests to share the next sync, or the end of its patience.
    UntilGathered,
}

/// Used batches that are kept for their buffers: one is written, one fills, and the others absorb a burst.
const MAX_SPARE_BATCHES: usize = 4;

/// The longest time that a batch stays in the queue when no client waits for it: the bound that the durability
/// classes promise for writes that are acknowledged early.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// Urgent requests of a batch from which on the time of the cores bounds the writes, more than the disk.
const LARGE_BATCH: usize = 8;

impl WriteQueue {
    /// Creates the queue of a log with this room, in which `last` is the last zxid that is in use.
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

    /// Returns the counters of the log since it was opened.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn stats(&self) -> LogStats {
        self.stats.read(self.barrier.waits(), self.is_full())
    }

    /// Returns true if there is room for any transaction: the core refuses all above the largest.
    pub(crate) fn takes_any(&self) -> bool {
        self.has_room(self.sizes.largest_txn + self.sizes.reserve)
    }

    /// Checks that there is room for a transaction of that many bytes. One that frees room may use half of
    /// the reserve. The rest is for ending dead sessions: no client can release the locks that those hold.
    ///
    /// # Errors
    /// [`Error::DiskFull`]; [`Error::LimitReached`] when room is on its way.
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

    /// Waits as long as [`check_room`](Self::check_room) says that room is on its way. Cancel safe.
    pub(crate) async fn until_room(self: Arc<Self>, bytes: usize, frees: bool) {
        loop {
            let changed = self.room_changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Enabled before the check, so that no notification is missed in between.
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

    /// Ends every wait for the log, which has failed.
    pub(super) fn fail(&self, error: Error) {
        // First: a waiter for room that is woken looks at the barrier, and ends.
        self.barrier.fail(error);
        self.room_changed.notify_waiters();
    }

    /// Returns true if the store may begin changes of its own, such as ending a dead session. A quarter of the reserve
    /// must be left: the size of such a change is known only once it has been applied.
    pub(crate) fn has_reserve(&self) -> bool {
        self.has_room(self.sizes.reserve / 4)
    }

    /// Returns true if more room is needed soon, while a segment of `size` bytes is written: a larger segment takes
    /// longer to prepare, and the current one fills as fast. Room is low before it is [short](Self::is_short).
    pub(super) fn is_low(&self, size: u64) -> bool {
        let size = size.max(self.sizes.first_segment);
        !self.has_room((size / 2) as usize)
    }

    /// Returns true if there is so little room that the largest request might be refused: the writer then waits for
    /// more before it acknowledges.
    pub(crate) fn is_short(&self) -> bool {
        let quarter = (self.sizes.first_segment / 4) as usize;
        !self.has_room(quarter.max(self.sizes.largest_txn + self.sizes.reserve))
    }

    /// Returns true if no more room can be made, as things are.
    pub(super) fn is_full(&self) -> bool {
        self.queue.lock().no_room.is_some()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.room.load(Ordering::Acquire) >= (bytes + HEAD_BYTES) as i64
    }

    /// Appends transactions, in the order of their zxids, and empties the list. They are urgent
    /// if a client waits for them, as all clients do while room is short.
    ///
    /// The caller holds the store's lock, which orders the transactions of different sessions.
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

    /// Appends a record that is no transaction, urgently.
    pub(crate) fn append_record(&self, record: &Record) {
        let mut queue = self.queue.lock();
        self.write(&mut queue, |batch| batch.push_record(record));
        self.wake(&mut queue, true);
    }

    /// Records that the next start owes a pause if this run ends now, or that it owes none any more.
    pub(crate) fn set_pausing(&self, is_pausing: bool) {
        self.is_pausing.store(is_pausing, Ordering::Release);
    }

    /// Appends the record of a clean close, except during a pause: a clean start admits sessions at once, and would
    /// skip the rest of the pause.
    pub(crate) fn append_clean(&self) {
        if !self.is_pausing.load(Ordering::Acquire) {
            self.append_record(&Record::Clean);
        }
    }

    /// Wakes the writer if needed: at once for urgent transactions and for a full batch; otherwise only if it sleeps
    /// without a deadline. So many lazy transactions cost one wake, not one each.
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

    /// Writes to the batch that is still open, or to a new one.
    fn write(&self, queue: &mut Queue, write: impl FnOnce(&mut Batch)) {
        let is_open = |batch: &Batch| batch.frame_bytes() < self.sizes.largest_batch;
        let mut before = 0;
        match queue.batches.back().filter(|batch| is_open(batch)) {
            Some(batch) => before = batch.frame_bytes(),
            // The last batch is full, or the writer has taken it.
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

    /// Publishes a change of room to readers without the lock.
    fn publish(&self, queue: &Queue) {
        // Under the lock of `queue`, like every change of room: two stores in another order would publish a stale sum.
        self.room.store(queue.room.left(), Ordering::Release);
        // Without syncs nothing slows clients down; they must wait for the writer before the room is used up.
        if self.is_relaxed {
            self.barrier.set_relaxed(!self.is_short());
        }
    }

    /// Notes that the writer has written a batch, and stands behind it.
    pub(super) fn note_written(&self, bytes: usize, position: (&Header, u64)) {
        let mut queue = self.queue.lock();
        queue.room.write(&self.sizes, bytes, position);
        self.publish(&queue);
        // Notified without the lock: a woken task checks the room, and may append at once.
        drop(queue);
        self.room_changed.notify_waiters();
    }

    /// Notes that the writer goes on in a segment that was prepared.
    pub(super) fn note_entered(&self, header: &Header) {
        let mut queue = self.queue.lock();
        queue.room.enter(&self.sizes, header);
        self.publish(&queue);
    }

    /// Adds the room of a prepared segment.
    pub(super) fn note_prepared(&self, header: &Header) {
        let mut queue = self.queue.lock();
        queue.room.add(&self.sizes, header);
        // There is space again: writes that were refused as `DiskFull` are admitted without a restart.
        queue.no_room = None;
        self.publish(&queue);
        drop(queue);
        self.room_changed.notify_waiters();
    }

    /// Panics if the room by which writes are admitted differs from that on the disk. The caller has no batch in
    /// flight, and holds the allocator's lock, so nothing is prepared meanwhile.
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

    /// Notes that no more room can be made.
    pub(super) fn refuse(&self, error: Error) {
        self.queue.lock().no_room = Some(error);
        self.room_changed.notify_waiters();
    }

    /// Ends the queue: nothing will follow.
    pub(super) fn end(&self) {
        // Set under the lock: the writer checks it before it sleeps, and would miss the notification otherwise.
        let mut queue = self.queue.lock();
        queue.ends = true;
        self.work.notify_one();
    }

    /// Takes the next batch, when it is time; `None` when none will come.
    ///
    /// Waits for company first: clients that wait for each answer send their next requests once the last batch has
    /// answered them. Taken at once, the first of these would have a sync of its own, during which all others gather:
    /// of two syncs one would serve a single client, and the cores would be idle during the other. `sync` is the time
    /// that a sync takes, by which the wait is [bounded](Queue::patience); zero where there is none.
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
            // Only after the batches: a queue that ends is drained first.
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

    /// Returns true if the writer waits for more requests to share a sync.
    #[cfg(test)]
    pub(super) fn writer_gathers(&self) -> bool {
        self.queue.lock().sleep == Sleep::UntilGathered
    }

    /// Returns a notification of each transaction that is handed over from now on.
    #[cfg(feature = "simulation")]
    pub(super) fn steps(&self) -> Arc<Notify> {
        self.step.get_or_init(Arc::default).clone()
    }

    /// Takes the next batch, if there is one.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn try_next(&self) -> Option<Batch> {
        self.queue.lock().pop()
    }

    /// Returns true if the writer has nothing to do.
    #[cfg(test)]
    pub(crate) fn writer_sleeps(&self) -> bool {
        self.queue.lock().sleep == Sleep::UntilWork
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.lock().batches.is_empty()
    }
}

impl Queue {
    /// Returns true if the next batch, if there is one, is written at once.
    fn is_ready(&self) -> bool {
        self.is_urgent || self.ends || self.batches.len() > 1
    }

    /// Returns true if the next batch has requests enough, or there is another reason not to wait for more.
    fn is_gathered(&self) -> bool {
        self.gathered >= self.expected() || self.ends || self.batches.len() > 1
    }

    /// Returns the number of urgent requests that the next batch waits for.
    ///
    /// Half as many as a small batch answered: halves take turns, and one is carried out while the other is synced. As many
    /// as a large one did: the cores are busy in any case, and each sync takes time of a core, too.
    fn expected(&self) -> usize {
        match self.was_large() {
            true => self.answered,
            false => self.answered.div_ceil(2),
        }
    }

    /// Returns the longest time to wait for them, by the time that a sync takes. Bounded, since the clients that were
    /// answered need not write again, and the next request may be a lone one.
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

    /// Takes the next batch out. If others are behind it, they keep its urgency and its deadline: both can only come
    /// too early for them, never too late.
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

/// Counters of the log. The writer alone counts; any thread reads.
#[derive(Debug)]
pub(crate) struct LogCounters {
    syncs: Histogram<{ LATENCY_BOUNDS_NS.len() }>,
    longest_sync_ns: AtomicU64,
    batches: AtomicU64,
    bytes: AtomicU64,
}

/// Counters of a log since it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "what a server tells")
)]
pub(crate) struct LogStats {
    /// Durations of the syncs.
    pub(crate) syncs: Distribution,
    pub(crate) longest_sync: Duration,
    pub(crate) batches: u64,
    /// Of the batches, as they were written.
    pub(crate) bytes: u64,
    /// Replies that could not leave at once.
    pub(crate) waits: u64,
    /// True while no more room can be made.
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

    /// A client that waits for nothing would fill the log faster than it is written, and be refused.
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
