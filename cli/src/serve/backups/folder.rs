//! [`BackupFolder`]: the backups of one store, in a folder that may also contain the backups of other stores.
//!
//! Each backup is written to a separate work folder and renamed once it is complete and synced. Every file with the
//! name of a backup is therefore complete. We remove only files whose names mark them as backups of this store.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lockkeeper_store::Error;
use lockkeeper_store::disk::{self, Summary};

use super::name::BackupName;

pub(super) struct BackupFolder {
    path: PathBuf,
    store: String,
    keep: usize,
    lock: Option<File>,
}

#[derive(Debug)]
pub(super) struct Made {
    pub(super) file: PathBuf,
    pub(super) summary: Summary,
    pub(super) at: SystemTime,
    pub(super) kept: Result<usize, Failure>,
}

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: Reason,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Folder,
    DiskFull,
    /// Another server makes backups of the same store in this folder, so one of the two servers serves a copy of the
    /// store.
    InUse,
    Store,
}

impl Reason {
    pub(super) const ALL: [Self; 4] = [Self::Folder, Self::DiskFull, Self::InUse, Self::Store];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::DiskFull => "disk_full",
            Self::InUse => "in_use",
            Self::Store => "store",
        }
    }
}

impl BackupFolder {
    pub(super) fn new(path: PathBuf, store: String, keep: usize) -> Self {
        Self {
            path,
            store,
            keep,
            lock: None,
        }
    }

    /// Returns the time of the newest backup. Ignores times in the future, which result from a clock that was set back.
    pub(super) fn newest(&mut self, now: SystemTime) -> Result<Option<SystemTime>, Failure> {
        self.claim()?;
        let times = self.names()?.into_iter().map(BackupName::made);
        Ok(times.filter(|made| *made <= now).max())
    }

    pub(super) fn make(&mut self, data: &Path) -> Result<Made, Failure> {
        self.claim()?;
        let at = SystemTime::now();
        let unfinished = self.work_folder().join(COMPLETE);
        let summary = disk::backup(data, &unfinished).map_err(|error| self.failure(data, error))?;
        let name = BackupName::new(at, summary.zxid);
        let file = self.path.join(name.file(&self.store));
        // The content of the file is already synced. Rename the file and sync its name.
        let named =
            fs::rename(&unfinished, &file).and_then(|()| File::open(&self.path)?.sync_all());
        named.map_err(|error| self.io_failure("cannot be written", &error))?;
        // Remove old backups last, because they are all we have until the new backup is complete.
        let kept = self.prune(name);
        Ok(Made {
            file,
            summary,
            at,
            kept,
        })
    }

    /// Removes the oldest backups of this store.
    ///
    /// The newest backup is always kept, even if it was made with a wrong clock. A backup that is more than twice as
    /// large as every newer backup is also kept, because the store may have lost its content after that backup. There
    /// are only a few such backups, because each is more than twice as large as the next.
    fn prune(&self, newest: BackupName) -> Result<usize, Failure> {
        let mut others = self.names()?;
        others.retain(|name| *name != newest);
        others.sort_unstable();
        let file = |name: BackupName| self.path.join(name.file(&self.store));
        let bytes = |name| fs::metadata(file(name)).map_or(0, |metadata| metadata.len());
        let mut largest = bytes(newest);
        let mut kept = 1;
        for name in others.into_iter().rev() {
            let is_large = bytes(name) > largest.saturating_mul(2);
            largest = largest.max(bytes(name));
            if kept < self.keep || is_large {
                kept += 1;
                continue;
            }
            let file = file(name);
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let what = format!(
                        "has an old backup that cannot be removed: {}",
                        file.display()
                    );
                    return Err(self.io_failure(&what, &error));
                }
                _ => {}
            }
        }
        Ok(kept)
    }

    fn names(&self) -> Result<Vec<BackupName>, Failure> {
        let list = || {
            let mut names = Vec::new();
            for entry in fs::read_dir(&self.path)? {
                let entry = entry?;
                if entry.file_type()?.is_file()
                    && let Some(name) = entry.file_name().to_str()
                {
                    names.extend(BackupName::parse(name, &self.store));
                }
            }
            Ok(names)
        };
        list().map_err(|error: io::Error| self.io_failure("cannot be listed", &error))
    }

    fn work_folder(&self) -> PathBuf {
        self.path.join(format!(".lockkeeper-{}", self.store))
    }

    /// Ensures that only this process makes backups of this store in this folder. The first call removes the files that
    /// a killed server has left behind.
    fn claim(&mut self) -> Result<(), Failure> {
        let work_folder = self.work_folder();
        let path = work_folder.join(LOCK);
        if let Some(lock) = &self.lock
            && is_at(lock, &path)
        {
            return Ok(());
        }
        // Do not create the backup folder itself. If the disk for backups is not mounted, the backups would fill
        // another disk.
        match DirBuilder::new().mode(0o700).create(&work_folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.io_failure("cannot be written", &error));
            }
            _ => {}
        }
        self.check_owner(&work_folder)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Do not follow links, because another user could plant a link in a shared folder.
        let options = options
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        let lock = options
            .open(&path)
            .map_err(|error| self.io_failure("cannot be written", &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure {
                    reason: Reason::InUse,
                    text: format!(
                        "{} is in use by another server, which makes backups of the same store {}: one of the two serves a \
                         copy; give it another --backup-dir",
                        self.path.display(),
                        self.store
                    ),
                });
            }
            Err(TryLockError::Error(error)) => {
                return Err(self.io_failure("cannot be locked", &error));
            }
        }
        let cleaned = remove_unfinished(&work_folder);
        cleaned.map_err(|error| self.io_failure("cannot be cleaned up", &error))?;
        self.lock = Some(lock);
        Ok(())
    }

    fn check_owner(&self, folder: &Path) -> Result<(), Failure> {
        let metadata = fs::symlink_metadata(folder);
        let metadata = metadata.map_err(|error| self.io_failure("cannot be read", &error))?;
        if metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        Err(Failure {
            reason: Reason::Folder,
            text: format!("{} is not a folder of this server's user", folder.display()),
        })
    }

    fn failure(&self, data: &Path, error: Error) -> Failure {
        let reason = match &error {
            Error::DiskFull { .. } => Reason::DiskFull,
            Error::StoreFailed { path, .. } if path.starts_with(&self.path) => Reason::Folder,
            _ => Reason::Store,
        };
        let text = match reason {
            // The library's text is about the disk of the store's log, so write our own.
            Reason::DiskFull => format!("there is no room in {}", self.path.display()),
            Reason::Folder => error.to_string(),
            _ => format!("{} cannot be read: {error}", data.display()),
        };
        Failure { reason, text }
    }

    fn io_failure(&self, what: &str, error: &io::Error) -> Failure {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Reason::DiskFull,
            _ => Reason::Folder,
        };
        Failure {
            reason,
            text: format!("{} {what}: {error}", self.path.display()),
        }
    }
}

const LOCK: &str = "lock";

const COMPLETE: &str = "complete";

/// Returns `true` if this open file is still the file at the path. Another disk may have been mounted there.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Removes the unfinished backup of a killed server. No other server writes in the work folder, because we hold the
/// lock.
fn remove_unfinished(work_folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(work_folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_ours =
            name == COMPLETE || name.starts_with("backup-") && name.ends_with(".unfinished");
        if is_ours && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockkeeper_store::Zxid;

    use super::*;

    #[test]
    fn the_last_backup_before_a_store_shrank_stays() {
        let path = std::env::temp_dir().join(format!("lockkeeper-shrunk-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let folder = BackupFolder::new(path.clone(), "id".into(), 2);
        let name = |zxid| BackupName::new(SystemTime::UNIX_EPOCH, Zxid(zxid));
        let mut left = Vec::new();
        // Sizes of the backups. The store is almost empty from the third backup on, and has content again in the last
        // backup.
        for (zxid, bytes) in (1..).zip([30, 40, 5, 5, 9, 5, 50]) {
            fs::write(path.join(name(zxid).file("id")), vec![0; bytes]).unwrap();
            let kept = folder.prune(name(zxid)).unwrap();
            let mut names = folder.names().unwrap();
            assert_eq!(kept, names.len());
            names.sort_unstable();
            left.push(names);
        }
        fs::remove_dir_all(&path).unwrap();
        let expected: [&[i64]; 7] = [
            &[1],
            &[1, 2],
            &[2, 3],
            &[2, 3, 4],
            &[2, 4, 5],
            &[2, 5, 6],
            &[6, 7],
        ];
        for (left, expected) in left.iter().zip(expected) {
            let expected: Vec<_> = expected.iter().map(|zxid| name(*zxid)).collect();
            assert_eq!(*left, expected);
        }
    }

    #[test]
    fn a_full_disk_is_told_from_a_folder_that_cannot_be_written() {
        let folder = BackupFolder::new("/backups".into(), "id".into(), 1);
        let full = Error::DiskFull {
            path: "/backups/.lockkeeper-id".into(),
        };
        let failed = |path: &str| Error::StoreFailed {
            path: path.into(),
            reason: "cannot be written: Permission denied".into(),
        };
        for (error, reason) in [
            (full, Reason::DiskFull),
            (failed("/backups/.lockkeeper-id"), Reason::Folder),
            (failed("/data"), Reason::Store),
        ] {
            assert_eq!(folder.failure(Path::new("/data"), error).reason, reason);
        }
        for (kind, reason) in [
            (io::ErrorKind::StorageFull, Reason::DiskFull),
            (io::ErrorKind::QuotaExceeded, Reason::DiskFull),
            (io::ErrorKind::PermissionDenied, Reason::Folder),
        ] {
            assert_eq!(folder.io_failure("", &kind.into()).reason, reason);
        }
    }
}
