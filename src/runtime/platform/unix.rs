//! Linux and macOS: files of on-disk stores, and processes.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Only the owner may read the files. Otherwise other users could read data that the store's access lists hide.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const FOR_OTHERS: u32 = 0o077;

pub(crate) fn for_the_owner(options: &mut OpenOptions) {
    options.mode(FILE_MODE);
}

pub(crate) fn narrow_to_the_owner(file: &File) -> io::Result<()> {
    if file.metadata()?.mode() & FOR_OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(())
}

/// Creates a folder and its missing parents for the owner only. An existing folder keeps its mode.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(path)
}

pub(crate) fn device_and_inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

pub(crate) fn read_at(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    file.read_at(into, at)
}

pub(crate) fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    file.write_all_at(bytes, at)
}

pub(crate) fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // Other errors mean that the process exists. For example, the system does not let us signal another user's process.
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}
