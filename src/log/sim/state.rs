//! Content of a simulated disk: each file as the process sees it and as the medium has it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::runtime::splitmix::Random;

/// Faults of a disk. A field `*_every` is the average number of calls per fault. 0 means never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) write_error_every: u64,
    pub(crate) short_write_every: u64,
    pub(crate) sync_error_every: u64,
    pub(crate) room_bytes: Option<u64>,
}

#[derive(Debug)]
enum Change {
    Link {
        name: String,
        inode: u64,
    },
    Rename {
        from: String,
        to: String,
        inode: u64,
    },
    Unlink {
        name: String,
    },
}

#[derive(Debug)]
pub(super) struct State {
    device: u64,
    life: u64,
    next_inode: u64,
    files: BTreeMap<u64, File>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    changes: Vec<Change>,
    faults: Faults,
    random: Random,
    writes: u64,
    syncs: u64,
}

impl Default for State {
    fn default() -> Self {
        static NEXT_DEVICE: AtomicU64 = AtomicU64::new(1);
        Self {
            device: NEXT_DEVICE.fetch_add(1, Ordering::Relaxed),
            life: 0,
            next_inode: 1,
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            faults: Faults::default(),
            random: Random(0),
            writes: 0,
            syncs: 0,
        }
    }
}

impl State {
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    pub(super) fn life(&self) -> u64 {
        self.life
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.writes, self.syncs)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    pub(super) fn content(&self, name: &str) -> Option<&[u8]> {
        let inode = self.names.get(name)?;
        Some(self.files[inode].content())
    }

    pub(super) fn put(&mut self, name: &str, content: Vec<u8>) {
        let inode = self.new_inode(File::durable(content));
        self.names.insert(name.to_owned(), inode);
        self.durable_names.insert(name.to_owned(), inode);
    }

    pub(super) fn flip(&mut self, name: &str, at: u64, bits: u8) {
        let inode = self.names[name];
        self.files
            .entry(inode)
            .and_modify(|file| file.flip(at, bits));
    }

    fn new_inode(&mut self, file: File) -> u64 {
        let inode = self.next_inode;
        self.next_inode += 1;
        self.files.insert(inode, file);
        inode
    }

    pub(super) fn file(&mut self, inode: u64) -> &mut File {
        self.files.entry(inode).or_default()
    }

    fn find(&self, name: &str) -> io::Result<u64> {
        let inode = self.names.get(name).copied();
        inode.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no file {name}")))
    }

    pub(super) fn open(&mut self, name: &str) -> io::Result<u64> {
        self.find(name)
    }

    pub(super) fn create(&mut self, name: &str) -> io::Result<u64> {
        // Use a new inode even for an existing name, because a crash may bring the old content back until the folder is
        // synced.
        let inode = self.new_inode(File::default());
        self.names.insert(name.to_owned(), inode);
        self.changes.push(Change::Link {
            name: name.to_owned(),
            inode,
        });
        Ok(inode)
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let inode = self.find(from)?;
        self.names.remove(from);
        self.names.insert(to.to_owned(), inode);
        self.changes.push(Change::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
            inode,
        });
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        let inode = self.find(name)?;
        self.names.remove(name);
        // Free the space immediately, so that tests can make room on a full disk.
        if let Some(room) = &mut self.faults.room_bytes {
            *room += self.files[&inode].len();
        }
        self.changes.push(Change::Unlink {
            name: name.to_owned(),
        });
        Ok(())
    }

    pub(super) fn write(&mut self, inode: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.writes += 1;
        if self.once_in(self.faults.write_error_every) {
            return Err(failure("write"));
        }
        let mut count = bytes.len() as u64;
        if self.once_in(self.faults.short_write_every) {
            count = self.below(count.max(1));
        }
        let len = self.file(inode).len();
        let growth = |count: u64| (at + count).saturating_sub(len);
        let full = self
            .faults
            .room_bytes
            .is_some_and(|room| growth(count) > room);
        if full {
            let room = self.faults.room_bytes.unwrap_or_default();
            count = (len + room).saturating_sub(at).min(count);
        }
        if let Some(room) = &mut self.faults.room_bytes {
            *room -= growth(count);
        }
        self.file(inode).write(at, &bytes[..count as usize]);
        match count == bytes.len() as u64 {
            true => Ok(()),
            false if full => Err(io::Error::new(io::ErrorKind::StorageFull, "no room left")),
            false => Err(failure("write")),
        }
    }

    pub(super) fn sync(&mut self, inode: u64) -> io::Result<()> {
        self.syncs += 1;
        let fails = self.once_in(self.faults.sync_error_every);
        let file = self.file(inode);
        if fails {
            // Linux marks the pages as clean after a failed sync, so the next sync succeeds without writing them.
            file.fail_sync();
            return Err(failure("sync"));
        }
        file.sync();
        Ok(())
    }

    pub(super) fn sync_folder(&mut self) -> io::Result<()> {
        if self.once_in(self.faults.sync_error_every) {
            return Err(failure("sync of the folder"));
        }
        self.changes.clear();
        self.durable_names = self.names.clone();
        Ok(())
    }

    pub(super) fn fail(&mut self, seed: u64, faults: Faults) {
        self.random = Random(seed);
        self.faults = faults;
    }

    pub(super) fn crash_by(&mut self, seed: u64) {
        self.random = Random(seed);
        // Vary the share of the kept changes. Crashes that keep nearly everything or nearly nothing find other bugs
        // than crashes that keep half.
        let share = [1, 4, 8, 12, 15][self.below(5) as usize];
        let mut random = self.random.clone();
        self.crash(|| random.below(16) < share);
    }

    pub(super) fn crash(&mut self, mut keep: impl FnMut() -> bool) {
        // Keep any subset of the changes of names. A file may keep its content and lose its name.
        for change in std::mem::take(&mut self.changes) {
            if keep() {
                carry_out(&mut self.durable_names, change);
            }
        }
        self.names = self.durable_names.clone();
        let named: Vec<u64> = self.names.values().copied().collect();
        self.files.retain(|inode, _| named.contains(inode));
        for inode in named {
            self.file(inode).crash(&mut keep);
        }
        self.faults = Faults::default();
        self.life += 1;
    }

    fn once_in(&mut self, calls: u64) -> bool {
        calls > 0 && self.below(calls) == 0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }
}

fn carry_out(names: &mut BTreeMap<String, u64>, change: Change) {
    match change {
        Change::Link { name, inode } => {
            names.insert(name, inode);
        }
        Change::Rename { from, to, inode } => {
            if names.get(&from) == Some(&inode) {
                names.remove(&from);
            }
            names.insert(to, inode);
        }
        Change::Unlink { name } => {
            names.remove(&name);
        }
    }
}

fn failure(of: &str) -> io::Error {
    io::Error::other(format!("a simulated failure of a {of}"))
}

const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Debug)]
struct Piece {
    at: u64,
    bytes: Vec<u8>,
    /// True if a sync of this write has failed. No later sync makes the write durable, unless its sector is written
    /// again.
    is_doomed: bool,
}

impl Piece {
    fn sector(&self) -> u64 {
        self.at / SECTOR_BYTES
    }
}

#[derive(Debug, Default)]
pub(super) struct File {
    content: Vec<u8>,
    durable: Vec<u8>,
    pieces: Vec<Piece>,
}

impl File {
    pub(super) fn durable(content: Vec<u8>) -> Self {
        Self {
            durable: content.clone(),
            content,
            pieces: Vec::new(),
        }
    }

    pub(super) fn content(&self) -> &[u8] {
        &self.content
    }

    pub(super) fn len(&self) -> u64 {
        self.content.len() as u64
    }

    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let rest = self.content.get(at as usize..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        count
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        put(&mut self.content, at, bytes);
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let count = (SECTOR_BYTES - at % SECTOR_BYTES).min(rest.len() as u64);
            let (piece, later) = rest.split_at(count as usize);
            self.pieces.push(Piece {
                at,
                bytes: piece.to_vec(),
                is_doomed: false,
            });
            at += count;
            rest = later;
        }
    }

    /// Makes the writes since the last sync durable. A sector is written with its current content, so a later write to
    /// the sector also makes a doomed write durable.
    pub(super) fn sync(&mut self) {
        let fresh = self.pieces.iter().filter(|piece| !piece.is_doomed);
        let sectors: BTreeSet<u64> = fresh.map(Piece::sector).collect();
        for sector in &sectors {
            let at = sector * SECTOR_BYTES;
            let end = (at + SECTOR_BYTES).min(self.len()) as usize;
            put(&mut self.durable, at, &self.content[at as usize..end]);
        }
        self.pieces
            .retain(|piece| !sectors.contains(&piece.sector()));
    }

    pub(super) fn fail_sync(&mut self) {
        self.pieces
            .iter_mut()
            .for_each(|piece| piece.is_doomed = true);
    }

    pub(super) fn crash(&mut self, keep: &mut impl FnMut() -> bool) {
        for piece in self.pieces.drain(..) {
            if keep() {
                put(&mut self.durable, piece.at, &piece.bytes);
            }
        }
        self.content.clone_from(&self.durable);
    }

    pub(super) fn flip(&mut self, at: u64, bits: u8) {
        for content in [&mut self.content, &mut self.durable] {
            if let Some(byte) = content.get_mut(at as usize) {
                *byte ^= bits;
            }
        }
    }
}

fn put(content: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}
