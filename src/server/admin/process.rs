//! Figures of the process and its machine, for the four-letter words.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};

/// Returns the number of open files, including sockets, or 0 if the system does not report it.
pub(in crate::server) fn open_files() -> u64 {
    // Subtract one, because listing the directory opens one more file.
    let open = fs::read_dir("/proc/self/fd").map_or(0, |files| files.count().saturating_sub(1));
    open as u64
}

pub(in crate::server) fn max_open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

pub(super) fn built_ms() -> i64 {
    let file = std::env::current_exe().and_then(fs::metadata);
    let modified = file.and_then(|file| file.modified()).ok();
    let age = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
    age.map_or(0, |age| age.as_millis() as i64)
}

pub(in crate::server) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(feature = "metrics")]
pub(in crate::server) fn age() -> Option<std::time::Duration> {
    let ticks = crate::runtime::process::own_start_time()?;
    use std::time::Duration;

    let per_second = rustix::param::clock_ticks_per_second();
    let started = Duration::from_secs_f64(ticks as f64 / per_second as f64);
    // Both times start at boot and include suspended time.
    Some(Duration::from_nanos(crate::runtime::platform::boot_nanos()).saturating_sub(started))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::server) struct FolderFiles {
    pub(in crate::server) bytes: u64,
    pub(in crate::server) snapshots: u64,
    pub(in crate::server) newest_snapshot: Option<SystemTime>,
}

pub(in crate::server) fn folder_files(folder: &Path) -> FolderFiles {
    let mut found = FolderFiles::default();
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        // Skip a file that was removed after it was listed.
        let Ok(metadata) = file.metadata() else {
            continue;
        };
        if !metadata.is_file() {
            continue;
        }
        found.bytes += metadata.len();
        if is_snapshot(&file.file_name()) {
            found.snapshots += 1;
            found.newest_snapshot = found.newest_snapshot.max(metadata.modified().ok());
        }
    }
    found
}

/// A complete snapshot has a name such as `snapshot-1a1fefd000000047`.
fn is_snapshot(name: &OsStr) -> bool {
    let number = name
        .to_str()
        .and_then(|name| name.strip_prefix("snapshot-"));
    number.is_some_and(|number| number.bytes().all(|c| c.is_ascii_hexdigit()))
}

pub(super) fn environment() -> Vec<(&'static str, String)> {
    let machine = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let folder = std::env::current_dir().unwrap_or_default();
    vec![
        ("host.name", text(machine.nodename())),
        ("os.name", text(machine.sysname())),
        ("os.arch", arch(text(machine.machine()))),
        ("os.version", text(machine.release())),
        ("user.name", user()),
        ("user.home", std::env::var("HOME").unwrap_or_default()),
        ("user.dir", folder.display().to_string()),
    ]
}

fn arch(name: String) -> String {
    match name.as_str() {
        "x86_64" => "amd64".to_owned(),
        _ => name,
    }
}

fn user() -> String {
    let named = ["USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok());
    named.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn snapshots_that_are_being_written_are_not_counted() {
        let folder = std::env::temp_dir().join(format!("lockkeeper-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        assert_eq!(folder_files(&folder), FolderFiles::default());
        fs::create_dir(&folder).unwrap();
        for (name, bytes) in [
            ("log-0000000000000000", 100),
            ("snapshot-1a1fefd000000047", 7),
            ("snapshot-1a1fefd000000050", 8),
            ("snapshot.new", 50),
            ("snapshot-of-mine", 1),
        ] {
            fs::write(folder.join(name), vec![0; bytes]).unwrap();
        }
        fs::create_dir(folder.join("snapshot-1a1fefd000000099")).unwrap();
        let at = |second| UNIX_EPOCH + std::time::Duration::from_secs(second);
        for (name, second) in [("47", 2_000), ("50", 1_000)] {
            let path = folder.join(format!("snapshot-1a1fefd0000000{name}"));
            let file = fs::File::options().append(true).open(path).unwrap();
            file.set_modified(at(second)).unwrap();
        }
        let found = folder_files(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((found.bytes, found.snapshots), (166, 2));
        assert_eq!(found.newest_snapshot, Some(at(2_000)));
    }
}
