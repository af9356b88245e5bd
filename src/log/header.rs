//! Headers: the first 64 bytes of each file of a store. Magic, version and checksum have the same place in every kind of
//! file and in every later version, so that a newer file is told from a damaged one.
//!
//! `magic 8 | version u32 | crc32 u32`, then 48 bytes of the file's own. The checksum covers all but itself.

use std::path::PathBuf;

use crc32fast::Hasher;

use super::codec::Reader;
use crate::model::error::Error;

/// Size of a header, in bytes.
pub(crate) const HEADER_BYTES: usize = 64;

/// Error of a file whose first bytes are no header of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadHeader {
    #[error("the file ends within its header of {HEADER_BYTES} bytes")]
    Short,
    #[error("the file does not begin with the magic of its kind")]
    Magic,
    #[error("the checksum of the header is wrong")]
    Checksum,
    #[error("the format {0} is newer than this build")]
    TooNew(u32),
}

impl BadHeader {
    /// Returns the reason for people; `kind` names the expected file.
    pub(super) fn reason(self, kind: &str) -> String {
        match self {
            Self::Magic => format!("it does not begin as {kind} does"),
            other => other.to_string(),
        }
    }

    /// Returns the error of a file with this header; `newest` is the newest known version of its format.
    pub(super) fn error(self, file: PathBuf, kind: &str, newest: u32) -> Error {
        match self {
            Self::TooNew(version) => Error::StoreTooNew {
                file,
                version,
                known: newest,
            },
            bad => Error::StoreDamaged {
                file,
                offset: 0,
                reason: bad.reason(kind),
            },
        }
    }
}

/// Checks the common part of a header. Returns its version, and a reader of the file's own part.
///
/// In this order: the checksum of a newer version has the same place, so a newer header is reported as such only if it
/// is intact.
pub(super) fn parse(
    bytes: &[u8],
    magic: [u8; 8],
    newest: u32,
) -> Result<(u32, Reader<'_>), BadHeader> {
    let short = |_| BadHeader::Short;
    let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(BadHeader::Short)?;
    let mut reader = Reader::new(bytes);
    if reader.array().map_err(short)? != magic {
        return Err(BadHeader::Magic);
    }
    let version = reader.u32().map_err(short)?;
    if reader.u32().map_err(short)? != header_crc(bytes) {
        return Err(BadHeader::Checksum);
    }
    if version > newest {
        return Err(BadHeader::TooNew(version));
    }
    Ok((version, reader))
}

/// Fills in the common part of a header, whose other fields are written.
pub(super) fn seal(bytes: &mut [u8; HEADER_BYTES], magic: [u8; 8], version: u32) {
    bytes[..8].copy_from_slice(&magic);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let crc = header_crc(bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the checksum of a header.
pub(crate) fn header_crc(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&bytes[..12]);
    hasher.update(&bytes[16..]);
    hasher.finalize()
}
