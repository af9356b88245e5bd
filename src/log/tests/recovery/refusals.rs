//! Tests that damaged logs are refused with the information that an operator needs.

use super::*;
use crate::core::Damage;
use crate::log::frame::Batch;
use crate::log::header::header_crc;
use crate::log::recovery::{Facts, LogSource, Start, read_up_to, recover};
use crate::log::segment::FORMAT_VERSION;

fn message(disk: &SimDisk) -> String {
    match recovered(disk) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was read"),
    }
}

#[test]
fn the_message_says_where_the_damage_is_and_what_to_do() {
    let disk = fresh(false);
    let log = recorded(&disk);
    let hit = &log.places[3];
    disk.flip(&log_name(0), hit.from + 60, 1);
    let message = message(&disk);
    for part in [
        "/sim/log-0000000000000000",
        &format!("at byte {}", hit.from),
        "frame 4 is missing here, and was synced",
        "lockkeeper inspect DIR",
        "lockkeeper restore FILE DIR",
        "lockkeeper salvage DIR NEW",
    ] {
        assert!(message.contains(part), "{part:?} in {message:?}");
    }
}

#[test]
fn a_missing_segment_is_named() {
    let disk = fresh(false);
    recorded(&disk);
    for number in [0, 1] {
        let disk = disk.copy();
        disk.remove(&log_name(number)).unwrap();
        assert_eq!(refused(&disk, "missing"), (log_name(number), 0));
    }
}

/// A snapshot is made only after the log has entered the next segment, so the next segment must exist.
#[test]
fn a_missing_segment_right_after_a_snapshot_is_named() {
    let disk = fresh(false);
    recorded(&disk);
    let after_snapshot = |chain| LogSource {
        disk: &disk,
        store: STORE,
        start: Start {
            segment: 1_000,
            facts: Facts {
                chain,
                ..Facts::default()
            },
        },
    };
    let refused = recover(&after_snapshot(7), &mut |_| Ok(())).unwrap_err();
    let Error::StoreDamaged { file, offset, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!((file, offset), (disk.path(&log_name(1_000)), 0));
    recover(&after_snapshot(0), &mut |_| Ok(())).unwrap();
}

#[test]
fn a_segment_under_the_name_of_another_is_refused() {
    let disk = fresh(false);
    recorded(&disk);
    disk.rename(&log_name(2), "aside").unwrap();
    disk.rename(&log_name(1), &log_name(2)).unwrap();
    disk.rename("aside", &log_name(1)).unwrap();
    assert_eq!(refused(&disk, "swapped").1, 0);
    assert!(message(&disk).contains("its header is that of segment 2"));
}

#[test]
fn a_segment_of_another_store_is_refused() {
    let disk = fresh(false);
    recorded(&disk);
    let source = LogSource {
        disk: &disk,
        store: [1; 16],
        start: Start::default(),
    };
    let refused = recover(&source, &mut |_| Ok(())).unwrap_err();
    assert!(refused.to_string().contains("another store"), "{refused}");
}

#[test]
fn a_segment_of_a_newer_format_is_refused_as_such() {
    let disk = fresh(false);
    recorded(&disk);
    let mut content = disk.content(&log_name(1)).unwrap();
    content[8..12].copy_from_slice(&2_u32.to_le_bytes());
    let crc = header_crc(content.first_chunk().unwrap());
    content[12..16].copy_from_slice(&crc.to_le_bytes());
    disk.put(&log_name(1), content);
    let expected = Error::StoreTooNew {
        file: disk.path(&log_name(1)),
        version: 2,
        known: FORMAT_VERSION,
    };
    assert_eq!(recovered(&disk).unwrap_err(), expected);
    assert!(message(&disk).contains("open it with the version that wrote it"));
}

#[test]
fn a_frame_in_the_place_of_another_is_refused() {
    let disk = fresh(false);
    let log = recorded(&disk);
    let (second, third) = (&log.places[1], &log.places[2]);
    let mut content = disk.content(&log_name(0)).unwrap();
    let range = third.from as usize..third.to as usize;
    content.copy_within(range, second.from as usize);
    disk.put(&log_name(0), content);
    let expected = (log_name(0), second.from);
    assert_eq!(refused(&disk, "copied"), expected);
}

#[test]
fn zxids_that_go_back_are_refused() {
    let disk = fresh(false);
    let mut log = recorded(&disk);
    let mut batch = Batch::default();
    batch.begin(Zxid(0));
    batch.push(&txn(3, TxnOp::Check));
    log.put(batch);
    assert!(message(&disk).contains("zxids 0x3 to 0x3 after"));
}

#[test]
fn what_the_store_cannot_carry_out_is_damage_of_its_frame() {
    let disk = fresh(false);
    let log = recorded(&disk);
    let source = LogSource {
        disk: &disk,
        store: STORE,
        start: Start::default(),
    };
    let third = log.txns[log.places[1].txns].zxid;
    let mut each = |txn: Txn| match txn.zxid == third {
        true => Err(Damage("a change of /x, which is not there".into())),
        false => Ok(()),
    };
    match recover(&source, &mut each) {
        Err(Error::StoreDamaged { offset, reason, .. }) => {
            assert_eq!(offset, log.places[2].from);
            assert!(reason.contains("a change of /x"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frame_that_is_known_to_be_there_and_is_not_is_damage() {
    let disk = fresh(false);
    let log = recorded(&disk);
    let source = LogSource {
        disk: &disk,
        store: STORE,
        start: Start::default(),
    };
    let frames = log.places.len() as u64;
    read_up_to(&source, frames, &mut |_| Ok(())).unwrap();
    let refused = read_up_to(&source, frames + 1, &mut |_| Ok(())).unwrap_err();
    let reason = format!("frame {} is missing", frames + 1);
    assert!(refused.to_string().contains(&reason), "{refused}");
}

#[test]
fn a_file_that_cannot_be_opened_is_a_failure_and_no_damage() {
    let disk = fresh(false);
    recorded(&disk);
    let source = LogSource {
        disk: &disk,
        store: STORE,
        start: Start {
            segment: 9,
            ..Start::default()
        },
    };
    match read_up_to(&source, 1, &mut |_| Ok(())) {
        Err(Error::StoreFailed { path, .. }) => assert_eq!(path, disk.path(&log_name(9))),
        other => panic!("{other:?}"),
    }
}
