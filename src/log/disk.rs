//! [`Disk`]: the interface of the log to a folder of files, so that tests can run it on a disk that fails
//! (`SimDisk`). [`Folder`] is a real one, [`View`] one that is only read.
//!
//! The interface states the durability that the log may rely on, and no more: each change is lost by a power loss until
//! the matching sync has returned.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use crate::model::error::Error;
use crate::runtime::platform;
pub(crate) use crate::runtime::platform::make_folder;

/// A flat folder of files. Names are single parts. It is read-only unless it says otherwise: a view implements the reads
/// alone.
///
/// Creating, renaming and removing may be undone by a power loss until
/// [`sync_folder`](Self::sync_folder) has returned.
pub(crate) trait Disk: Send + Sync + 'static {
    /// Lists the names of its files, in no order. Folders within it are left out.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens an existing file, to read and write.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Creates a file, or empties an existing one.
    fn create(&self, _name: &str) -> io::Result<Box<dyn DiskFile>> {
        refused()
    }

    /// Creates a file that must not exist yet. Neither a file of that name nor a link that another user put there is
    /// opened, where there are other users.
    fn create_new(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.create(name)
    }

    /// Gives a file another name, in one step; a file that has that name already is gone then.
    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        refused()
    }

    /// Removes an existing file.
    fn remove(&self, _name: &str) -> io::Result<()> {
        refused()
    }

    /// Makes all that was created, renamed and removed so far survive a power loss.
    fn sync_folder(&self) -> io::Result<()> {
        refused()
    }

    /// Returns the path by which messages name a file; that of the folder for an empty name.
    fn path(&self, name: &str) -> PathBuf;
}

/// The answer of a read-only disk.
pub(super) fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

/// A file of a [`Disk`]. It stays the same file when its name changes.
pub(crate) trait DiskFile: Send + Sync {
    /// Returns its length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Reads from `at` on until `into` is full or the file ends. Returns the bytes read.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes`, or fails: then any part of them may be written. A power loss may undo
    /// any part of it until [`sync`](Self::sync) has returned.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all writes, and the length, survive a power loss (`fdatasync`). After an error it is unknown which
    /// of them survive, and another call would not tell: the kernel may have dropped the pages it could not write, and
    /// then reports success.
    fn sync(&self) -> io::Result<()>;

    /// Returns the identity that tells the file from its copy.
    fn identity(&self) -> io::Result<FileIdentity>;
}

/// Identity that tells a file from its copy. It survives a change of name, and no way of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) device: u64,
    /// May be another file's when this one is gone.
    pub(crate) inode: u64,
    /// Birth time of the inode, in nanoseconds since 1970; 0 where the file system does not say.
    pub(crate) born_ns: u64,
}

/// Opens a file to read and write. A file that this creates is the owner's alone, with any umask.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    platform::for_the_owner(&mut options);
    options
}

/// A folder of the file system.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Returns the folder at `path`, which should exist.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl Disk for Folder {
    fn create_new(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        // `O_EXCL`, which follows no link as the last part of a path: in a shared folder another user could otherwise
        // direct the write to any file of this one.
        let file = private().create_new(true).open(self.path(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // A name that is not UTF-8 is none of a store's.
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
        // The mode that it is opened with applies only to a new file (invariant 14).
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
        // A name is data of its directory: no sync of the file itself makes it durable.
        File::open(&self.path)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        match name {
            "" => self.path.clone(),
            name => self.path.join(name),
        }
    }
}

/// File of a [`Folder`] or a [`View`].
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

/// Read-only folder of the file system. Backups and inspections use it, so that they cannot disturb a store in use.
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

/// Gives a complete file its name, durably: renames it, and syncs the folder.
///
/// The file must be synced before: a power loss may keep the rename and lose the bytes, and the file would be torn under
/// a name that promises it whole. Until the folder is synced the file may get its old name back, or the name its old
/// file.
pub(super) fn publish(disk: &dyn Disk, from: &str, to: &str) -> io::Result<()> {
    disk.rename(from, to)?;
    disk.sync_folder()
}

/// Removes a file, which need not exist: the unfinished file of a run that was killed.
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

/// Returns the error of a failed write to a disk: [`Error::DiskFull`] where space or a quota has run out, which may
/// pass, and a failure otherwise.
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
