//! Starts further processes of this program, even after an upgrade has replaced or removed the program's file, and sets
//! their names for `ps`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{bench, elect, run};

/// Returns a command that starts this program again. The new process must call [`name_process`].
pub(crate) fn command() -> io::Result<Command> {
    let mut command = Command::new(running()?);
    command.arg0("lockkeeper");
    Ok(command)
}

/// Sets the name of this process. Without this call, the name would be `exe` after a start from `/proc/self/exe`.
pub(crate) fn name_process(subcommand: Option<&OsStr>) {
    const NAME: &str = "/proc/self/comm";
    // The kernel keeps at most 15 bytes.
    let name = match subcommand.and_then(OsStr::to_str) {
        Some(run::GUARDIAN | elect::GUARDIAN) => "lk-guardian",
        Some(run::REAPER) => "lk-reaper",
        Some(run::LAUNCHER) => "lk-launcher",
        Some(bench::HOLDER) => "lk-bench-holder",
        _ if fs::read(NAME).is_ok_and(|name| name == b"exe\n") => "lockkeeper",
        _ => return,
    };
    // The name is cosmetic, so a failure does not matter.
    let _ = fs::write(NAME, name);
}

fn running() -> io::Result<PathBuf> {
    match cfg!(target_os = "linux") {
        true => Ok(PathBuf::from("/proc/self/exe")),
        false => std::env::current_exe(),
    }
}

/// Returns the path under which `ps` should list a new process. This is the path of this program's file, or of
/// [`running`] if an upgrade has replaced or removed the file.
pub(crate) fn listed() -> io::Result<PathBuf> {
    let (path, running) = (std::env::current_exe()?, running()?);
    let id = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    match id(&path).is_some() && id(&path) == id(&running) {
        true => Ok(path),
        false => Ok(running),
    }
}
