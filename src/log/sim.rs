//! [`SimDisk`]: a disk in memory that loses unsynced changes and fails on command or by plan.
//!
//! The disk behaves worse than real disks, so that no test relies on the leniency of a real disk. A crash keeps any
//! subset of the unsynced sectors and names, in any order. After a failed sync, a crash may lose the writes that this
//! sync covered, even if later syncs succeed.

#[cfg(any(test, feature = "simulation"))]
mod boot;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::{Disk, DiskFile, FileIdentity};
use state::State;

#[cfg(any(test, feature = "simulation"))]
pub(crate) use boot::Boot;
pub(crate) use state::Faults;

#[derive(Clone, Default)]
pub(crate) struct SimDisk {
    state: Arc<Mutex<State>>,
}

impl SimDisk {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn fail(&self, seed: u64, faults: Faults) {
        self.state.lock().fail(seed, faults);
    }

    /// Simulates a power failure. `seed` decides which unsynced changes are kept. Closes all files and clears the
    /// injected faults.
    pub(crate) fn crash(&self, seed: u64) {
        self.state.lock().crash_by(seed);
    }

    /// Simulates a power failure. Asks `keep` whether each unsynced change survives, first for the changes of names and
    /// then for the sector writes of each file, in the order of the file names.
    pub(crate) fn crash_keeping(&self, keep: impl FnMut() -> bool) {
        self.state.lock().crash(keep);
    }

    /// Returns a new disk with the content that a process sees after another process was killed. All of the content is
    /// synced.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::new();
        let state = self.state.lock();
        for name in state.names() {
            let content = state.content(&name).unwrap_or_default();
            copy.put(&name, content.to_vec());
        }
        drop(state);
        copy
    }

    pub(crate) fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.state.lock().content(name).map(<[u8]>::to_vec)
    }

    pub(crate) fn put(&self, name: &str, content: Vec<u8>) {
        self.state.lock().put(name, content);
    }

    pub(crate) fn flip(&self, name: &str, at: u64, bits: u8) {
        self.state.lock().flip(name, at, bits);
    }

    #[cfg(any(test, feature = "simulation"))]
    fn life(&self) -> u64 {
        self.state.lock().life()
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        self.state.lock().counts()
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state.lock().names())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state.lock();
        let inode = state.open(name)?;
        Ok(self.handle(&state, inode))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state.lock();
        let inode = state.create(name)?;
        Ok(self.handle(&state, inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.state.lock().rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.state.lock().remove(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.state.lock().sync_folder()
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/sim").join(name)
    }
}

impl SimDisk {
    fn handle(&self, state: &State, inode: u64) -> Box<dyn DiskFile> {
        Box::new(SimFile {
            state: self.state.clone(),
            life: state.life(),
            inode,
        })
    }
}

struct SimFile {
    state: Arc<Mutex<State>>,
    /// Number of crashes before the file was opened. After the next crash, every call on this file fails, because the
    /// process that opened it is gone.
    life: u64,
    inode: u64,
}

impl SimFile {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        if state.life() != self.life {
            return Err(io::Error::other("the machine has crashed since"));
        }
        act(&mut state)
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|state| Ok(state.file(self.inode).len()))
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        self.with(|state| Ok(state.file(self.inode).read(at, into)))
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.with(|state| state.write(self.inode, at, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state| state.sync(self.inode))
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        self.with(|state| {
            Ok(FileIdentity {
                device: state.device(),
                inode: self.inode,
                born_ns: 0,
            })
        })
    }
}
