//! [`Random`]: pseudo-random numbers for fault plans, simulations and tests.

use std::ops::Range;
use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood: Fast splittable pseudorandom number generators, 2014). Equal seeds give equal
/// numbers.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "no caller wants an iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns a number within a range, or the start of an empty range.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below((range.end - range.start).max(1))
    }

    /// Returns an index below `count`.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// Returns true once in `count` times, on average.
    pub fn once_in(&mut self, count: u64) -> bool {
        self.within(0..count) == 0
    }

    /// Returns true with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // The mantissa of an f64 has 53 bits.
        let drawn = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        drawn < probability
    }

    /// Returns a duration below `longest` milliseconds.
    pub fn below_ms(&mut self, longest: u64) -> Duration {
        Duration::from_millis(self.within(0..longest))
    }

    /// Returns a duration within a range, or the start of an empty range.
    pub fn time_within(&mut self, range: &Range<Duration>) -> Duration {
        let width = range.end.saturating_sub(range.start).as_nanos();
        let width = u64::try_from(width).unwrap_or(u64::MAX);
        range.start + Duration::from_nanos(self.within(0..width))
    }

    /// Returns an independent generator, so that one part of a run does not change what another part draws.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        let mut random = Random(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }
}
