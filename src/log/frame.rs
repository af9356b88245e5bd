//! Frames: the batches of a segment, each written by one write and made durable by one sync.
//!
//! A frame says how far the log was synced when it was written. So if it is whole and one before it
//! is not, recovery can tell: one that was synced has been damaged since; one that was not is lost
//! with what follows it, and nobody was told of either.

use crc32fast::hash;

use super::codec::{Malformed, Reader, Record, put_record, put_txn, read_record};
use crate::core::Txn;
use crate::types::Zxid;

/// The bytes before the payload.
pub(crate) const HEAD_BYTES: usize = 48;

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    crc: u32,
    /// Bytes of the records that follow, which end within the segment; 0 makes the frame a *mark*: the
    /// next frame of the segment takes its number and its place.
    pub(crate) payload_bytes: usize,
    /// The number of its kind over all segments, from 1, without gaps.
    pub(crate) chain: u64,
    /// The last frame that was known to be synced when this one was written.
    pub(crate) synced: u64,
    /// The first and the last zxid in it; of one without transactions, twice the last before it.
    pub(crate) first: Zxid,
    pub(crate) last: Zxid,
}

impl Head {
    /// Looks whether a frame of a segment of this salt may begin here. Only
    /// [`is_whole`](Self::is_whole) says that it does. Its length is believed by nobody until it is
    /// known to end within the segment.
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

    /// Whether the checksum is right over the whole frame, head included.
    pub(crate) fn is_whole(&self, frame: &[u8]) -> bool {
        frame.len() == self.frame_bytes() && hash(&frame[4..]) == self.crc
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        HEAD_BYTES + self.payload_bytes
    }

    pub(crate) fn is_mark(&self) -> bool {
        self.payload_bytes == 0
    }

    /// Reads the records of a whole frame, in order.
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
            return Err(Malformed("its last zxid is not the one it names").into());
        }
        Ok(())
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The segment's.
    pub(crate) salt: u64,
    /// The frame's own number.
    pub(crate) chain: u64,
    /// See [`Head::synced`].
    pub(crate) synced: u64,
}

/// A frame in the making. Its buffer is kept from one frame to the next.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Room for the head, then the records.
    bytes: Vec<u8>,
    first: Option<Zxid>,
    last: Zxid,
}

impl Batch {
    /// Begins a frame that follows `after`, the last zxid in the log.
    pub(crate) fn begin(&mut self, after: Zxid) {
        self.bytes.clear();
        self.bytes.resize(HEAD_BYTES, 0);
        self.first = None;
        self.last = after;
    }

    /// Adds a transaction; its zxid is above all before it.
    pub(crate) fn push(&mut self, txn: &Txn) {
        debug_assert!(txn.zxid > self.last, "{} after {}", txn.zxid, self.last);
        let first = *self.first.get_or_insert(txn.zxid);
        self.last = txn.zxid;
        put_txn(&mut self.bytes, txn, first);
    }

    /// Adds any record.
    pub(crate) fn push_record(&mut self, record: &Record) {
        match record {
            Record::Txn(txn) => self.push(txn),
            fact => put_record(&mut self.bytes, fact, self.last),
        }
    }

    /// How many bytes the frame takes so far.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.bytes.len().max(HEAD_BYTES)
    }

    /// The last zxid in it or, without transactions, before it.
    pub(crate) fn last(&self) -> Zxid {
        self.last
    }

    /// Writes the head, and gives the whole frame. May be called again with another link.
    pub(crate) fn seal(&mut self, link: Link) -> &[u8] {
        if self.bytes.is_empty() {
            self.begin(self.last);
        }
        let first = self.first.unwrap_or(self.last);
        seal(&mut self.bytes, link, first, self.last);
        &self.bytes
    }
}

/// A mark: says, where the next frame will be, that all up to `link.synced` is synced.
pub(crate) fn mark(link: Link, last: Zxid) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    seal(&mut bytes, link, last, last);
    bytes
}

fn seal(frame: &mut [u8], link: Link, first: Zxid, last: Zxid) {
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
