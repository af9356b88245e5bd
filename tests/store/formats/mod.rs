//! On-disk formats: this version reads files of earlier versions, which `make.rs` created, and refuses files of later
//! ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_store::{
    Acl, AclEntry, Client, Clock, ConnectOptions, Error, Store, StoreOptions, Zxid, disk,
};
use testkit::TempFolder;

use crate::common::path;

fn kept(what: &str) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/formats");
    formats.join(what)
}

/// Copies a checked-in directory, which must not change.
fn copy(of: &str) -> TempFolder {
    let to = TempFolder::new("format");
    for entry in fs::read_dir(kept(of)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

/// Connects as the superuser, because one znode belongs to an identity that we cannot prove. Time is frozen once the
/// initial pause of a copy or restored backup is over.
async fn open(dir: &Path) -> Client {
    let digest = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";
    let options = StoreOptions::new().super_digest(digest).unwrap();
    let options = options.clock(Clock::new_virtual());
    let store = Store::file_with(dir, options).unwrap();
    store.clock().advance(Duration::from_secs(60));
    let auth = ConnectOptions::new().auth("digest", "super:test");
    store.connect_with(auth).await.unwrap()
}

async fn check(client: &Client, turns: &str) {
    let session = client.session().await.unwrap();
    let data = async |at: &str| {
        let (data, stat) = session.get_data(&path(at)).await.unwrap();
        let data = String::from_utf8(data.to_vec()).unwrap();
        (data.trim().to_owned(), stat.version)
    };
    let version = turns.parse().unwrap();
    for (at, text, version) in [
        ("/config", "second", 1),
        ("/config/part", "of a multi", 0),
        ("/queue", "", 0),
        ("/queue/n-0000000000", "one", 0),
        ("/queue/n-0000000001", "two", 0),
        ("/été", "with a time to live", 0),
        ("/guarded", "for one alone", 0),
        ("/turns", turns, version),
    ] {
        assert_eq!(data(at).await, (text.to_owned(), version), "{at}");
    }
    let guarded = AclEntry {
        permissions: AclEntry::READ | AclEntry::ADMIN,
        scheme: "digest".into(),
        id: "someone:secret".into(),
    };
    let (acl, _) = session.get_acl(&path("/guarded")).await.unwrap();
    assert_eq!(acl, Acl::new([guarded]));
    let stat = session.exists(&path("/queue")).await.unwrap().unwrap();
    assert_eq!((stat.num_children, stat.cversion), (2, 4));
    assert_eq!(session.exists(&path("/mine")).await.unwrap(), None);
    let mode = lockkeeper_store::CreateMode::PersistentSequential;
    let (next, _) = session.create(&path("/queue/n-"), "", mode).await.unwrap();
    assert_eq!(next, path("/queue/n-0000000003"));
    // A copy ends all sessions, because the original may still be running.
    assert_eq!(session.exists(&path("/theirs")).await.unwrap(), None);
}

/// Checks the session left by `make.rs` and its ephemeral znode.
fn check_session(seen: &disk::Inspection) {
    let [theirs] = &seen.sessions[..] else {
        panic!("{:?}", seen.sessions);
    };
    assert!(!theirs.is_local && theirs.timeout.is_some());
    assert_eq!(theirs.ephemerals, 1);
}

async fn token(client: &Client) -> Zxid {
    let session = client.session().await.unwrap();
    let mode = lockkeeper_store::CreateMode::Ephemeral;
    session
        .create(&path("/token"), "", mode)
        .await
        .unwrap()
        .1
        .czxid
}

async fn opens(version: &str, turns: &str) {
    let dir = copy(&format!("{version}/data"));
    let seen = disk::inspect(dir.path()).unwrap();
    assert_eq!(seen.problems, []);
    assert!(seen.is_copied);
    check_session(&seen);
    assert!(!seen.snapshots.is_empty() && seen.segments.len() > 1);
    let client = open(dir.path()).await;
    assert_eq!(client.store_id(), seen.store_id.as_deref());
    check(&client, turns).await;
    // A copy skips epochs, so that its tokens exceed those that the original has given out since.
    assert!(token(&client).await.0 >> 32 >= i64::from(seen.epoch) + 4096);
    assert!(!disk::inspect(dir.path()).unwrap().is_copied);
}

#[tokio::test]
async fn a_directory_of_format_1_is_opened_and_its_tokens_go_on() {
    opens("v1", TURNS_OF_V1).await;
}

#[tokio::test]
async fn a_directory_of_format_2_is_opened_and_its_tokens_go_on() {
    opens("v2", TURNS_OF_V2).await;
}

async fn restores(version: &str, turns: &str) {
    let folder = TempFolder::new("format");
    let dir = folder.path().join("data");
    let restored = disk::restore(kept(&format!("{version}/backup")), &dir).unwrap();
    check_session(&disk::inspect(&dir).unwrap());
    let client = open(&dir).await;
    check(&client, turns).await;
    assert!(token(&client).await > restored.zxid);
}

#[tokio::test]
async fn a_backup_of_format_1_is_restored() {
    restores("v1", TURNS_OF_V1).await;
}

#[tokio::test]
async fn a_backup_of_format_2_is_restored() {
    restores("v2", TURNS_OF_V2).await;
}

/// How often `/turns` was set when the files of each format were made.
const TURNS_OF_V1: &str = "81";
const TURNS_OF_V2: &str = "81";

fn make_newer(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..12]);
    crc.update(&bytes[16..64]);
    bytes[12..16].copy_from_slice(&crc.finalize().to_le_bytes());
    fs::write(file, bytes).unwrap();
}

/// `known` is the newest format of such a file that this version reads.
fn check_refusal(error: &Error, file: &Path, known: u32) {
    let Error::StoreTooNew {
        file: refused,
        version,
        known: told,
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((refused.as_path(), *version, *told), (file, 99, known));
    let (said, up_to) = (error.to_string(), format!("up to {known}"));
    assert!(
        said.contains("format 99") && said.contains(&up_to),
        "{said}"
    );
}

#[test]
fn a_later_format_is_refused_whichever_file_has_it_and_nothing_is_changed() {
    let names = fs::read_dir(kept("v1/data")).unwrap();
    let names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let newest = |prefix: &str| {
        let of_it = names.iter().filter(|name| name.starts_with(prefix));
        of_it.max().unwrap().clone()
    };
    let files = [
        ("STORE".to_owned(), 2),
        (newest("snapshot-"), 2),
        (newest("log-"), 1),
    ];
    for (name, known) in files {
        let dir = copy("v1/data");
        let dir = dir.path().canonicalize().unwrap();
        make_newer(&dir.join(&name));
        let content = |name: &String| fs::read(dir.join(name)).unwrap();
        let before: Vec<_> = names.iter().map(content).collect();
        let error = Store::file(&dir).unwrap_err();
        check_refusal(&error, &dir.join(&name), known);
        let error = disk::backup(&dir, dir.with_extension("backup")).unwrap_err();
        check_refusal(&error, &dir.join(&name), known);
        let seen = disk::inspect(&dir).unwrap();
        assert_eq!(seen.problems[0].file, dir.join(&name));
        assert!(seen.problems[0].reason.contains("format 99"));
        assert_eq!(names.iter().map(content).collect::<Vec<_>>(), before);
    }
}

#[test]
fn a_backup_of_a_later_format_is_refused() {
    let folder = TempFolder::new("format");
    let file = folder.path().join("backup");
    fs::copy(kept("v1/backup"), &file).unwrap();
    make_newer(&file);
    let dir = folder.path().join("data");
    check_refusal(&disk::restore(&file, &dir).unwrap_err(), &file, 2);
    assert!(!dir.exists());
}

/// Existing segments may be too small for a batch of today.
#[tokio::test]
async fn a_store_can_be_opened_with_segments_of_another_size() {
    let dir = TempFolder::new("sizes");
    let mut sets = 0;
    for bytes in [1 << 16, 1 << 22, 1 << 16, 1 << 18, 1 << 20, 1 << 16] {
        let options = StoreOptions::new().segment_bytes(bytes, 2 * bytes);
        let store = Store::file_with(dir.path(), options).unwrap();
        let session = store.connect().await.unwrap().session().await.unwrap();
        let all = path("/all");
        if sets == 0 {
            let mode = lockkeeper_store::CreateMode::Persistent;
            session.create(&all, "", mode).await.unwrap();
        }
        let (data, stat) = session.get_data(&all).await.unwrap();
        assert_eq!(stat.version, sets, "{bytes}");
        assert!(data.iter().all(|byte| i32::from(*byte) == sets % 100));
        for _ in 0..40 {
            sets += 1;
            let data = vec![(sets % 100) as u8; bytes as usize / 100];
            session.set_data(&all, data, None).await.unwrap();
        }
    }
    assert_eq!(disk::inspect(dir.path()).unwrap().problems, []);
}
