//! Backup, restore and inspection of a data directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper_store::{CreateMode, Store, ZnodePath, Zxid};
use serde_json::Value;

use super::support::*;

fn put(store: &Store, name: &str, data: &'static str) -> Zxid {
    let path: ZnodePath = format!("/{name}").parse().unwrap();
    block_on(async {
        let session = store.connect().await.unwrap().session().await.unwrap();
        let made = session.create(&path, data, CreateMode::Persistent).await;
        made.unwrap().1.czxid
    })
}

fn get(store: &Store, name: &str) -> String {
    let path: ZnodePath = format!("/{name}").parse().unwrap();
    block_on(async {
        let session = store.connect().await.unwrap().session().await.unwrap();
        let (data, _) = session.get_data(&path).await.unwrap();
        String::from_utf8(data.to_vec()).unwrap()
    })
}

/// Creates a data directory with two znodes, and closes it.
fn data(folder: &TempFolder) -> PathBuf {
    let dir = folder.at("data");
    let store = Store::file(&dir).unwrap();
    put(&store, "a", "first");
    put(&store, "b", "second");
    dir
}

#[test]
fn a_store_comes_back_from_its_backup_and_tokens_go_on() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let store = Store::file(&dir).unwrap();
    put(&store, "a", "first");
    let (file, to) = (folder.at("backup"), folder.at("restored"));
    // Make the backup while the store is in use.
    let said = success(&lockkeeper(&[&"backup", &dir, &file]));
    assert!(said.contains("5 znodes, 0 sessions"), "{said}");
    let after = put(&store, "b", "after the backup");
    let said = success(&lockkeeper(&[&"restore", &file, &to]));
    assert!(said.contains("5 znodes"), "{said}");
    let restored = Store::file(&to).unwrap();
    assert_eq!(get(&restored, "a"), "first");
    assert!(put(&restored, "b", "another") > after);
    assert_eq!(get(&store, "b"), "after the backup");
}

#[test]
fn a_closed_store_is_backed_up_too() {
    let folder = TempFolder::short();
    let (dir, file, to) = (data(&folder), folder.at("backup"), folder.at("to"));
    success(&lockkeeper(&[&"backup", &dir, &file]));
    success(&lockkeeper(&[&"restore", &file, &to]));
    assert_eq!(get(&Store::file(to).unwrap(), "b"), "second");
}

/// The names of znodes are chosen by clients, so they must not act on a terminal.
#[test]
fn an_inspection_and_an_error_leave_the_terminal_alone() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    put(&Store::file(&dir).unwrap(), "a\u{202e}b\u{2028}", "");
    let shown = success(&lockkeeper(&[&"inspect", &dir]));
    assert!(shown.contains(r"/a\u{202e}b\u{2028}"), "{shown}");
    assert!(!shown.contains(['\u{202e}', '\u{2028}']), "{shown:?}");
    let error = lockkeeper(&[&"inspect", &folder.at("no\u{202e}ne")]).stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(error.contains(r"no\u{202e}ne"), "{error:?}");
}

#[test]
fn an_inspection_names_the_process_that_has_the_store_open() {
    let folder = TempFolder::short();
    let dir = data(&folder);
    let said = success(&lockkeeper(&[&"inspect", &dir]));
    assert!(said.contains("in use      no"), "{said}");
    assert!(said.contains("no damage found"), "{said}");
    let store = Store::file(&dir).unwrap();
    let said = success(&lockkeeper(&[&"inspect", &dir]));
    let pid = format!("by process {}", std::process::id());
    assert!(said.contains(&pid), "{said}");
    drop(store);
}

#[test]
fn an_inspection_as_json_has_what_the_text_has() {
    let folder = TempFolder::short();
    let dir = data(&folder);
    let said = success(&lockkeeper(&[&"inspect", &dir, &"--json", &"--top", &"1"]));
    let seen: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(seen["znodes"], 6);
    assert_eq!(seen["data_bytes"], 11);
    assert_eq!(seen["in_use"], false);
    assert_eq!(seen["closed_in_order"], true);
    assert_eq!(seen["largest_subtrees"].as_array().unwrap().len(), 1);
    assert_eq!(seen["problems"], Value::Array(vec![]));
    assert_eq!(seen["segments"][0]["state"], "current");
    assert_eq!(seen["segments"][0]["last_zxid"], seen["zxid"]);
}

fn damage(dir: &Path) {
    let log = dir.join("log-0000000000000000");
    let mut bytes = fs::read(&log).unwrap();
    bytes[64 + 48] ^= 0x40;
    fs::write(&log, bytes).unwrap();
}

#[test]
fn a_damaged_store_is_shown_and_neither_backed_up_nor_opened() {
    let folder = TempFolder::short();
    let dir = data(&folder);
    damage(&dir);
    let output = lockkeeper(&[&"inspect", &dir]);
    assert_eq!(output.status.code(), Some(1));
    let said = out(&output);
    assert!(said.contains("DAMAGED"), "{said}");
    assert!(said.contains("log-0000000000000000 at byte 64"), "{said}");
    let output = lockkeeper(&[&"inspect", &dir, &"--json"]);
    assert_eq!(output.status.code(), Some(1));
    let seen: Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(seen["problems"][0]["offset"], 64);
    let file = folder.at("backup");
    let said = failure(&lockkeeper(&[&"backup", &dir, &file]));
    assert!(
        said.contains("damaged") && said.contains("byte 64"),
        "{said}"
    );
    assert!(!file.exists());
    assert!(Store::file(&dir).is_err());
}

#[test]
fn a_store_whose_only_log_is_missing_is_damaged_and_not_empty() {
    let folder = TempFolder::short();
    let (dir, file) = (data(&folder), folder.at("backup"));
    success(&lockkeeper(&[&"backup", &dir, &file]));
    let good = fs::read(&file).unwrap();
    fs::remove_file(dir.join("log-0000000000000000")).unwrap();
    let output = lockkeeper(&[&"inspect", &dir]);
    assert_eq!(output.status.code(), Some(1));
    let backup = lockkeeper(&[&"backup", &dir, &file]);
    let opened = Store::file(&dir).unwrap_err();
    for said in [out(&output), failure(&backup), opened.to_string()] {
        let is_named = said.contains("log-0000000000000000") && said.contains("missing");
        assert!(is_named, "{said}");
    }
    assert_eq!(fs::read(&file).unwrap(), good);
}

#[test]
fn a_damaged_backup_is_refused() {
    let folder = TempFolder::short();
    let (dir, file, to) = (data(&folder), folder.at("backup"), folder.at("to"));
    success(&lockkeeper(&[&"backup", &dir, &file]));
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len() - 10;
    bytes.truncate(end);
    fs::write(&file, bytes).unwrap();
    let said = failure(&lockkeeper(&[&"restore", &file, &to]));
    assert!(said.contains("the file ends within a chunk"), "{said}");
    assert!(!to.exists());
}

#[test]
fn a_backup_of_a_later_version_is_refused_and_both_are_named() {
    let folder = TempFolder::short();
    let (dir, file) = (data(&folder), folder.at("backup"));
    success(&lockkeeper(&[&"backup", &dir, &file]));
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] = 7;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..12]);
    crc.update(&bytes[16..64]);
    bytes[12..16].copy_from_slice(&crc.finalize().to_le_bytes());
    fs::write(&file, bytes).unwrap();
    let said = failure(&lockkeeper(&[&"restore", &file, &folder.at("to")]));
    assert!(
        said.contains("format 7") && said.contains("up to 2"),
        "{said}"
    );
}

#[test]
fn nothing_is_restored_over_anything() {
    let folder = TempFolder::short();
    let (dir, file) = (data(&folder), folder.at("backup"));
    success(&lockkeeper(&[&"backup", &dir, &file]));
    let said = failure(&lockkeeper(&[&"restore", &file, &dir]));
    assert!(said.contains("not empty"), "{said}");
    assert_eq!(get(&Store::file(&dir).unwrap(), "a"), "first");
}

#[test]
fn what_is_missing_is_named() {
    let folder = TempFolder::short();
    let missing = folder.at("missing");
    let said = failure(&lockkeeper(&[&"inspect", &missing]));
    assert!(said.contains("missing is not a Lockkeeper store"), "{said}");
    let said = failure(&lockkeeper(&[&"backup", &missing, &folder.at("file")]));
    assert!(said.contains("missing is not a Lockkeeper store"), "{said}");
    let said = failure(&lockkeeper(&[&"restore", &missing, &folder.at("to")]));
    assert!(said.contains("missing"), "{said}");
    let said = failure(&lockkeeper(&[&"inspect", &folder.path()]));
    assert!(said.contains("it has no file STORE"), "{said}");
}

#[test]
fn a_backup_replaces_only_a_regular_file_outside_the_store() {
    let folder = TempFolder::short();
    let dir = data(&folder);
    let (fifo, link, inside) = (folder.at("fifo"), folder.at("link"), dir.join("sub"));
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
    fs::create_dir(&inside).unwrap();
    for (file, reason) in [
        (&fifo, "not a regular file"),
        (&link, "not a regular file"),
        (&inside.join("backup"), "inside"),
    ] {
        let said = failure(&lockkeeper(&[&"backup", &dir, file]));
        assert!(said.contains(reason), "{said}");
    }
    assert!(link.is_symlink() && !inside.join("backup").exists());
    let said = failure(&lockkeeper(&[&"restore", &fifo, &folder.at("to")]));
    assert!(said.contains("not a regular file"), "{said}");
}

#[test]
fn a_backup_can_be_written_to_stdout() {
    let folder = TempFolder::short();
    let (dir, file, to) = (data(&folder), folder.at("backup"), folder.at("to"));
    let output = lockkeeper(&[&"backup", &dir, &"-"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("stdout has store"), "{said}");
    fs::write(&file, output.stdout).unwrap();
    success(&lockkeeper(&[&"restore", &file, &to]));
    assert_eq!(get(&Store::file(to).unwrap(), "b"), "second");
}

/// Simulates a full disk with the shell's limit on the size of a file, in blocks of 512 bytes.
fn limited(blocks: u32, command: &str, from: &Path, to: &Path) -> String {
    let script = format!(r#"trap "" XFSZ; ulimit -f {blocks}; exec "$0" "$@""#);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_lockkeeper"), command]);
    failure(&shell.args([from, to]).output().unwrap())
}

#[test]
fn no_room_is_an_error_and_leaves_no_part_of_a_file() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let store = Store::file(&dir).unwrap();
    put(&store, "large", "0123456789".repeat(1_000).leak());
    let (file, to) = (folder.at("backup"), folder.at("to"));
    let said = limited(4, "backup", &dir, &file);
    assert!(said.contains("cannot be written"), "{said}");
    success(&lockkeeper(&[&"backup", &dir, &file]));
    // With a limit of 0 blocks, not even the process id fits into the file LOCK.
    for (blocks, to) in [(4, &to), (0, &to), (0, &to.join("deep"))] {
        let said = limited(blocks, "restore", &file, to);
        assert!(said.contains("cannot be written"), "{said}");
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        left.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
        assert_eq!(left.len(), 2, "{left:?}");
    }
}
