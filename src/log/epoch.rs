//! Epochs, the upper halves of zxids. A store starts a new epoch each time it is opened, so its new zxids are above all
//! zxids that it has assigned before, including zxids that never reached the log (invariant 5).
//!
//! A restored, copied or salvaged store cannot know which zxids the original or another copy has assigned since. So
//! these stores share a [limit](limit) that moves with the clock. No store assigns zxids above the limit, and every
//! copy starts at the limit.

use std::path::PathBuf;
use std::time::Duration;

use crate::core::HIGHEST;
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;

/// Number of epochs that a store may be ahead of the clock (4.6 hours). Because of this lead, a store can be opened
/// more often than once per clock epoch. When a store is restored or copied for the first time, the lead also covers
/// the difference between the clocks of the two machines.
const LEAD: u32 = 4096;

/// Number of epochs ahead of the clock that may be reserved. These are the epochs up to the limit, and one more.
const MOST_RESERVED: u32 = LEAD + 1;

/// Last epoch in which a store may be opened. The clock reaches it in the year 2109, but a forged header may contain it
/// earlier. No run can use up the 2^20 epochs above it. Recovery reads no zxid above these epochs ([`HIGHEST`]).
const LAST: u32 = (HIGHEST >> EPOCH_BITS) as u32 - (1 << 20);

const EPOCH_BITS: u32 = 32;

/// A clock epoch is 2^12 ms long. An epoch has 2^32 zxids, which is 2^20 zxids per millisecond.
const MS_BITS: u32 = 12;

pub(crate) fn of_clock(now_ms: i64) -> u32 {
    u32::try_from(now_ms.max(0) >> MS_BITS).unwrap_or(u32::MAX)
}

pub(crate) fn since(epoch: u32, now_ms: i64) -> Duration {
    millis(now_ms).saturating_sub(since_1970(epoch))
}

fn since_1970(epoch: u32) -> Duration {
    Duration::from_millis(u64::from(epoch) << MS_BITS)
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0).cast_unsigned())
}

pub(crate) fn of(zxid: Zxid) -> u32 {
    u32::try_from(zxid.0.max(0) >> 32).unwrap_or(u32::MAX)
}

/// Returns a zxid that no store has reached, provided that the clocks agree whenever a store is opened. The limit moves
/// by 2^20 zxids per millisecond, faster than any store assigns zxids.
fn limit(now_ms: i64) -> Zxid {
    above(now_ms, LEAD.into())
}

/// Returns the first zxid for a store that is being opened. No earlier run has reserved the epoch of this zxid, and the
/// epoch is not below the clock's epoch. `reserved` is the last reserved epoch. A copy starts at the [limit].
pub(crate) fn first_zxid(reserved: u32, is_copied: bool, now_ms: i64) -> Zxid {
    let clock = of_clock(now_ms);
    let first = start_of(clock.max(reserved.saturating_add(1)));
    match is_copied {
        true => first.max(beyond(reserved, clock.min(reserved), now_ms)),
        false => first,
    }
}

/// Returns true if a store must not start at `first`, because recovery could not read all zxids that the store may
/// assign.
pub(crate) fn is_exhausted(first: Zxid) -> bool {
    of(first) > LAST
}

#[cfg(any(test, feature = "simulation"))]
pub(crate) fn is_nearly_exhausted(zxid: Zxid) -> bool {
    is_exhausted(Zxid(
        zxid.0.saturating_add(i64::from(2 * LEAD) << EPOCH_BITS),
    ))
}

pub(crate) fn check(first: Zxid, path: impl FnOnce() -> PathBuf) -> Result<()> {
    if !is_exhausted(first) {
        return Ok(());
    }
    Err(Error::StoreFailed {
        path: path(),
        reason: format!(
            "its next transaction would be {first}, beyond the last one: by its content, or by the clock"
        ),
    })
}

/// Returns the epoch that must be reserved in the log before any zxid after `used` is assigned. The next epoch is
/// reserved 2^28 zxids early, so that no write has to wait for the reservation.
pub(crate) fn to_reserve(used: Zxid) -> u32 {
    of(Zxid(used.0.saturating_add(1 << 28)))
}

/// Returns the time that a store must wait before it may start at `first` without being above the [limit].
///
/// The wait takes at most two clock epochs (8 s), because a store reserves at most one epoch above the limit and starts
/// in the next one. A store that is further ahead was opened while the clock was ahead. Such a store may exceed the
/// limit, so it does not wait.
pub(crate) fn wait(first: Zxid, now_ms: i64) -> Duration {
    let ahead = of(first).saturating_sub(of_clock(now_ms));
    if ahead > MOST_RESERVED + 1 {
        return Duration::ZERO;
    }
    since_1970(of(first).saturating_sub(LEAD)).saturating_sub(millis(now_ms))
}

/// Returns the zxid above which a restored, copied or salvaged store assigns its zxids. This is the current [limit], so
/// the later of two such stores starts above the earlier one.
///
/// `reserved` is the last reserved epoch in the content, and `made` is the clock's epoch when the content was saved. If
/// `reserved` was above the limit even at that time, the clock of the original store was ahead. The new store then
/// starts `reserved - made` epochs ahead of the clock, plus [`LEAD`] epochs that the original may have reserved since.
pub(crate) fn beyond(reserved: u32, made: u32, now_ms: i64) -> Zxid {
    let ahead = reserved.saturating_sub(made);
    let latest_ms = now_ms.max(i64::from(made) << MS_BITS);
    match ahead {
        0..=MOST_RESERVED => limit(latest_ms),
        _ => above(latest_ms, u64::from(ahead) + u64::from(LEAD)),
    }
}

fn above(now_ms: i64, epochs: u64) -> Zxid {
    let now = (now_ms.max(0) as u64).saturating_mul(1 << (EPOCH_BITS - MS_BITS));
    let zxid = now.saturating_add(epochs << EPOCH_BITS);
    Zxid(i64::try_from(zxid).unwrap_or(i64::MAX))
}

fn start_of(epoch: u32) -> Zxid {
    let start = u64::from(epoch) << EPOCH_BITS;
    Zxid(i64::try_from(start).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::splitmix::Random;

    const NOW_MS: i64 = 1_790_000_000_123;

    #[test]
    fn what_is_restored_later_is_above() {
        let made = of_clock(NOW_MS);
        for reserved in [made - 1_000_000, made, made + 5, made + 100_000] {
            let one = beyond(reserved, made, NOW_MS);
            let other = beyond(reserved, made, NOW_MS + 1);
            assert!(one < other);
            assert_eq!(other.0 - one.0, 1 << 20);
            assert!(of(one) >= made + 4096);
        }
    }

    #[test]
    fn the_clock_may_be_behind() {
        let made = of_clock(NOW_MS);
        for ahead in [0, 3, 4096] {
            let late = beyond(made + ahead, made, NOW_MS - 1_000_000_000);
            assert!(of(late) >= made + 4096);
        }
        let late = beyond(made + 100_000, made, NOW_MS - 1_000_000_000);
        assert!(of(late) >= made + 100_000 + 4096);
        assert!(of(beyond(7, 0, -1)) >= 4096);
        let first = first_zxid(made + 7, false, NOW_MS - 1_000_000_000);
        assert_eq!(of(first), made + 8);
    }

    #[test]
    fn an_opening_waits_for_the_clock_and_no_longer_than_two_epochs() {
        let clock = of_clock(NOW_MS);
        let wait_for = |epoch| wait(start_of(epoch), NOW_MS).as_millis() as i64;
        assert_eq!(wait_for(clock + 4096), 0);
        let ms = wait_for(clock + 4097);
        assert!((1..=4096).contains(&ms), "{ms}");
        assert_eq!(of_clock(NOW_MS + ms), clock + 1);
        assert_eq!(of_clock(NOW_MS + ms - 1), clock);
        assert_eq!(wait_for(clock + 4098), ms + 4096);
        // The clock was set back. The limit may be days away, so the store does not wait for it.
        assert_eq!(wait_for(clock + 4099), 0);
    }

    #[test]
    fn the_end_of_numbers_is_no_panic() {
        assert_eq!(beyond(u32::MAX, 0, i64::MAX), Zxid(i64::MAX));
        assert_eq!(first_zxid(u32::MAX, true, i64::MAX), Zxid(i64::MAX));
        assert_eq!(wait(Zxid(i64::MAX), i64::MIN), Duration::ZERO);
        assert_eq!(of_clock(i64::MIN), 0);
        assert_eq!(of_clock(i64::MAX), u32::MAX);
    }

    #[derive(Clone, Copy)]
    struct Content {
        reserved: u32,
        zxid: Zxid,
        is_copied: bool,
    }

    struct Family {
        random: Random,
        now_ms: i64,
        highest: Zxid,
        stores: Vec<Content>,
        backups: Vec<(Content, u32)>,
    }

    impl Family {
        fn below(&mut self, end: u64) -> u64 {
            self.random.next() % end
        }

        fn pass_up_to(&mut self, ms: u64) {
            self.now_ms += 1 + self.below(ms).cast_signed();
        }

        fn open(&mut self) {
            let content = self.stores[0];
            let first = |now_ms| first_zxid(content.reserved, content.is_copied, now_ms);
            let wait = wait(first(self.now_ms), self.now_ms);
            self.now_ms += wait.as_millis() as i64;
            let first = first(self.now_ms).max(content.zxid);
            assert!(first > self.highest, "{first} after {}", self.highest);
            assert!(first <= limit(self.now_ms));
            let before = self.now_ms;
            self.pass_up_to(20_000);
            let lived_ms = self.now_ms - before;
            let most = lived_ms.cast_unsigned() << (EPOCH_BITS - MS_BITS);
            self.highest = Zxid(first.0 + 1 + self.below(most - 1).cast_signed());
            let is_lost = self.below(2) == 0;
            self.stores[0] = Content {
                reserved: to_reserve(self.highest),
                zxid: if is_lost { content.zxid } else { self.highest },
                is_copied: false,
            };
        }

        fn step(&mut self) {
            let index = self.below(self.stores.len() as u64) as usize;
            let content = self.stores[index];
            self.pass_up_to(10);
            match self.below(6) {
                0 | 1 => self.open(),
                2 => self.backups.push((content, of_clock(self.now_ms))),
                3 => self.replace(Content {
                    is_copied: true,
                    ..content
                }),
                4 if !self.backups.is_empty() => {
                    let index = self.below(self.backups.len() as u64) as usize;
                    let (content, made) = self.backups[index];
                    self.make(beyond(content.reserved, made, self.now_ms));
                }
                _ => {
                    let clock = of_clock(self.now_ms);
                    self.make(beyond(content.reserved, clock, self.now_ms));
                }
            }
            self.stores.truncate(20);
        }

        fn make(&mut self, zxid: Zxid) {
            self.pass_up_to(10);
            self.replace(Content {
                reserved: of(zxid) - 1,
                zxid,
                is_copied: false,
            });
        }

        fn replace(&mut self, content: Content) {
            self.stores.insert(0, content);
            self.open();
        }
    }

    #[test]
    fn whatever_is_opened_later_is_above_all_before() {
        for seed in 0..300 {
            let mut family = Family {
                random: Random(seed),
                now_ms: NOW_MS,
                highest: Zxid(0),
                stores: vec![Content {
                    reserved: 0,
                    zxid: Zxid(0),
                    is_copied: false,
                }],
                backups: Vec::new(),
            };
            for _ in 0..100 {
                family.step();
            }
        }
    }
}
