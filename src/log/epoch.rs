//! Epochs: the upper half of a zxid. Each opening of a store begins a new one, so that its zxids are above all that any
//! earlier run has assigned, including those that the log never had (invariant 5).

use std::time::Duration;

use crate::types::Zxid;

/// The epochs by which a store that was restored or copied leaps ahead: more than its original can have begun beyond
/// the clock's in the meantime, by openings more frequent than one in 4.096 s.
const LEAP: u64 = 4096;

/// The further epochs by which a salvaged store leaps ahead. The damage may hide epochs that were reserved: those of
/// openings, and of up to fifteen copies and restores that leapt ahead themselves.
const LEAP_BEYOND_DAMAGE: u32 = 15 * LEAP as u32;

/// Length of an epoch of the clock, 2^12 ms: at 2^20 zxids in a millisecond it holds 2^32.
const MS_BITS: u32 = 12;

/// Returns the epoch of the clock.
pub(crate) fn of_clock(now_ms: i64) -> u32 {
    u32::try_from(now_ms.max(0) >> MS_BITS).unwrap_or(u32::MAX)
}

/// Returns the age of an epoch, to its width.
pub(crate) fn since(epoch: u32, now_ms: i64) -> Duration {
    let began_ms = u64::from(epoch) << MS_BITS;
    Duration::from_millis((now_ms.max(0) as u64).saturating_sub(began_ms))
}

/// Returns the epoch of a zxid.
pub(crate) fn of(zxid: Zxid) -> u32 {
    u32::try_from(zxid.0.max(0) >> 32).unwrap_or(u32::MAX)
}

/// Returns a zxid below all that a restored or copied store will assign; all epochs before this one's count as used.
///
/// `reserved` is the last epoch of the content, and `made` the clock's epoch at that time. The original may have
/// continued since. It was ahead of the clock by the difference of the two at most; the result
/// is as far ahead of `now_ms`, and [`LEAP`] epochs more. So of two stores restored from one backup
/// the later one is above the earlier one, too.
pub(crate) fn beyond(reserved: u32, made: u32, now_ms: i64) -> Zxid {
    let now_ms = now_ms.max(0) as u64;
    let ahead = u64::from(reserved.saturating_sub(made));
    let now = (now_ms << 20).max(u64::from(made) << 32);
    let floor = now.saturating_add((ahead + LEAP) << 32);
    Zxid(i64::try_from(floor).unwrap_or(i64::MAX))
}

/// Returns a zxid below all that a salvaged store will assign. `reserved` is the last epoch that can be read.
pub(crate) fn beyond_damage(reserved: u32, now_ms: i64) -> Zxid {
    let clock = of_clock(now_ms);
    let hidden = reserved.max(clock).saturating_add(LEAP_BEYOND_DAMAGE);
    beyond(hidden, clock, now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_790_000_000_123;

    #[test]
    fn what_is_restored_later_is_above() {
        let made = of_clock(NOW_MS);
        for reserved in [made - 1_000_000, made, made + 5, made + 100_000] {
            let one = beyond(reserved, made, NOW_MS);
            let other = beyond(reserved, made, NOW_MS + 1);
            assert!(one < other);
            assert_eq!(other.0 - one.0, 1 << 20);
            assert!(of(one) >= reserved + 4096);
        }
    }

    #[test]
    fn the_clock_may_be_behind() {
        let made = of_clock(NOW_MS);
        let late = beyond(made + 3, made, NOW_MS - 1_000_000_000);
        assert!(of(late) >= made + 3 + 4096);
        assert!(of(beyond(7, 0, -1)) >= 7 + 4096);
    }

    #[test]
    fn a_salvaged_store_is_above_all_that_the_damage_can_hide() {
        let clock = of_clock(NOW_MS);
        for reserved in [0, clock - 1_000_000, clock, clock + 100_000] {
            let one = beyond_damage(reserved, NOW_MS);
            let hidden = reserved.max(clock) + 15 * 4096;
            assert!(of(one) >= hidden + 4096, "{reserved}");
            assert!(one < beyond_damage(reserved, NOW_MS + 1));
        }
    }

    #[test]
    fn the_end_of_numbers_is_no_panic() {
        assert_eq!(beyond(u32::MAX, 0, i64::MAX), Zxid(i64::MAX));
        assert_eq!(beyond_damage(u32::MAX, i64::MAX), Zxid(i64::MAX));
        assert_eq!(of_clock(i64::MIN), 0);
        assert_eq!(of_clock(i64::MAX), u32::MAX);
    }
}
