//! Tests that segments are created completely, and that only valid headers are trusted.

use std::io;

use crate::log::disk::{Disk, remove_if_exists};
use crate::log::header::{BadHeader, header_crc};
use crate::log::segment::*;
use crate::log::sim::SimDisk;

fn header(number: u64) -> Header {
    Header {
        salt: 0x5a17,
        number,
        size: 4096,
        store: *b"a store's own id",
    }
}

#[test]
fn a_header_comes_back_and_no_other_is_believed() {
    let bytes = header(3).encode();
    assert_eq!(Header::decode(&bytes), Ok(header(3)));
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes;
            changed[at] ^= 1 << bit;
            let expected = match at {
                0..8 => BadHeader::Magic,
                _ => BadHeader::Checksum,
            };
            assert_eq!(Header::decode(&changed), Err(expected), "byte {at}");
        }
        assert_eq!(Header::decode(&bytes[..at]), Err(BadHeader::Short));
    }
}

#[test]
fn a_newer_format_is_told_from_damage() {
    let mut bytes = header(3).encode();
    bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    let crc = header_crc(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(
        Header::decode(&bytes),
        Err(BadHeader::TooNew(FORMAT_VERSION + 1))
    );
}

#[test]
fn names_are_read_back_and_others_are_none_of_ours() {
    assert_eq!(log_name(0x2f), "log-000000000000002f");
    assert_eq!(log_number(&log_name(u64::MAX)), Some(u64::MAX));
    assert_eq!(spare_number(&spare_name(7)), Some(7));
    for name in [
        "log-2f",
        "log-000000000000002F",
        "log-+00000000000002f",
        "log-",
    ] {
        assert_eq!(log_number(name), None, "{name}");
    }
}

#[test]
fn a_segment_that_is_made_survives_any_crash() {
    for seed in 0..50 {
        let disk = SimDisk::new();
        make(&disk, &header(1)).unwrap();
        disk.crash(seed);
        assert_eq!(disk.list().unwrap(), [log_name(1)]);
        let content = disk.content(&log_name(1)).unwrap();
        assert_eq!(content.len(), 4096);
        assert_eq!(Header::decode(&content), Ok(header(1)));
        assert!(
            content[HEADER_BYTES as usize..]
                .iter()
                .all(|byte| *byte == 0)
        );
    }
}

#[test]
fn a_spare_is_used_again_if_it_has_the_size() {
    let disk = SimDisk::new();
    disk.put(&spare_name(0), vec![7; 4096]);
    disk.put(&spare_name(1), vec![7; 4095]);
    assert!(reuse(&disk, &spare_name(1), &header(9)).unwrap().is_none());
    assert!(reuse(&disk, &spare_name(0), &header(9)).unwrap().is_some());
    disk.crash_keeping(|| false);
    assert_eq!(disk.list().unwrap(), [log_name(9), spare_name(1)]);
    let content = disk.content(&log_name(9)).unwrap();
    assert_eq!(Header::decode(&content), Ok(header(9)));
    assert_eq!(content[64..], [7; 4032]);
}

#[test]
fn what_a_crash_left_unfinished_goes() {
    let disk = SimDisk::new();
    remove_if_exists(&disk, UNFINISHED).unwrap();
    disk.fail(
        0,
        crate::log::sim::Faults {
            room_bytes: Some(100),
            ..Default::default()
        },
    );
    let error = make(&disk, &header(1)).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    remove_if_exists(&disk, UNFINISHED).unwrap();
    assert!(disk.list().unwrap().is_empty());
}
