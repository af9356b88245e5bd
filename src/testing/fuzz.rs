//! What a fuzzer calls: any bytes are read as what the store reads from a disk. Nothing may panic,
//! and what is accepted must hold together: it is written and read again.
//!
//! The folder `fuzz/` of the repository has the fuzzers, and the corpus that they start from.

use crate::log::fuzz;

/// Reads bytes as a frame of the log; whether they are one.
///
/// # Panics
/// When what is read is not what is written and read again.
pub fn frame(bytes: &[u8]) -> bool {
    fuzz::frame(bytes)
}

/// Reads bytes as the segments of a log, and recovers a store from them; whether they are one. The
/// first byte says whether checksums are made right before (1), then each segment is a u16 length,
/// little-endian, and so many bytes.
///
/// # Panics
/// When a second recovery does not give the same as the first, or the log does not go on after it.
pub fn recovery(bytes: &[u8]) -> bool {
    fuzz::recovery(bytes)
}

/// Loads bytes as a snapshot, its checksums made right; whether they are one.
///
/// # Panics
/// When what is loaded is not what is written and loaded again, or cannot be deleted.
pub fn snapshot(bytes: &[u8]) -> bool {
    fuzz::snapshot(bytes)
}

/// The inputs that a fuzzer starts from, by name; none for a target that there is not.
pub fn corpus(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    match target {
        "frame" => fuzz::frames(),
        "recovery" => fuzz::logs(),
        "snapshot" => fuzz::snapshots(),
        _ => Vec::new(),
    }
}
