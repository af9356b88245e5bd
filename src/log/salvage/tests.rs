use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::super::disk::{DiskFile, Folder};
use super::super::lock::Lock;
use super::super::segment::HEADER_BYTES;
use super::super::snapshotter::{self, SnapshotJob};
use super::super::testing::{SEGMENT_BYTES, STORE, TempFolder, TestLog, content};
use super::*;
use crate::core::{NodeImage, SessionImage};
use crate::log::Record;

type Moment = (Vec<SessionImage>, Vec<NodeImage>);

/// A data directory with its content after each transaction.
struct Recorded {
    dir: TempFolder,
    log: TestLog<Folder>,
    history: BTreeMap<Zxid, Moment>,
}

impl Recorded {
    fn new() -> Self {
        let mut recorded = Self::begin();
        recorded.go_on_to(2);
        recorded
    }

    /// Records a log of six segments and three snapshots. As in a real store, the oldest snapshot has been removed.
    fn with_snapshots() -> Self {
        let mut recorded = Self::begin();
        for segment in [1, 3, 5] {
            recorded.go_on_to(segment);
            recorded.snapshot();
        }
        recorded
    }

    fn begin() -> Self {
        let dir = TempFolder::new();
        let log = TestLog::new(Folder::new(dir.path()));
        let mut recorded = Self {
            dir,
            log,
            history: BTreeMap::from([(Zxid(0), content(&bare_core()))]),
        };
        recorded.note();
        recorded
    }

    fn note(&mut self) {
        let core = &self.log.core;
        self.history.insert(core.last_zxid(), content(core));
    }

    fn go_on_to(&mut self, segment: u64) {
        while self.log.segment() < segment {
            self.create();
        }
        self.create();
    }

    fn create(&mut self) {
        self.log.create();
        self.note();
    }

    fn snapshot(&self) {
        let made = snapshotter::make(&SnapshotJob {
            disk: &self.log.disk,
            store: STORE,
            current: self.log.segment(),
            ends: &AtomicBool::new(false),
        });
        for number in made.unwrap().obsolete {
            fs::remove_file(self.segment(number)).unwrap();
        }
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.dir.path().join(log_name(number))
    }

    fn snapshots(&self) -> Vec<PathBuf> {
        let names = recovery::snapshot_names(&self.log.disk).unwrap();
        names
            .iter()
            .map(|name| self.dir.path().join(name))
            .collect()
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.log.disk.list().unwrap();
        let read = |name: String| {
            let bytes = fs::read(self.dir.path().join(&name)).unwrap();
            (name, bytes)
        };
        names.into_iter().map(read).collect()
    }

    fn last(&self) -> Zxid {
        self.log.core.last_zxid()
    }

    fn salvaged(&self) -> Salvage {
        let (to, before) = (TempFolder::new(), self.files());
        let salvaged = salvage(self.dir.path(), to.path()).unwrap();
        assert_eq!(self.files(), before);
        self.check(&salvaged, to.path());
        salvaged
    }

    fn check(&self, salvaged: &Salvage, to: &Path) {
        let read = recovery::read(&View::new(to), STORE, &bare_core).unwrap();
        assert_eq!(content(&read.core), self.history[&salvaged.read_to]);
        let facts = read.recovered.facts;
        assert_eq!(facts.completeness, Completeness::Restored);
        assert!(!facts.is_clean);
        assert_eq!(facts.zxid, salvaged.summary.zxid);
        assert!(facts.zxid > self.last());
        assert_eq!(salvaged.summary.znodes, read.core.node_count() as u64);
        let copied = identity::read(&View::new(to)).unwrap().unwrap().is_copied;
        assert!(!copied);
    }

    fn lost(&self) -> (Salvage, Loss) {
        let salvaged = self.salvaged();
        let loss = salvaged.loss.clone().expect("something is lost");
        assert!(salvaged.read_to < self.last(), "{salvaged}");
        (salvaged, loss)
    }
}

fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
}

fn flip(file: &Path, at: usize) {
    change(file, |bytes| bytes[at] ^= 0x10);
}

#[test]
fn of_a_healthy_directory_nothing_is_lost() {
    for recorded in [
        Recorded::begin(),
        Recorded::new(),
        Recorded::with_snapshots(),
    ] {
        let salvaged = recorded.salvaged();
        assert_eq!(salvaged.loss, None);
        assert_eq!(salvaged.problems, []);
        assert_eq!(salvaged.read_to, recorded.last());
        assert!(salvaged.to_string().contains("nothing is lost"));
    }
}

#[test]
fn frames_behind_a_damaged_one_are_counted_and_left_out() {
    let recorded = Recorded::new();
    let log = recorded.segment(1);
    flip(&log, 4_000);
    let (salvaged, loss) = recorded.lost();
    assert_eq!(loss.damage.file, log);
    assert!((3_500..=4_000).contains(&loss.damage.offset), "{loss}");
    assert_eq!(loss.last_zxid, Some(recorded.last()));
    let lost = recorded.history.range(salvaged.read_to..).count() as u64 - 1;
    assert_eq!(loss.transactions, lost - 1);
    let places: Vec<_> = loss.places.iter().map(|place| &place.file).collect();
    assert_eq!(places, [&log, &recorded.segment(2)]);
    assert_eq!(loss.places[0].offset, loss.damage.offset);
    let left = SEGMENT_BYTES - loss.damage.offset;
    let bytes = loss.places[0].bytes.unwrap();
    assert!(bytes <= left && bytes > left - 400, "{bytes} of {left}");
    let text = salvaged.to_string();
    for part in ["LOST from", "log-0000000000000002 from byte 0"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_damaged_header_of_a_segment_ends_the_log_before_it() {
    let recorded = Recorded::new();
    flip(&recorded.segment(1), 20);
    let (_, loss) = recorded.lost();
    assert_eq!(loss.damage.file, recorded.segment(1));
    assert_eq!(loss.damage.offset, 0);
    assert_eq!(loss.last_zxid, Some(recorded.last()));
    assert_eq!(loss.places.len(), 2, "{loss}");
}

#[test]
fn the_frames_before_the_end_of_a_truncated_segment_are_read() {
    let recorded = Recorded::new();
    change(&recorded.segment(1), |bytes| bytes.truncate(4_000));
    let (salvaged, loss) = recorded.lost();
    assert_eq!(loss.damage.file, recorded.segment(1));
    assert_eq!(loss.damage.offset, 4_000);
    let whole = Recorded::new();
    flip(&whole.segment(1), 3_999);
    assert_eq!(salvaged.read_to.0, whole.lost().0.read_to.0);
}

#[test]
fn an_empty_file_and_a_missing_one_end_the_log_before_them() {
    let recorded = Recorded::new();
    change(&recorded.segment(1), Vec::clear);
    let (empty, loss) = recorded.lost();
    assert_eq!(loss.damage.file, recorded.segment(1));
    fs::remove_file(recorded.segment(1)).unwrap();
    let (missing, loss) = recorded.lost();
    assert_eq!(missing.read_to, empty.read_to);
    assert_eq!(loss.damage.file, recorded.segment(1));
    assert_eq!(loss.places[0].bytes, None);
    assert!(loss.to_string().contains("log-0000000000000001: missing"));
    assert_eq!(loss.last_zxid, Some(recorded.last()));
}

#[test]
fn a_damaged_snapshot_loses_nothing_that_the_log_has() {
    let recorded = Recorded::with_snapshots();
    let [newest, older] = &recorded.snapshots()[..] else {
        panic!("two snapshots are kept");
    };
    flip(newest, 200);
    let salvaged = recorded.salvaged();
    assert_eq!(salvaged.loss, None);
    assert_eq!(salvaged.problems.len(), 1);
    assert_eq!(&salvaged.problems[0].file, newest);
    assert_eq!(salvaged.read_to, recorded.last());
    assert!(salvaged.to_string().contains("DAMAGED, and not needed"));
    // Salvage now starts with the older snapshot, so the first damage in the log may precede the newer snapshot.
    flip(&recorded.segment(4), 4_000);
    let (salvaged, loss) = recorded.lost();
    assert!(older.ends_with(salvaged.snapshot.unwrap()));
    assert_eq!(loss.damage.file, recorded.segment(4));
    flip(older, 200);
    let to = TempFolder::new();
    let error = salvage(recorded.dir.path(), to.path()).unwrap_err();
    let Error::StoreDamaged { file, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(file, newest);
    assert!(fs::read_dir(to.path()).unwrap().next().is_none());
}

#[test]
fn a_log_that_ends_before_a_damaged_snapshot_is_short() {
    let recorded = Recorded::with_snapshots();
    let newest = &recorded.snapshots()[0];
    flip(newest, 200);
    for number in [4, 5] {
        fs::remove_file(recorded.segment(number)).unwrap();
    }
    let (salvaged, loss) = recorded.lost();
    assert!(loss.last_zxid > Some(salvaged.read_to));
    assert!(
        loss.damage
            .reason
            .contains("a snapshot that cannot be read")
    );
}

#[test]
fn the_id_is_taken_from_other_files_where_its_own_is_damaged() {
    for recorded in [Recorded::new(), Recorded::with_snapshots()] {
        flip(&recorded.dir.path().join(identity::NAME), 20);
        assert_eq!(recorded.salvaged().loss, None);
        fs::remove_file(recorded.dir.path().join(identity::NAME)).unwrap();
        let salvaged = recorded.salvaged();
        assert_eq!(salvaged.loss, None);
        assert_eq!(salvaged.problems.len(), 1);
    }
}

#[test]
fn tokens_continue_above_those_of_the_lost_part() {
    let far = epoch::of_clock(now_ms()) + 1_000_000;
    for damage in [
        (|log: &Path| flip(log, 200)) as fn(&Path),
        |log| flip(log, 20),
        |log| change(log, |bytes| bytes[..HEADER_BYTES as usize].fill(0)),
    ] {
        let mut recorded = Recorded::new();
        recorded.log.go_on_to(3);
        recorded.log.record(&Record::Epoch(far));
        recorded.note();
        damage(&recorded.segment(1));
        let (salvaged, _) = recorded.lost();
        assert!(epoch::of(salvaged.summary.zxid) > far);
    }
    // Damage the frame that reserved the epoch, so that the salvaged store cannot know this epoch.
    let mut recorded = Recorded::new();
    recorded.log.record(&Record::Epoch(far));
    let frame = fs::read(recorded.segment(2)).unwrap();
    let end = frame.iter().rposition(|byte| *byte != 0).unwrap();
    change(&recorded.segment(2), |bytes| bytes[end - 60] ^= 1);
    let hidden = epoch::of_clock(now_ms()) + 4096;
    assert!(epoch::of(recorded.salvaged().summary.zxid) >= hidden);
}

#[test]
fn tokens_continue_above_a_clock_that_was_ahead() {
    let recorded = Recorded::new();
    let ahead = std::time::SystemTime::now() + Duration::from_secs(30 * 24 * 3600);
    let file = File::options()
        .write(true)
        .open(recorded.segment(2))
        .unwrap();
    file.set_modified(ahead).unwrap();
    let ahead_ms = ahead.duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let salvaged = recorded.salvaged();
    assert!(epoch::of(salvaged.summary.zxid) > epoch::of_clock(ahead_ms));
}

#[test]
fn a_directory_at_the_end_of_all_zxids_is_refused() {
    let mut recorded = Recorded::new();
    recorded.log.record(&Record::Epoch(1 << 30));
    let to = TempFolder::new();
    let error = salvage(recorded.dir.path(), to.path()).unwrap_err();
    assert!(matches!(error, Error::StoreFailed { .. }), "{error}");
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
}

#[test]
fn timeouts_of_the_lost_part_are_waited_for() {
    let mut recorded = Recorded::new();
    recorded.log.go_on_to(3);
    recorded.log.record(&Record::LongestTimeout { ms: 77_000 });
    recorded.log.record(&Record::SessionTerms {
        are_kept: true,
        allowed_ms: 99_000,
    });
    flip(&recorded.segment(1), 200);
    let to = TempFolder::new();
    salvage(recorded.dir.path(), to.path()).unwrap();
    let read = recovery::read(&View::new(to.path()), STORE, &bare_core).unwrap();
    let facts = read.recovered.facts;
    assert_eq!(facts.longest_timeout_ms, 77_000);
    assert_eq!(facts.allowed_timeout_ms, Some(99_000));
}

#[test]
fn never_served_holds_for_the_part_that_was_read_alone() {
    let mut recorded = Recorded::begin();
    recorded.log.record(&Record::SessionTerms {
        are_kept: false,
        allowed_ms: 0,
    });
    recorded.go_on_to(2);
    for (damaged, expected) in [(false, Some(0)), (true, None)] {
        if damaged {
            flip(&recorded.segment(1), 200);
        }
        let to = TempFolder::new();
        salvage(recorded.dir.path(), to.path()).unwrap();
        let read = recovery::read(&View::new(to.path()), STORE, &bare_core).unwrap();
        assert_eq!(read.recovered.facts.allowed_timeout_ms, expected);
    }
}

#[test]
fn a_directory_in_use_is_read_and_named_as_such() {
    let recorded = Recorded::new();
    assert!(!recorded.salvaged().in_use);
    let lock = Lock::take(recorded.dir.path()).unwrap();
    let salvaged = recorded.salvaged();
    assert!(salvaged.in_use && salvaged.loss.is_none());
    assert!(salvaged.to_string().contains("in use"), "{salvaged}");
    drop(lock);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let recorded = Recorded::new();
    let (dir, other) = (recorded.dir.path(), TempFolder::new());
    for inside in [dir.to_owned(), dir.join("new"), dir.join("new/deep")] {
        let error = salvage(dir, inside).unwrap_err();
        assert!(error.to_string().contains("is inside"), "{error}");
    }
    fs::write(other.path().join("notes"), "mine").unwrap();
    let error = salvage(dir, other.path()).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    for no_store in [other.path().to_owned(), other.path().join("missing")] {
        let error = salvage(no_store, TempFolder::new().path()).unwrap_err();
        assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    }
    let error = salvage(dir, "/proc/nowhere").unwrap_err();
    assert!(matches!(error, Error::StoreFailed { .. }), "{error}");
}

#[test]
fn a_newer_format_is_not_salvaged_by_an_older_version() {
    let recorded = Recorded::new();
    change(&recorded.segment(1), |bytes| {
        bytes[8..12].copy_from_slice(&9_u32.to_le_bytes());
        let crc = super::super::header::header_crc(bytes.first_chunk().unwrap());
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    });
    let error = salvage(recorded.dir.path(), TempFolder::new().path()).unwrap_err();
    assert!(matches!(error, Error::StoreTooNew { .. }), "{error}");
}

#[test]
fn the_salvaged_store_opens_and_its_sessions_end() {
    let recorded = Recorded::new();
    flip(&recorded.segment(1), 4_000);
    let to = TempFolder::new();
    let salvaged = salvage(recorded.dir.path(), to.path()).unwrap();
    assert_eq!(salvaged.summary.sessions, 1);
    drop(crate::Store::file(to.path()).unwrap());
    let seen = crate::disk::inspect(to.path()).unwrap();
    assert!(seen.problems.is_empty() && seen.sessions.is_empty());
    assert!(seen.epoch > epoch::of(salvaged.summary.zxid) || seen.zxid > salvaged.summary.zxid);
}

struct BadDisk {
    view: View,
    name: String,
    bad: Range<u64>,
}

impl Disk for BadDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.view.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.view.open(name)?;
        let bad = match name == self.name {
            true => self.bad.clone(),
            false => 0..0,
        };
        Ok(Box::new(BadFile { file, bad }))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.view.path(name)
    }
}

struct BadFile {
    file: Box<dyn DiskFile>,
    bad: Range<u64>,
}

impl DiskFile for BadFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        if at < self.bad.end && at + into.len() as u64 > self.bad.start {
            return Err(io::Error::other("a bad sector"));
        }
        self.file.read_at(at, into)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn identity(&self) -> io::Result<super::super::disk::FileIdentity> {
        self.file.identity()
    }
}

fn read_with_bad_sector(recorded: &Recorded, file: &Path) -> Reading {
    Reading::of(&Sectors::new(BadDisk {
        view: View::new(recorded.dir.path()),
        name: file.file_name().unwrap().to_str().unwrap().to_owned(),
        bad: 5_000..5_512,
    }))
    .unwrap()
}

#[test]
fn the_frames_around_a_bad_sector_are_seen() {
    let recorded = Recorded::new();
    let log = recorded.segment(1);
    let read = read_with_bad_sector(&recorded, &log);
    assert_eq!(content(&read.core), recorded.history[&read.facts.zxid]);
    assert_eq!(
        (read.tail.segment, &read.damage.as_ref().unwrap().file),
        (1, &log)
    );
    assert!(read.tail.offset > 3_500, "{}", read.tail.offset);
    assert_eq!(read.seen.facts.zxid, recorded.last());
    let is_sector = |problem: &&Problem| problem.reason.contains("a bad sector");
    assert_eq!(read.problems.iter().filter(is_sector).count(), 1);
}

/// If the read error were ignored, the sector would look like the free rest of the log.
#[test]
fn a_bad_sector_at_the_end_of_the_log_is_a_loss() {
    let mut recorded = Recorded::begin();
    recorded.go_on_to(1);
    let read = read_with_bad_sector(&recorded, &recorded.segment(1));
    assert_eq!(read.facts.zxid, recorded.last());
    assert!(read.damage.unwrap().reason.contains("a bad sector"));
}

#[test]
fn a_snapshot_with_a_bad_sector_makes_way_for_the_one_before() {
    let recorded = Recorded::with_snapshots();
    let read = read_with_bad_sector(&recorded, &recorded.snapshots()[0]);
    assert_eq!((read.facts.zxid, read.damage), (recorded.last(), None));
    assert!(recorded.snapshots()[1].ends_with(read.snapshot.unwrap()));
}

#[derive(Clone, Debug)]
enum Harm {
    Flip(usize, u8),
    Zero(usize, usize),
    Noise(usize, usize, u8),
    Truncate(usize),
    Remove,
}

impl Harm {
    fn of(&self, file: &Path) {
        if !file.exists() {
            return;
        }
        let range = |bytes: &[u8], at: usize, count: usize| {
            let at = at % bytes.len().max(1);
            at..(at + count).min(bytes.len())
        };
        match *self {
            Self::Remove => fs::remove_file(file).unwrap(),
            Self::Truncate(at) => change(file, |bytes| bytes.truncate(at)),
            Self::Flip(at, bit) => change(file, |bytes| {
                if let Some(byte) = range(bytes, at, 1).next() {
                    bytes[byte] ^= 1 << bit;
                }
            }),
            Self::Zero(at, count) => change(file, |bytes| {
                let range = range(bytes, at, count);
                bytes[range].fill(0);
            }),
            Self::Noise(at, count, noise) => change(file, |bytes| {
                let range = range(bytes, at, count);
                for byte in &mut bytes[range] {
                    *byte = byte.wrapping_mul(31).wrapping_add(noise);
                }
            }),
        }
    }
}

fn damage() -> impl Strategy<Value = Harm> {
    let at = || 0..SEGMENT_BYTES as usize;
    prop_oneof![
        4 => (at(), 0..8_u8).prop_map(|(at, bit)| Harm::Flip(at, bit)),
        2 => (at(), 1..2_000_usize).prop_map(|(at, count)| Harm::Zero(at, count)),
        2 => (at(), 1..2_000_usize, any::<u8>()).prop_map(|(at, count, noise)| Harm::Noise(at, count, noise)),
        1 => at().prop_map(Harm::Truncate),
        1 => Just(Harm::Remove),
    ]
}

#[test]
fn what_is_salvaged_is_a_moment_of_the_history() {
    // Recording is slow because every transaction is synced, so record once and copy the files.
    let recordings = [Recorded::new(), Recorded::with_snapshots()];
    let recordings = recordings.map(|recorded| (recorded.files(), recorded));
    let damages = prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..4);
    proptest!(ProptestConfig::with_cases(96), |(has_snapshots: bool, damages in damages)| {
        let (whole, recorded) = &recordings[usize::from(has_snapshots)];
        for (name, bytes) in whole {
            fs::write(recorded.dir.path().join(name), bytes).unwrap();
        }
        let names: Vec<_> = whole.keys().cloned().collect();
        for (file, damage) in &damages {
            damage.of(&recorded.dir.path().join(file.get(&names)));
        }
        let (to, before) = (TempFolder::new(), recorded.files());
        match salvage(recorded.dir.path(), to.path()) {
            Ok(salvaged) => {
                recorded.check(&salvaged, to.path());
                let is_one_flip = matches!(damages[..], [(_, Harm::Flip(..))]);
                if is_one_flip && salvaged.read_to < recorded.last() {
                    prop_assert!(salvaged.loss.is_some(), "{salvaged}");
                }
            }
            Err(error) => {
                let is_damage = matches!(error, Error::StoreDamaged { .. } | Error::NotAStore { .. });
                prop_assert!(is_damage, "{error}");
                prop_assert!(fs::read_dir(to.path()).unwrap().next().is_none());
                let is_start = |name: &&String| match has_snapshots {
                    true => name.starts_with("snapshot-"),
                    false => **name == log_name(0),
                };
                let has_start = names.iter().filter(is_start).any(|name| before.get(name) == whole.get(name));
                prop_assert!(!has_start, "{error}");
            }
        }
        prop_assert_eq!(recorded.files(), before);
    });
}
