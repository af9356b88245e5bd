//! Backup and restore. A backup is one file with the whole content of a store at one moment.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use super::disk::{
    Disk, DiskFile, FileIdentity, Folder, View, failed, make_folder, no_room, publish, refused,
};
use super::lock::{self, Lock};
use super::recovery::{self, Completeness, Content, Facts, Start, bare_core};
use super::snapshot::{self, Form, Head, UNFINISHED, Unreadable, snapshot_name};
use super::{epoch, identity};
use crate::core::Core;
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;
use crate::runtime::clock::Clock;
use crate::runtime::platform::{hex, random};

/// Summary of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The id of the store, as in [`Client::store_id`](crate::Client::store_id).
    pub store_id: String,
    /// The last transaction in the backup. After a restore, the store assigns only higher zxids.
    pub zxid: Zxid,
    /// Number of znodes, including the four that every store has.
    pub znodes: u64,
    /// Number of sessions of processes other than the store's. A restore ends these sessions.
    pub sessions: u64,
    /// The size of the backup file in bytes. After a salvage, the size of the new directory's snapshot.
    pub bytes: u64,
}

/// Writes the whole content of the store in the directory `dir` to the file `file`.
///
/// Replaces an existing file atomically. Only reads `dir`, so the store there may be in use and need not wait. The
/// backup contains at least everything that was acknowledged before the call.
///
/// Blocks the thread, and needs as much memory as the store's content.
///
/// # Errors
/// - [`Error::NotAStore`], [`Error::StoreDamaged`] or [`Error::StoreTooNew`] if `dir` cannot be read.
/// - [`Error::DiskFull`] or [`Error::StoreFailed`] if `file` cannot be written.
/// - [`Error::BadArguments`] if `file` is inside `dir`, or exists and is not a regular file.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("lockkeeper-backup-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let (dir, file, other) = (folder.join("data"), folder.join("backup"), folder.join("other"));
/// use lockkeeper_store::{Store, disk};
///
/// let store = Store::file(&dir)?;
/// let made = disk::backup(&dir, &file)?;
/// let restored = disk::restore(&file, &other)?;
/// assert_eq!(made.znodes, restored.znodes);
/// assert!(made.zxid < restored.zxid);
/// # drop(store);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), lockkeeper_store::Error>(())
/// ```
pub fn backup(dir: impl AsRef<Path>, file: impl AsRef<Path>) -> Result<Summary> {
    let (dir, file) = (dir.as_ref(), file.as_ref());
    let (folder, name) = folder_and_name(file)?;
    check_outside(dir, file)?;
    check_regular(file, fs::symlink_metadata(file))?;
    let (head, core) = content(&View::new(dir), now_ms())?;
    let bytes = write(&Folder::new(folder), &name, Form::Backup, &head, &core)?;
    Ok(summary(&head, &core, bytes))
}

/// Like [`backup`], but writes to a stream, for example a pipe. After an error, the stream may contain a partial
/// backup, which a restore refuses.
///
/// # Errors
/// As for [`backup`], and [`Error::StoreFailed`] if the stream cannot be written.
pub fn backup_to(dir: impl AsRef<Path>, stream: impl io::Write + Send) -> Result<Summary> {
    let (head, core) = content(&View::new(dir.as_ref()), now_ms())?;
    let stream = Stream(Mutex::new(stream));
    let written = snapshot::write(&stream, Form::Backup, &head, &core, &mut || Ok(()));
    let bytes =
        written.map_err(|error| failed("the backup".into(), "cannot be written", &error))?;
    Ok(summary(&head, &core, bytes))
}

struct Stream<W>(Mutex<W>);

impl<W: io::Write + Send> DiskFile for Stream<W> {
    fn len(&self) -> io::Result<u64> {
        refused()
    }

    fn read_at(&self, _at: u64, _into: &mut [u8]) -> io::Result<usize> {
        refused()
    }

    /// Appends `bytes` and ignores the offset, because [`snapshot::write`] writes in order and leaves no gap.
    fn write_at(&self, _at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.flush()
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        refused()
    }
}

fn content(disk: &dyn Disk, now_ms: i64) -> Result<(Head, Core)> {
    let store = store_in(disk)?;
    let Content {
        core, recovered, ..
    } = recovery::read_in_use(disk, Result::is_ok, || {
        recovery::read(disk, store, &bare_core)
    })?;
    let head = head(store, recovered.facts, epoch::of_clock(now_ms));
    Ok((head, core))
}

/// Restores the backup `file` into the directory `dir`, which must be empty or missing.
///
/// The restored store continues above all zxids that the original has assigned since the backup, so tokens never go
/// backward. Opening the restored store ends the sessions of other processes, because these processes may have released
/// and acquired locks since the backup.
///
/// If the original was served, the restored store admits no session for some time after it is opened, because a client
/// may still consider its ended session alive. This pause is one percent longer than the longest timeout that the
/// original granted or allowed, or that the options of the restored store allow.
///
/// Blocks the thread, and needs as much memory as the store's content.
///
/// # Errors
/// - [`Error::BadArguments`] if `dir` is not empty or `file` is not a regular file.
/// - [`Error::StoreDamaged`] or [`Error::StoreTooNew`] if the backup cannot be read. Nothing is restored.
/// - [`Error::StoreInUse`], [`Error::DiskFull`] or [`Error::StoreFailed`] if `dir` cannot be written.
pub fn restore(file: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<Summary> {
    let (file, dir) = (file.as_ref(), dir.as_ref());
    // Check before the long read of the backup. `create_in` checks again under the lock.
    check_empty(dir, "")?;
    let (folder, name) = folder_and_name(file)?;
    check_regular(file, fs::metadata(file))?;
    let restored = restored(&View::new(folder), &name, now_ms());
    let (head, core, bytes) = restored.map_err(|unreadable| unreadable.of(file.to_owned()))?;
    create_store(dir, &head, &core)?;
    // Two restores of one backup in the same millisecond would assign the same zxids, so wait until this millisecond is
    // over.
    std::thread::sleep(Duration::from_millis(1));
    Ok(summary(&head, &core, bytes))
}

/// Reads a backup. Returns the header and the content of the store that continues from the backup, and the backup's
/// size in bytes.
fn restored(
    disk: &dyn Disk,
    name: &str,
    now_ms: i64,
) -> std::result::Result<(Head, Core, u64), Unreadable> {
    let mut core = bare_core();
    let file = disk.open(name)?;
    let loaded = snapshot::load(&*file, Form::Backup, &mut core, &mut || Ok(()))?;
    let was = loaded.head;
    let was_facts = was.start.facts;
    let zxid = epoch::beyond(was_facts.epoch, was.made, now_ms).max(was_facts.zxid);
    // No real store reaches this zxid, so the header is damaged. A store with this zxid could not be opened.
    if epoch::is_exhausted(zxid) {
        return Err(Unreadable::damaged(
            0,
            "the epoch in its header is out of range",
        ));
    }
    let facts = Facts {
        zxid,
        epoch: epoch::of(zxid) - 1,
        // The original may have continued after the backup, so its sessions must not survive the restore.
        is_clean: false,
        completeness: Completeness::Restored,
        ..was_facts
    };
    let head = head(was.store, facts, epoch::of_clock(now_ms));
    Ok((head, core, loaded.bytes))
}

#[cfg(any(test, feature = "simulation"))]
pub(super) const SIMULATED: &str = "backup";

#[cfg(any(test, feature = "simulation"))]
pub(crate) fn backup_on(from: &dyn Disk, to: &dyn Disk, now_ms: i64) -> Result<()> {
    let (head, core) = content(from, now_ms)?;
    write(to, SIMULATED, Form::Backup, &head, &core).map(drop)
}

#[cfg(any(test, feature = "simulation"))]
pub(crate) fn restore_on(from: &dyn Disk, to: &dyn Disk, now_ms: i64) -> Result<()> {
    let restored = restored(from, SIMULATED, now_ms);
    let (head, core, _) = restored.map_err(|unreadable| unreadable.of(from.path(SIMULATED)))?;
    fill(to, &head, &core).map(drop)
}

pub(super) fn now_ms() -> i64 {
    Clock::system().exact_unix_ms()
}

pub(super) fn head(store: [u8; 16], facts: Facts, made: u32) -> Head {
    let facts = Facts { chain: 0, ..facts };
    Head {
        store,
        start: Start { segment: 0, facts },
        made,
    }
}

pub(super) fn summary(head: &Head, core: &Core, bytes: u64) -> Summary {
    Summary {
        store_id: hex(head.store),
        zxid: head.start.facts.zxid,
        znodes: core.node_count() as u64,
        sessions: core.session_images().count() as u64,
        bytes,
    }
}

pub(super) fn store_in(view: &dyn Disk) -> Result<[u8; 16]> {
    let not_a_store = |reason: String| Error::NotAStore {
        path: view.path(""),
        reason,
    };
    let missing = |error: io::Error| not_a_store(error.to_string());
    view.list().map_err(missing)?;
    match identity::read(view)? {
        Some(identity) => Ok(identity.store),
        None => Err(not_a_store(format!("it has no file {}", identity::NAME))),
    }
}

/// Writes a file under a temporary name, and renames the file once it is complete and synced.
///
/// A backup's temporary name is random, so that other users who can write to its folder cannot create the file first.
fn write(disk: &dyn Disk, name: &str, form: Form, head: &Head, core: &Core) -> Result<u64> {
    let unfinished = match form {
        Form::Snapshot => UNFINISHED.to_owned(),
        Form::Backup => format!("backup-{}.unfinished", hex(random())),
    };
    let file = disk
        .create_new(&unfinished)
        .map_err(|error| no_room(disk, &error))?;
    let write = || {
        let bytes = snapshot::write(&*file, form, head, core, &mut || Ok(()))?;
        publish(disk, &unfinished, name)?;
        Ok(bytes)
    };
    write().map_err(|error: io::Error| {
        let _ = disk.remove(&unfinished);
        no_room(disk, &error)
    })
}

/// Creates a data directory and returns the size of its snapshot. Leaves nothing behind after an error.
pub(super) fn create_store(dir: &Path, head: &Head, core: &Core) -> Result<u64> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = dir.ancestors().take_while(is_missing).collect();
    let created = create_in(dir, head, core);
    if created.is_err() {
        // Remove the folders that we created, the deepest first. A folder that another process has filled stays.
        let removed = missing.iter().try_for_each(fs::remove_dir);
        if let Err(error) = removed {
            tracing::debug!(%error, "folder not removed");
        }
    }
    created
}

fn create_in(dir: &Path, head: &Head, core: &Core) -> Result<u64> {
    let failed_here = |error| failed(dir.to_owned(), "cannot be written", &error);
    make_folder(dir).map_err(failed_here)?;
    let _lock = Lock::take(dir)?;
    // Check again under the lock, because another process may have filled the directory since the first check.
    check_empty(dir, lock::NAME)?;
    let sync_parent = || {
        let whole = dir.canonicalize()?;
        Folder::new(whole.parent().unwrap_or(&whole)).sync_folder()
    };
    let filled = fill(&Folder::new(dir), head, core)
        .and_then(|bytes| sync_parent().map(|()| bytes).map_err(failed_here));
    if filled.is_err() {
        remove_parts(dir, head);
    }
    filled
}

/// Writes a new data directory and returns the size of its snapshot.
///
/// Writes the file `STORE` last. A directory without this file is not a store, so a partial restore is never opened.
pub(super) fn fill(disk: &dyn Disk, head: &Head, core: &Core) -> Result<u64> {
    let name = snapshot_name(head.start.facts.zxid);
    let bytes = write(disk, &name, Form::Snapshot, head, core)?;
    let written = identity::write(disk, head.store, false);
    written.map_err(|error| no_room(disk, &error))?;
    Ok(bytes)
}

fn remove_parts(dir: &Path, head: &Head) {
    let snapshot = snapshot_name(head.start.facts.zxid);
    let unfinished = identity::UNFINISHED;
    for name in [&snapshot, identity::NAME, unfinished, lock::NAME] {
        let _ = fs::remove_file(dir.join(name));
    }
}

/// Checks that a directory is missing or empty. Ignores the file `ours`.
pub(super) fn check_empty(dir: &Path, ours: &str) -> Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(|error| failed(dir.to_owned(), "cannot be listed", &error))?,
    };
    let is_foreign =
        |entry: &io::Result<fs::DirEntry>| !matches!(entry, Ok(entry) if entry.file_name() == ours);
    let Some(entry) = entries.into_iter().find(is_foreign) else {
        return Ok(());
    };
    let entry = entry.map_err(|error| failed(dir.to_owned(), "cannot be listed", &error))?;
    Err(Error::BadArguments(format!(
        "{} is not empty (it holds {}): give a new or an empty directory",
        dir.display(),
        entry.file_name().display()
    )))
}

fn folder_and_name(file: &Path) -> Result<(PathBuf, String)> {
    let name = file.file_name().and_then(|name| name.to_str());
    let Some(name) = name else {
        let text = format!("{} has no file name", file.display());
        return Err(Error::BadArguments(text));
    };
    let folder = match file.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((folder, name.to_owned()))
}

/// Checks that a file is missing or regular, because other files cannot be replaced atomically or read at any offset.
fn check_regular(file: &Path, metadata: io::Result<fs::Metadata>) -> Result<()> {
    match metadata {
        Ok(metadata) if !metadata.is_file() => Err(Error::BadArguments(format!(
            "{} is not a regular file: give the name of a file",
            file.display()
        ))),
        _ => Ok(()),
    }
}

pub(super) fn check_outside(dir: &Path, new: &Path) -> Result<()> {
    let whole = std::path::absolute(new).unwrap_or_else(|_| new.to_owned());
    let existing = whole.ancestors().find_map(|path| path.canonicalize().ok());
    let is_inside = match (dir.canonicalize(), existing) {
        (Ok(dir), Some(existing)) => existing.starts_with(dir),
        _ => false,
    };
    if !is_inside {
        return Ok(());
    }
    let (dir, new) = (dir.display(), new.display());
    Err(Error::BadArguments(format!(
        "{new} is inside {dir}, which is only read: give a place elsewhere"
    )))
}
