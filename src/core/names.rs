//! Names of znodes: compact storage, shared entries, unusual characters and sequence numbers.

use crate::model::protocol::{EntryName, EntryRole, SHARED_MARKER, sequence_of};

#[derive(Clone, Debug)]
pub(super) enum NodeName {
    Text(Box<str>),
    /// Queue entry whose name has the usual form. Its text is built on demand.
    Entry {
        name: EntryName,
        number: i64,
    },
}

const MAX_ENTRY_BYTES: usize = EntryName::MAX_BYTES + MAX_DIGITS;

impl NodeName {
    pub(super) fn text(name: &str) -> Self {
        Self::Text(name.into())
    }

    pub(super) fn numbered(name: &str, number: i64) -> Self {
        match EntryName::parse(name) {
            Some(name) => Self::Entry { name, number },
            None => {
                let digits = Digits::of(number);
                Self::Text([name, digits.as_str()].concat().into())
            }
        }
    }

    #[inline]
    pub(super) fn with_text<R>(&self, read: impl FnOnce(&str) -> R) -> R {
        match self {
            Self::Text(name) => read(name),
            Self::Entry { name, number } => {
                let mut text = [0; MAX_ENTRY_BYTES];
                let length = name.write(text.first_chunk_mut().expect("it is longer"));
                let digits = Digits::of(*number);
                let digits = digits.as_str().as_bytes();
                let whole = length + digits.len();
                text[length..whole].copy_from_slice(digits);
                read(std::str::from_utf8(&text[..whole]).expect("it is ASCII"))
            }
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Text(name) => name.len(),
            Self::Entry { name, number } => name.len() + Digits::count(*number),
        }
    }

    #[inline]
    pub(super) fn is(&self, text: &str) -> bool {
        self.len() == text.len() && self.with_text(|name| name == text)
    }

    #[inline]
    pub(super) fn sequence(&self) -> Option<i64> {
        match self {
            Self::Text(name) => sequence_of(name),
            Self::Entry { number, .. } => Some(*number),
        }
    }

    #[inline]
    pub(super) fn role(&self) -> Option<EntryRole> {
        match self {
            Self::Text(_) => None,
            Self::Entry { name, .. } => Some(name.role()),
        }
    }

    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        match self {
            Self::Text(name) => is_shared_entry(name),
            Self::Entry { name, .. } => name.role() == EntryRole::Read,
        }
    }
}

impl std::fmt::Display for NodeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.with_text(|name| f.write_str(name))
    }
}

/// Returns true if the name contains [`SHARED_MARKER`]. Searches for one letter of the marker first, because most names
/// lack it, and a loop without an early exit is much cheaper than a text search.
fn is_shared_entry(name: &str) -> bool {
    debug_assert!(SHARED_MARKER.contains('R'));
    let found = name
        .bytes()
        .fold(false, |found, byte| found | (byte == b'R'));
    found && name.contains(SHARED_MARKER)
}

/// Returns true if a name contains a separator or any character outside printable ASCII. Checks whole blocks without an
/// early exit, which is fast because most names are short and ordinary.
pub(super) fn is_unusual(name: &str) -> bool {
    const BLOCK: usize = 16;
    let is_such = |byte: u8| u8::from((byte == b'/') | !(b' '..=b'~').contains(&byte));
    let bytes = name.as_bytes();
    let Some(last) = bytes.last_chunk::<BLOCK>() else {
        return bytes.iter().any(|byte| is_such(*byte) != 0);
    };
    let mut found = last.map(is_such);
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    for block in blocks {
        for (found, byte) in found.iter_mut().zip(block) {
            *found |= is_such(*byte);
        }
    }
    u128::from_ne_bytes(found) != 0
}

/// Appends a number in ZooKeeper's format, `%010d`.
pub(super) fn push_number(text: &mut String, number: i64) {
    text.push_str(Digits::of(number).as_str());
}

struct Digits {
    text: [u8; MAX_DIGITS],
    first: usize,
}

const MAX_DIGITS: usize = 20;

/// Minimum number of digits. Shorter numbers are padded with zeros.
const USUAL_DIGITS: usize = 10;

impl Digits {
    fn of(number: i64) -> Self {
        let mut text = [b'0'; MAX_DIGITS];
        let mut number = number.unsigned_abs();
        let mut first = MAX_DIGITS;
        while first > MAX_DIGITS - USUAL_DIGITS || number > 0 {
            let pair = 2 * (number % 100) as usize;
            first -= 2;
            text[first..first + 2].copy_from_slice(&DIGIT_PAIRS.as_bytes()[pair..pair + 2]);
            number /= 100;
        }
        // Digits are written in pairs, so a number with an odd count of digits gets a leading zero.
        let is_padded = first < MAX_DIGITS - USUAL_DIGITS && text[first] == b'0';
        Self {
            text,
            first: first + usize::from(is_padded),
        }
    }

    fn count(number: i64) -> usize {
        match number.unsigned_abs() {
            0..10_000_000_000 => USUAL_DIGITS,
            number => number.ilog10() as usize + 1,
        }
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[self.first..]).expect("digits are ASCII")
    }
}

const DIGIT_PAIRS: &str = "0001020304050607080910111213141516171819\
    2021222324252627282930313233343536373839\
    4041424344454647484950515253545556575859\
    6061626364656667686970717273747576777879\
    8081828384858687888990919293949596979899";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusual_character_is_found_wherever_it_stands() {
        for length in 0..40 {
            for usual in [" ", "0", ".", "R", "~"] {
                assert!(
                    !is_unusual(&usual.repeat(length)),
                    "{length} times {usual:?}"
                );
            }
            for at in 0..length {
                for unusual in ["/", "\0", "\n", "\x1f", "\x7f", "\u{80}", "é", "\u{ffff}"] {
                    let mut text = "-".repeat(length);
                    text.replace_range(at..=at, unusual);
                    assert!(is_unusual(&text), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn an_entry_is_shared_by_its_name_alone() {
        for (name, is_shared) in [
            ("_c_x-__READ__0000000001", true),
            ("_c_x-__WRIT__0000000001", false),
            ("_c_x-lock-0000000001", false),
            ("R", false),
            ("R-__READ__0000000001", true),
            ("RR-__READ__0000000001", true),
            ("RR-__WRIT__0000000001", false),
        ] {
            assert_eq!(NodeName::text(name).is_shared(), is_shared, "{name}");
        }
    }

    #[test]
    fn a_number_is_written_as_zookeeper_does() {
        for number in [
            0,
            7,
            99,
            2_147_483_647,
            9_999_999_999,
            10_000_000_000,
            123_456_789_012,
            i64::MAX,
        ] {
            let mut text = String::new();
            push_number(&mut text, number);
            assert_eq!(text, format!("{number:010}"));
            assert_eq!(Digits::count(number), text.len());
        }
    }

    #[test]
    fn an_entry_by_its_parts_is_the_same_as_by_its_text() {
        for role in [EntryRole::Lock, EntryRole::Read, EntryRole::Write] {
            for number in [0, 12_345_678_901] {
                let name = EntryName::new(0x1234, role);
                let entry = NodeName::Entry { name, number };
                let text = NodeName::text(&format!("{name}{number:010}"));
                assert_eq!(entry.to_string(), text.to_string());
                assert_eq!(entry.len(), text.len());
                assert_eq!(entry.is_shared(), text.is_shared());
                assert_eq!(entry.sequence(), text.sequence());
                assert!(entry.is(&text.to_string()));
                assert!(!entry.is(&"x".repeat(entry.len())));
            }
        }
    }
}
