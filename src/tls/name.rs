//! A certificate subject as text, in the form used in access control lists.

use std::fmt::Write;

use super::der::{OBJECT_IDENTIFIER, Reader, SEQUENCE, SET};

/// Attributes with a keyword in RFC 2253 (section 2.3). Like Java, we print all other attributes as numbers, so that
/// access control lists made for ZooKeeper match.
const WORDS: [(&[u8], &str); 9] = [
    (&[0x55, 0x04, 0x03], "CN"),
    (&[0x55, 0x04, 0x06], "C"),
    (&[0x55, 0x04, 0x07], "L"),
    (&[0x55, 0x04, 0x08], "ST"),
    (&[0x55, 0x04, 0x09], "STREET"),
    (&[0x55, 0x04, 0x0a], "O"),
    (&[0x55, 0x04, 0x0b], "OU"),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x19],
        "DC",
    ),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x01],
        "UID",
    ),
];

/// String types that Java prints as text: UTF8, Printable, T61, IA5, General, BMP.
const STRINGS: [u8; 6] = [0x0c, 0x13, 0x14, 0x16, 0x1b, 0x1e];

/// Formats a DER-encoded name like Java's `X500Principal.getName()` (RFC 2253), which ZooKeeper's scheme `x509` uses.
/// One difference: we print text that is not UTF-8 in hex. Java replaces the invalid bytes with U+FFFD, so different
/// holders can get the same name.
///
/// Returns `None` for malformed input.
pub(super) fn text(name: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    let mut reader = Reader::new(name);
    while !reader.is_empty() {
        parts.push(relative(reader.expect(SET)?)?);
    }
    // RFC 2253 puts the most specific part first.
    parts.reverse();
    Some(parts.join(","))
}

fn relative(set: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    let mut reader = Reader::new(set);
    while !reader.is_empty() {
        parts.push(attribute(reader.expect(SEQUENCE)?)?);
    }
    (!parts.is_empty()).then(|| parts.join("+"))
}

fn attribute(content: &[u8]) -> Option<String> {
    let mut reader = Reader::new(content);
    let number = reader.expect(OBJECT_IDENTIFIER)?;
    let value = reader.next()?;
    let word = WORDS.iter().find(|(known, _)| *known == number);
    let text = match STRINGS.contains(&value.tag) {
        true => std::str::from_utf8(value.content).ok(),
        false => None,
    };
    Some(match (word, text) {
        (Some((_, word)), Some(text)) => format!("{word}={}", escaped(text)),
        (Some((_, word)), None) => format!("{word}={}", hex(value.whole)),
        (None, _) => format!("{}={}", dotted(number)?, hex(value.whole)),
    })
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let is_blank = |c: &char| matches!(c, ' ' | '\r');
    let inner = text.trim_matches(|c| is_blank(&c));
    let start = text.len() - text.trim_start_matches(|c| is_blank(&c)).len();
    for (at, c) in text.char_indices() {
        let is_outside = at < start || at >= start + inner.len();
        if c == '\0' {
            escaped.push_str("\\00");
            continue;
        }
        if is_outside || ",=+<>#;\"\\".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

fn hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(1 + 2 * bytes.len());
    hex.push('#');
    for byte in bytes {
        write!(hex, "{byte:02x}").expect("a string takes everything");
    }
    hex
}

fn dotted(bytes: &[u8]) -> Option<String> {
    let mut numbers = Vec::new();
    let mut number = 0u64;
    for byte in bytes {
        number = number.checked_mul(128)? | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            numbers.push(std::mem::take(&mut number));
        }
    }
    // The encoding combines the first two numbers into one.
    let both = *numbers.first()?;
    let first = (both / 40).min(2);
    let mut text = format!("{first}.{}", both - 40 * first);
    for number in &numbers[1..] {
        write!(text, ".{number}").expect("a string takes everything");
    }
    let is_whole = bytes.last().is_some_and(|last| last & 0x80 == 0);
    is_whole.then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const JAVA: &str = include_str!("../../tests/tls/names.txt");

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex
            .chars()
            .map(|digit| digit.to_digit(16).unwrap() as u8)
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()
    }

    fn text_of(name: &[u8]) -> Option<String> {
        text(Reader::new(name).expect(SEQUENCE)?)
    }

    #[test]
    fn names_are_called_as_by_java() {
        assert!(JAVA.lines().count() > 30);
        for line in JAVA.lines() {
            let (name, says) = line.split_once(' ').unwrap();
            let says = String::from_utf8(bytes(says)).unwrap();
            assert_eq!(text_of(&bytes(name)), Some(says), "{name}");
        }
    }

    #[test]
    fn text_that_is_no_utf_8_is_shown_as_hex_so_that_no_two_holders_have_one_name() {
        for (name, says) in [
            ("300d310b300906035504030c02c080", "CN=#0c02c080"),
            ("300f310d300b06035504030c0461ff62c3", "CN=#0c0461ff62c3"),
            ("300c310a300806035504031401fc", "CN=#1401fc"),
        ] {
            assert_eq!(text_of(&bytes(name)).as_deref(), Some(says));
        }
    }

    #[test]
    fn what_is_no_name_has_no_text() {
        for name in [
            "3002310c",             // truncated
            "30023100",             // no attribute
            "300430023000",         // not a set
            "30083106300406000c00", // empty object identifier
        ] {
            assert_eq!(text_of(&bytes(name)), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = text(&bytes);
        }

        #[test]
        fn no_change_to_a_name_makes_it_panic(line in 0..30usize, at in any::<prop::sample::Index>(), byte: u8) {
            let (name, _) = JAVA.lines().nth(line).unwrap().split_once(' ').unwrap();
            let mut name = bytes(name);
            let at = at.index(name.len());
            name[at] = byte;
            let _ = text_of(&name);
        }
    }
}
