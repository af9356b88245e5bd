//! [`SegmentRoom`]: the bytes of batches that the segments of a log are sure to take.

use super::segment::{HEADER_BYTES, Header};
use super::sizes::Sizes;

/// Room in the log, by which writes are admitted. It follows from what is physically there: the position of
/// the writer, the prepared segments, and the batches that wait. Nothing is given out and taken back, so it
/// cannot drift away from the disk.
///
/// Of each segment only [`Sizes::usable`] counts, since a batch that does not fit leaves the rest unused. A
/// batch that is written into that rest all the same takes no room from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentRoom {
    /// Behind the writer's position in its segment.
    current: u64,
    /// In the prepared segments.
    prepared: u64,
    /// Taken by batches that are not written yet.
    queued: u64,
}

impl SegmentRoom {
    /// The room of a log whose writer is at this position, with these segments prepared, and so many bytes of
    /// batches that are not written yet.
    pub(super) fn found<'a>(
        sizes: &Sizes,
        position: (&Header, u64),
        prepared: impl Iterator<Item = &'a Header>,
        queued: u64,
    ) -> Self {
        let mut room = Self {
            queued,
            ..Self::default()
        };
        room.stand_at(sizes, position);
        prepared.for_each(|header| room.add(sizes, header));
        room
    }

    /// The bytes that are left. Below zero, the store itself has queued more than there is room for.
    pub(super) fn left(&self) -> i64 {
        (self.current + self.prepared) as i64 - self.queued as i64
    }

    /// A batch that waits has grown.
    pub(super) fn queue(&mut self, bytes: usize) {
        self.queued += bytes as u64;
    }

    /// The writer has written a batch, and stands behind it.
    pub(super) fn write(&mut self, sizes: &Sizes, bytes: usize, position: (&Header, u64)) {
        self.queued -= bytes as u64;
        self.stand_at(sizes, position);
    }

    /// A segment was prepared.
    pub(super) fn add(&mut self, sizes: &Sizes, header: &Header) {
        self.prepared += sizes.usable(header.size, HEADER_BYTES);
    }

    /// The writer goes on in a segment that was prepared.
    pub(super) fn enter(&mut self, sizes: &Sizes, header: &Header) {
        self.stand_at(sizes, (header, HEADER_BYTES));
        self.prepared -= self.current;
    }

    fn stand_at(&mut self, sizes: &Sizes, (header, offset): (&Header, u64)) {
        self.current = sizes.usable(header.size, offset);
    }
}
