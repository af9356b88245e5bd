//! What goes wrong with a file, as the errors that users see.

use std::io;
use std::path::PathBuf;

use super::disk::Disk;
use super::segment::{BadHeader, FORMAT_VERSION};
use crate::error::Error;

pub(crate) fn damaged(disk: &dyn Disk, name: &str, offset: u64, reason: impl ToString) -> Error {
    Error::StoreDamaged {
        file: disk.path(name),
        offset,
        reason: reason.to_string(),
    }
}

pub(crate) fn failed(path: PathBuf, what: &str, error: &io::Error) -> Error {
    Error::StoreFailed {
        path,
        reason: format!("{what}: {error}"),
    }
}

pub(crate) fn bad_header(disk: &dyn Disk, name: &str, bad: BadHeader) -> Error {
    match bad {
        BadHeader::TooNew(version) => Error::StoreTooNew {
            file: disk.path(name),
            version,
            known: FORMAT_VERSION,
        },
        bad => damaged(disk, name, 0, bad),
    }
}

/// No room could be made on the disk, or it failed.
pub(crate) fn no_room(disk: &dyn Disk, error: &io::Error) -> Error {
    let path = disk.path("");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull { path },
        _ => failed(path, "cannot be written", error),
    }
}
