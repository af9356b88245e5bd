use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::testing::{STORE, TempFolder, TestLog, content};
use super::*;

fn written(segments: u64) -> (TempFolder, TestLog<Folder>) {
    let folder = TempFolder::new();
    let mut scribe = TestLog::new(Folder::new(folder.path()));
    scribe.go_on_to(segments - 1);
    scribe.create();
    (folder, scribe)
}

fn read(dir: &Path) -> Content {
    recovery::read(&View::new(dir), STORE, &bare_core).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names = Folder::new(dir).list().unwrap();
    names.sort();
    names
}

#[test]
fn what_is_restored_is_what_was_backed_up() {
    let (dir, scribe) = written(3);
    let other = TempFolder::new();
    let (file, to) = (other.path().join("backup"), other.path().join("new/data"));
    let before = names(dir.path());
    let made = backup(dir.path(), &file).unwrap();
    assert_eq!(names(dir.path()), before);
    assert_eq!(made.zxid, scribe.core.last_zxid());
    assert_eq!(made.znodes, scribe.core.node_count() as u64);
    assert_eq!(made.sessions, 1);
    assert_eq!(made.bytes, fs::metadata(&file).unwrap().len());
    let restored = restore(&file, &to).unwrap();
    let copy = read(&to);
    assert_eq!(content(&copy.core), content(&scribe.core));
    assert_eq!(copy.recovered.facts.longest_timeout_ms, 30_000);
    assert_eq!(copy.core.last_zxid(), restored.zxid);
    assert!(restored.zxid.0 >> 32 >= 7 + 4096, "{}", restored.zxid);
    assert!(
        !identity::read(&Folder::new(&to))
            .unwrap()
            .unwrap()
            .is_copied
    );
    let second = other.path().join("second");
    let again = backup(&to, &second).unwrap();
    assert_eq!(again.zxid, restored.zxid);
    assert!(restore(&second, other.path().join("twice")).unwrap().zxid > restored.zxid);
}

#[test]
fn of_two_restores_of_one_backup_the_later_is_above_the_earlier() {
    let (dir, _) = written(1);
    let file = dir.path().with_extension("backup");
    backup(dir.path(), &file).unwrap();
    let to = TempFolder::new();
    let mut last = Zxid(0);
    for number in 0..3 {
        let restored = restore(&file, to.path().join(number.to_string())).unwrap();
        assert!(restored.zxid > last);
        last = restored.zxid;
    }
    fs::remove_file(file).unwrap();
}

#[test]
fn a_directory_that_is_written_can_be_backed_up() {
    let (dir, mut scribe) = written(1);
    let other = TempFolder::new();
    let acknowledged = AtomicU64::new(scribe.core.node_count() as u64);
    let backups = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while backups.load(Ordering::Acquire) < 20 {
                scribe.create();
                acknowledged.store(scribe.core.node_count() as u64, Ordering::Release);
            }
        });
        for number in 0..20 {
            let before = acknowledged.load(Ordering::Acquire);
            let file = other.path().join(number.to_string());
            let made = backup(dir.path(), &file);
            backups.fetch_add(1, Ordering::Release);
            if made.is_err() {
                backups.store(20, Ordering::Release);
            }
            assert!(made.unwrap().znodes >= before);
        }
    });
}

#[test]
fn a_damaged_directory_is_not_backed_up() {
    let (dir, _) = written(3);
    let other = TempFolder::new();
    let log = dir.path().join("log-0000000000000001");
    let mut bytes = fs::read(&log).unwrap();
    bytes[1_000] ^= 1;
    fs::write(&log, bytes).unwrap();
    let file = other.path().join("backup");
    let error = backup(dir.path(), &file).unwrap_err();
    let Error::StoreDamaged { file: damaged, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(damaged, log);
    assert!(names(other.path()).is_empty());
}

#[test]
fn a_damaged_backup_is_not_restored_and_leaves_nothing() {
    let (dir, _) = written(1);
    let other = TempFolder::new();
    let (file, to) = (other.path().join("backup"), other.path().join("to"));
    let made = backup(dir.path(), &file).unwrap();
    let good = fs::read(&file).unwrap();
    for at in (0..made.bytes as usize).step_by(97) {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        fs::write(&file, &bytes).unwrap();
        let error = restore(&file, &to).unwrap_err();
        assert!(matches!(error, Error::StoreDamaged { .. }), "{error}");
        fs::write(&file, &good[..at]).unwrap();
        let error = restore(&file, &to).unwrap_err();
        assert!(matches!(error, Error::StoreDamaged { .. }), "{error}");
    }
    assert!(!to.exists());
}

#[test]
fn a_backup_is_replaced_in_one_step() {
    let (dir, mut scribe) = written(1);
    let other = TempFolder::new();
    let file = other.path().join("backup");
    let first = backup(dir.path(), &file).unwrap();
    scribe.create();
    let second = backup(dir.path(), &file).unwrap();
    assert_eq!(second.znodes, first.znodes + 1);
    assert_eq!(names(other.path()), ["backup"]);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let (dir, _) = written(1);
    let other = TempFolder::new();
    let file = other.path().join("backup");
    let inside = backup(dir.path(), dir.path().join("backup")).unwrap_err();
    assert!(inside.to_string().contains("inside"), "{inside}");
    let missing = backup(other.path().join("missing"), &file).unwrap_err();
    assert!(matches!(missing, Error::NotAStore { .. }), "{missing}");
    let empty = backup(other.path(), dir.path().with_extension("backup")).unwrap_err();
    assert!(matches!(empty, Error::NotAStore { .. }), "{empty}");
    backup(dir.path(), &file).unwrap();
    let full = restore(&file, other.path()).unwrap_err().to_string();
    assert!(
        full.contains("not empty") && full.contains("backup"),
        "{full}"
    );
    let nowhere = restore(&file, "/proc/nowhere").unwrap_err();
    assert!(matches!(nowhere, Error::StoreFailed { .. }), "{nowhere}");
    let no_folder = backup(dir.path(), other.path().join("no/backup")).unwrap_err();
    assert!(
        matches!(no_folder, Error::StoreFailed { .. }),
        "{no_folder}"
    );
}

/// Environment variable with the folder in which a child of this test creates its files.
const CHILD: &str = "LOCKKEEPER_TEST_PRIVATE";

fn make_all(folder: &Path) {
    let open = |name: &str| crate::Store::file(folder.join(name)).unwrap();
    let stores = [open("new/data"), open("was-there")];
    let mut scribe = TestLog::new(Folder::new(folder));
    scribe.go_on_to(2);
    let file = folder.join("backup");
    backup(folder.join("new/data"), &file).unwrap();
    restore(&file, folder.join("restored/data")).unwrap();
    drop((stores, open("restored/data")));
}

fn modes(folder: &Path, modes: &mut Vec<(PathBuf, u32)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        modes.push((entry.path(), metadata.permissions().mode() & 0o7777));
        if metadata.is_dir() {
            self::modes(&entry.path(), modes);
        }
    }
}

#[test]
fn nobody_else_may_read_what_is_made() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return make_all(Path::new(&folder));
    }
    let folder = TempFolder::new();
    let was_there = folder.path().join("was-there");
    fs::create_dir(&was_there).unwrap();
    fs::set_permissions(&was_there, fs::Permissions::from_mode(0o755)).unwrap();
    let unfinished = was_there.join(identity::UNFINISHED);
    fs::write(&unfinished, "").unwrap();
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o666)).unwrap();
    // The umask belongs to the process, so set it in a child.
    let child = std::process::Command::new("sh")
        .args(["-c", "umask 0; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .arg("log::backup::tests::nobody_else_may_read_what_is_made")
        .arg("--exact")
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    let mut found = Vec::new();
    modes(folder.path(), &mut found);
    assert!(found.len() > 12, "{found:?}");
    found.retain(|(path, mode)| match path {
        path if *path == was_there => *mode != 0o755,
        path if path.is_dir() => *mode != 0o700,
        _ => *mode != 0o600,
    });
    let told = |(path, mode): (PathBuf, u32)| format!("{} {mode:o}", path.display());
    let found: Vec<_> = found.into_iter().map(told).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// Other users may be able to write to the folder of a backup.
#[test]
fn what_stands_in_a_backups_way_is_neither_followed_nor_overwritten() {
    let (dir, _) = written(1);
    let other = TempFolder::new();
    let [victim, link, file] =
        ["victim", "a.unfinished", "b.unfinished"].map(|n| other.path().join(n));
    for planted in [&victim, &file] {
        fs::write(planted, "as it was").unwrap();
    }
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    for name in ["a", "b"] {
        backup(dir.path(), other.path().join(name)).unwrap();
        assert!(!other.path().join(name).is_symlink());
    }
    assert_eq!(fs::read_link(&link).unwrap(), victim);
    for planted in [&victim, &file] {
        assert_eq!(fs::read(planted).unwrap(), b"as it was");
    }
    let expected = ["a", "a.unfinished", "b", "b.unfinished", "victim"];
    assert_eq!(names(other.path()), expected);
}
