//! [`Scanner`]: reads the frames of a segment, and finds those that stand where none should.

use super::disk::{Disk, DiskFile};
use super::frame::{HEAD_BYTES, Head};
use super::segment::{HEADER_BYTES, Header, log_name};
use super::trouble::{bad_header, damaged, failed};
use crate::error::{Error, Result};

/// How much is read at a time, in bytes, unless a frame is larger.
const WINDOW_BYTES: usize = 1 << 20;

/// A segment that is read.
pub(crate) struct Scanner<'a> {
    disk: &'a dyn Disk,
    name: String,
    file: Box<dyn DiskFile>,
    header: Header,
    /// The bytes from `from` on.
    window: Vec<u8>,
    from: u64,
}

impl<'a> Scanner<'a> {
    /// Opens segment `number` of a store.
    ///
    /// # Errors
    /// `StoreDamaged` where the file is too short or its header not that of this segment,
    /// `StoreTooNew`, and `StoreFailed` where it cannot be read.
    pub(crate) fn open(disk: &'a dyn Disk, number: u64, store: &[u8; 16]) -> Result<Self> {
        let name = log_name(number);
        let fail = |error| failed(disk.path(&name), "cannot be read", &error);
        let file = disk.open(&name).map_err(fail)?;
        let len = file.len().map_err(fail)?;
        let header = Header::read(&*file).map_err(fail)?;
        let header = header.map_err(|bad| bad_header(disk, &name, bad))?;
        let damage = |offset, reason| Err(damaged(disk, &name, offset, reason));
        if header.number != number {
            let reason = format!("the header is that of segment {}", header.number);
            return damage(0, reason);
        }
        if header.store != *store {
            return damage(0, "it belongs to another store".into());
        }
        if len < header.size {
            let reason = format!("it is truncated: it should have {} bytes", header.size);
            return damage(len, reason);
        }
        Ok(Self {
            disk,
            name,
            file,
            header,
            window: Vec::new(),
            from: 0,
        })
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// An error of this file.
    pub(crate) fn damaged(&self, offset: u64, reason: impl ToString) -> Error {
        damaged(self.disk, &self.name, offset, reason)
    }

    /// The frame that begins at a place, if it is whole.
    pub(crate) fn frame_at(&mut self, at: u64) -> Result<Option<(Head, &[u8])>> {
        let Some(head) = self.head_at(at)? else {
            return Ok(None);
        };
        let size = head.frame_bytes();
        let bytes = self.bytes(at, size)?;
        let frame = bytes.get(..size).filter(|frame| head.is_whole(frame));
        Ok(frame.map(|frame| (head, frame)))
    }

    /// Returns what looks like the head of a frame of this segment, and of one that ends within it.
    /// The writer writes no other: so whatever it has written is read, and no length allocates more
    /// than the segment has.
    pub(crate) fn head_at(&mut self, at: u64) -> Result<Option<Head>> {
        let Header { salt, size, .. } = self.header;
        let bytes = self.bytes(at, HEAD_BYTES)?;
        let head = bytes.first_chunk();
        let head = head.and_then(|bytes| Head::parse(bytes, salt));
        Ok(head.filter(|head| at + head.frame_bytes() as u64 <= size))
    }

    /// Whether nothing was ever written at a place, or only a mark, which the next frame overwrites.
    pub(crate) fn is_free(&mut self, at: u64) -> Result<bool> {
        if let Some((head, _)) = self.frame_at(at)? {
            return Ok(head.is_mark());
        }
        let bytes = self.bytes(at, HEAD_BYTES)?;
        Ok(bytes.iter().take(HEAD_BYTES).all(|byte| *byte == 0))
    }

    /// Finds all that looks like the head of a frame of this segment, from `at` to the end, also
    /// within another frame; each with whether the frame is whole.
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
            // The salt is 8 bytes into a head.
            let Some(skipped) = bytes[8..].windows(8).position(|found| found == salt) else {
                at += bytes.len() as u64 - 15;
                continue;
            };
            at += skipped as u64;
            if let Some(head) = self.head_at(at)? {
                let is_whole = self.frame_at(at)?.is_some();
                each(at, head, is_whole)?;
            }
            at += 1;
        }
    }

    /// The bytes from `at` on: at least `count`, unless the segment ends before.
    fn bytes(&mut self, at: u64, count: usize) -> Result<&[u8]> {
        let end = (at + count as u64).min(self.header.size);
        if at < self.from || end > self.from + self.window.len() as u64 {
            self.fill(at, count.max(WINDOW_BYTES))?;
        }
        let skipped = (at - self.from).min(self.window.len() as u64);
        Ok(&self.window[skipped as usize..])
    }

    fn fill(&mut self, at: u64, count: usize) -> Result<()> {
        let left = self.header.size.saturating_sub(at);
        self.window.resize(left.min(count as u64) as usize, 0);
        self.from = at;
        let read = self.file.read_at(at, &mut self.window);
        let read =
            read.map_err(|error| failed(self.disk.path(&self.name), "cannot be read", &error))?;
        self.window.truncate(read);
        Ok(())
    }

    /// Where the first frame stands.
    pub(crate) const FIRST: u64 = HEADER_BYTES;
}
