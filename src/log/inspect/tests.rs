use std::fs;

use super::super::disk::{Disk, Folder};
use super::super::lock::Lock;
use super::super::testing::{TempFolder, TestLog};
use super::*;
use crate::log::recovery::bare_core;
use crate::model::error::Error;
use crate::model::path::ZnodePath;
use crate::runtime::platform::hex;

fn written() -> (TempFolder, TestLog<Folder>) {
    let folder = TempFolder::new();
    let mut scribe = TestLog::new(Folder::new(folder.path()));
    scribe.go_on_to(2);
    scribe.create();
    (folder, scribe)
}

fn states(seen: &Inspection) -> Vec<SegmentState> {
    seen.segments.iter().map(|segment| segment.state).collect()
}

#[test]
fn a_directory_shows_what_it_holds() {
    let (dir, scribe) = written();
    fs::write(dir.path().join("notes.txt"), "what is this").unwrap();
    let seen = inspect(dir.path()).unwrap();
    assert_eq!(seen.problems, []);
    assert!(!seen.in_use && !seen.is_copied && !seen.was_clean);
    assert_eq!(seen.zxid, scribe.core.last_zxid());
    assert_eq!(seen.epoch, 7);
    assert_eq!(seen.longest_timeout, Duration::from_secs(30));
    assert_eq!(seen.znodes, scribe.core.node_count() as u64);
    assert_eq!(seen.sessions.len(), 1);
    assert_eq!(seen.sessions[0].ephemerals, (seen.znodes - 4) / 2);
    assert_eq!(seen.data_bytes, (seen.znodes - 4) * 100);
    assert_eq!(seen.unknown_files, ["notes.txt"]);
    use SegmentState::{Current, Sealed};
    assert_eq!(states(&seen), [Sealed, Sealed, Current]);
    let frames: u64 = seen.segments.iter().map(|segment| segment.frames).sum();
    assert_eq!(frames, seen.znodes - 4 + 3);
    let zxids: Vec<_> = seen
        .segments
        .iter()
        .filter_map(|segment| segment.zxids)
        .collect();
    assert!(zxids[0].1 < zxids[1].0 && zxids[2].1 == seen.zxid);
    let text = seen.to_string();
    for says in [
        "no damage",
        "notes.txt",
        "log-0000000000000002",
        "in use      no",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[test]
fn the_process_that_has_it_open_is_named_and_not_disturbed() {
    let (dir, _) = written();
    let lock = Lock::take(dir.path()).unwrap();
    let seen = inspect(dir.path()).unwrap();
    assert!(seen.in_use);
    assert_eq!(seen.pid, Some(std::process::id()));
    drop(lock);
    assert!(!inspect(dir.path()).unwrap().in_use);
}

#[test]
fn nothing_is_changed_by_a_look() {
    let (dir, _) = written();
    let log = dir.path().join("log-0000000000000002");
    let mut bytes = fs::read(&log).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end - 100] ^= 1;
    fs::write(&log, &bytes).unwrap();
    let content = |name: &String| fs::read(dir.path().join(name)).unwrap();
    let names = Folder::new(dir.path()).list().unwrap();
    let before: Vec<_> = names.iter().map(content).collect();
    inspect(dir.path()).unwrap();
    assert_eq!(Folder::new(dir.path()).list().unwrap(), names);
    assert_eq!(names.iter().map(content).collect::<Vec<_>>(), before);
}

#[test]
fn damage_is_named_and_the_rest_is_shown() {
    let (dir, scribe) = written();
    let log = dir.path().join("log-0000000000000001");
    let mut bytes = fs::read(&log).unwrap();
    bytes[4_000] ^= 1;
    fs::write(&log, bytes).unwrap();
    let seen = inspect(dir.path()).unwrap();
    assert_eq!(seen.problems.len(), 1, "{:?}", seen.problems);
    assert_eq!(seen.problems[0].file, log);
    assert!((3_000..=4_000).contains(&seen.problems[0].offset));
    use SegmentState::{Current, Damaged, Sealed};
    assert_eq!(states(&seen), [Sealed, Damaged, Current]);
    let all = scribe.core.node_count() as u64;
    assert!(seen.znodes > all / 3 && seen.znodes < all);
    assert!(seen.to_string().contains("DAMAGED"));
    fs::write(dir.path().join("STORE"), "nonsense").unwrap();
    let seen = inspect(dir.path()).unwrap();
    assert_eq!(seen.problems.len(), 2, "{:?}", seen.problems);
    assert_eq!(seen.store_id.unwrap(), hex(super::super::testing::STORE));
}

#[test]
fn a_torn_tail_is_no_damage() {
    let (dir, _) = written();
    let log = dir.path().join("log-0000000000000002");
    let seen = inspect(dir.path()).unwrap();
    let end = seen.segments[2].used_bytes as usize;
    let mut bytes = fs::read(&log).unwrap();
    bytes[end..end + 60].fill(0x55);
    fs::write(&log, bytes).unwrap();
    let seen = inspect(dir.path()).unwrap();
    assert_eq!(seen.problems, []);
    assert_eq!(states(&seen)[2], SegmentState::Torn);
}

#[test]
fn what_is_no_store_is_an_error() {
    let folder = TempFolder::new();
    for dir in [folder.path().to_owned(), folder.path().join("missing")] {
        let error = inspect(dir).unwrap_err();
        assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    }
}

#[test]
fn the_largest_subtrees_come_first_and_no_mere_shell_of_one() {
    use crate::core::{Effects, Now};
    use crate::model::acl::Acl;
    use crate::model::protocol::{Create, Request};
    use crate::model::types::CreateMode;
    let mut core = bare_core();
    let me = core.open_session(SessionId(1), [0; 16], None, true, Now::default());
    let me = me.unwrap().0;
    for (path, bytes) in [
        ("/a", 0),
        ("/a/shell", 0),
        ("/a/shell/big", 9_000),
        ("/b", 10),
        ("/b/x", 2_000),
        ("/b/y", 1_500),
        ("/b.c", 30),
    ] {
        let create = Request::Create(Create {
            path: ZnodePath::new(path).unwrap(),
            data: vec![0; bytes].into(),
            mode: CreateMode::Persistent,
            acl: Acl::open(),
        });
        core.submit(me, create, Now::default(), &mut Effects::default())
            .unwrap();
    }
    let (trees, data_bytes) = show::largest_subtrees(&core, 4);
    assert_eq!(data_bytes, 12_540);
    let found: Vec<_> = trees
        .iter()
        .map(|tree| (tree.path.as_str(), tree.znodes))
        .collect();
    assert_eq!(
        found,
        [("/a/shell/big", 1), ("/b", 3), ("/b/x", 1), ("/b/y", 1)]
    );
}
