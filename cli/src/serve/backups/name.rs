//! [`BackupName`]: the file name of a scheduled backup, with its store, time and last transaction. Does no I/O.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::{format_rfc3339_seconds, parse_rfc3339};
use lockkeeper_store::Zxid;

/// `lockkeeper-20261123T014205Z-0000000500000012-STORE.backup`: the time in UTC, the last zxid in hex, and the store's
/// id.
///
/// Names are ordered by zxid first, because zxids only grow, while the clock may be set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BackupName {
    zxid: i64,
    /// Seconds since 1970.
    made: u64,
}

impl BackupName {
    pub(super) fn new(made: SystemTime, zxid: Zxid) -> Self {
        let since_1970 = made.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            zxid: zxid.0,
            made: since_1970.as_secs().min(LATEST),
        }
    }

    pub(super) fn parse(name: &str, store: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("lockkeeper-")?.split('-');
        let (date, zxid) = (parts.next()?, parts.next()?);
        let parsed = Self {
            zxid: i64::from_str_radix(zxid, 16).ok()?,
            made: parse_date(date)?,
        };
        // Accept only the exact spelling that we write, because a file that a person has renamed belongs to that
        // person.
        (parsed.file(store) == name).then_some(parsed)
    }

    pub(super) fn file(self, store: &str) -> String {
        let Self { zxid, made } = self;
        format!("lockkeeper-{}-{zxid:016x}-{store}.backup", date(made))
    }

    pub(super) fn made(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.made)
    }
}

/// The last second, since 1970, of a year with four digits.
const LATEST: u64 = 253_402_300_799;

fn date(seconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    let text = format_rfc3339_seconds(time).to_string();
    text.replace(['-', ':'], "")
}

/// Parses a [`date`]. Also accepts other spellings, which the caller detects by formatting the result again.
fn parse_date(text: &str) -> Option<u64> {
    if text.len() != "20261123T014205Z".len() || !text.is_ascii() {
        return None;
    }
    let part = |from: usize, to: usize| &text[from..to];
    let (year, month, day) = (part(0, 4), part(4, 6), part(6, 8));
    let (hour, minute, second) = (part(9, 11), part(11, 13), part(13, 15));
    let time = parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z"));
    let since_1970 = time.ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(since_1970.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const STORE: &str = "00112233445566778899aabbccddeeff";

    fn at(seconds: u64, zxid: i64) -> BackupName {
        BackupName::new(UNIX_EPOCH + Duration::from_secs(seconds), Zxid(zxid))
    }

    #[test]
    fn a_name_has_the_time_the_zxid_and_the_store() {
        let name = at(1_795_398_125, 0x5_0000_0012);
        let file = name.file(STORE);
        let expected =
            "lockkeeper-20261123T014205Z-0000000500000012-00112233445566778899aabbccddeeff.backup";
        assert_eq!(file, expected);
        assert_eq!(BackupName::parse(&file, STORE), Some(name));
    }

    #[test]
    fn every_date_is_read_back() {
        let mut day = 0;
        while day * DAY < LATEST {
            for second in [0, 12_345, DAY - 1] {
                let name = at(day * DAY + second, 7);
                let file = name.file(STORE);
                assert_eq!(BackupName::parse(&file, STORE), Some(name), "{file}");
            }
            // With a step of 61 days, the test reaches each day of a year.
            day += 61;
        }
        assert!(
            at(951_782_400, 1)
                .file(STORE)
                .contains("-20000229T000000Z-")
        );
        let latest = at(u64::MAX / 4, 1);
        assert_eq!(BackupName::parse(&latest.file(STORE), STORE), Some(latest));
    }

    #[test]
    fn the_name_of_anything_else_is_none_of_a_backup() {
        let good = at(1_795_398_125, 0xa12).file(STORE);
        assert!(BackupName::parse(&good, STORE).is_some());
        for (from, to) in [
            (STORE, "ffeeddccbbaa99887766554433221100"),
            (STORE, ""),
            ("lockkeeper-", ""),
            (".backup", ""),
            (".backup", ".backup.old"),
            ("-20261123", "-20261323"),
            ("-20261123", "-20260230"),
            ("-20261123", "-2026+123"),
            ("-20261123", "-19691231"),
            ("T014205Z", "T014265Z"),
            ("T014205Z", "T014205"),
            ("T014205Z", " 014205Z"),
            ("a12", "A12"),
            ("-0000000000000a12", "-a12"),
            ("-0000000000000a12", "-+000000000000a12"),
            ("-0000000000000a12", "-ffffffffffffffff"),
            ("2026", "二"),
        ] {
            let name = good.replace(from, to);
            assert_ne!(name, good, "{from}");
            assert_eq!(BackupName::parse(&name, STORE), None, "{name}");
        }
    }

    #[test]
    fn the_order_is_that_of_the_content() {
        // The clock was set back between the first and the second backup.
        assert!(at(2_000_000_000, 1) < at(1_000_000_000, 2));
        assert!(at(1, 1) < at(2, 1));
    }
}
