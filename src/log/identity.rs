//! The file `STORE`, which contains the id of the store and distinguishes its directory from a copy.
//!
//! Its 64 bytes are: magic, format version u32, crc32 u32 over everything except itself, store id, then the device,
//! inode and birth time of this very file (u64 each), 1 if the directory has a log, and 7 zeros. A copy of the file has
//! another inode or birth time, unless the whole disk was copied.

use std::io;

use super::codec::Malformed;
use super::disk::{Disk, FileIdentity, failed, publish};
use super::header::{self, BadHeader, HEADER_BYTES};
use crate::model::error::Error;

pub(crate) const NAME: &str = "STORE";

pub(crate) const UNFINISHED: &str = "STORE.new";

pub(crate) const FORMAT_VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"LKSTORE1";

const BYTES: usize = HEADER_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) store: [u8; 16],
    /// True if the directory is a copy. Opening a copy skips all zxids that the original may have assigned since the
    /// copy was made ([`beyond`](super::epoch::beyond)).
    pub(crate) is_copied: bool,
    pub(crate) version: u32,
    /// True if the directory must contain a log. If the log is missing, content was lost, so the directory must not be
    /// opened as an empty store. Earlier versions leave this false.
    pub(crate) has_log: bool,
}

pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Identity>, Error> {
    let failed = |error: io::Error| failed(disk.path(NAME), "cannot be read", &error);
    let file = match disk.open(NAME) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut bytes = [0; BYTES];
    let read = file.read_at(0, &mut bytes).map_err(failed)?;
    let decoded = decode(&bytes[..read]);
    let (version, store, written, has_log) =
        decoded.map_err(|bad| bad.error(disk.path(NAME), "the file STORE", FORMAT_VERSION))?;
    Ok(Some(Identity {
        store,
        // Compare with the opened file, because the name may belong to another file by now.
        is_copied: file.identity().map_err(failed)? != written,
        version,
        has_log,
    }))
}

/// Writes the identity durably. Set `has_log` only once the log is durable.
pub(crate) fn write(disk: &dyn Disk, store: [u8; 16], has_log: bool) -> io::Result<()> {
    let file = disk.create(UNFINISHED)?;
    // The identity of the temporary file stays valid, because a rename keeps the inode.
    file.write_at(0, &encode(store, file.identity()?, has_log))?;
    file.sync()?;
    publish(disk, UNFINISHED, NAME)
}

fn encode(store: [u8; 16], file: FileIdentity, has_log: bool) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[16..32].copy_from_slice(&store);
    bytes[32..40].copy_from_slice(&file.device.to_le_bytes());
    bytes[40..48].copy_from_slice(&file.inode.to_le_bytes());
    bytes[48..56].copy_from_slice(&file.born_ns.to_le_bytes());
    bytes[56] = u8::from(has_log);
    header::seal(&mut bytes, MAGIC, FORMAT_VERSION);
    bytes
}

fn decode(bytes: &[u8]) -> Result<(u32, [u8; 16], FileIdentity, bool), BadHeader> {
    let (version, mut reader) = header::parse(bytes, MAGIC, FORMAT_VERSION)?;
    let short = |_: Malformed| BadHeader::Short;
    let store = reader.array().map_err(short)?;
    let file = FileIdentity {
        device: reader.u64().map_err(short)?,
        inode: reader.u64().map_err(short)?,
        born_ns: reader.u64().map_err(short)?,
    };
    let has_log = reader.u8().map_err(short)? != 0;
    Ok((version, store, file, has_log))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::disk::Folder;
    use crate::log::sim::SimDisk;
    use crate::log::testing::TempFolder;

    #[test]
    fn a_directory_knows_its_store() {
        let disk = SimDisk::new();
        assert_eq!(read(&disk), Ok(None));
        for (store, has_log) in [([7; 16], false), ([8; 16], true)] {
            write(&disk, store, has_log).unwrap();
            let (is_copied, version) = (false, FORMAT_VERSION);
            let known = Identity {
                store,
                is_copied,
                version,
                has_log,
            };
            assert_eq!(read(&disk), Ok(Some(known)));
        }
    }

    #[test]
    fn a_copied_directory_is_told_from_its_original() {
        let (original, copy) = (TempFolder::new(), TempFolder::new());
        let folder = Folder::new(original.path());
        write(&folder, [7; 16], false).unwrap();
        std::fs::copy(original.path().join(NAME), copy.path().join(NAME)).unwrap();
        assert!(!read(&folder).unwrap().unwrap().is_copied);
        let folder = Folder::new(copy.path());
        assert!(read(&folder).unwrap().unwrap().is_copied);
        write(&folder, [7; 16], false).unwrap();
        assert!(!read(&folder).unwrap().unwrap().is_copied);
    }

    #[test]
    fn a_moved_directory_is_no_copy() {
        let (from, to) = (TempFolder::new(), TempFolder::new());
        write(&Folder::new(from.path()), [7; 16], false).unwrap();
        let moved = to.path().join("moved");
        std::fs::rename(from.path(), &moved).unwrap();
        assert!(!read(&Folder::new(&moved)).unwrap().unwrap().is_copied);
    }

    #[test]
    fn the_same_inode_at_another_time_is_a_copy() {
        let then = FileIdentity {
            device: 1,
            inode: 2,
            born_ns: 3,
        };
        let (.., written, _) = decode(&encode([7; 16], then, true)).unwrap();
        assert_eq!(written, then);
        assert_ne!(written, FileIdentity { born_ns: 4, ..then });
    }

    #[test]
    fn a_crash_leaves_the_old_identity_or_the_new_one() {
        for seed in 0..64 {
            let disk = SimDisk::new();
            write(&disk, [7; 16], false).unwrap();
            let file = disk.create(UNFINISHED).unwrap();
            file.write_at(0, &encode([8; 16], file.identity().unwrap(), true))
                .unwrap();
            disk.crash(seed);
            assert_eq!(read(&disk).unwrap().unwrap().store, [7; 16], "seed {seed}");
            write(&disk, [9; 16], false).unwrap();
            disk.crash(seed);
            assert_eq!(read(&disk).unwrap().unwrap().store, [9; 16], "seed {seed}");
        }
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_noticed() {
        let file = FileIdentity {
            device: 1,
            inode: 2,
            born_ns: 3,
        };
        let good = encode([7; 16], file, true);
        let is_damaged =
            |decoded| matches!(decoded, Err(bad) if !matches!(bad, BadHeader::TooNew(_)));
        for at in 0..BYTES {
            let mut bytes = good;
            bytes[at] ^= 0x10;
            assert!(is_damaged(decode(&bytes)), "byte {at}");
            assert!(is_damaged(decode(&good[..at])));
        }
    }

    #[test]
    fn a_later_format_is_refused_and_both_versions_are_named() {
        let disk = SimDisk::new();
        write(&disk, [7; 16], false).unwrap();
        let mut bytes: [u8; BYTES] = disk.content(NAME).unwrap().try_into().unwrap();
        bytes[8] = FORMAT_VERSION as u8 + 1;
        let crc = header::header_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        disk.put(NAME, bytes.to_vec());
        let said = read(&disk).unwrap_err().to_string();
        assert!(
            said.contains("format 3") && said.contains("up to 2"),
            "{said}"
        );
    }
}
