//! Entry points for the fuzzers in the folder `fuzz/`. Each function reads arbitrary bytes as a store's file or URL. No
//! input may cause a panic, and accepted input must stay the same when it is written and read again.

use crate::client::target::Target;
use crate::log::fuzz;

/// Reads bytes as a frame of the log. Returns true if the frame is valid.
///
/// # Panics
/// If the frame differs after it is written and read again.
pub fn frame(bytes: &[u8]) -> bool {
    fuzz::frame(bytes)
}

/// Reads bytes as the segments of a log, and recovers a store from them. Returns true if the log is valid. If the
/// lowest bit of the first byte is set, checksums are corrected first. Each segment starts with its length as a
/// little-endian u16.
///
/// # Panics
/// If a second recovery gives a different store, or if the log cannot be continued after the recovery.
pub fn recovery(bytes: &[u8]) -> bool {
    fuzz::recovery(bytes)
}

/// Corrects the checksums in the bytes, and loads the bytes as a snapshot. Returns true if the snapshot is valid.
///
/// # Panics
/// If the store differs after it is written and loaded again, or if the store cannot be deleted.
pub fn snapshot(bytes: &[u8]) -> bool {
    fuzz::snapshot(bytes)
}

/// Corrects the checksums in the bytes, and restores them as a backup into a new store. Returns true if the backup is
/// valid.
///
/// # Panics
/// If the restored store cannot be backed up and restored again.
pub fn backup(bytes: &[u8]) -> bool {
    fuzz::backup(bytes)
}

/// Inspects bytes as a data directory, opens the store, writes to it, closes or kills it, and opens it again. The first
/// byte selects the variant of these steps and the durability classes. The other bytes are a backup or a log in the
/// formats of [`backup`] and [`recovery`]. Returns true if the store opens.
///
/// # Panics
/// If the inspection and the opened store disagree, or if acknowledged data is missing.
pub fn opening(bytes: &[u8]) -> bool {
    crate::engine::fuzz::opening(bytes)
}

/// Parses bytes as a store's URL. Returns true if the URL is valid.
///
/// # Panics
/// If the displayed URL does not parse to the same store.
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

/// Returns the seed corpus of the target with this name.
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
