//! [`Sectors`]: a disk that reads unreadable places as zeros and records them. The rest of the file can still be read,
//! and checksums detect the gaps.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::log::disk::{Disk, DiskFile, FileIdentity, refused};
use crate::log::inspect::Problem;

/// Unit of reading if a range cannot be read as a whole. It is a multiple of every disk's sector size.
const SECTOR_BYTES: u64 = 4096;

pub(super) struct Sectors<D> {
    disk: D,
    unreadable: Arc<Mutex<Vec<Unreadable>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) name: String,
    pub(super) offset: u64,
    reason: String,
}

impl Unreadable {
    pub(super) fn end(&self) -> u64 {
        self.offset + SECTOR_BYTES
    }

    pub(super) fn problem(&self, disk: &dyn Disk) -> Problem {
        Problem {
            file: disk.path(&self.name),
            offset: self.offset,
            reason: format!("it cannot be read: {}", self.reason),
        }
    }
}

impl<D: Disk> Sectors<D> {
    pub(super) fn new(disk: D) -> Self {
        Self {
            disk,
            unreadable: Arc::default(),
        }
    }

    pub(super) fn unreadable(&self) -> Vec<Unreadable> {
        let mut places = self.unreadable.lock().clone();
        places.sort_by(|one, other| (&one.name, one.offset).cmp(&(&other.name, other.offset)));
        places
    }
}

impl<D: Disk> Disk for Sectors<D> {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SectorFile {
            file: self.disk.open(name)?,
            name: name.to_owned(),
            unreadable: self.unreadable.clone(),
        }))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.disk.path(name)
    }
}

struct SectorFile {
    file: Box<dyn DiskFile>,
    name: String,
    unreadable: Arc<Mutex<Vec<Unreadable>>>,
}

impl DiskFile for SectorFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        match self.file.read_at(at, into) {
            Err(_) => self.read_by_sectors(at, into),
            read => read,
        }
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        refused()
    }

    fn sync(&self) -> io::Result<()> {
        refused()
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        self.file.identity()
    }
}

impl SectorFile {
    fn read_by_sectors(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let left = self.file.len()?.saturating_sub(at);
        let count = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < count {
            let from = at + done as u64;
            let sector = from - from % SECTOR_BYTES;
            let size = ((sector + SECTOR_BYTES - from) as usize).min(count - done);
            let part = &mut into[done..done + size];
            if let Err(error) = self.file.read_at(from, part) {
                part.fill(0);
                self.note(sector, &error);
            }
            done += size;
        }
        Ok(count)
    }

    fn note(&self, offset: u64, error: &io::Error) {
        let mut places = self.unreadable.lock();
        let is_known = |place: &Unreadable| place.name == self.name && place.offset == offset;
        if !places.iter().any(is_known) {
            places.push(Unreadable {
                name: self.name.clone(),
                offset,
                reason: error.to_string(),
            });
        }
    }
}
