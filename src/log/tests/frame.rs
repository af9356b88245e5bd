//! A frame comes back whole or not at all.

use super::*;
use crate::log::codec::Malformed;
use crate::log::frame::{Batch, HEAD_BYTES, Head, Link, mark};

const LINK: Link = Link {
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
        // Each of the two ends with its distance, date, session and kind.
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
