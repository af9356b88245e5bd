//! Snapshots: the whole content of a store at one zxid in one file. A backup has the same format with another magic.
//!
//! A file is a header of 64 bytes followed by chunks: `crc32 u32 | length u32 | payload`. The payload is a sequence of
//! whole records. A chunk has no maximum length, because the log of an earlier version may contain a znode of any size.
//! The last record has the numbers of sessions and znodes. A file without this record is incomplete.

mod record;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use crc32fast::hash;

use self::record::{
    Counts, DeltaBase, Record, put_end, put_facts, put_node, put_session, read_record,
};
use super::codec::{Malformed, Reader};
use super::disk::{DiskFile, failed};
use super::header::{self, BadHeader, HEADER_BYTES};
use super::recovery::{Facts, Start};
use super::segment::hex;
use crate::core::{Core, Damage, HIGHEST};
use crate::model::error::Error;
use crate::model::types::Zxid;

/// Format 1 has no session terms.
pub(crate) const FORMAT_VERSION: u32 = 2;

pub(crate) const UNFINISHED: &str = "snapshot.new";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Snapshot,
    Backup,
}

impl Form {
    fn magic(self) -> [u8; 8] {
        match self {
            Self::Snapshot => *b"LKSNAP\0\x01",
            Self::Backup => *b"LKBACK\0\x01",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Snapshot => "a snapshot",
            Self::Backup => "a backup",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) store: [u8; 16],
    /// Point where the log continues, and the facts known there.
    pub(crate) start: Start,
    pub(crate) made: u32,
}

impl Head {
    pub(crate) fn encode(&self, form: Form) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[16..32].copy_from_slice(&self.store);
        let Start { segment, facts } = self.start;
        bytes[32..40].copy_from_slice(&facts.zxid.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&segment.to_le_bytes());
        bytes[48..56].copy_from_slice(&facts.chain.to_le_bytes());
        bytes[56..60].copy_from_slice(&facts.epoch.to_le_bytes());
        bytes[60..].copy_from_slice(&self.made.to_le_bytes());
        header::seal(&mut bytes, form.magic(), FORMAT_VERSION);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], form: Form) -> Result<Self, Unreadable> {
        let parsed = header::parse(bytes, form.magic(), FORMAT_VERSION);
        let (_, mut reader) = parsed.map_err(|bad| match bad {
            BadHeader::TooNew(version) => Unreadable::TooNew { version },
            bad => Unreadable::damaged(0, bad.reason(form.title())),
        })?;
        let store = reader.array()?;
        let zxid = Zxid(reader.i64()?);
        if !(0..=HIGHEST).contains(&zxid.0) {
            return Err(Unreadable::damaged(32, "the zxid is out of range"));
        }
        let segment = reader.u64()?;
        let facts = Facts {
            zxid,
            chain: reader.u64()?,
            epoch: reader.u32()?,
            ..Facts::default()
        };
        Ok(Self {
            store,
            start: Start { segment, facts },
            made: reader.u32()?,
        })
    }

    /// Reads the header of a file. The timeouts, the completeness and the clean close are in the first chunk instead.
    pub(crate) fn read(file: &dyn DiskFile, form: Form) -> Result<Self, Unreadable> {
        let mut bytes = [0; HEADER_BYTES];
        let read = file.read_at(0, &mut bytes)?;
        Self::decode(&bytes[..read], form)
    }
}

#[derive(Debug)]
pub(crate) enum Unreadable {
    Io(io::Error),
    Ended(io::Error),
    TooNew { version: u32 },
    Damaged { offset: u64, reason: String },
}

impl Unreadable {
    pub(super) fn damaged(offset: u64, reason: impl Into<String>) -> Self {
        Self::Damaged {
            offset,
            reason: reason.into(),
        }
    }

    pub(crate) fn of(self, file: PathBuf) -> Error {
        match self {
            Self::Io(error) => failed(file, "cannot be read", &error),
            Self::Ended(error) => Error::StoreFailed {
                path: file,
                reason: error.to_string(),
            },
            Self::TooNew { version } => Error::StoreTooNew {
                file,
                version,
                known: FORMAT_VERSION,
            },
            Self::Damaged { offset, reason } => Error::StoreDamaged {
                file,
                offset,
                reason,
            },
        }
    }
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Malformed> for Unreadable {
    fn from(malformed: Malformed) -> Self {
        Self::damaged(0, malformed.0)
    }
}

impl From<Damage> for Unreadable {
    fn from(damage: Damage) -> Self {
        Self::damaged(0, damage.0)
    }
}

pub(crate) fn snapshot_name(zxid: Zxid) -> String {
    format!("snapshot-{:016x}", zxid.0)
}

pub(crate) fn snapshot_zxid(name: &str) -> Option<Zxid> {
    let zxid = hex(name.strip_prefix("snapshot-")?)?;
    i64::try_from(zxid).ok().map(Zxid)
}

/// A chunk is written once it has this many bytes. A record is never split, so a chunk may be larger.
const FULL_CHUNK_BYTES: usize = 128 << 10;

/// The file is synced after this many bytes, because a single sync at the end would delay the log's syncs and the
/// clients that wait for them.
const SYNC_EVERY_BYTES: u64 = 256 << 10;

const CHUNK_HEAD_BYTES: usize = 8;

/// Writes a snapshot of `core` into an empty file and syncs the file. Returns its size in bytes. Calls `pause` after
/// each full chunk, and stops if `pause` returns an error.
pub(crate) fn write(
    file: &dyn DiskFile,
    form: Form,
    head: &Head,
    core: &Core,
    pause: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<u64> {
    file.write_at(0, &head.encode(form))?;
    let mut chunks = ChunkWriter::new(file);
    let counts = Counts {
        sessions: core.session_images().count() as u64,
        nodes: core.node_count() as u64,
    };
    put_facts(&mut chunks.bytes, &head.start.facts, counts);
    for session in core.session_images() {
        put_session(&mut chunks.bytes, &session);
        chunks.flush_if_full(pause)?;
    }
    let mut before = DeltaBase::default();
    for node in core.node_images() {
        put_node(&mut chunks.bytes, &node, &mut before);
        if chunks.flush_if_full(pause)? {
            // The next chunk starts with a complete znode, so that it can be decoded separately.
            before.reset();
        }
    }
    put_end(&mut chunks.bytes, counts);
    chunks.flush()?;
    // Sync before the caller gives the file its final name, because a file with this name must be complete even after a
    // power loss.
    file.sync()?;
    Ok(chunks.at)
}

struct ChunkWriter<'a> {
    file: &'a dyn DiskFile,
    at: u64,
    synced: u64,
    bytes: Vec<u8>,
}

impl<'a> ChunkWriter<'a> {
    fn new(file: &'a dyn DiskFile) -> Self {
        let mut bytes = Vec::with_capacity(FULL_CHUNK_BYTES + FULL_CHUNK_BYTES / 4);
        bytes.resize(CHUNK_HEAD_BYTES, 0);
        Self {
            file,
            at: HEADER_BYTES as u64,
            synced: 0,
            bytes,
        }
    }

    fn flush_if_full(&mut self, pause: &mut dyn FnMut() -> io::Result<()>) -> io::Result<bool> {
        if self.bytes.len() < FULL_CHUNK_BYTES {
            return Ok(false);
        }
        self.flush()?;
        if self.at - self.synced >= SYNC_EVERY_BYTES {
            self.file.sync()?;
            self.synced = self.at;
        }
        pause()?;
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<()> {
        let payload_bytes = self.bytes.len() - CHUNK_HEAD_BYTES;
        let length = u32::try_from(payload_bytes).map_err(|_| {
            io::Error::other(format!(
                "a chunk of {payload_bytes} bytes, and its length has 32 bits"
            ))
        })?;
        self.bytes[4..8].copy_from_slice(&length.to_le_bytes());
        let crc = hash(&self.bytes[4..]);
        self.bytes[..4].copy_from_slice(&crc.to_le_bytes());
        self.file.write_at(self.at, &self.bytes)?;
        self.at += self.bytes.len() as u64;
        self.bytes.truncate(CHUNK_HEAD_BYTES);
        Ok(())
    }
}

const MIN_NODE_BYTES: u64 = 15;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(crate) head: Head,
    pub(crate) bytes: u64,
}

/// Loads a snapshot into a new core. Calls `pause` after each chunk, and returns an error of `pause` as
/// [`Unreadable::Ended`]. After any error, `core` has only the records before the error, and only an inspection may use
/// it.
pub(crate) fn load(
    file: &dyn DiskFile,
    form: Form,
    core: &mut Core,
    pause: &mut dyn FnMut() -> io::Result<()>,
) -> Result<Loaded, Unreadable> {
    let mut head = Head::read(file, form)?;
    let zxid = head.start.facts.zxid;
    let file_bytes = file.len()?;
    let mut loading = Loading {
        core,
        zxid,
        file_bytes,
        facts: None,
        expected: Counts::default(),
        found: Counts::default(),
        is_over: false,
    };
    let mut chunks = ChunkReader {
        file,
        at: HEADER_BYTES as u64,
        length: file_bytes,
        bytes: Vec::new(),
    };
    let mut before = DeltaBase::default();
    let result = loop {
        let at = chunks.at;
        match chunks.next() {
            Ok(None) => break loading.end(at),
            Ok(Some(payload)) => {
                before.reset();
                let taken = loading.chunk(payload, at, &mut before);
                if let Err(error) = taken.and_then(|()| pause().map_err(Unreadable::Ended)) {
                    break Err(error);
                }
            }
            Err(error) => break Err(error),
        }
    };
    loading.core.finish_restore(zxid);
    let Facts {
        chain, zxid, epoch, ..
    } = head.start.facts;
    head.start.facts = Facts {
        chain,
        zxid,
        epoch,
        ..result?
    };
    Ok(Loaded {
        head,
        bytes: file_bytes,
    })
}

struct Loading<'a> {
    core: &'a mut Core,
    zxid: Zxid,
    file_bytes: u64,
    facts: Option<Facts>,
    expected: Counts,
    found: Counts,
    is_over: bool,
}

impl Loading<'_> {
    fn chunk(&mut self, payload: &[u8], at: u64, before: &mut DeltaBase) -> Result<(), Unreadable> {
        let mut reader = Reader::new(payload);
        while !reader.is_empty() {
            let offset = at + (CHUNK_HEAD_BYTES + payload.len() - reader.left()) as u64;
            let here = |error| match error {
                Unreadable::Damaged { reason, .. } => Unreadable::damaged(offset, reason),
                other => other,
            };
            read_record(&mut reader, before)
                .map_err(Unreadable::from)
                .and_then(|record| self.take(record))
                .map_err(here)?;
        }
        Ok(())
    }

    fn take(&mut self, record: Record) -> Result<(), Unreadable> {
        let out_of_order = || Unreadable::damaged(0, "its records are out of order");
        if self.is_over || self.facts.is_none() != matches!(record, Record::Facts { .. }) {
            return Err(out_of_order());
        }
        match record {
            Record::Facts { facts, counts } => {
                self.facts = Some(facts);
                self.expected = counts;
                // A wrong count in a damaged file must not make us allocate more than the file could hold.
                let most = counts.nodes.min(self.file_bytes / MIN_NODE_BYTES);
                self.core.reserve(most as usize);
            }
            Record::Session(session) => {
                // All sessions must precede the znodes, because the core refuses an ephemeral znode without its owner.
                if self.found.nodes > 0 {
                    return Err(out_of_order());
                }
                self.found.sessions += 1;
                self.core.restore_session(session)?;
            }
            Record::Node(node) => {
                let latest = node.czxid.max(node.mzxid).max(node.pzxid);
                // A znode newer than the snapshot is damage, because the log after the snapshot would apply the same
                // change again.
                if latest > self.zxid {
                    let reason = format!("{} of {latest}, after the snapshot's zxid", node.path);
                    return Err(Unreadable::damaged(0, reason));
                }
                self.found.nodes += 1;
                self.core.restore_node(node)?;
            }
            Record::End(counts) => {
                self.is_over = true;
                if counts != self.found || counts != self.expected {
                    return Err(Unreadable::damaged(0, "its counts are wrong"));
                }
            }
        }
        Ok(())
    }

    fn end(&self, at: u64) -> Result<Facts, Unreadable> {
        self.facts
            .filter(|_| self.is_over)
            .ok_or_else(|| Unreadable::damaged(at, "the file ends before the snapshot does"))
    }
}

struct ChunkReader<'a> {
    file: &'a dyn DiskFile,
    at: u64,
    length: u64,
    bytes: Vec<u8>,
}

impl ChunkReader<'_> {
    fn next(&mut self) -> Result<Option<&[u8]>, Unreadable> {
        let at = self.at;
        let damaged = |reason: &str| Unreadable::damaged(at, reason);
        let left = self.length.saturating_sub(at);
        if left == 0 {
            return Ok(None);
        }
        let mut head = [0; CHUNK_HEAD_BYTES];
        if self.file.read_at(at, &mut head)? < CHUNK_HEAD_BYTES {
            return Err(damaged("the file ends before the snapshot does"));
        }
        let [c0, c1, c2, c3, l0, l1, l2, l3] = head;
        let crc = u32::from_le_bytes([c0, c1, c2, c3]);
        let payload_bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let chunk_bytes = CHUNK_HEAD_BYTES + payload_bytes;
        if chunk_bytes as u64 > left {
            return Err(damaged("the file ends within a chunk"));
        }
        self.bytes.resize(chunk_bytes, 0);
        if self.file.read_at(at, &mut self.bytes)? < chunk_bytes {
            return Err(damaged("the file ends within a chunk"));
        }
        if hash(&self.bytes[4..]) != crc {
            return Err(damaged("a chunk's checksum is wrong"));
        }
        self.at += chunk_bytes as u64;
        Ok(Some(&self.bytes[CHUNK_HEAD_BYTES..]))
    }
}
