//! The file of this very program, by which it starts further processes of itself, also after an upgrade has replaced or
//! removed it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns a path that is this program at every moment; processes that are started by it are listed as `exe`.
pub(crate) fn running() -> io::Result<PathBuf> {
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
