//! Tests that a frame is read back completely or not at all.

use std::io;
use std::path::PathBuf;

use super::*;
use crate::log::codec::Malformed;
use crate::log::disk::{Disk, DiskFile, FileIdentity};
use crate::log::frame::{Batch, FrameChain, HEAD_BYTES, Head, Scanner, mark};
use crate::log::segment::{Header, log_name};
use crate::log::sim::SimDisk;

const LINK: FrameChain = FrameChain {
    salt: 77,
    chain: 3,
    synced: 2,
};

fn batch() -> Batch {
    let mut batch = Batch::default();
    batch.begin(Zxid(6));
    for record in records() {
        batch.push_record(&record);
    }
    batch
}

fn parse(frame: &[u8]) -> Option<Head> {
    let head = frame.first_chunk::<HEAD_BYTES>()?;
    Head::parse(head, LINK.salt).filter(|head| head.is_whole(frame))
}

fn read(frame: &[u8]) -> Result<Vec<Record>, Malformed> {
    let mut records = Vec::new();
    parse(frame).unwrap().records(frame, |record| {
        records.push(record);
        Ok::<_, Malformed>(())
    })?;
    Ok(records)
}

#[test]
fn a_frame_comes_back() {
    let mut batch = batch();
    let frame = batch.seal(LINK).to_vec();
    assert_eq!(frame.len(), batch.frame_bytes());
    let head = parse(&frame).unwrap();
    assert_eq!((head.chain, head.synced), (LINK.chain, LINK.synced));
    assert_eq!(head.first, Zxid(7));
    assert_eq!(head.last, Zxid(6 + ops().len() as i64));
    assert_eq!(head.last, batch.last());
    assert!(!head.is_mark());
    assert_eq!(read(&frame), Ok(records()));
}

#[test]
fn a_frame_of_no_transactions_has_the_zxid_before_it() {
    let mut batch = Batch::default();
    batch.begin(Zxid(6));
    assert_eq!(batch.frame_bytes(), HEAD_BYTES);
    batch.push_record(&Record::Epoch(5));
    assert!(batch.frame_bytes() > HEAD_BYTES);
    let frame = batch.seal(LINK).to_vec();
    let head = parse(&frame).unwrap();
    assert_eq!((head.first, head.last), (Zxid(6), Zxid(6)));
    assert_eq!(read(&frame), Ok(vec![Record::Epoch(5)]));
}

#[test]
fn a_mark_is_a_frame_of_nothing() {
    let mark = mark(LINK, Zxid(6));
    let head = parse(&mark).unwrap();
    assert!(head.is_mark());
    assert_eq!((head.synced, head.last), (2, Zxid(6)));
    assert_eq!(read(&mark), Ok(vec![]));
}

#[test]
fn no_frame_survives_a_change_of_any_bit() {
    let frame = batch().seal(LINK).to_vec();
    for at in 0..frame.len() {
        for bit in 0..8 {
            let mut changed = frame.clone();
            changed[at] ^= 1 << bit;
            assert_eq!(parse(&changed), None, "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn a_frame_of_another_salt_is_none() {
    let frame = batch().seal(LINK).to_vec();
    let head = frame.first_chunk().unwrap();
    assert_eq!(Head::parse(head, LINK.salt + 1), None);
}

#[test]
fn zxids_out_of_order_are_refused_though_the_checksum_is_right() {
    let one = |zxid| txn(zxid, TxnOp::Check);
    for (first, second) in [(9, 8), (8, 8)] {
        let mut batch = Batch::default();
        batch.begin(Zxid(6));
        batch.push(&one(7));
        batch.push(&one(10));
        let mut frame = batch.seal(LINK).to_vec();
        let size = (frame.len() - HEAD_BYTES) / 2;
        frame[HEAD_BYTES + 1] = first - 7;
        frame[HEAD_BYTES + size + 1] = second - 7;
        reseal(&mut frame);
        assert!(read(&frame).is_err());
    }
}

fn reseal(frame: &mut [u8]) {
    let crc = crc32fast::hash(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
}

struct Narrow(SimDisk);

struct NarrowFile(Box<dyn DiskFile>);

impl Disk for Narrow {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NarrowFile(self.0.open(name)?)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }
}

impl DiskFile for NarrowFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        assert!(into.len() <= 1 << 20, "a buffer of {} bytes", into.len());
        self.0.read_at(at, into)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        self.0.identity()
    }
}

#[test]
fn the_length_of_a_frame_allocates_no_more_than_a_truncated_file_has() {
    let header = Header {
        salt: LINK.salt,
        number: 0,
        size: 1 << 40,
        store: *b"sixteen letters.",
    };
    let mut segment = header.encode().to_vec();
    let mut batch = batch();
    segment.extend_from_slice(batch.seal(LINK));
    let length = 64_u32 << 20;
    let at = Scanner::FIRST as usize + 4;
    segment[at..at + 4].copy_from_slice(&length.to_le_bytes());
    let disk = SimDisk::new();
    disk.put(&log_name(0), segment);
    let disk = Narrow(disk);
    let mut scanner = Scanner::open_any_length(&disk, 0, &header.store).unwrap();
    assert!(scanner.frame_at(Scanner::FIRST).unwrap().is_none());
}
