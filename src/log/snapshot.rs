//! Snapshots: all that a store holds at one zxid, in one file. A backup is one, too, under another
//! magic.
//!
//! A header of 64 bytes, then chunks: `crc32 u32 | length u32 | payload`. The payload is records,
//! one after another, none of them split: the log of an earlier version may have taken a znode of any
//! size, so the file alone bounds a chunk. The last record of a file is its end, with the counts of
//! all that came before: without it the file is not whole.

mod load;
mod record;
#[cfg(test)]
mod tests;
mod write;

use std::io;
use std::path::PathBuf;

use super::codec::{Malformed, Reader};
use super::disk::DiskFile;
use super::recovery::{Facts, Start};
use super::segment::{header_crc, hex};
use crate::core::Damage;
use crate::error::Error;
use crate::types::Zxid;

pub(crate) use self::load::{Loaded, load};
pub(crate) use self::write::write;

/// The version of the format of snapshots and backups. The first knows nothing of the terms of sessions.
pub(crate) const FORMAT_VERSION: u32 = 2;

/// The bytes before the first chunk.
pub(crate) const HEADER_BYTES: usize = 64;

/// The file that becomes a snapshot when it is whole and synced.
pub(crate) const UNFINISHED: &str = "snapshot.new";

/// Far beyond what a store ever counts to.
const HIGHEST: i64 = 1 << 62;

/// What a file of this format is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A file of a data directory.
    Snapshot,
    /// A file by itself.
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

/// What a snapshot says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The store that it is of.
    pub(crate) store: [u8; 16],
    /// Where the log goes on that is not in it, and what is known there.
    pub(crate) start: Start,
    /// When it was made, in units of 4.096 s since 1970: the epoch of the clock.
    pub(crate) made: u32,
}

impl Head {
    pub(crate) fn encode(&self, form: Form) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&form.magic());
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.store);
        let Start { segment, facts } = self.start;
        bytes[32..40].copy_from_slice(&facts.zxid.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&segment.to_le_bytes());
        bytes[48..56].copy_from_slice(&facts.chain.to_le_bytes());
        bytes[56..60].copy_from_slice(&facts.epoch.to_le_bytes());
        bytes[60..].copy_from_slice(&self.made.to_le_bytes());
        let crc = header_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Magic, version and checksum stand in the same place in every version to come.
    pub(crate) fn decode(bytes: &[u8], form: Form) -> Result<Self, Unreadable> {
        let damaged = |offset, reason: &str| Unreadable::damaged(offset, reason);
        let bytes: &[u8; HEADER_BYTES] = bytes
            .first_chunk()
            .ok_or_else(|| damaged(0, "the file ends before its header does"))?;
        let mut reader = Reader::new(bytes);
        if reader.array()? != form.magic() {
            let reason = format!("it does not begin as {} does", form.title());
            return Err(damaged(0, &reason));
        }
        let version = reader.u32()?;
        if reader.u32()? != header_crc(bytes) {
            return Err(damaged(0, "the header's checksum is wrong"));
        }
        if version > FORMAT_VERSION {
            return Err(Unreadable::TooNew { version });
        }
        let store = reader.array()?;
        let zxid = Zxid(reader.i64()?);
        if !(0..=HIGHEST).contains(&zxid.0) {
            return Err(damaged(32, "there is no such zxid"));
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

    /// Reads the header of a file. It leaves out of the facts what is known of timeouts and sessions, and whether
    /// the store was closed in order: these stand in the first chunk.
    pub(crate) fn read(file: &dyn DiskFile, form: Form) -> Result<Self, Unreadable> {
        let mut bytes = [0; HEADER_BYTES];
        let read = file.read_at(0, &mut bytes)?;
        Self::decode(&bytes[..read], form)
    }
}

/// Why a snapshot cannot be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Io(io::Error),
    /// Whoever asked for it wants it no more.
    Ended(io::Error),
    /// It was written by a later version.
    TooNew {
        version: u32,
    },
    Damaged {
        offset: u64,
        reason: String,
    },
}

impl Unreadable {
    fn damaged(offset: u64, reason: impl Into<String>) -> Self {
        Self::Damaged {
            offset,
            reason: reason.into(),
        }
    }

    /// The same, said of a file.
    pub(crate) fn of(self, file: PathBuf) -> Error {
        match self {
            Self::Io(error) | Self::Ended(error) => Error::StoreFailed {
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

/// Whoever reads a chunk adds where it is.
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

/// The name of a snapshot.
pub(crate) fn snapshot_name(zxid: Zxid) -> String {
    format!("snapshot-{:016x}", zxid.0)
}

/// The zxid in a [`snapshot_name`].
pub(crate) fn snapshot_zxid(name: &str) -> Option<Zxid> {
    let zxid = hex(name.strip_prefix("snapshot-")?)?;
    i64::try_from(zxid).ok().map(Zxid)
}
