//! Parses the subject, alternative names and validity of a certificate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::der::{OBJECT_IDENTIFIER, Reader, SEQUENCE};
use super::name;

const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const BOOLEAN: u8 = 0x01;
const EXTENSIONS: u8 = 0xa3;
/// Object identifier 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

const URI: u8 = 0x86;
const DNS_NAME: u8 = 0x82;

pub(super) struct Certificate<'a> {
    subject: &'a [u8],
    validity: &'a [u8],
    alternative_names: &'a [u8],
}

impl<'a> Certificate<'a> {
    pub(super) fn read(der: &'a [u8]) -> Option<Self> {
        let whole = Reader::new(der).expect(SEQUENCE)?;
        let mut signed = Reader::new(Reader::new(whole).expect(SEQUENCE)?);
        let mut first = signed.next()?;
        // A version 1 certificate has no version field, so its first field is the serial number.
        if first.tag == VERSION {
            first = signed.next()?;
        }
        if first.tag != INTEGER {
            return None;
        }
        let _algorithm = signed.expect(SEQUENCE)?;
        let _issuer = signed.expect(SEQUENCE)?;
        Some(Self {
            validity: signed.expect(SEQUENCE)?,
            subject: signed.expect(SEQUENCE)?,
            alternative_names: alternative_names(signed).unwrap_or_default(),
        })
    }

    pub(super) fn subject(&self) -> Option<String> {
        name::text(self.subject)
    }

    /// Returns the URI, for example `URI:spiffe://example/a`, or `None` if there is not exactly one URI.
    pub(super) fn uri(&self) -> Option<String> {
        self.only_name(URI, "URI")
    }

    /// Returns the name that replaces a missing subject: the only URI, or else the only DNS name.
    pub(super) fn alternative_name(&self) -> Option<String> {
        self.uri().or_else(|| self.only_name(DNS_NAME, "DNS"))
    }

    fn only_name(&self, tag: u8, word: &str) -> Option<String> {
        let mut all = Reader::new(self.alternative_names);
        let values = std::iter::from_fn(|| all.next());
        let mut names = values.filter(|value| value.tag == tag);
        let (name, None) = (names.next()?, names.next()) else {
            return None;
        };
        let name = std::str::from_utf8(name.content).ok()?;
        let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        is_plain.then(|| format!("{word}:{name}"))
    }

    pub(super) fn validity(&self) -> Option<(SystemTime, SystemTime)> {
        let mut reader = Reader::new(self.validity);
        Some((time(&mut reader)?, time(&mut reader)?))
    }
}

fn alternative_names(mut signed: Reader<'_>) -> Option<&[u8]> {
    // Skip the public key and the two obsolete unique ids.
    let extensions = std::iter::from_fn(|| signed.next()).find(|value| value.tag == EXTENSIONS)?;
    let mut extensions = Reader::new(Reader::new(extensions.content).expect(SEQUENCE)?);
    loop {
        let mut extension = Reader::new(extensions.expect(SEQUENCE)?);
        if extension.expect(OBJECT_IDENTIFIER)? == SUBJECT_ALT_NAME {
            let mut value = extension.next()?;
            // Skip the optional flag `critical`.
            if value.tag == BOOLEAN {
                value = extension.next()?;
            }
            return Reader::new(value.content).expect(SEQUENCE);
        }
    }
}

/// Returns a revocation list's next update (RFC 5280, section 5.1), or `None` if the list has none.
pub(super) fn list_end(der: &[u8]) -> Option<SystemTime> {
    let whole = Reader::new(der).expect(SEQUENCE)?;
    let mut signed = Reader::new(Reader::new(whole).expect(SEQUENCE)?);
    let first = signed.next()?;
    if first.tag == INTEGER {
        // Only a list with a version starts with an integer. In other lists, `first` is already the algorithm.
        let _algorithm = signed.expect(SEQUENCE)?;
    }
    let _issuer = signed.expect(SEQUENCE)?;
    let _made = time(&mut signed)?;
    time(&mut signed)
}

fn time(reader: &mut Reader<'_>) -> Option<SystemTime> {
    let value = reader.next()?;
    let text = std::str::from_utf8(value.content).ok()?;
    let digits = text.strip_suffix('Z')?;
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match (value.tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year: i64 = digits[..2].parse().ok()?;
            (year + if year < 50 { 2000 } else { 1900 }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };
    let pair = |at: usize| rest[at..at + 2].parse::<i64>();
    let (month, day) = (pair(0).ok()?, pair(2).ok()?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = pair(4).ok()? * 3_600 + pair(6).ok()? * 60 + pair(8).ok()?;
    let seconds = days(year, month, day) * 86_400 + seconds;
    let distance = Duration::from_secs(seconds.unsigned_abs());
    match seconds < 0 {
        true => UNIX_EPOCH.checked_sub(distance),
        false => UNIX_EPOCH.checked_add(distance),
    }
}

/// Returns the number of days since the start of 1970. Years start in March here, so that a leap day is the last day of
/// its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let months_since_march = (month + 9) % 12;
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // March 1 of year 0 is 719,468 days before January 1, 1970.
    365 * year + leaps + (153 * months_since_march + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(tag: u8, text: &str) -> Option<i64> {
        let der = [&[tag, text.len() as u8], text.as_bytes()].concat();
        let time = time(&mut Reader::new(&der))?;
        Some(match time.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_secs() as i64,
            Err(before) => -(before.duration().as_secs() as i64),
        })
    }

    #[test]
    fn times_are_read() {
        for (tag, text, says) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(-631_152_000)),
            (UTC_TIME, "000229120000Z", Some(951_825_600)),
            (GENERALIZED_TIME, "20261121190000Z", Some(1_795_287_600)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (GENERALIZED_TIME, "19000301000000Z", Some(-2_203_891_200)),
            (GENERALIZED_TIME, "00000101000000Z", Some(-62_167_219_200)),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "700100000000Z", None),
            (UTC_TIME, "700101000000+0100", None),
            (UTC_TIME, "7001010000é", None),
            (GENERALIZED_TIME, "700101000000Z", None),
            (0x0c, "700101000000Z", None),
        ] {
            assert_eq!(seconds(tag, text), says, "{text}");
        }
    }
}
