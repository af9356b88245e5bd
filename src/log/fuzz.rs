//! Entry points of the fuzzers, which read any bytes as a frame or as the files of a log. Accepted bytes must have
//! consistent content and survive a round trip.

mod backups;
mod corpus;
mod snapshots;

use std::ops::Range;
use std::time::Duration;

pub(crate) use backups::{backup, backups};
#[cfg(feature = "simulation")]
pub(crate) use corpus::Inputs;
pub(crate) use corpus::{frames, logs};
pub(crate) use snapshots::{snapshot, snapshots};

use super::codec::{Malformed, Record};
use super::disk::Disk;
use super::frame::{Batch, FrameChain, HEAD_BYTES, Head};
use super::header::header_crc;
use super::recovery::{self, Content};
use super::segment::{HEADER_BYTES, log_name};
use super::sim::SimDisk;
use crate::core::{Core, CoreOptions, Limits};
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;

const STORE: [u8; 16] = *b"a store's own id";

const MAX_SEGMENTS: u64 = 4;

/// Flag to correct the checksums of a log before it is read, because hardly any fuzzer input has valid checksums.
const FIX_CHECKSUMS: u8 = 1;

const SALT: Range<usize> = 16..24;

/// Reads bytes as a frame with a corrected checksum. Returns true for a valid frame, whose records must survive a round
/// trip.
pub(crate) fn frame(bytes: &[u8]) -> bool {
    let mut frame = bytes.to_vec();
    let Some(head) = with_valid_checksums(&mut frame) else {
        return false;
    };
    let Ok(records) = records(&head, &frame) else {
        return false;
    };
    let mut batch = Batch::default();
    batch.begin(if head.first > Zxid(0) {
        Zxid(head.first.0 - 1)
    } else {
        return true;
    });
    records.iter().for_each(|record| batch.push_record(record));
    let link = FrameChain {
        salt: 1,
        chain: head.chain,
        synced: head.synced,
    };
    let again = batch.seal(link);
    let head = again
        .first_chunk()
        .and_then(|head| Head::parse(head, link.salt))
        .expect("a frame that was written begins with a head");
    assert!(head.is_whole(again));
    assert_eq!(self::records(&head, again).as_ref(), Ok(&records));
    true
}

fn with_valid_checksums(frame: &mut [u8]) -> Option<Head> {
    let payload = u32::try_from(frame.len().checked_sub(HEAD_BYTES)?).ok()?;
    frame[4..8].copy_from_slice(&payload.to_le_bytes());
    let crc = crc32fast::hash(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    let salt = u64::from_le_bytes(*frame[8..].first_chunk()?);
    let head = Head::parse(frame.first_chunk()?, salt)?;
    assert!(head.is_whole(frame));
    Some(head)
}

fn records(head: &Head, frame: &[u8]) -> Result<Vec<Record>, Malformed> {
    let mut records = Vec::new();
    head.records(frame, |record| {
        records.push(record);
        Ok::<_, Malformed>(())
    })?;
    Ok(records)
}

pub(crate) fn recovery(bytes: &[u8]) -> bool {
    let Some(disk) = disk_of(bytes) else {
        return false;
    };
    let first = match read(&disk) {
        Ok(content) => content,
        Err(Error::StoreDamaged { .. } | Error::StoreTooNew { .. }) => return false,
        Err(other) => panic!("bytes alone do no such thing: {other}"),
    };
    let repaired = first.recovered.repair(&disk);
    repaired.expect("the disk does not fail");
    let second = read(&disk).expect("what is repaired can be read");
    let mut stale_frames = second.recovered.stale_frames.iter();
    assert_eq!(stale_frames.find(|stale| stale.is_whole), None);
    assert_same(&first, &second);
    if goes_on(&disk, &second) {
        let third = read(&disk).expect("what goes on can be read");
        assert_eq!(third.recovered.frames, second.recovered.frames + 1);
        assert!(third.core.node_images().eq(second.core.node_images()));
    }
    true
}

fn read(disk: &SimDisk) -> Result<Content> {
    recovery::read(disk, STORE, &|| Core::new(options()))
}

fn assert_same(one: &Content, other: &Content) {
    let (a, b) = (&one.recovered, &other.recovered);
    assert_eq!((a.facts, a.tail), (b.facts, b.tail));
    assert_eq!((a.frames, a.txns), (b.frames, b.txns));
    assert!(one.core.node_images().eq(other.core.node_images()));
    assert!(one.core.session_images().eq(other.core.session_images()));
}

fn goes_on(disk: &SimDisk, content: &Content) -> bool {
    let facts = content.recovered.facts;
    let Some(tail) = content.recovered.tail else {
        return false;
    };
    let mut headers = content.recovered.segments.iter();
    let header = headers.find(|header| header.number == tail.segment);
    let header = header.expect("the tail's segment was read");
    let mut batch = Batch::default();
    batch.begin(facts.zxid);
    batch.push_record(&Record::Epoch(facts.epoch));
    let frame = batch.seal(FrameChain {
        salt: header.salt,
        chain: facts.chain + 1,
        synced: facts.chain,
    });
    if tail.offset + frame.len() as u64 > header.size {
        return false;
    }
    let file = disk.open(&log_name(tail.segment));
    let written = file.and_then(|file| file.write_at(tail.offset, frame));
    written.expect("the disk does not fail");
    true
}

#[cfg(feature = "simulation")]
pub(crate) fn directory(is_backup: bool, bytes: &[u8]) -> Option<SimDisk> {
    if is_backup {
        return backups::restored(bytes);
    }
    let disk = disk_of(bytes)?;
    super::identity::write(&disk, STORE, false).expect("the disk does not fail");
    Some(disk)
}

/// Returns a disk with these segments. Refuses a salt with a zero byte, because the store never chooses one.
fn disk_of(bytes: &[u8]) -> Option<SimDisk> {
    let (flags, mut rest) = bytes.split_first()?;
    let disk = SimDisk::new();
    for number in 0..MAX_SEGMENTS {
        let Some((length, after)) = rest.split_first_chunk() else {
            break;
        };
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (segment, after) = after.split_at(length);
        let mut segment = segment.to_vec();
        if segment.get(SALT).is_some_and(|salt| salt.contains(&0)) {
            return None;
        }
        if flags & FIX_CHECKSUMS != 0 {
            fix_checksums(&mut segment);
        }
        disk.put(&log_name(number), segment);
        rest = after;
    }
    Some(disk)
}

fn fix_checksums(segment: &mut [u8]) {
    let Some(header) = segment.first_chunk() else {
        return;
    };
    let crc = header_crc(header);
    segment[12..16].copy_from_slice(&crc.to_le_bytes());
    let salt: [u8; 8] = std::array::from_fn(|byte| segment[SALT.start + byte]);
    let mut rest = &mut segment[HEADER_BYTES as usize..];
    while rest.len() >= HEAD_BYTES {
        let payload: [u8; 4] = std::array::from_fn(|byte| rest[4 + byte]);
        if rest[8..16] != salt {
            return;
        }
        let end = HEAD_BYTES + u32::from_le_bytes(payload) as usize;
        let Some((frame, after)) = rest.split_at_mut_checked(end) else {
            return;
        };
        let crc = crc32fast::hash(&frame[4..]);
        frame[..4].copy_from_slice(&crc.to_le_bytes());
        rest = after;
    }
}

pub(crate) fn options() -> CoreOptions {
    CoreOptions {
        last_zxid: 0,
        tick: Duration::from_secs(2),
        shortest_timeout: Duration::from_secs(4),
        longest_timeout: Duration::from_secs(40),
        allow_ttl: true,
        reaper_interval: Duration::from_secs(60),
        unused_container: Duration::from_secs(300),
        limits: Limits {
            znodes: 1 << 20,
            bytes: 1 << 30,
            sessions: 1 << 10,
            watches_per_session: 1 << 10,
            txn_bytes: crate::model::size::MAX_TXN_BYTES,
        },
        hash_seed: 0,
        super_digest: None,
        not_queues: &[],
    }
}
