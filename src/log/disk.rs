//! [`Disk`]: the log's interface to a folder of files. The log may rely only on the durability that this interface
//! promises. A power loss may undo any change until the matching sync has returned.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use crate::model::error::Error;
use crate::runtime::platform;
pub(crate) use crate::runtime::platform::make_folder;

/// A flat folder of files. The default methods refuse changes, for read-only views.
///
/// A power loss may undo creating, renaming and removing files until [`sync_folder`](Self::sync_folder) has returned.
pub(crate) trait Disk: Send + Sync + 'static {
    /// Lists the names of the files in no particular order. Leaves out subfolders.
    fn list(&self) -> io::Result<Vec<String>>;

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    fn create(&self, _name: &str) -> io::Result<Box<dyn DiskFile>> {
        refused()
    }

    /// Creates a file that must not exist yet. A real disk does not follow a link that another user put there.
    fn create_new(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.create(name)
    }

    /// Renames a file atomically, replacing any file with the new name.
    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        refused()
    }

    fn sync_folder(&self) -> io::Result<()> {
        refused()
    }

    /// Returns the path of the named file, for use in messages. If the name is empty, returns the path of the folder.
    fn path(&self, name: &str) -> PathBuf;
}

pub(super) fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

/// A file of a [`Disk`]. It stays the same file when it is renamed.
pub(crate) trait DiskFile: Send + Sync {
    fn len(&self) -> io::Result<u64>;

    /// Reads from `at` until `into` is full or the file ends. Returns the number of bytes read.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes`. After an error, any part may be written. A power loss may undo any part until
    /// [`sync`](Self::sync) has returned.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all writes so far, and the length of the file, survive a power loss (`fdatasync`).
    ///
    /// After an error, it is unknown which writes survive. A second sync may then report success without writing
    /// anything, because the kernel may have dropped the pages that it could not write.
    fn sync(&self) -> io::Result<()>;

    fn identity(&self) -> io::Result<FileIdentity>;
}

/// Identity of a file. A renamed file keeps its identity. A copy of the file has a different identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) device: u64,
    /// May be reused after the file is removed.
    pub(crate) inode: u64,
    /// Birth time of the inode in nanoseconds since 1970. 0 if the file system does not record it.
    pub(crate) born_ns: u64,
}

/// Returns options that open a file for reading and writing. Only the owner can access a file created with them,
/// whatever the umask is.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    platform::for_the_owner(&mut options);
    options
}

#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl Disk for Folder {
    fn create_new(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        // `create_new` opens with `O_EXCL`, which follows no link. Otherwise another user of a shared folder could
        // redirect the write to any of our files.
        let file = private().create_new(true).open(self.path(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut options = private();
        let file = options.create(true).truncate(true).open(self.path(name))?;
        // The mode in the options applies only to a new file, so restrict the access to an existing file here
        // (invariant 14).
        platform::narrow_to_the_owner(&file)?;
        Ok(Box::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        // Syncing a file does not make its name durable, because the directory stores the names.
        File::open(&self.path)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        match name {
            "" => self.path.clone(),
            name => self.path.join(name),
        }
    }
}

pub(super) struct RealFile(pub(super) File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, mut at: u64, mut into: &mut [u8]) -> io::Result<usize> {
        let wanted = into.len();
        while !into.is_empty() {
            match platform::read_at(&self.0, into, at) {
                Ok(0) => break,
                Ok(read) => {
                    at += read as u64;
                    into = &mut into[read..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(wanted - into.len())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        platform::write_all_at(&self.0, bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        let metadata = self.0.metadata()?;
        let born = metadata.created().ok();
        let since_1970 = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let (device, inode) = platform::device_and_inode(&metadata);
        Ok(FileIdentity {
            device,
            inode,
            born_ns: since_1970.map_or(0, |since| since.as_nanos() as u64),
        })
    }
}

/// A read-only folder, so that backups and inspections cannot disturb a store in use.
#[derive(Clone, Debug)]
pub(crate) struct View(Folder);

impl View {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self(Folder::new(path))
    }
}

impl Disk for View {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(File::open(self.0.path(name))?)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }
}

/// Renames a complete file and makes the new name durable.
///
/// Sync the content of the file before calling this. Otherwise a power loss may keep the rename but lose the content.
/// Until this call returns, a power loss may also undo the rename and bring the former file `to` back.
pub(super) fn publish(disk: &dyn Disk, from: &str, to: &str) -> io::Result<()> {
    disk.rename(from, to)?;
    disk.sync_folder()
}

pub(super) fn remove_if_exists(disk: &dyn Disk, name: &str) -> io::Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

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

pub(crate) fn no_room(disk: &dyn Disk, error: &io::Error) -> Error {
    let path = disk.path("");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull { path },
        _ => failed(path, "cannot be written", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::testing::TempFolder;

    #[test]
    fn nothing_can_be_changed_through_a_view() {
        let folder = TempFolder::new();
        std::fs::write(folder.path().join("it"), "as it was").unwrap();
        let view = View::new(folder.path());
        assert_eq!(view.list().unwrap(), ["it"]);
        let file = view.open("it").unwrap();
        let mut text = [0; 9];
        assert_eq!(file.read_at(0, &mut text).unwrap(), 9);
        assert!(file.write_at(0, b"another").is_err());
        assert!(view.create("other").is_err());
        assert!(view.rename("it", "other").is_err());
        assert!(view.remove("it").is_err());
        assert_eq!(std::fs::read(folder.path().join("it")).unwrap(), text);
    }
}
