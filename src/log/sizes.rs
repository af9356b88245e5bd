//! [`Sizes`]: how large the parts of a log are, derived from that of its first segment.

use super::frame::HEAD_BYTES;
use crate::size::MAX_TXN_BYTES;

/// The limits of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Segments start at this size and double up to the largest.
    pub(crate) first_segment: u64,
    pub(crate) largest_segment: u64,
    /// A batch that is larger takes no more transactions.
    pub(crate) largest_batch: usize,
    /// The largest transaction: what comes to more is refused before it is applied.
    pub(crate) largest_txn: usize,
    /// Room that is kept for deletes, and for what the store does by itself.
    pub(crate) reserve: usize,
}

impl Sizes {
    pub(crate) const fn new(first_segment: u64, largest_segment: u64) -> Self {
        let eighth = (first_segment / 8) as usize;
        let mebibyte = 1 << 20;
        Self {
            first_segment,
            largest_segment,
            largest_batch: least(eighth, mebibyte),
            // With the batch that it ends, it fits into any segment.
            largest_txn: least(2 * eighth, MAX_TXN_BYTES),
            reserve: least(eighth, mebibyte),
        }
    }

    /// What is in a segment of that many bytes for batches, from `offset` on: the rest may be too
    /// short for the next batch.
    pub(crate) fn usable(&self, size: u64, offset: u64) -> u64 {
        let unusable = self.largest_batch + self.largest_txn + 2 * HEAD_BYTES;
        size.saturating_sub(offset).saturating_sub(unusable as u64)
    }

    /// How large the segment after one of `size` bytes is.
    pub(crate) fn after(&self, size: u64) -> u64 {
        (2 * size).clamp(self.first_segment, self.largest_segment)
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self::new(16 << 20, 64 << 20)
    }
}

const fn least(one: usize, other: usize) -> usize {
    if one < other { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::segment::HEADER_BYTES;

    /// A batch that no segment takes would stop the store (invariant 11).
    #[test]
    fn the_largest_frame_fits_into_any_segment() {
        for first in [1 << 16, 100_000, 1 << 20, 16 << 20, 1 << 30] {
            let sizes = Sizes::new(first, first);
            let frame = HEAD_BYTES + sizes.largest_batch + sizes.largest_txn;
            let end = HEADER_BYTES as usize + frame + HEAD_BYTES;
            assert!(end <= first as usize / 2, "{sizes:?}");
        }
    }
}
