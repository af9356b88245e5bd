//! Segments, the files of a log. A segment is filled with zeros before use, so writing a frame neither changes the
//! file's length nor allocates a block. The `fdatasync` after a frame therefore writes only the frame, and succeeds
//! even if the disk is full (invariant 12).

use std::io;

use super::codec::Malformed;
use super::disk::{Disk, DiskFile, publish};
use super::frame::HEAD_BYTES;
use super::header::{self, BadHeader};
use crate::model::size::MAX_TXN_BYTES;
use crate::runtime::platform::random;

pub(crate) const HEADER_BYTES: u64 = header::HEADER_BYTES as u64;

pub(crate) const FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"LKLOG\0\0\x01";

pub(crate) const UNFINISHED: &str = "segment.new";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Random number that is new for each use of the file. All frames repeat this salt, so a frame from an earlier use
    /// is never read as a frame of this use. Clients do not know the salt, so they cannot write data that looks like a
    /// frame.
    pub(crate) salt: u64,
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) store: [u8; 16],
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.size.to_le_bytes());
        bytes[40..56].copy_from_slice(&self.store);
        header::seal(&mut bytes, MAGIC, FORMAT_VERSION);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let (_, mut reader) = header::parse(bytes, MAGIC, FORMAT_VERSION)?;
        let short = |_: Malformed| BadHeader::Short;
        Ok(Self {
            salt: reader.u64().map_err(short)?,
            number: reader.u64().map_err(short)?,
            size: reader.u64().map_err(short)?,
            store: reader.array().map_err(short)?,
        })
    }

    pub(crate) fn read(file: &dyn DiskFile) -> io::Result<Result<Self, BadHeader>> {
        let mut bytes = [0; HEADER_BYTES as usize];
        let read = file.read_at(0, &mut bytes)?;
        Ok(Self::decode(&bytes[..read]))
    }
}

pub(crate) fn new_salt() -> u64 {
    without_zero_bytes(u64::from_ne_bytes(random()))
}

/// Replaces each zero byte with 1. Recovery erases frames by writing zeros. Because a salt has no zero byte, a search
/// never finds a salt that overlaps erased bytes.
fn without_zero_bytes(salt: u64) -> u64 {
    u64::from_ne_bytes(salt.to_ne_bytes().map(|byte| byte.max(1)))
}

pub(crate) fn log_name(number: u64) -> String {
    format!("log-{number:016x}")
}

pub(crate) fn spare_name(number: u64) -> String {
    format!("spare-{number:016x}")
}

pub(crate) fn log_number(name: &str) -> Option<u64> {
    hex(name.strip_prefix("log-")?)
}

pub(crate) fn spare_number(name: &str) -> Option<u64> {
    hex(name.strip_prefix("spare-")?)
}

/// Parses sixteen lowercase hex digits. Other spellings are refused, so that no two names have the same number.
pub(crate) fn hex(digits: &str) -> Option<u64> {
    let is_ours = digits.len() == 16
        && digits
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    is_ours.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// Creates a segment full of zeros, durably. An incomplete segment has a temporary name, and is removed when the store
/// is next opened.
pub(crate) fn make(disk: &dyn Disk, header: &Header) -> io::Result<Box<dyn DiskFile>> {
    let file = disk.create(UNFINISHED)?;
    write_zeros(&*file, 0, header.size)?;
    put_to_use(disk, file, UNFINISHED, header)
}

/// Reuses a former segment's file, durably. If the file has another length, returns `None` and leaves the file
/// unchanged.
///
/// A crash may leave the spare file with a new or torn header. This is harmless, because only the length of a spare
/// file matters.
pub(crate) fn reuse(
    disk: &dyn Disk,
    spare: &str,
    header: &Header,
) -> io::Result<Option<Box<dyn DiskFile>>> {
    let file = disk.open(spare)?;
    if file.len()? != header.size {
        return Ok(None);
    }
    put_to_use(disk, file, spare, header).map(Some)
}

fn put_to_use(
    disk: &dyn Disk,
    file: Box<dyn DiskFile>,
    name: &str,
    header: &Header,
) -> io::Result<Box<dyn DiskFile>> {
    file.write_at(0, &header.encode())?;
    // Sync before the rename, because recovery refuses a segment without a valid header.
    file.sync()?;
    // Make the name durable before the first frame is written, because the sync of a frame does not cover the name. If
    // a power loss restored the old name, an acknowledged frame would be lost.
    publish(disk, name, &log_name(header.number))?;
    Ok(file)
}

/// Writes real zeros instead of leaving a hole, so that the file system allocates the blocks while we can still report
/// a full disk.
pub(crate) fn write_zeros(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    static ZEROS: [u8; 1 << 18] = [0; 1 << 18];
    let mut at = from;
    while at < to {
        let count = (to - at).min(ZEROS.len() as u64);
        file.write_at(at, &ZEROS[..count as usize])?;
        at += count;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) first_segment: u64,
    pub(crate) largest_segment: u64,
    /// A batch of this many bytes or more takes no further transactions.
    pub(crate) largest_batch: usize,
    pub(crate) largest_txn: usize,
    /// Bytes of room that are kept for deletes and for the store's own changes.
    pub(crate) reserve: usize,
}

impl Sizes {
    pub(crate) const fn new(first_segment: u64, largest_segment: u64) -> Self {
        let eighth = (first_segment / 8) as usize;
        let mebibyte = 1 << 20;
        Self {
            first_segment,
            largest_segment,
            largest_batch: min(eighth, mebibyte),
            // The largest batch and the largest transaction together take less than half of the smallest segment, so
            // every frame fits into every segment.
            largest_txn: min(2 * eighth, MAX_TXN_BYTES),
            reserve: min(eighth, mebibyte),
        }
    }

    /// Returns how many bytes of batches are guaranteed to fit after `offset`. The rest of the segment may be too small
    /// for the next batch.
    pub(crate) fn usable(&self, size: u64, offset: u64) -> u64 {
        let unusable = self.largest_batch + self.largest_txn + 2 * HEAD_BYTES;
        size.saturating_sub(offset).saturating_sub(unusable as u64)
    }

    pub(crate) fn after(&self, size: u64) -> u64 {
        (2 * size).clamp(self.first_segment, self.largest_segment)
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self::new(16 << 20, 64 << 20)
    }
}

const fn min(one: usize, other: usize) -> usize {
    if one < other { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::segment::HEADER_BYTES;

    #[test]
    fn an_erased_place_is_no_part_of_a_salt() {
        assert_eq!(without_zero_bytes(0), 0x0101_0101_0101_0101);
        assert_eq!(
            without_zero_bytes(0x5a17_0000_ff00_0002),
            0x5a17_0101_ff01_0102
        );
        assert_eq!(without_zero_bytes(u64::MAX), u64::MAX);
        for _ in 0..1_000 {
            assert!(!new_salt().to_ne_bytes().contains(&0));
        }
    }

    #[test]
    fn the_largest_frame_fits_into_any_segment() {
        for first in [1 << 16, 100_000, 1 << 20, 16 << 20, 1 << 30] {
            let sizes = Sizes::new(first, first);
            let frame = HEAD_BYTES + sizes.largest_batch + sizes.largest_txn;
            let end = HEADER_BYTES as usize + frame + HEAD_BYTES;
            assert!(end <= first as usize / 2, "{sizes:?}");
        }
    }
}
