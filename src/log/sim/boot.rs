//! [`Boot`]: a simulated disk as seen by a machine between its start and a power failure.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::SimDisk;
use crate::log::disk::{Disk, DiskFile, FileIdentity};

/// The disk of a simulated machine, until its power fails. After the failure, threads that still use this `Boot` can
/// neither read nor change the disk.
#[derive(Clone)]
pub(crate) struct Boot {
    disk: SimDisk,
    life: u64,
    left: Arc<AtomicU64>,
}

impl Boot {
    pub(crate) fn new(disk: &SimDisk) -> Self {
        Self::until(disk, u64::MAX)
    }

    /// Boots a machine whose power fails at change number `changes`.
    pub(crate) fn until(disk: &SimDisk, changes: u64) -> Self {
        Self {
            disk: disk.clone(),
            life: disk.life(),
            left: Arc::new(AtomicU64::new(changes)),
        }
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn fail_after(&self, changes: u64) {
        self.left.store(changes, Ordering::Release);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0 || self.disk.life() != self.life
    }

    fn look(&self) -> io::Result<&SimDisk> {
        match self.is_off() {
            true => Err(io::Error::other("the power has failed")),
            false => Ok(&self.disk),
        }
    }

    fn change(&self) -> io::Result<&SimDisk> {
        let less = |left: u64| left.checked_sub(1);
        let _ = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        self.look()
    }

    fn file(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        let boot = self.clone();
        Box::new(BootFile { boot, file })
    }
}

impl Disk for Boot {
    fn list(&self) -> io::Result<Vec<String>> {
        self.look()?.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.look()?.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.change()?.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change()?.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change()?.remove(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.change()?.sync_folder()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path(name)
    }
}

struct BootFile {
    boot: Boot,
    file: Box<dyn DiskFile>,
}

impl DiskFile for BootFile {
    fn len(&self) -> io::Result<u64> {
        self.boot.look()?;
        self.file.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        self.boot.look()?;
        self.file.read_at(at, into)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.boot.change()?;
        self.file.write_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.boot.change()?;
        self.file.sync()
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        self.file.identity()
    }
}
