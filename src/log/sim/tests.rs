//! The simulated disk: which changes a crash may lose, and which it must keep.

use std::collections::BTreeSet;

use super::*;

fn file_of(disk: &SimDisk, name: &str, content: &[u8]) -> Box<dyn DiskFile> {
    let file = disk.create(name).unwrap();
    file.write_at(0, content).unwrap();
    file
}

#[test]
fn what_is_synced_survives_and_nothing_else_must() {
    let mut met = BTreeSet::new();
    for seed in 0..200 {
        let disk = SimDisk::new();
        let file = file_of(&disk, "a", &[1; 1024]);
        file.sync().unwrap();
        disk.sync_folder().unwrap();
        file.write_at(256, &[2; 512]).unwrap();
        disk.crash(seed);
        let content = disk.content("a").unwrap();
        assert_eq!(content[..256], [1; 256]);
        assert_eq!(content[768..], [1; 256]);
        met.insert((content[256], content[512]));
        assert!(file.write_at(0, &[3]).is_err(), "of before the crash");
    }
    assert_eq!(met, BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)]));
}

#[test]
fn names_are_lost_unless_the_folder_is_synced() {
    let mut met = BTreeSet::new();
    for seed in 0..200 {
        let disk = SimDisk::new();
        disk.put("old", vec![1]);
        disk.rename("old", "new").unwrap();
        file_of(&disk, "made", &[2]).sync().unwrap();
        disk.crash(seed);
        met.insert(disk.list().unwrap().concat());
    }
    let all = ["madenew", "madeold", "new", "old"];
    assert_eq!(met, all.map(str::to_owned).into());
    let disk = SimDisk::new();
    file_of(&disk, "made", &[2]).sync().unwrap();
    disk.sync_folder().unwrap();
    disk.crash_keeping(|| false);
    assert_eq!(disk.content("made"), Some(vec![2]));
}

#[test]
fn a_failed_sync_is_not_mended_by_the_next() {
    let disk = SimDisk::new();
    let file = file_of(&disk, "a", &[1]);
    disk.sync_folder().unwrap();
    disk.fail(
        0,
        Faults {
            sync_error_every: 1,
            ..Faults::default()
        },
    );
    file.sync().unwrap_err();
    disk.fail(0, Faults::default());
    file.sync().unwrap();
    disk.crash_keeping(|| false);
    assert_eq!(disk.content("a"), Some(vec![]));
}

#[test]
fn a_full_disk_takes_what_overwrites() {
    let disk = SimDisk::new();
    let file = file_of(&disk, "a", &[1; 10]);
    disk.fail(
        0,
        Faults {
            room_bytes: Some(5),
            ..Faults::default()
        },
    );
    file.write_at(0, &[2; 15]).unwrap();
    let error = file.write_at(10, &[3; 6]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    file.write_at(0, &[4; 15]).unwrap();
    file_of(&disk, "b", &[]);
    disk.remove("a").unwrap();
    disk.open("b").unwrap().write_at(0, &[5; 15]).unwrap();
}

#[test]
fn a_short_write_leaves_a_part() {
    let mut met = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new();
        let file = file_of(&disk, "a", &[]);
        let faults = Faults {
            short_write_every: 2,
            ..Faults::default()
        };
        disk.fail(seed, faults);
        let written = file.write_at(0, &[1; 4]).is_ok();
        let len = file.len().unwrap();
        assert_eq!(written, len == 4);
        met.insert(len);
    }
    assert_eq!(met, (0..5).collect());
}
