//! Dates in Java's format, in UTC.

const DAY_MS: i64 = 86_400_000;

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Formats milliseconds since the epoch as `2026-11-21 02:30 UTC`.
pub(super) fn minute(ms: i64) -> String {
    let minutes = ms.rem_euclid(DAY_MS) / 60_000;
    let (hour, minute) = (minutes / 60, minutes % 60);
    let (year, month, day) = civil(ms.div_euclid(DAY_MS));
    format!("{year}-{:02}-{day:02} {hour:02}:{minute:02} UTC", month + 1)
}

/// Formats milliseconds since the epoch as `Sat Nov 21 02:30:48 UTC 2026`.
pub(super) fn date(ms: i64) -> String {
    let days = ms.div_euclid(DAY_MS);
    let seconds = ms.rem_euclid(DAY_MS) / 1_000;
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let month = MONTHS[month];
    format!("{weekday} {month} {day:02} {hour:02}:{minute:02}:{second:02} UTC {year}")
}

/// Returns year, month (from 0) and day (from 1) of a day since the epoch. We count years from March, so that a leap
/// day is the last day of its year. An era of 400 years always has the same number of days.
fn civil(days: i64) -> (i64, usize, i64) {
    const ERA_DAYS: i64 = 146_097;
    // Convert to days since the first of March of the year 0.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12;
    let year = era * 400 + year + i64::from(month < 2);
    (year, month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_as_a_build_has_them() {
        assert_eq!(minute(0), "1970-01-01 00:00 UTC");
        assert_eq!(minute(1_795_228_248_000), "2026-11-21 02:30 UTC");
    }

    #[test]
    fn dates_are_as_java_writes_them() {
        for (ms, expected) in [
            (0, "Thu Jan 01 00:00:00 UTC 1970"),
            (-1, "Wed Dec 31 23:59:59 UTC 1969"),
            (951_782_400_000, "Tue Feb 29 00:00:00 UTC 2000"),
            (1_709_251_199_999, "Thu Feb 29 23:59:59 UTC 2024"),
            (1_795_228_248_000, "Sat Nov 21 02:30:48 UTC 2026"),
            (4_107_542_400_000, "Mon Mar 01 00:00:00 UTC 2100"),
        ] {
            assert_eq!(date(ms), expected);
        }
    }
}
