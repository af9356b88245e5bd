//! Headers, the first 64 bytes of each file of a store: `magic 8 | version u32 | crc32 u32`, then 48 bytes that depend
//! on the file. The checksum covers everything except itself.
//!
//! The magic, the version and the checksum have the same positions in every version, so that a newer file is not
//! mistaken for a damaged one.

use std::path::PathBuf;

use crc32fast::Hasher;

use super::codec::Reader;
use crate::model::error::Error;

pub(crate) const HEADER_BYTES: usize = 64;

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
    pub(super) fn reason(self, kind: &str) -> String {
        match self {
            Self::Magic => format!("it does not begin as {kind} does"),
            other => other.to_string(),
        }
    }

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

/// Fills in the common part of a header. Call this after writing the other fields.
pub(super) fn seal(bytes: &mut [u8; HEADER_BYTES], magic: [u8; 8], version: u32) {
    bytes[..8].copy_from_slice(&magic);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let crc = header_crc(bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

pub(crate) fn header_crc(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&bytes[..12]);
    hasher.update(&bytes[16..]);
    hasher.finalize()
}
