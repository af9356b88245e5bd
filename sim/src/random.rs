//! Random numbers that a seed decides.

use std::ops::Range;
use std::time::Duration;

/// Pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start).max(1)
    }

    pub(crate) fn once_in(&mut self, count: u64) -> bool {
        self.within(0..count) == 0
    }

    /// Returns a length of time below so many milliseconds.
    pub(crate) fn below_ms(&mut self, longest: u64) -> Duration {
        Duration::from_millis(self.within(0..longest))
    }

    /// Returns a generator of its own for a part of the run, so that what one part draws sways no other.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }
}
