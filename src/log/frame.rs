//! Frames, which store the batches of a segment, and the [`Scanner`] that reads them. Each frame is written with one
//! write and one sync.
//!
//! Each frame states which frames were synced when it was written. So recovery can distinguish a damaged frame from a
//! frame that was lost in a power failure before it was acknowledged.

use crc32fast::hash;

use super::codec::{Malformed, Reader, Record, put_record, put_txn, read_record};
use super::disk::{Disk, DiskFile, damaged, failed};
use super::segment::{FORMAT_VERSION, HEADER_BYTES, Header, log_name};
use crate::core::Txn;
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;

pub(crate) const HEAD_BYTES: usize = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    crc: u32,
    /// Size of the records after the head in bytes. A frame of size 0 is a *mark*, which the next frame overwrites.
    pub(crate) payload_bytes: usize,
    /// Number of the frame, counted from 1 over all segments without gaps.
    pub(crate) chain: u64,
    /// Number of the last frame that was known to be synced when this frame was written.
    pub(crate) synced: u64,
    /// The zxids of the first and the last transaction in the frame. If there is none, both are the last zxid before
    /// the frame.
    pub(crate) first: Zxid,
    pub(crate) last: Zxid,
}

impl Head {
    /// Parses the head of a frame in a segment with this salt. Returns `None` if the bytes do not have the salt. Only
    /// [`is_whole`](Self::is_whole) proves that the bytes are a frame.
    pub(crate) fn parse(bytes: &[u8; HEAD_BYTES], salt: u64) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let crc = reader.u32().ok()?;
        let payload_bytes = reader.u32().ok()? as usize;
        let found = reader.u64().ok()?;
        let head = Self {
            crc,
            payload_bytes,
            chain: reader.u64().ok()?,
            synced: reader.u64().ok()?,
            first: Zxid(reader.i64().ok()?),
            last: Zxid(reader.i64().ok()?),
        };
        (found == salt).then_some(head)
    }

    pub(crate) fn is_whole(&self, frame: &[u8]) -> bool {
        // The checksum also covers the salt, the number and the length. So it detects a torn write over an older frame,
        // which mixes parts of both frames.
        frame.len() == self.frame_bytes() && hash(&frame[4..]) == self.crc
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        HEAD_BYTES + self.payload_bytes
    }

    pub(crate) fn is_mark(&self) -> bool {
        self.payload_bytes == 0
    }

    pub(crate) fn records<E: From<Malformed>>(
        &self,
        frame: &[u8],
        mut each: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut reader = Reader::new(frame.get(HEAD_BYTES..).unwrap_or_default());
        let mut last = None;
        while !reader.is_empty() {
            let record = read_record(&mut reader, self.first)?;
            if let Record::Txn(txn) = &record {
                let expected = match last {
                    None => txn.zxid == self.first,
                    Some(last) => txn.zxid > last,
                };
                if !expected {
                    return Err(Malformed("its zxids are out of order").into());
                }
                last = Some(txn.zxid);
            }
            each(record)?;
        }
        if last.is_some_and(|last| last != self.last) {
            return Err(Malformed("its last zxid differs from the one in its header").into());
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameChain {
    pub(crate) salt: u64,
    pub(crate) chain: u64,
    pub(crate) synced: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    first: Option<Zxid>,
    last: Zxid,
}

impl Batch {
    pub(crate) fn begin(&mut self, after: Zxid) {
        self.bytes.clear();
        self.bytes.resize(HEAD_BYTES, 0);
        self.first = None;
        self.last = after;
    }

    pub(crate) fn push(&mut self, txn: &Txn) {
        debug_assert!(txn.zxid > self.last, "{} after {}", txn.zxid, self.last);
        let first = *self.first.get_or_insert(txn.zxid);
        self.last = txn.zxid;
        put_txn(&mut self.bytes, txn, first);
    }

    pub(crate) fn push_record(&mut self, record: &Record) {
        match record {
            Record::Txn(txn) => self.push(txn),
            fact => put_record(&mut self.bytes, fact, self.last),
        }
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.bytes.len().max(HEAD_BYTES)
    }

    /// Returns the last zxid in the batch. If it has no transaction, returns the last zxid before the batch.
    pub(crate) fn last(&self) -> Zxid {
        self.last
    }

    /// Writes the head and returns the whole frame. A batch gets its position in the log only when it is written, so
    /// the link is passed only here. A second call replaces the head.
    pub(crate) fn seal(&mut self, link: FrameChain) -> &[u8] {
        if self.bytes.is_empty() {
            self.begin(self.last);
        }
        let first = self.first.unwrap_or(self.last);
        seal(&mut self.bytes, link, first, self.last);
        &self.bytes
    }
}

/// Encodes a mark, which states that all frames up to number `link.synced` are synced.
pub(crate) fn mark(link: FrameChain, last: Zxid) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    seal(&mut bytes, link, last, last);
    bytes
}

fn seal(frame: &mut [u8], link: FrameChain, first: Zxid, last: Zxid) {
    let payload_bytes = (frame.len() - HEAD_BYTES) as u32;
    frame[4..8].copy_from_slice(&payload_bytes.to_le_bytes());
    frame[8..16].copy_from_slice(&link.salt.to_le_bytes());
    frame[16..24].copy_from_slice(&link.chain.to_le_bytes());
    frame[24..32].copy_from_slice(&link.synced.to_le_bytes());
    frame[32..40].copy_from_slice(&first.0.to_le_bytes());
    frame[40..48].copy_from_slice(&last.0.to_le_bytes());
    let crc = hash(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
}

const WINDOW_BYTES: usize = 1 << 20;

pub(crate) struct Scanner<'a> {
    disk: &'a dyn Disk,
    name: String,
    file: Box<dyn DiskFile>,
    header: Header,
    /// The length of the file in bytes. A truncated file is shorter than its header states.
    length: u64,
    window: Vec<u8>,
    from: u64,
}

impl<'a> Scanner<'a> {
    /// Opens segment `number` of a store.
    ///
    /// # Errors
    /// `StoreDamaged` if the file is too short or has another segment's header, `StoreTooNew`, and `StoreFailed` if it
    /// cannot be read.
    pub(crate) fn open(disk: &'a dyn Disk, number: u64, store: &[u8; 16]) -> Result<Self> {
        let segment = Self::open_any_length(disk, number, store)?;
        segment.check_length()?;
        Ok(segment)
    }

    /// Works like [`open`](Self::open), but accepts a truncated file.
    pub(crate) fn open_any_length(
        disk: &'a dyn Disk,
        number: u64,
        store: &[u8; 16],
    ) -> Result<Self> {
        let name = log_name(number);
        let fail = |error| failed(disk.path(&name), "cannot be read", &error);
        let file = disk.open(&name).map_err(fail)?;
        let length = file.len().map_err(fail)?;
        let header = Header::read(&*file).map_err(fail)?;
        let header =
            header.map_err(|bad| bad.error(disk.path(&name), "a segment", FORMAT_VERSION))?;
        let damage = |offset, reason| Err(damaged(disk, &name, offset, reason));
        if header.number != number {
            let reason = format!("its header is that of segment {}", header.number);
            return damage(0, reason);
        }
        if header.store != *store {
            return damage(0, "it belongs to another store".into());
        }
        Ok(Self {
            disk,
            name,
            file,
            header,
            length,
            window: Vec::new(),
            from: 0,
        })
    }

    /// Opens a segment with an unreadable header, using the salt of its first frame. Returns `None` if that frame is
    /// not whole.
    pub(crate) fn open_by_first_frame(
        disk: &'a dyn Disk,
        number: u64,
        store: &[u8; 16],
    ) -> Result<Option<Self>> {
        let name = log_name(number);
        let fail = |error| failed(disk.path(&name), "cannot be read", &error);
        let file = disk.open(&name).map_err(fail)?;
        let length = file.len().map_err(fail)?;
        let mut salt = [0; 8];
        // The salt is at offset 8 of a head.
        file.read_at(Self::FIRST + 8, &mut salt).map_err(fail)?;
        let header = Header {
            salt: u64::from_le_bytes(salt),
            number,
            size: length,
            store: *store,
        };
        let mut segment = Self {
            disk,
            name: name.clone(),
            file,
            header,
            length,
            window: Vec::new(),
            from: 0,
        };
        let is_whole = segment.frame_at(Self::FIRST)?.is_some();
        Ok(is_whole.then_some(segment))
    }

    pub(crate) fn check_length(&self) -> Result<()> {
        if self.length >= self.header.size {
            return Ok(());
        }
        let size = self.header.size;
        let reason = format!("it is truncated: it should have {size} bytes");
        Err(self.damaged(self.length, reason))
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn damaged(&self, offset: u64, reason: impl ToString) -> Error {
        damaged(self.disk, &self.name, offset, reason)
    }

    pub(crate) fn frame_at(&mut self, at: u64) -> Result<Option<(Head, &[u8])>> {
        let Some(head) = self.head_at(at)? else {
            return Ok(None);
        };
        let size = head.frame_bytes();
        let bytes = self.bytes(at, size)?;
        let frame = bytes.get(..size).filter(|frame| head.is_whole(frame));
        Ok(frame.map(|frame| (head, frame)))
    }

    /// Returns the head of a possible frame. Ignores a head whose frame would not end within the segment, because the
    /// writer never writes such a frame, and because a wrong length must not make us allocate more than the segment's
    /// size.
    pub(crate) fn head_at(&mut self, at: u64) -> Result<Option<Head>> {
        let Header { salt, size, .. } = self.header;
        let bytes = self.bytes(at, HEAD_BYTES)?;
        let head = bytes.first_chunk();
        let head = head.and_then(|bytes| Head::parse(bytes, salt));
        Ok(head.filter(|head| at + head.frame_bytes() as u64 <= size))
    }

    /// Returns true if nothing was written at this offset, or only a mark.
    pub(crate) fn is_free(&mut self, at: u64) -> Result<bool> {
        if let Some((head, _)) = self.frame_at(at)? {
            return Ok(head.is_mark());
        }
        let bytes = self.bytes(at, HEAD_BYTES)?;
        Ok(bytes.iter().take(HEAD_BYTES).all(|byte| *byte == 0))
    }

    /// Calls `each` for every possible frame head from `at` on, even within another frame. Passes the offset, the head,
    /// and whether the frame is whole.
    pub(crate) fn survey(
        &mut self,
        mut at: u64,
        mut each: impl FnMut(u64, Head, bool) -> Result<()>,
    ) -> Result<()> {
        let salt = self.header.salt.to_le_bytes();
        loop {
            let bytes = self.bytes(at, HEAD_BYTES)?;
            if bytes.len() < HEAD_BYTES {
                return Ok(());
            }
            let Some(skipped) = bytes[8..].windows(8).position(|found| found == salt) else {
                // A head that starts in the last 15 bytes has no whole salt in this window, so the next window starts
                // there.
                at += bytes.len() as u64 - 15;
                continue;
            };
            at += skipped as u64;
            if let Some(head) = self.head_at(at)? {
                let is_whole = self.frame_at(at)?.is_some();
                each(at, head, is_whole)?;
            }
            // Advance by only one byte, because the length of a torn frame may be wrong and make us skip intact frames.
            at += 1;
        }
    }

    /// Returns at least `count` bytes, unless the segment ends earlier.
    fn bytes(&mut self, at: u64, count: usize) -> Result<&[u8]> {
        let end = (at + count as u64).min(self.header.size);
        if at < self.from || end > self.from + self.window.len() as u64 {
            self.fill(at, count.max(WINDOW_BYTES))?;
        }
        let skipped = (at - self.from).min(self.window.len() as u64);
        Ok(&self.window[skipped as usize..])
    }

    fn fill(&mut self, at: u64, count: usize) -> Result<()> {
        // Allocate no more bytes than the file has, because the size in a truncated file's header and the length in a
        // frame's head may be larger.
        let left = self.header.size.min(self.length).saturating_sub(at);
        self.window.resize(left.min(count as u64) as usize, 0);
        self.from = at;
        let read = self.file.read_at(at, &mut self.window);
        let read =
            read.map_err(|error| failed(self.disk.path(&self.name), "cannot be read", &error))?;
        self.window.truncate(read);
        Ok(())
    }

    pub(crate) const FIRST: u64 = HEADER_BYTES;
}
