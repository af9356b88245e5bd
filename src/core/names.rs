//! Names of znodes, byte by byte: the shared entries of a queue, characters that need a closer look, sequence numbers.

use crate::path::ZnodePath;
use crate::protocol::SHARED_MARKER;

/// Returns true for the name of a shared entry. Most names have none of the marker's letters, and a search for one
/// byte, without a branch to leave it early, costs far less than the search for a text.
#[inline] // as each create of an entry calls it
pub(super) fn is_shared_entry(path: &ZnodePath) -> bool {
    debug_assert!(SHARED_MARKER.contains('R'));
    let bytes = path.as_str().bytes();
    bytes.fold(false, |found, byte| found | (byte == b'R')) && path.name().contains(SHARED_MARKER)
}

/// Returns true if a name needs a closer look before it becomes a part of a path: it has other than printable ASCII, or
/// a separator. It is checked a block at a time, the last one overlapping, without a branch to leave early: names are
/// short, and mostly ordinary.
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

/// Appends a sequence number as ZooKeeper does: `%010d`.
pub(super) fn push_number(text: &mut String, number: i64) {
    const TEN_DIGITS: u64 = 10u64.pow(10);
    let number = number.unsigned_abs();
    if number >= TEN_DIGITS {
        text.push_str(&number.to_string());
        return;
    }
    for divisor in [10u64.pow(8), 10u64.pow(6), 10u64.pow(4), 100, 1] {
        let pair = (number / divisor % 100) as usize;
        text.push_str(&DIGIT_PAIRS[2 * pair..2 * pair + 2]);
    }
}

/// From 00 to 99.
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
        for (path, is_shared) in [
            ("/lock/_c_x-__READ__0000000001", true),
            ("/lock/_c_x-__WRIT__0000000001", false),
            ("/lock/_c_x-lock-0000000001", false),
            ("/__READ__/_c_x-lock-0000000001", false),
            ("/__READ__/_c_x-__READ__0000000001", true),
        ] {
            assert_eq!(
                is_shared_entry(&ZnodePath::trusted(path)),
                is_shared,
                "{path}"
            );
        }
    }
}
