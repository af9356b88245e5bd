//! Salvage of a damaged data directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper_store::{CreateMode, Store, ZnodePath, Zxid};
use serde_json::Value;

use super::support::*;

/// Creates znodes, each in a separate frame of the log. Returns the czxid of the last znode.
fn fill(dir: &Path, count: usize) -> Zxid {
    let store = Store::file(dir).unwrap();
    block_on(async {
        let session = store.connect().await.unwrap().session().await.unwrap();
        let mut last = Zxid(0);
        for number in 0..count {
            let path: ZnodePath = format!("/node-{number}").parse().unwrap();
            let made = session.create(&path, "data", CreateMode::Persistent).await;
            last = made.unwrap().1.czxid;
        }
        last
    })
}

fn count(dir: &Path) -> usize {
    let store = Store::file(dir).unwrap();
    block_on(async {
        let session = store.connect().await.unwrap().session().await.unwrap();
        let names = session.get_children(&ZnodePath::root()).await.unwrap().0;
        let ours = |name: &&str| name.starts_with("node-");
        names.iter().map(String::as_str).filter(ours).count()
    })
}

fn log(dir: &Path) -> PathBuf {
    dir.join("log-0000000000000000")
}

/// Damages the log in the middle of its content.
fn damage(dir: &Path) {
    let mut bytes = fs::read(log(dir)).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end / 2] ^= 0x40;
    fs::write(log(dir), bytes).unwrap();
}

#[test]
fn a_damaged_store_lives_on_up_to_the_damage_with_higher_tokens() {
    let folder = TempFolder::short();
    let (dir, new) = (folder.at("data"), folder.at("new"));
    let last = fill(&dir, 20);
    damage(&dir);
    let refused = Store::file(&dir).unwrap_err().to_string();
    assert!(refused.contains("lockkeeper salvage DIR NEW"), "{refused}");
    let before = fs::read(log(&dir)).unwrap();
    let said = success(&lockkeeper(&[&"salvage", &dir, &new]));
    for part in [
        "LOST from",
        "log-0000000000000000",
        "transactions at least",
        "continue above",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(fs::read(log(&dir)).unwrap(), before);
    let left = count(&new);
    assert!((5..15).contains(&left), "{left}");
    assert!(fill_one(&new, String::new()) > last);
}

fn fill_one(dir: &Path, data: String) -> Zxid {
    let store = Store::file(dir).unwrap();
    block_on(async {
        let session = store.connect().await.unwrap().session().await.unwrap();
        let path: ZnodePath = "/another".parse().unwrap();
        let made = session.create(&path, data, CreateMode::Persistent).await;
        made.unwrap().1.czxid
    })
}

#[test]
fn as_json_it_says_what_the_text_says() {
    let folder = TempFolder::short();
    let (dir, new) = (folder.at("data"), folder.at("new"));
    fill(&dir, 20);
    damage(&dir);
    let said = success(&lockkeeper(&[&"salvage", &dir, &new, &"--json"]));
    let seen: Value = serde_json::from_str(&said).unwrap();
    let loss = &seen["loss"];
    assert_eq!(loss["damage"]["file"], log(&dir).display().to_string());
    assert_eq!(loss["places"][0]["offset"], loss["damage"]["offset"]);
    assert!(loss["places"][0]["bytes"].as_u64().unwrap() > 0);
    assert!(loss["transactions"].as_u64().unwrap() > 5);
    assert_eq!(seen["problems"].as_array().unwrap().len(), 1);
    assert_eq!(seen["in_use"], false);
    assert_eq!(seen["znodes"], 4 + count(&new));
}

#[test]
fn of_a_whole_store_nothing_is_lost_even_in_use() {
    let folder = TempFolder::short();
    let (dir, new) = (folder.at("data"), folder.at("new"));
    fill(&dir, 3);
    let store = Store::file(&dir).unwrap();
    let said = success(&lockkeeper(&[&"salvage", &dir, &new]));
    assert!(said.contains("nothing is lost"), "{said}");
    assert!(said.contains("the original is in use"), "{said}");
    drop(store);
    assert_eq!(count(&new), 3);
    let other = folder.at("other");
    let said = success(&lockkeeper(&[&"salvage", &dir, &other, &"--json"]));
    let seen: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(seen["loss"], Value::Null);
    assert_eq!(seen["problems"], Value::Array(vec![]));
}

#[test]
fn nothing_is_written_over_anything_nor_into_the_original() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    fill(&dir, 3);
    for (new, reason) in [(dir.as_path(), "is inside"), (folder.path(), "not empty")] {
        let output = lockkeeper(&[&"salvage", &dir, &new]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(reason), "{said}");
    }
    let said = failure(&lockkeeper(&[
        &"salvage",
        &folder.at("none"),
        &folder.at("new"),
    ]));
    assert!(said.contains("is not a Lockkeeper store"), "{said}");
    assert!(!folder.at("new").exists());
    assert_eq!(count(&dir), 3);
}

/// Simulates a full disk with the shell's limit on the size of a file.
#[test]
fn without_room_nothing_is_left() {
    let folder = TempFolder::short();
    let (dir, new) = (folder.at("data"), folder.at("new"));
    fill_one(&dir, "0123456789".repeat(2_000));
    let script = r#"trap "" XFSZ; ulimit -f 4; exec "$0" "$@""#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lockkeeper"), "salvage"]);
    let said = failure(&shell.args([&dir, &new]).output().unwrap());
    assert!(said.contains("cannot be written"), "{said}");
    assert!(!new.exists());
}
