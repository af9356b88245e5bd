//! [`Random`]: the pseudo-random numbers of plans of faults and of simulations.

use std::ops::Range;
use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood: Fast splittable pseudorandom number generators, 2014). The
/// same seed gives the same numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // An f64 holds 53 bits.
        let drawn = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        drawn < probability
    }

    pub(crate) fn within(&mut self, range: &Range<Duration>) -> Duration {
        let drawn = self.next();
        let width = range.end.saturating_sub(range.start).as_nanos();
        match u64::try_from(width).unwrap_or(u64::MAX) {
            0 => range.start,
            width => range.start + Duration::from_nanos(drawn % width),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The first numbers of the reference implementation from the seed 1234567.
        let mut random = Random(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }
}
