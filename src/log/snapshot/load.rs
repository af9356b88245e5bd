//! Loading a snapshot. Any bytes give a store or [`Unreadable`].

use std::io;

use crc32fast::hash;

use super::super::codec::Reader;
use super::super::disk::DiskFile;
use super::super::recovery::Facts;
use super::record::{self, Before, Counts, Past, Record};
use super::{Form, HEADER_BYTES, Head, Unreadable};
use crate::core::Core;
use crate::types::Zxid;

const CHUNK_HEAD_BYTES: usize = 8;

/// The least that a znode takes in a file.
const LEAST_NODE_BYTES: u64 = 15;

/// A snapshot that was loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(crate) head: Head,
    pub(crate) bytes: u64,
}

/// Loads a snapshot into a core that is new. After an error the core holds what came before the
/// place that the error names: good for a look, and nothing else. `pause` is called after each chunk;
/// an error of it ends the loading.
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
        past: None,
        expected: Counts::default(),
        found: Counts::default(),
        is_over: false,
    };
    let mut chunks = Chunks {
        file,
        at: HEADER_BYTES as u64,
        length: file_bytes,
        bytes: Vec::new(),
    };
    let mut before = Before::default();
    let result = loop {
        let at = chunks.at;
        match chunks.next() {
            Ok(None) => break loading.end(at),
            Ok(Some(payload)) => {
                before.forget();
                let taken = loading.chunk(payload, at, &mut before);
                if let Err(error) = taken.and_then(|()| pause().map_err(Unreadable::Ended)) {
                    break Err(error);
                }
            }
            Err(error) => break Err(error),
        }
    };
    loading.core.finish_restore(zxid);
    let past = result?;
    head.start.facts = Facts {
        longest_timeout_ms: past.longest_timeout_ms,
        is_clean: past.is_clean,
        custody: past.custody,
        allowed_timeout_ms: past.allowed_timeout_ms,
        ..head.start.facts
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
    past: Option<Past>,
    expected: Counts,
    found: Counts,
    is_over: bool,
}

impl Loading<'_> {
    fn chunk(&mut self, payload: &[u8], at: u64, before: &mut Before) -> Result<(), Unreadable> {
        let mut reader = Reader::new(payload);
        while !reader.is_empty() {
            let offset = at + (CHUNK_HEAD_BYTES + payload.len() - reader.left()) as u64;
            let here = |error| match error {
                Unreadable::Damaged { reason, .. } => Unreadable::damaged(offset, reason),
                other => other,
            };
            record::read(&mut reader, before)
                .map_err(Unreadable::from)
                .and_then(|record| self.take(record))
                .map_err(here)?;
        }
        Ok(())
    }

    fn take(&mut self, record: Record) -> Result<(), Unreadable> {
        let out_of_order = || Unreadable::damaged(0, "its records are out of order");
        if self.is_over || self.past.is_none() != matches!(record, Record::Facts { .. }) {
            return Err(out_of_order());
        }
        match record {
            Record::Facts { past, counts } => {
                self.past = Some(past);
                self.expected = counts;
                // Believed as far as the file has room for so many.
                let most = counts.nodes.min(self.file_bytes / LEAST_NODE_BYTES);
                self.core.reserve(most as usize);
            }
            Record::Session(session) => {
                if self.found.nodes > 0 {
                    return Err(out_of_order());
                }
                self.found.sessions += 1;
                self.core.restore_session(session)?;
            }
            Record::Node(node) => {
                let latest = node.czxid.max(node.mzxid).max(node.pzxid);
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

    fn end(&self, at: u64) -> Result<Past, Unreadable> {
        self.past
            .filter(|_| self.is_over)
            .ok_or_else(|| Unreadable::damaged(at, "the file ends before the snapshot does"))
    }
}

struct Chunks<'a> {
    file: &'a dyn DiskFile,
    at: u64,
    length: u64,
    bytes: Vec<u8>,
}

impl Chunks<'_> {
    /// The payload of the next chunk; `None` at the end of the file.
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
        // Before anything is allocated for it.
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
