//! Entry points for fuzzers: any bytes are read as a file of the store. Nothing may panic, and accepted input must
//! survive being written and read again.
//!
//! The folder `fuzz/` of the repository has the fuzzers, and the corpus that they start from.

use crate::log::fuzz;

/// Reads bytes as a frame of the log. Returns true if they are one.
///
/// # Panics
/// If the value differs after being written and read again.
pub fn frame(bytes: &[u8]) -> bool {
    fuzz::frame(bytes)
}

/// Reads bytes as the segments of a log, and recovers a store from them. Returns true if they are a log. The first
/// byte says if checksums are corrected before (1); then each segment is a u16 length, little-endian, and as many
/// bytes.
///
/// # Panics
/// If a second recovery gives another store than the first, or the log cannot be continued after it.
pub fn recovery(bytes: &[u8]) -> bool {
    fuzz::recovery(bytes)
}

/// Loads bytes as a snapshot, with its checksums corrected. Returns true if they are one.
///
/// # Panics
/// If the store differs after being written and loaded again, or cannot be deleted.
pub fn snapshot(bytes: &[u8]) -> bool {
    fuzz::snapshot(bytes)
}

/// Returns the seed corpus of a target, by name; empty for an unknown target.
pub fn corpus(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    match target {
        "frame" => fuzz::frames(),
        "recovery" => fuzz::logs(),
        "snapshot" => fuzz::snapshots(),
        _ => Vec::new(),
    }
}
