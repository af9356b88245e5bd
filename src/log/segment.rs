//! Segments: the files that a log consists of. A segment is filled before it is used, with zeros or by its former use,
//! so that a frame written into it later changes no length and allocates no block: its `fdatasync` writes the frame
//! alone, and a full disk cannot fail it (invariant 12).

use std::io;

use super::codec::Malformed;
use super::disk::{Disk, DiskFile, publish};
use super::frame::HEAD_BYTES;
use super::header::{self, BadHeader};
use crate::model::size::MAX_TXN_BYTES;
use crate::runtime::random::random;

/// The bytes before the first frame.
pub(crate) const HEADER_BYTES: u64 = header::HEADER_BYTES as u64;

/// The version of the format of segments and frames.
pub(crate) const FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"LKLOG\0\0\x01";

/// The file that becomes a segment once it is filled and synced.
pub(crate) const UNFINISHED: &str = "segment.new";

/// Header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Random for each use of the file. Frames repeat it, so a frame of the file's former use is never read as one of
    /// this use. Known to the directory's owner alone: data of a client cannot imitate a frame.
    pub(crate) salt: u64,
    /// Segments are numbered from 0, without gaps.
    pub(crate) number: u64,
    /// The bytes of the file.
    pub(crate) size: u64,
    /// The store that it belongs to.
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

    /// Decodes a header.
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

    /// Reads the header of a file.
    pub(crate) fn read(file: &dyn DiskFile) -> io::Result<Result<Self, BadHeader>> {
        let mut bytes = [0; HEADER_BYTES as usize];
        let read = file.read_at(0, &mut bytes)?;
        Ok(Self::decode(&bytes[..read]))
    }
}

/// Draws the salt of a segment that is put to use.
pub(crate) fn new_salt() -> u64 {
    without_zero_bytes(u64::from_ne_bytes(random()))
}

/// Replaces each zero byte. Recovery erases remains of frames with zeros, which are no part of a salt without zeros: an
/// erased place never becomes a frame again, together with bytes around it.
fn without_zero_bytes(salt: u64) -> u64 {
    u64::from_ne_bytes(salt.to_ne_bytes().map(|byte| byte.max(1)))
}

/// Returns the name of a segment in use.
pub(crate) fn log_name(number: u64) -> String {
    format!("log-{number:016x}")
}

/// Returns the name of a segment that waits to be used again.
pub(crate) fn spare_name(number: u64) -> String {
    format!("spare-{number:016x}")
}

/// Returns the number in a [`log_name`].
pub(crate) fn log_number(name: &str) -> Option<u64> {
    hex(name.strip_prefix("log-")?)
}

/// Returns the number in a [`spare_name`].
pub(crate) fn spare_number(name: &str) -> Option<u64> {
    hex(name.strip_prefix("spare-")?)
}

/// Parses the sixteen lower-case digits of a name. Any other spelling is none of the store's files, so that no two
/// names stand for one number.
pub(crate) fn hex(digits: &str) -> Option<u64> {
    let is_ours = digits.len() == 16
        && digits
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    is_ours.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// Creates a segment as a new file full of zeros. It is durable when this returns.
///
/// Under another name until it is complete: a crash in between leaves a file that the next opening removes.
pub(crate) fn make(disk: &dyn Disk, header: &Header) -> io::Result<Box<dyn DiskFile>> {
    let file = disk.create(UNFINISHED)?;
    write_zeros(&*file, 0, header.size)?;
    put_to_use(disk, file, UNFINISHED, header)
}

/// Reuses a former segment's file as a segment. It is durable when this returns. Returns `None` for a file of another
/// length, which stays as it is.
///
/// A crash in between leaves a spare with another header, or a torn one: a spare is known by its length alone.
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

/// Puts a file to use as a segment.
fn put_to_use(
    disk: &dyn Disk,
    file: Box<dyn DiskFile>,
    name: &str,
    header: &Header,
) -> io::Result<Box<dyn DiskFile>> {
    file.write_at(0, &header.encode())?;
    // Before the rename: recovery refuses a segment without a valid header as damaged.
    file.sync()?;
    // Before the first frame: its sync covers the file, not the name, and an acknowledged frame in a file that has its
    // old name again would be lost.
    publish(disk, name, &log_name(header.number))?;
    Ok(file)
}

/// Writes zeros, not a hole: the file system must allocate the blocks now, while a full disk is still an error that can
/// be reported.
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

/// The limits of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Segments start at this size and double up to the largest.
    pub(crate) first_segment: u64,
    pub(crate) largest_segment: u64,
    /// A batch that is larger takes no more transactions.
    pub(crate) largest_batch: usize,
    /// The largest transaction: a larger one is refused before it is applied.
    pub(crate) largest_txn: usize,
    /// Room that is kept for deletes, and for the store's own changes.
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
            // Together with the batch that it completes, less than half of the smallest segment, so every frame fits
            // every segment; see the test below.
            largest_txn: min(2 * eighth, MAX_TXN_BYTES),
            reserve: min(eighth, mebibyte),
        }
    }

    /// Returns the bytes of a segment that batches can certainly use, from `offset` on. The rest may be too short for
    /// the next batch, which then goes into the next segment; so it does not count as room.
    pub(crate) fn usable(&self, size: u64, offset: u64) -> u64 {
        let unusable = self.largest_batch + self.largest_txn + 2 * HEAD_BYTES;
        size.saturating_sub(offset).saturating_sub(unusable as u64)
    }

    /// Returns the size of the segment after one of `size` bytes.
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

    /// A batch that no segment takes would stop the store (invariant 11).
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
