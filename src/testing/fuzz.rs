//! Entry points for fuzzers: any bytes are read as a file of the store, or as its URL. Nothing may panic, and accepted
//! input must survive being written and read again.
//!
//! The repository's folder `fuzz/` has the fuzzers and their corpus.

use crate::client::target::Target;
use crate::log::fuzz;

/// Reads bytes as a frame of the log. Returns true if they are one.
///
/// # Panics
/// If the value differs after being written and read again.
pub fn frame(bytes: &[u8]) -> bool {
    fuzz::frame(bytes)
}

/// Reads bytes as the segments of a log, and recovers a store from them. Returns true if they are a log. If the lowest
/// bit of the first byte is set, checksums are corrected first. Then each segment is a little-endian u16 length and its
/// bytes.
///
/// # Panics
/// If a second recovery gives a different store, or the log cannot be continued after it.
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

/// Restores bytes as a backup, with its checksums corrected. Returns true if they are one.
///
/// # Panics
/// If the restored store cannot be backed up and restored again.
pub fn backup(bytes: &[u8]) -> bool {
    fuzz::backup(bytes)
}

/// Inspects bytes as a data directory, opens it, writes, ends with or without a close, and opens it again. The first
/// byte selects the kind of end, whether a salvaged copy is opened instead, and the durability classes. A backup or a
/// log follows, in the formats of [`backup`] and [`recovery`]. Returns true if the store opens.
///
/// # Panics
/// If the inspection disagrees with the opening, or the store does not open again, or lacks acknowledged data.
pub fn opening(bytes: &[u8]) -> bool {
    crate::engine::fuzz::opening(bytes)
}

/// Parses bytes as the URL of a store. Returns true if they are one.
///
/// # Panics
/// If displaying the URL yields another store's URL.
pub fn url(bytes: &[u8]) -> bool {
    let target = std::str::from_utf8(bytes).ok().map(str::parse::<Target>);
    let Some(Ok(target)) = target else {
        return false;
    };
    assert_eq!(target.to_string().parse(), Ok(target));
    true
}

fn urls() -> Vec<(&'static str, Vec<u8>)> {
    let urls = [
        ("memory", "memory:name-1.2"),
        ("file", "file:./data"),
        ("absolute", "file:///var/lib/app"),
        ("served", "lockkeeper://[::1]:2181/app"),
        (
            "socket",
            "lockkeeper+unix:///run/l.sock?chroot=/app&end_with_process=false",
        ),
        ("tls", "zookeeper+tls://zk1:2281,zk2/app"),
        ("ensemble", "zookeeper://zk1:2181,zk2,zk3:1/app/b"),
        ("damaged", "zookeeper://zk1:port"),
    ];
    urls.map(|(name, url)| (name, url.into())).into()
}

/// Returns the seed corpus of a target by name. Empty for an unknown target.
pub fn corpus(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    match target {
        "frame" => fuzz::frames(),
        "recovery" => fuzz::logs(),
        "snapshot" => fuzz::snapshots(),
        "backup" => fuzz::backups(),
        "opening" => crate::engine::fuzz::openings(),
        "url" => urls(),
        _ => Vec::new(),
    }
}
