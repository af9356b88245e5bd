//! Recovery of undamaged logs.

use super::*;
use crate::log::frame::Batch;
use crate::log::recovery::{Facts, LogSource, Start, Tail, read_up_to};

#[test]
fn every_transaction_comes_back_in_order() {
    for is_used in [false, true] {
        let disk = fresh(is_used);
        let log = recorded(&disk);
        let (txns, recovered) = recovered(&disk).unwrap();
        assert_eq!(txns, log.txns);
        assert_eq!(recovered.txns, txns.len() as u64);
        assert_eq!(recovered.frames, log.places.len() as u64);
        assert_eq!(recovered.facts.chain, log.places.len() as u64);
        assert_eq!(recovered.facts.zxid, log.zxid());
        let last = log.places.last().unwrap();
        let tail = Tail {
            segment: last.segment,
            offset: last.to,
        };
        assert_eq!(recovered.tail, Some(tail));
        assert_eq!(recovered.segments, [header(0), header(1), header(2)]);
        assert_eq!(recovered.stale_frames, [], "the mark is no stale");
        goes_on(&disk, "whole");
    }
}

#[test]
fn a_folder_without_segments_is_an_empty_log() {
    let (txns, recovered) = recovered(&SimDisk::new()).unwrap();
    assert_eq!(txns, []);
    assert_eq!(recovered.tail, None);
    assert_eq!(recovered.facts, Facts::default());
}

#[test]
fn reading_changes_nothing() {
    let disk = fresh(true);
    recorded(&disk);
    let before = disk.counts();
    recovered(&disk).unwrap();
    assert_eq!(disk.counts(), before);
}

#[test]
fn files_of_other_names_are_left_alone() {
    let disk = fresh(false);
    let log = recorded(&disk);
    for name in ["log-7", "LOCK", "snapshot.new", "spare-0000000000000009"] {
        disk.put(name, vec![1; 100]);
    }
    assert_eq!(recovered(&disk).unwrap().0, log.txns);
}

#[test]
fn facts_are_the_largest_and_the_clean_end_the_last() {
    let disk = fresh(false);
    let mut log = recorded(&disk);
    let mut put = |records: &[Record]| {
        let mut batch = Batch::default();
        batch.begin(log.zxid());
        records.iter().for_each(|record| batch.push_record(record));
        log.put(batch);
        let facts = recovered(&disk).unwrap().1.facts;
        (facts.epoch, facts.longest_timeout_ms, facts.is_clean)
    };
    let timeout = |ms| Record::LongestTimeout { ms };
    assert_eq!(put(&[Record::Epoch(7), timeout(9_000)]), (7, 9_000, false));
    assert_eq!(put(&[timeout(4_000), Record::Clean]), (7, 9_000, true));
    assert_eq!(put(&[Record::Epoch(8)]), (8, 9_000, false));
    assert_eq!(put(&[Record::Clean, Record::Epoch(6)]), (8, 9_000, false));
}

#[test]
fn reading_starts_where_a_snapshot_ends() {
    let disk = fresh(true);
    let log = recorded(&disk);
    let (of_first, of_second): (Vec<_>, Vec<_>) =
        log.places.iter().partition(|place| place.segment == 0);
    let known = of_first.last().unwrap();
    let all = LogSource {
        disk: &disk,
        store: STORE,
        start: Start::default(),
    };
    let mut txns = Vec::new();
    let mut keep = |txn| {
        txns.push(txn);
        Ok(())
    };
    let facts = read_up_to(&all, of_first.len() as u64, &mut keep).unwrap();
    assert_eq!(txns, log.txns[..known.txns]);
    assert_eq!(facts.zxid, txns.last().unwrap().zxid);

    disk.remove(&log_name(0)).unwrap();
    let start = Start { segment: 1, facts };
    let rest = LogSource { start, ..all };
    let mut txns = Vec::new();
    let recovered = crate::log::recovery::recover(&rest, &mut |txn| {
        txns.push(txn);
        Ok(())
    });
    assert_eq!(txns, log.txns[known.txns..]);
    assert_eq!(recovered.unwrap().frames, of_second.len() as u64);
}

#[test]
fn a_frame_may_fill_its_segment_and_not_go_beyond() {
    let log = |bytes: u64| {
        let disk = fresh(false);
        let mut log = Writing::open(&disk).unwrap();
        let mut batch = Batch::default();
        batch.begin(Zxid(0));
        while (batch.frame_bytes() as u64) < bytes {
            batch.push_record(&Record::Clean);
        }
        log.put(batch);
        log.sync();
        disk
    };
    let full = log(SIZE - 64);
    let read = recovered(&full).unwrap().1;
    assert_eq!((read.frames, read.tail.unwrap().offset), (1, SIZE));
    let beyond = fresh(false);
    let mut head = log(SIZE - 64).content("log-0000000000000000").unwrap();
    head[64 + 4..64 + 8].copy_from_slice(&0xffff_ff00_u32.to_le_bytes());
    beyond.put("log-0000000000000000", head);
    assert_eq!(recovered(&beyond).unwrap().1.frames, 0);
}
