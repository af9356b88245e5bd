//! Scheduled backups: `serve --backup-every`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockkeeper_store::{ConnectOptions, CreateMode, Store, StoreOptions, Zxid, connect_with};
use rustix::process::Signal;

use super::metrics::http::Samples;
use super::server::*;
use super::support::*;

/// With this tick, sessions last for at most 2 s, and a restored store pauses for at most 2 s.
const TICK: Duration = Duration::from_millis(100);

/// A server of the store in `data`, with metrics and with backups in `backups`.
fn serve_with_backups(folder: &TempFolder, every: &str, keep: &str) -> Command {
    serve_store(&folder.at("data"), &folder.at("backups"), every, keep)
}

fn serve_store(data: &Path, backups: &Path, every: &str, keep: &str) -> Command {
    let mut command = serve_in(data);
    command.args(["--metrics-listen=127.0.0.1:0", "--max-memory=512M"]);
    command.arg("--tick=100ms");
    command.args(["--backup-every", every, "--keep", keep, "--backup-dir"]);
    command.arg(backups);
    command
}

fn folder() -> TempFolder {
    let folder = TempFolder::short();
    fs::create_dir(folder.at("backups")).unwrap();
    folder
}

fn backups(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|it| it == "backup"))
        .collect();
    paths.sort_unstable();
    paths
}

/// Returns the file that is named in a log line `backup made`.
fn file_of(line: &str) -> PathBuf {
    let (_, rest) = line.split_once("file=").unwrap();
    rest.split(' ').next().unwrap().into()
}

fn next(server: &Server) -> PathBuf {
    file_of(&server.logs("backup made"))
}

/// Waits for a backup that contains a transaction, and creates a hard link to it so that it is not lost. Returns the
/// link.
fn keep_with(server: &Server, folder: &TempFolder, zxid: Zxid) -> PathBuf {
    loop {
        let name = next(server).file_name().unwrap().to_owned();
        let of_content = name.to_str().unwrap().split('-').nth(2).unwrap();
        let kept = folder.path().join(&name);
        // If this test is slow, the server may have removed the backup by now.
        if i64::from_str_radix(of_content, 16).unwrap() >= zxid.0
            && fs::hard_link(folder.at("backups").join(&name), &kept).is_ok()
        {
            return kept;
        }
    }
}

fn create(server: &Server, path: &str, data: &'static str) -> Zxid {
    block_on(async {
        let session = server.connect().await.session().await.unwrap();
        let made = session.create(&path.parse().unwrap(), data, CreateMode::Persistent);
        made.await.unwrap().1.czxid
    })
}

fn metrics(server: &Server) -> Samples {
    let (_, address) = server.ready.rsplit_once(" metrics ").unwrap();
    Samples::read(address)
}

/// Restores a backup, and returns the data of these znodes in it.
fn content(backup: &Path, paths: &[&str]) -> Vec<Option<String>> {
    let folder = TempFolder::short();
    let dir = folder.at("restored");
    success(&lockkeeper(&[&"restore", &backup, &dir]));
    block_on(async {
        let options = StoreOptions::new().tick(TICK);
        let store = Store::file_with(&dir, options).unwrap();
        let session = store.connect().await.unwrap().session().await.unwrap();
        let mut found = Vec::new();
        for path in paths {
            let data = session.get_data(&path.parse().unwrap()).await.ok();
            found.push(data.map(|(data, _)| String::from_utf8(data.to_vec()).unwrap()));
        }
        found
    })
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Renames a backup, so that it seems to have been made at another time.
fn date(backup: &Path, time: &str) -> PathBuf {
    let name = backup.file_name().unwrap().to_str().unwrap();
    let mut parts: Vec<_> = name.split('-').collect();
    parts[1] = time;
    let dated = backup.with_file_name(parts.join("-"));
    fs::rename(backup, &dated).unwrap();
    dated
}

#[test]
fn each_is_restorable_and_the_oldest_go() {
    let folder = folder();
    let server = Server::start(&mut serve_with_backups(&folder, "1s", "2"));
    let first = next(&server);
    let one = create(&server, "/a", "one");
    let second = keep_with(&server, &folder, one);
    assert_eq!(content(&second, &["/a", "/b"]), [some("one"), None]);
    let two = create(&server, "/b", "two");
    let third = keep_with(&server, &folder, two);
    assert_eq!(content(&third, &["/a", "/b"]), [some("one"), some("two")]);
    assert!(!first.exists());
    let values = metrics(&server);
    assert_eq!(values.at("lockkeeper_backups"), 2.0);
    assert_eq!(values.at("lockkeeper_backup_interval_seconds"), 1.0);
    let made = values.at("lockkeeper_backup_timestamp_seconds");
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!((now - 3_600.0..=now).contains(&made), "{made}");
    assert!(values.at("lockkeeper_backup_bytes") > 100.0);
    ended_well(&server.end(Signal::TERM));
    let left = backups(&folder.at("backups"));
    assert_eq!(left.len(), 2, "{left:?}");
    // Like the store, the backups are private to the owner.
    use std::os::unix::fs::MetadataExt;
    for backup in &left {
        assert_eq!(fs::metadata(backup).unwrap().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_start_makes_one_that_was_missed_and_no_more() {
    let folder = folder();
    let start = || Server::start(&mut serve_with_backups(&folder, "1h", "10"));
    let server = start();
    let first = next(&server);
    ended_well(&server.end(Signal::TERM));
    // The last backup is recent, so no backup is due at the start.
    let server = start();
    let line = server.logs("the next backup");
    let (_, seconds) = line.split_once("seconds=").unwrap();
    let seconds: u64 = seconds.parse().unwrap();
    assert!((1..=3_600).contains(&seconds), "{line}");
    let found = metrics(&server).at("lockkeeper_backup_timestamp_seconds");
    assert!(found > 1_700_000_000.0, "{found}");
    ended_well(&server.end(Signal::TERM));
    assert_eq!(backups(&folder.at("backups")), [&*first]);
    // Change the time of the backup, so that several days of backups are overdue.
    let first = date(&first, "20250102T030405Z");
    let server = start();
    assert!(server.logs("the next backup").contains("seconds=0"));
    let second = next(&server);
    ended_well(&server.end(Signal::TERM));
    assert_eq!(backups(&folder.at("backups")), [first, second]);
}

#[test]
fn a_clock_that_was_set_back_neither_stops_them_nor_removes_the_newest() {
    let folder = folder();
    let start = |keep| Server::start(&mut serve_with_backups(&folder, "1h", keep));
    let server = start("2");
    let first = next(&server);
    create(&server, "/a", "newer");
    ended_well(&server.end(Signal::TERM));
    let of_the_future = date(&first, "90250102T030405Z");
    let server = start("2");
    let second = next(&server);
    ended_well(&server.end(Signal::TERM));
    assert_eq!(backups(&folder.at("backups")), [&*second, &*of_the_future]);
    // The two backups with the newest content remain, although the oldest of the three has the latest time.
    date(&second, "20250102T030405Z");
    let server = start("2");
    let third = next(&server);
    create(&server, "/b", "newest");
    ended_well(&server.end(Signal::TERM));
    assert!(!of_the_future.exists());
    let left = backups(&folder.at("backups"));
    assert_eq!((left.len(), &left[1]), (2, &third));
    assert_eq!(content(&left[0], &["/a"]), [some("newer")]);
}

#[test]
fn nothing_else_is_removed() {
    let folder = folder();
    let dir = folder.at("backups");
    let mut command = serve_with_backups(&folder, "1s", "1");
    let server = Server::start(&mut command);
    let first = next(&server);
    ended_well(&server.end(Signal::TERM));
    let name = first.file_name().unwrap().to_str().unwrap();
    let (rest, store) = name.rsplit_once('-').unwrap();
    let older = name.replace("lockkeeper-2", "lockkeeper-1");
    let foreign = [
        format!("{rest}-{}", store.replace(['0', '1', '2', '3'], "a")),
        format!("{older}.kept"),
        older.to_uppercase(),
        older.replace("lockkeeper-", "lockkeeper--"),
        "backup-00112233445566778899aabbccddeeff.unfinished".into(),
        "notes.txt".into(),
    ];
    for name in &foreign {
        fs::write(dir.join(name), "another's").unwrap();
    }
    // Create a folder and a link that have names of backups.
    let (inner, link) = (
        dir.join(&older),
        dir.join(older.replace("T", "T0").replacen('0', "", 1)),
    );
    fs::create_dir(&inner).unwrap();
    symlink(dir.join("notes.txt"), &link).unwrap();
    let server = Server::start(&mut command);
    for _ in 0..3 {
        next(&server);
    }
    ended_well(&server.end(Signal::TERM));
    for name in &foreign {
        assert_eq!(fs::read(dir.join(name)).unwrap(), b"another's", "{name}");
    }
    assert!(inner.is_dir() && link.is_symlink());
    assert!(!first.exists());
}

#[test]
fn one_that_a_kill_cuts_short_is_none_and_goes_at_the_next_start() {
    let folder = folder();
    let dir = folder.at("backups");
    let server = Server::start(&mut serve_with_backups(&folder, "1h", "2"));
    next(&server);
    block_on(async {
        let session = server.connect().await.session().await.unwrap();
        let large = "0123456789".repeat(100_000);
        for number in 0..30 {
            let path = format!("/large{number}").parse().unwrap();
            let data = large.clone();
            session
                .create(&path, data, CreateMode::Persistent)
                .await
                .unwrap();
        }
    });
    ended_well(&server.end(Signal::TERM));
    let work = fs::read_dir(&dir).unwrap().map(|it| it.unwrap().path());
    let work = work.filter(|path| path.is_dir()).collect::<Vec<_>>();
    let [work] = &work[..] else {
        panic!("{work:?}")
    };
    let unfinished = || {
        let entries = fs::read_dir(work).unwrap().map(|it| it.unwrap().path());
        let is_lock = |path: &PathBuf| path.file_name().is_some_and(|name| name == "lock");
        entries.filter(|path| !is_lock(path)).collect::<Vec<_>>()
    };
    assert!(unfinished().is_empty());
    let server = Server::start(&mut serve_with_backups(&folder, "1s", "2"));
    while unfinished().is_empty() {
        std::thread::yield_now();
    }
    server.signal(Signal::STOP);
    let cut = unfinished();
    server.end(Signal::KILL);
    // Every file with the name of a backup is complete, even one that was completed just before the kill.
    for backup in backups(&dir) {
        content(&backup, &[]);
    }
    assert!(cut.is_empty() || unfinished() == cut);
    // Leave a file as after a kill between the last write and the rename.
    fs::write(work.join("complete"), "").unwrap();
    let server = Server::start(&mut serve_with_backups(&folder, "1h", "2"));
    server.logs("the next backup");
    assert!(unfinished().is_empty(), "{:?}", unfinished());
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn without_its_folder_the_store_goes_on_and_the_backups_once_it_is_there() {
    let folder = TempFolder::short();
    let server = Server::start(&mut serve_with_backups(&folder, "1s", "2"));
    let line = server.logs("no backup was made, the store is not affected");
    assert!(line.contains("No such file or directory"), "{line}");
    let zxid = create(&server, "/a", "kept");
    let failures = r#"lockkeeper_backup_failures_total{reason="folder"}"#;
    let values = metrics(&server);
    assert!(values.at(failures) >= 1.0);
    assert_eq!(values.at("lockkeeper_backup_timestamp_seconds"), 0.0);
    fs::create_dir(folder.at("backups")).unwrap();
    let backup = keep_with(&server, &folder, zxid);
    assert_eq!(content(&backup, &["/a"]), [some("kept")]);
    // Move the folder away and back, as if its disk were unmounted and mounted again.
    fs::rename(folder.at("backups"), folder.at("away")).unwrap();
    server.logs("no backup was made");
    fs::rename(folder.at("away"), folder.at("backups")).unwrap();
    next(&server);
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn while_none_can_be_made_the_old_ones_stay() {
    let folder = folder();
    let dir = folder.at("backups");
    let server = Server::start(&mut serve_with_backups(&folder, "1h", "1"));
    let first = next(&server);
    ended_well(&server.end(Signal::TERM));
    let old = date(&first, "20250102T030405Z");
    let mut entries = fs::read_dir(&dir).unwrap().map(|it| it.unwrap().path());
    let work = entries.find(|path| path.is_dir()).unwrap();
    // Replace the work folder by a folder to which we cannot write.
    fs::remove_dir_all(&work).unwrap();
    symlink("/proc", &work).unwrap();
    let server = Server::start(&mut serve_with_backups(&folder, "1s", "1"));
    for _ in 0..2 {
        let line = server.logs("no backup was made");
        assert!(
            line.contains("is not a folder of this server's user"),
            "{line}"
        );
    }
    assert_eq!(backups(&dir), [&*old]);
    fs::remove_file(&work).unwrap();
    let new = next(&server);
    ended_well(&server.end(Signal::TERM));
    assert_eq!(backups(&dir), [new]);
}

#[test]
fn stores_share_a_folder_and_the_server_of_a_copy_is_refused() {
    let folder = folder();
    let dir = folder.at("backups");
    let one = Server::start(&mut serve_with_backups(&folder, "1s", "1"));
    let backup = next(&one);
    // This server has another store.
    let other = folder.at("other");
    let another = Server::start(&mut serve_store(&other, &dir, "1s", "1"));
    let of_another = next(&another);
    next(&one);
    next(&another);
    ended_well(&another.end(Signal::TERM));
    // This server has a copy of the same store.
    let copy = folder.at("copy");
    let kept = keep_with(&one, &folder, Zxid(0));
    success(&lockkeeper(&[&"restore", &kept, &copy]));
    let second = Server::start(&mut serve_store(&copy, &dir, "1s", "1"));
    let line = second.logs("no backup was made");
    assert!(line.contains("in use by another server"), "{line}");
    let refused = r#"lockkeeper_backup_failures_total{reason="in_use"}"#;
    assert!(metrics(&second).at(refused) >= 1.0);
    ended_well(&one.end(Signal::TERM));
    let of_the_copy = next(&second);
    ended_well(&second.end(Signal::TERM));
    assert!(same_store(&of_the_copy, &backup));
    let left = backups(&dir);
    let others = left.iter().filter(|it| same_store(it, &of_another));
    assert_eq!((left.len(), others.count()), (2, 1), "{left:?}");
}

/// Returns `true` if both names contain the same store id.
fn same_store(one: &Path, other: &Path) -> bool {
    let store = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.rsplit_once('-').unwrap().1.to_owned()
    };
    store(one) == store(other)
}

/// After the crash, the store opens no session until its pause is over, which takes ten minutes here.
#[test]
fn a_server_that_pauses_after_a_crash_is_ready_before_its_first_backup() {
    let folder = folder();
    let start = || {
        let mut command = serve_with_backups(&folder, "1h", "2");
        command.args(["--durability=delayed-restart", "--max-session-timeout=10m"]);
        Server::start(&mut command)
    };
    let server = start();
    block_on(async {
        let longest = ConnectOptions::new().session_timeout(Duration::from_secs(600));
        let client = connect_with(&format!("lockkeeper://{}", server.address()), longest)
            .await
            .unwrap();
        put(&client, "/a", "kept").await;
    });
    server.end(Signal::KILL);
    ended_well(&start().end(Signal::TERM));
}
