//! Random bytes for ids and passwords, and their text.

/// Returns bytes from the system's random source, because session passwords must not be guessable (rule 13).
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has a source of randomness");
    bytes
}

/// Formats bytes as hexadecimal digits.
pub(crate) fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
