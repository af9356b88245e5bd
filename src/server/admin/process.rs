//! Figures of the process and its machine, for the four-letter words.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use rustix::process::{Resource, getrlimit};

/// Returns the number of open files, sockets included, and its limit.
pub(super) fn files() -> (u64, u64) {
    // The listing itself holds one of them.
    let open = fs::read_dir("/proc/self/fd").map_or(0, |files| files.count().saturating_sub(1));
    let limit = getrlimit(Resource::Nofile).current;
    (open as u64, limit.unwrap_or(u64::MAX))
}

/// Returns the time of the program's build, in milliseconds since the epoch, as its file's modification time tells; 0
/// if unknown.
pub(super) fn built_ms() -> i64 {
    let file = std::env::current_exe().and_then(fs::metadata);
    let modified = file.and_then(|file| file.modified()).ok();
    let age = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
    age.map_or(0, |age| age.as_millis() as i64)
}

/// Returns the resident memory, in bytes.
pub(super) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns the total size of the files in a folder, in bytes; 0 if there is no such folder.
pub(super) fn folder_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = files.filter_map(|file| file.metadata().ok());
    sizes
        .filter(|file| file.is_file())
        .map(|file| file.len())
        .sum()
}

/// Returns the properties of the machine and the process, as names and values.
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

/// Returns Java's name of a processor architecture.
fn arch(name: String) -> String {
    match name.as_str() {
        "x86_64" => "amd64".to_owned(),
        _ => name,
    }
}

/// Returns the user of the process: the name, or the number if no variable tells the name.
fn user() -> String {
    let named = ["USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok());
    named.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string())
}
