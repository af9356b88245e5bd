//! The file of this very program, by which it starts further processes of itself, also after an upgrade has replaced or
//! removed it; and their names in the lists of `ps`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{bench, elect, run};

/// Returns a command that starts this program again. The process has to call [`name_process`].
pub(crate) fn command() -> io::Result<Command> {
    let mut command = Command::new(running()?);
    command.arg0("lockkeeper");
    Ok(command)
}

/// Names this process for what it is. The system names it after its file, which may be `exe`.
pub(crate) fn name_process(subcommand: Option<&OsStr>) {
    // No other system has this file.
    const NAME: &str = "/proc/self/comm";
    // At most 15 bytes.
    let name = match subcommand.and_then(OsStr::to_str) {
        Some(run::GUARDIAN | elect::GUARDIAN) => "lk-guardian",
        Some(run::REAPER) => "lk-reaper",
        Some(run::LAUNCHER) => "lk-launcher",
        Some(bench::HOLDER) => "lk-bench-holder",
        _ if fs::read(NAME).is_ok_and(|name| name == b"exe\n") => "lockkeeper",
        _ => return,
    };
    // A process with another name does the same.
    let _ = fs::write(NAME, name);
}

/// Returns a path that is this program at every moment.
fn running() -> io::Result<PathBuf> {
    match cfg!(target_os = "linux") {
        true => Ok(PathBuf::from("/proc/self/exe")),
        false => std::env::current_exe(),
    }
}

/// Returns the program's own path where that is still this program, for processes that are to be listed under its name.
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
