//! Figures of a process as reported by the system, and sizes of folders.

use std::fs;
use std::path::Path;

use rustix::process::Pid;

#[derive(Debug, Default, PartialEq)]
pub(super) struct Usage {
    /// Resident memory in bytes, current and peak.
    pub(super) rss: f64,
    pub(super) peak: f64,
    pub(super) threads: f64,
    pub(super) fds: f64,
}

/// Returns the figures of a process, or `None` if it has ended.
pub(super) fn usage(pid: Pid) -> Option<Usage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some(Usage {
        rss: 1024.0 * field(&status, "VmRSS")?,
        peak: 1024.0 * field(&status, "VmHWM")?,
        threads: field(&status, "Threads")?,
        fds: fds as f64,
    })
}

/// Returns the number after a name at the start of a line.
pub(super) fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number = line.trim_start_matches(':').split_whitespace().next()?;
    number.parse().ok()
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Files {
    pub(super) bytes: f64,
    pub(super) count: f64,
    /// Size of the largest snapshot of a store.
    pub(super) snapshot: f64,
    /// A snapshot is being written.
    pub(super) has_unfinished: bool,
}

/// Returns the files of a folder, except those deleted concurrently.
pub(super) fn files(folder: &Path) -> Files {
    let mut files = Files::default();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        let (name, bytes) = (entry.file_name(), metadata.len() as f64);
        files.bytes += bytes;
        files.count += 1.0;
        files.has_unfinished |= name == "snapshot.new";
        if name.to_string_lossy().starts_with("snapshot-") {
            files.snapshot = files.snapshot.max(bytes);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_figures() {
        let usage = usage(rustix::process::getpid()).unwrap();
        assert!(usage.rss > 0.0 && usage.peak >= usage.rss, "{usage:?}");
        assert!(usage.threads >= 1.0 && usage.fds >= 3.0, "{usage:?}");
    }

    #[test]
    fn figures_are_found_by_name() {
        let text = "zk_watch_count\t12\nzk_watch\t3\nVmRSS:\t  7 kB\n";
        assert_eq!(field(text, "zk_watch_count"), Some(12.0));
        assert_eq!(field(text, "VmRSS"), Some(7.0));
        assert_eq!(field(text, "zk_none"), None);
    }
}
