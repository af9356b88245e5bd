//! [`HoldTimes`]: the holders of one lock and their times. It does no I/O and reads no clock.
//!
//! The time of a holder starts when the warden first sees the holder, and restarts at each sign of life. The warden
//! sees every event after it happened, so no holder is reported or removed early.

use std::time::Duration;

use lockkeeper_store::{BootInstant, ZnodePath};

use super::report::{Overdue, OverdueLevel, WardenStats};
use crate::metadata::LockMetadata;
use crate::observe::QueueEntry;
use crate::revocation::CURATORS_REQUEST;

#[derive(Debug, Default)]
pub(crate) struct HoldTimes(Vec<HoldTime>);

#[derive(Debug)]
struct HoldTime {
    entry: QueueEntry,
    since: BootInstant,
    reported: Vec<OverdueLevel>,
}

impl HoldTimes {
    /// Replaces the holders. Known holders keep their times.
    pub(crate) fn update(&mut self, holders: Vec<QueueEntry>, now: BootInstant) {
        let mut before = std::mem::take(&mut self.0);
        self.0 = holders
            .into_iter()
            .map(|entry| {
                let known = before
                    .iter()
                    .position(|known| is_same(&known.entry, &entry));
                match known.map(|known| before.swap_remove(known)) {
                    Some(known) => known.seen_again(entry, now),
                    None => HoldTime::first_seen(entry, now),
                }
            })
            .collect();
    }

    pub(crate) fn remove(&mut self, gone: &QueueEntry) {
        self.0.retain(|sighting| !is_same(&sighting.entry, gone));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn has_statements(&self) -> bool {
        self.0.iter().any(|seen| {
            let metadata = seen.metadata();
            metadata.is_some_and(|it| OverdueLevel::ALL.iter().any(|at| at.after(it).is_some()))
        })
    }

    pub(crate) fn add_to(&self, stats: &mut WardenStats, now: BootInstant) {
        stats.locks += usize::from(!self.0.is_empty());
        stats.holders += self.0.len();
        for seen in &self.0 {
            stats.longest_hold = stats.longest_hold.max(now.since(seen.since));
            let level = seen.highest_level(now);
            match level.map(|(level, _)| level) {
                None => {}
                Some(OverdueLevel::Expected) => stats.overdue_expected += 1,
                Some(OverdueLevel::Alert) => stats.overdue_alert += 1,
                Some(OverdueLevel::AutoUnlock) => stats.overdue_auto_unlock += 1,
            }
        }
    }

    pub(crate) fn overdue(&self, lock: &ZnodePath, now: BootInstant) -> Vec<Overdue> {
        let highest = |seen: &HoldTime| {
            let (level, stated) = seen.highest_level(now)?;
            Some(seen.overdue_on(lock, level, stated, now))
        };
        self.0.iter().filter_map(highest).collect()
    }

    pub(crate) fn newly_overdue(&mut self, lock: &ZnodePath, now: BootInstant) -> Vec<Overdue> {
        let mut newly_overdue = Vec::new();
        for seen in &mut self.0 {
            for level in OverdueLevel::ALL {
                if !seen.reported.contains(&level)
                    && let Some(overdue) = seen.overdue(lock, level, now)
                {
                    seen.reported.push(level);
                    newly_overdue.push(overdue);
                }
            }
        }
        newly_overdue
    }

    pub(crate) fn removable(&self, lock: &ZnodePath, now: BootInstant) -> Vec<QueueEntry> {
        let mut overdue = self.overdue(lock, now);
        overdue.retain(|overdue| overdue.level == OverdueLevel::AutoUnlock);
        overdue.into_iter().map(|overdue| overdue.entry).collect()
    }

    pub(crate) fn next_due(&self) -> Option<BootInstant> {
        let due = self.0.iter().flat_map(|seen| {
            let untold = OverdueLevel::ALL
                .into_iter()
                .filter(|level| !seen.reported.contains(level));
            untold.filter_map(|level| Some(seen.since.after(level.after(seen.metadata()?)?)))
        });
        due.min()
    }
}

/// Returns true if two entries are the same holder. Permits of one grant share a token, and a new znode may reuse a
/// path, so we compare both.
pub(crate) fn is_same(one: &QueueEntry, other: &QueueEntry) -> bool {
    one.fencing_token == other.fencing_token && one.path == other.path
}

impl HoldTime {
    fn first_seen(entry: QueueEntry, now: BootInstant) -> Self {
        Self {
            entry,
            since: now,
            reported: Vec::new(),
        }
    }

    fn seen_again(self, mut entry: QueueEntry, now: BootInstant) -> Self {
        let is_silent = self.is_silent_until(&entry);
        // The durations that the holder declared still apply after Curator's request has replaced the metadata.
        if entry.metadata.is_none() && entry.data == CURATORS_REQUEST {
            entry.metadata = self.entry.metadata;
        }
        if !is_silent {
            return Self::first_seen(entry, now);
        }
        Self { entry, ..self }
    }

    /// Returns true if only revocation requests were written since `self` was read. Other clients write them, so they
    /// are not a sign of life.
    fn is_silent_until(&self, now: &QueueEntry) -> bool {
        if now.version == self.entry.version {
            return true;
        }
        if now.data == CURATORS_REQUEST {
            // Curator's request overwrites all data. Only the version shows whether a `keep_alive` preceded it.
            return now.version == self.entry.version.wrapping_add(1);
        }
        let rest = |entry: &QueueEntry| {
            Some(LockMetadata {
                revocation: None,
                ..entry.metadata.clone()?
            })
        };
        now.metadata.is_some() && rest(now) == rest(&self.entry)
    }

    fn metadata(&self) -> Option<&LockMetadata> {
        self.entry.metadata.as_ref()
    }

    fn overdue(&self, lock: &ZnodePath, level: OverdueLevel, now: BootInstant) -> Option<Overdue> {
        let stated = self.exceeded(level, now)?;
        Some(self.overdue_on(lock, level, stated, now))
    }

    fn exceeded(&self, level: OverdueLevel, now: BootInstant) -> Option<Duration> {
        let stated = level.after(self.metadata()?)?;
        (now.since(self.since) >= stated).then_some(stated)
    }

    fn highest_level(&self, now: BootInstant) -> Option<(OverdueLevel, Duration)> {
        let mut levels = OverdueLevel::ALL.into_iter().rev();
        levels.find_map(|level| Some((level, self.exceeded(level, now)?)))
    }

    fn overdue_on(
        &self,
        lock: &ZnodePath,
        level: OverdueLevel,
        stated: Duration,
        now: BootInstant,
    ) -> Overdue {
        let seen_for = now.since(self.since);
        Overdue {
            path: lock.clone(),
            entry: self.entry.clone(),
            level,
            seen_for,
            over_by: seen_for - stated,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lockkeeper_store::{SessionId, Zxid};

    use super::*;
    use crate::token::FencingToken;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    fn entry(version: i32, data: &'static [u8]) -> QueueEntry {
        QueueEntry {
            path: "/lock/a-lock-0000000001".parse().unwrap(),
            sequence: 1,
            fencing_token: FencingToken::new(Zxid(7)),
            owner: SessionId(3),
            version,
            joined_at_ms: 0,
            granted_at_ms: None,
            seen_holding_at_ms: None,
            written_at_ms: 0,
            metadata: LockMetadata::parse(data),
            data: Bytes::from_static(data),
        }
    }

    const STATED: &[u8] = br#"{"v":1,"alert_at_ms":10000,"auto_unlock_at_ms":20000}"#;

    fn levels(hold_times: &HoldTimes, seconds: u64) -> Vec<OverdueLevel> {
        let lock = "/lock".parse().unwrap();
        let overdue = hold_times.overdue(&lock, at(seconds));
        overdue.into_iter().map(|overdue| overdue.level).collect()
    }

    #[test]
    fn time_counts_from_the_first_sight() {
        let lock = "/lock".parse().unwrap();
        let mut seen = HoldTimes::default();
        seen.update(vec![entry(0, STATED)], at(100));
        assert_eq!(seen.next_due(), Some(at(110)));
        assert!(levels(&seen, 109).is_empty());
        assert_eq!(levels(&seen, 110), [OverdueLevel::Alert]);
        assert_eq!(seen.newly_overdue(&lock, at(110)).len(), 1);
        assert!(seen.newly_overdue(&lock, at(111)).is_empty(), "told once");
        seen.update(vec![entry(0, STATED)], at(115));
        assert_eq!(seen.next_due(), Some(at(120)));
        assert!(seen.removable(&lock, at(119)).is_empty());
        let overdue = seen.overdue(&lock, at(123)).remove(0);
        assert_eq!(overdue.level, OverdueLevel::AutoUnlock);
        assert_eq!(overdue.seen_for, Duration::from_secs(23));
        assert_eq!(overdue.over_by, Duration::from_secs(3));
        seen.update(Vec::new(), at(124));
        assert_eq!(seen.next_due(), None);
    }

    #[test]
    fn a_sign_of_life_starts_anew_and_a_request_does_not() {
        let mut seen = HoldTimes::default();
        seen.update(vec![entry(0, STATED)], at(100));
        let asked =
            br#"{"v":1,"alert_at_ms":10000,"auto_unlock_at_ms":20000,"revocation":{"number":1}}"#;
        seen.update(vec![entry(1, asked)], at(105));
        assert_eq!(seen.next_due(), Some(at(110)), "it was only asked");
        let alive = br#"{"v":1,"alert_at_ms":10000,"auto_unlock_at_ms":20000,"kept_alive":1}"#;
        seen.update(vec![entry(2, alive)], at(107));
        assert_eq!(seen.next_due(), Some(at(117)));
    }

    #[test]
    fn the_permits_of_one_grant_are_timed_each_by_itself() {
        const ALIVE: &[u8] =
            br#"{"v":1,"alert_at_ms":10000,"auto_unlock_at_ms":20000,"kept_alive":1}"#;
        let lease = |number: i64, version, data| QueueEntry {
            path: format!("/quota/leases/a-lease-{number:010}")
                .parse()
                .unwrap(),
            sequence: number,
            ..entry(version, data)
        };
        let mut seen = HoldTimes::default();
        let look = [(0, STATED), (0, STATED), (0, STATED)];
        let alive_once = [(0, STATED), (0, STATED), (1, ALIVE)];
        let alive_both = [(0, STATED), (1, ALIVE), (1, ALIVE)];
        for (seconds, look) in [
            (100, look),
            (101, look),
            (103, alive_once),
            (118, alive_both),
            (119, alive_both),
        ] {
            let holders = (0..).zip(look);
            let holders = holders.map(|(number, (version, data))| lease(number, version, data));
            seen.update(holders.collect(), at(seconds));
        }
        let lock = "/quota".parse().unwrap();
        let removable = |seconds| -> Vec<_> {
            let removable = seen.removable(&lock, at(seconds));
            removable.iter().map(|entry| entry.sequence).collect()
        };
        assert!(removable(119).is_empty());
        assert_eq!(removable(120), [0]);
        assert_eq!(removable(123), [0, 2]);
        assert_eq!(removable(137), [0, 2], "the second was at work at 118");
        assert_eq!(removable(138), [0, 1, 2]);
    }

    #[test]
    fn what_curators_request_wiped_still_counts() {
        let mut seen = HoldTimes::default();
        seen.update(vec![entry(4, STATED)], at(100));
        seen.update(vec![entry(5, CURATORS_REQUEST)], at(105));
        assert_eq!(levels(&seen, 110), [OverdueLevel::Alert]);
        // The first of two writes may have been a sign of life.
        seen.update(vec![entry(7, CURATORS_REQUEST)], at(106));
        assert_eq!(levels(&seen, 115), []);
        assert_eq!(levels(&seen, 116), [OverdueLevel::Alert]);
        seen.clear();
        seen.update(vec![entry(7, CURATORS_REQUEST)], at(200));
        assert_eq!(seen.next_due(), None);
    }
}
