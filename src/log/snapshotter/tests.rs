use super::*;
use crate::log::sim::{Faults, SimDisk};
use crate::log::testing::{STORE, TestLog, content};

static GOES_ON: AtomicBool = AtomicBool::new(false);
static ENDS: AtomicBool = AtomicBool::new(true);

fn job(scribe: &TestLog<SimDisk>) -> SnapshotJob<'_> {
    SnapshotJob {
        disk: &scribe.disk,
        store: STORE,
        current: scribe.segment(),
        ends: &GOES_ON,
    }
}

fn names(disk: &SimDisk, prefix: &str) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.retain(|name| name.starts_with(prefix));
    names.sort();
    names
}

fn remove(disk: &SimDisk, made: &SnapshotOutcome) {
    for number in &made.obsolete {
        disk.remove(&super::super::segment::log_name(*number))
            .unwrap();
    }
    disk.sync_folder().unwrap();
}

fn read(disk: &SimDisk) -> recovery::Content {
    recovery::read(disk, STORE, &bare_core).unwrap()
}

#[test]
fn a_snapshot_holds_what_was_sealed_and_the_log_the_rest() {
    let mut scribe = TestLog::new(SimDisk::new());
    for round in 1..6 {
        scribe.go_on_to(2 * round);
        let made = make(&job(&scribe)).unwrap();
        remove(&scribe.disk, &made);
        let expected: Vec<u64> = match round {
            1 | 2 => (0..2 * (round - 1)).collect(),
            _ => (2 * round - 4..2 * round - 2).collect(),
        };
        assert_eq!(made.obsolete, expected, "round {round}");
        assert_eq!(names(&scribe.disk, "snapshot").len() as u64, round.min(2));
        let read = read(&scribe.disk);
        assert_eq!(content(&read.core), content(&scribe.core));
        assert_eq!(read.recovered.facts.epoch, 7);
        assert_eq!(read.recovered.facts.longest_timeout_ms, 30_000);
        let snapshot = read.snapshot.unwrap();
        assert_eq!(snapshot.head.start.segment, 2 * round);
        assert_eq!(snapshot.bytes, made.bytes);
    }
}

#[test]
fn when_the_newest_snapshot_is_damaged_the_one_before_and_the_log_are_enough() {
    let mut scribe = TestLog::new(SimDisk::new());
    for round in 1..4 {
        scribe.go_on_to(2 * round);
        let made = make(&job(&scribe)).unwrap();
        remove(&scribe.disk, &made);
    }
    let newest = names(&scribe.disk, "snapshot").pop().unwrap();
    scribe.disk.flip(&newest, 300, 4);
    assert_eq!(content(&read(&scribe.disk).core), content(&scribe.core));
    scribe.go_on_to(8);
    let made = make(&job(&scribe)).unwrap();
    let left = names(&scribe.disk, "snapshot");
    assert_eq!(left.len(), 2);
    assert!(!left.contains(&newest), "{left:?}");
    assert_eq!(made.obsolete, []);
    assert_eq!(content(&read(&scribe.disk).core), content(&scribe.core));
}

#[test]
fn a_damaged_sealed_segment_gives_no_snapshot_and_the_log_stays() {
    let mut scribe = TestLog::new(SimDisk::new());
    scribe.go_on_to(3);
    // The last case damages the last frame of a segment. Nothing after this frame in the segment shows the damage.
    for (segment, at) in [(0, 100), (1, 4_000), (2, 7_900)] {
        let disk = scribe.disk.copy();
        disk.flip(&super::super::segment::log_name(segment), at, 1);
        let job = SnapshotJob {
            disk: &disk,
            ..job(&scribe)
        };
        let error = make(&job).unwrap_err();
        assert!(
            matches!(error, crate::Error::StoreDamaged { .. }),
            "{segment} {error}"
        );
        assert!(names(&disk, "snapshot").is_empty());
    }
}

#[test]
fn a_snapshot_that_is_given_up_or_fails_leaves_nothing() {
    let mut scribe = TestLog::new(SimDisk::new());
    scribe.go_on_to(2);
    make(&job(&scribe)).unwrap();
    scribe.go_on_to(4);
    let before = scribe.disk.list().unwrap();
    let ended = SnapshotJob {
        ends: &ENDS,
        ..job(&scribe)
    };
    make(&ended).unwrap_err();
    assert_eq!(scribe.disk.list().unwrap(), before);
    let full = Faults {
        room_bytes: Some(1_000),
        ..Faults::default()
    };
    scribe.disk.fail(1, full);
    let error = make(&job(&scribe)).unwrap_err();
    assert!(matches!(error, crate::Error::DiskFull { .. }), "{error}");
    assert_eq!(scribe.disk.list().unwrap(), before);
}

#[test]
fn no_crash_and_no_fault_while_snapshots_are_made_loses_anything() {
    for seed in 0..40 {
        let mut scribe = TestLog::new(SimDisk::new());
        for round in 1..4 {
            scribe.go_on_to(2 * round);
            let faults = Faults {
                write_error_every: seed % 3 * 8,
                short_write_every: seed % 5 * 4,
                sync_error_every: seed % 7 * 3,
                room_bytes: None,
            };
            let disk = scribe.disk.copy();
            disk.fail(seed, faults);
            let job = SnapshotJob {
                disk: &disk,
                ..job(&scribe)
            };
            let made = make(&job);
            disk.crash(seed);
            assert_eq!(
                content(&read(&disk).core),
                content(&scribe.core),
                "seed {seed}, round {round}, {made:?}"
            );
            if let Ok(made) = make(&super::tests::job(&scribe)) {
                remove(&scribe.disk, &made);
            }
        }
    }
}
