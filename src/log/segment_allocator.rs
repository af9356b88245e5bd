//! [`SegmentAllocator`]: prepares new segments on one thread, and makes snapshots on another thread so that old
//! segments can be reused. [`SegmentRoom`] counts the bytes that are left in the segments.
//!
//! Filling and renaming files is slow and fails on a full disk. The allocator does both before the writer needs the
//! segment, so the writer never allocates disk space.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::disk::{Disk, DiskFile, failed, no_room};
use super::segment::{self, HEADER_BYTES, Header, Sizes};
use super::snapshotter;
use super::write_queue::WriteQueue;
use super::writer::{Exclusive, LogStart};
use crate::model::error::Error;
use crate::runtime::platform;

/// Delay after a failure to prepare a segment. Another program may free space in the meantime.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// First and longest delay after a failed snapshot. The delay doubles with each failure, because each attempt may write
/// the whole content of the store.
const SNAPSHOT_DELAYS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(640));

/// Interval at which an idle store checks that it still has its lock.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of obsolete segments that are kept for reuse. Others are removed.
const MAX_SPARES: usize = 2;

pub(super) struct SegmentAllocator {
    disk: Arc<dyn Disk>,
    queue: Arc<WriteQueue>,
    store: [u8; 16],
    state: Mutex<State>,
    changed: Condvar,
    /// Held while a thread lists, takes or adds spare segments.
    spares: Mutex<()>,
    ends: AtomicBool,
}

pub(super) type Segment = (Header, Box<dyn DiskFile>);

struct State {
    prepared: VecDeque<Segment>,
    current: (u64, u64),
    newest: (u64, u64),
    is_low: bool,
    /// Total size of the segments sealed since the last snapshot, and the size of that snapshot, in bytes.
    sealed_bytes: u64,
    snapshot_bytes: u64,
    is_closing: bool,
}

impl SegmentAllocator {
    pub(super) fn new(start: &mut LogStart, queue: Arc<WriteQueue>) -> Self {
        let prepared = std::mem::take(&mut start.prepared);
        let header = &start.position.header;
        let current = (header.number, header.size);
        Self {
            disk: start.disk.clone(),
            store: header.store,
            state: Mutex::new(State {
                newest: prepared
                    .back()
                    .map_or(current, |(header, _)| (header.number, header.size)),
                is_low: false,
                prepared,
                current,
                sealed_bytes: start.sealed_bytes,
                snapshot_bytes: start.snapshot_bytes,
                is_closing: false,
            }),
            queue,
            changed: Condvar::new(),
            spares: Mutex::new(()),
            ends: AtomicBool::new(false),
        }
    }

    /// Panics if the room that we count differs from the room on disk. Only the writer may call this, between two
    /// batches.
    #[cfg(debug_assertions)]
    pub(super) fn check_room(&self, position: (&Header, u64)) {
        let state = self.state.lock();
        let prepared = state.prepared.iter().map(|(header, _)| header);
        self.queue.check_room_is(position, prepared);
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn is_ready(&self) -> bool {
        !self.state.lock().prepared.is_empty()
    }

    pub(super) fn failed(&self, error: &io::Error) -> Error {
        failed(self.disk.path(""), "the log cannot be written", error)
    }

    /// Waits until the next segment is prepared, and takes it. Returns `None` if the log ends first.
    pub(super) fn next_segment(&self) -> Option<Segment> {
        let mut state = self.state.lock();
        loop {
            if let Some(next) = state.prepared.pop_front() {
                self.changed.notify_all();
                return Some(next);
            }
            if self.ends.load(Ordering::Acquire) {
                return None;
            }
            state.is_low = true;
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
    }

    pub(super) fn request_room(&self) {
        let mut state = self.state.lock();
        if !state.is_low {
            state.is_low = true;
            self.changed.notify_all();
        }
    }

    pub(super) fn wait_for_room(&self) {
        let mut state = self.state.lock();
        while self.queue.is_short()
            && !state.is_closing
            && !self.queue.is_full()
            && !self.ends.load(Ordering::Acquire)
        {
            // Ask for room in each round, because the allocator may have reset `is_low` since the previous round.
            state.is_low = true;
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
    }

    pub(super) fn seal(&self, next: &Header) {
        let mut state = self.state.lock();
        state.sealed_bytes += state.current.1;
        state.current = (next.number, next.size);
        self.changed.notify_all();
    }

    /// Announces that the log will end. From now on, the allocator ends when it fails to prepare a segment, instead of
    /// trying again.
    pub(super) fn begin_close(&self) {
        self.state.lock().is_closing = true;
        self.changed.notify_all();
    }

    pub(super) fn end(&self) {
        // Set this under the lock. Otherwise a thread that has checked `ends` but does not wait yet would miss the
        // notification.
        let _state = self.state.lock();
        self.ends.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Prepares a segment whenever room runs low. Fails the store if the store has lost its lock.
    pub(super) fn prepare_segments(&self, held: &dyn Exclusive) {
        let mut state = self.state.lock();
        while !self.ends.load(Ordering::Acquire) {
            if let Err(error) = held.check() {
                // Release the lock first, because `fail` runs wakers, and a waker may close the store, which takes this
                // lock.
                drop(state);
                self.queue.fail(error);
                return self.end();
            }
            if !state.is_low {
                self.changed.wait_for(&mut state, CHECK_INTERVAL);
            } else if let Err(error) = MutexGuard::unlocked(&mut state, || self.make_room()) {
                let path = self.disk.path("");
                tracing::warn!(path = %path.display(), %error, "log segment not prepared");
                self.changed.notify_all();
                // While the log is being closed, the writer must not wait a second for each attempt. So we end after
                // the first failure, and the rest of the queue fails.
                if state.is_closing {
                    self.ends.store(true, Ordering::Release);
                    self.changed.notify_all();
                    return;
                }
                self.pause(&mut state, RETRY_DELAY, |state| state.is_closing);
            }
        }
    }

    /// Waits before a retry. Stops early only if the log ends or `is_over` returns true.
    fn pause(
        &self,
        state: &mut MutexGuard<'_, State>,
        pause: Duration,
        is_over: impl Fn(&State) -> bool,
    ) {
        let end = Instant::now() + pause;
        while !self.ends.load(Ordering::Acquire) && !is_over(state) {
            if self.changed.wait_until(state, end).timed_out() {
                return;
            }
        }
    }

    /// Prepares one more segment. If this fails, writes that find no room are refused with the error until a later
    /// attempt succeeds.
    pub(super) fn make_room(&self) -> io::Result<()> {
        let header = self.header_after(self.state.lock().newest);
        let made = self.prepare(header);
        let segment = made.inspect_err(|error| self.queue.refuse(no_room(&*self.disk, error)))?;
        let mut state = self.state.lock();
        // Add the segment's room before the writer can take the segment. Otherwise the writer would subtract room that
        // was not added yet.
        self.queue.note_prepared(&segment.0);
        state.newest = (segment.0.number, segment.0.size);
        state.prepared.push_back(segment);
        // Check again, because a small segment adds little room, which may not be enough.
        state.is_low = self.queue.is_low(state.current.1);
        self.changed.notify_all();
        Ok(())
    }

    fn header_after(&self, (number, size): (u64, u64)) -> Header {
        Header {
            salt: segment::new_salt(),
            number: number + 1,
            size: self.queue.sizes.after(size),
            store: self.store,
        }
    }

    fn prepare(&self, mut header: Header) -> io::Result<Segment> {
        let _spares = self.spares.lock();
        for name in spares(&*self.disk)? {
            let size = self.disk.open(&name)?.len()?;
            // A spare may be larger than necessary, up to the limit. An earlier run with larger segments may have left
            // it.
            if size >= header.size && size <= self.queue.sizes.largest_segment {
                header.size = size;
                if let Some(file) = segment::reuse(&*self.disk, &name, &header)? {
                    return Ok((header, file));
                }
            }
        }
        Ok((header, segment::make(&*self.disk, &header)?))
    }

    /// Makes a snapshot whenever the segments sealed since the last snapshot are at least as large as that snapshot.
    /// Lowers the thread's priority, because no client waits for a snapshot.
    pub(super) fn make_snapshots(&self) {
        if let Err(error) = platform::lower_thread_priority() {
            tracing::debug!(%error, "snapshot priority not lowered");
        }
        let (shortest, longest) = SNAPSHOT_DELAYS;
        let mut delay = shortest;
        let mut state = self.state.lock();
        while !self.ends.load(Ordering::Acquire) {
            // The threshold grows with the content, so snapshots write no more bytes than the log does, and the log
            // stays shorter than about twice its snapshot.
            let enough = state.snapshot_bytes.max(self.queue.sizes.first_segment);
            if state.sealed_bytes < enough {
                self.changed.wait(&mut state);
                continue;
            }
            let sealed = std::mem::take(&mut state.sealed_bytes);
            let current = state.current.0;
            // Release the lock, because a snapshot takes seconds and the writer needs the lock to enter its next
            // segment.
            drop(state);
            let made = snapshotter::make(&snapshotter::SnapshotJob {
                disk: &*self.disk,
                store: self.store,
                current,
                ends: &self.ends,
            });
            let made = made.and_then(|made| {
                let recycle = self.recycle(&made.obsolete);
                recycle.map_err(|error| {
                    failed(self.disk.path(""), "old segments cannot be removed", &error)
                })?;
                Ok(made.bytes)
            });
            state = self.state.lock();
            match made {
                Ok(bytes) => {
                    state.snapshot_bytes = bytes;
                    delay = shortest;
                }
                Err(_) if self.ends.load(Ordering::Acquire) => {}
                Err(error) => {
                    tracing::warn!(%error, "snapshot not made");
                    state.sealed_bytes += sealed;
                    self.pause(&mut state, delay, |_| false);
                    delay = (2 * delay).min(longest);
                }
            }
        }
    }

    fn recycle(&self, segments: &[u64]) -> io::Result<()> {
        let _spares = self.spares.lock();
        let mut count = spares(&*self.disk)?.len();
        for number in segments {
            let name = segment::log_name(*number);
            if count < MAX_SPARES {
                self.disk.rename(&name, &segment::spare_name(*number))?;
                count += 1;
            } else {
                self.disk.remove(&name)?;
            }
        }
        // Make the renames durable before a spare can be overwritten. Otherwise a power loss could undo a rename, and
        // the new content would have the name of the old segment.
        self.disk.sync_folder()
    }
}

fn spares(disk: &dyn Disk) -> io::Result<Vec<String>> {
    let mut names = disk.list()?;
    names.retain(|name| segment::spare_number(name).is_some());
    names.sort();
    Ok(names)
}

/// The bytes that are left in the log for further writes. A write is admitted only if it fits into this room. The room
/// is computed from the writer's position, the prepared segments and the queued batches, so it cannot drift from the
/// room on disk.
///
/// Only the [`Sizes::usable`] bytes of a segment count as room. A batch that fits into the rest of the segment uses no
/// room. If it does not fit, the writer leaves the rest unused and enters the next segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentRoom {
    current: u64,
    prepared: u64,
    /// Bytes of the batches that are not written yet.
    queued: u64,
}

impl SegmentRoom {
    pub(super) fn compute<'a>(
        sizes: &Sizes,
        position: (&Header, u64),
        prepared: impl Iterator<Item = &'a Header>,
        queued: u64,
    ) -> Self {
        let mut room = Self {
            queued,
            ..Self::default()
        };
        room.set_position(sizes, position);
        prepared.for_each(|header| room.add(sizes, header));
        room
    }

    /// Returns the number of bytes left, which is negative if the store's own changes exceed the room.
    pub(super) fn left(&self) -> i64 {
        (self.current + self.prepared) as i64 - self.queued as i64
    }

    pub(super) fn queue(&mut self, bytes: usize) {
        self.queued += bytes as u64;
    }

    pub(super) fn write(&mut self, sizes: &Sizes, bytes: usize, position: (&Header, u64)) {
        self.queued -= bytes as u64;
        self.set_position(sizes, position);
    }

    pub(super) fn add(&mut self, sizes: &Sizes, header: &Header) {
        self.prepared += sizes.usable(header.size, HEADER_BYTES);
    }

    pub(super) fn enter(&mut self, sizes: &Sizes, header: &Header) {
        self.set_position(sizes, (header, HEADER_BYTES));
        self.prepared -= self.current;
    }

    fn set_position(&mut self, sizes: &Sizes, (header, offset): (&Header, u64)) {
        self.current = sizes.usable(header.size, offset);
    }
}
