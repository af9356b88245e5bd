//! Restores, copies and salvages of one store in any order: a descendant gives out higher tokens than every earlier
//! store (invariant 5). They share the system clock, because they compare by time.

use std::fs;
use std::path::{Path, PathBuf};

use lockkeeper_store::{CreateMode, Error, Store, Zxid, disk};
use testkit::TempFolder;

use crate::common::path;

/// Stores that descend from one another, with the highest token so far.
struct Descent {
    folder: TempFolder,
    made: u32,
    highest: Zxid,
}

impl Descent {
    /// Creates a store that has given out a token. Also returns its directory.
    async fn begin() -> (Self, PathBuf) {
        let mut descent = Self {
            folder: TempFolder::new("descent"),
            made: 0,
            highest: Zxid(0),
        };
        let original = descent.place();
        descent.give_out(&original).await;
        (descent, original)
    }

    fn place(&mut self) -> PathBuf {
        self.made += 1;
        self.folder.path().join(self.made.to_string())
    }

    /// Opens a store and asserts that its next token exceeds all earlier ones.
    async fn give_out(&mut self, dir: &Path) {
        let store = Store::file(dir).unwrap();
        let client = store.connect().await.unwrap();
        let session = client.session().await.unwrap();
        let mode = CreateMode::EphemeralSequential;
        let (_, stat) = session.create(&path("/n-"), "", mode).await.unwrap();
        let token = stat.czxid;
        assert!(token > self.highest, "{token} after {}", self.highest);
        self.highest = token;
        client.close().await.unwrap();
    }

    fn back_up(&mut self, dir: &Path) -> PathBuf {
        let file = self.place();
        disk::backup(dir, &file).unwrap();
        file
    }

    fn restore(&mut self, file: &Path) -> PathBuf {
        let dir = self.place();
        disk::restore(file, &dir).unwrap();
        dir
    }

    fn salvage(&mut self, from: &Path) -> PathBuf {
        let dir = self.place();
        disk::salvage(from, &dir).unwrap();
        dir
    }

    fn copy(&mut self, from: &Path) -> PathBuf {
        let dir = self.place();
        fs::create_dir(&dir).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
        }
        dir
    }
}

#[tokio::test]
async fn a_backup_is_restored_after_copies_of_its_store_were_opened() {
    let (mut descent, original) = Descent::begin().await;
    let backup = descent.back_up(&original);
    let copy = descent.copy(&original);
    descent.give_out(&copy).await;
    let copy = descent.copy(&copy);
    descent.give_out(&copy).await;
    let restored = descent.restore(&backup);
    descent.give_out(&restored).await;
}

#[tokio::test]
async fn two_copies_of_one_store_are_opened_one_after_the_other() {
    let (mut descent, original) = Descent::begin().await;
    let copies = [descent.copy(&original), descent.copy(&original)];
    for copy in copies {
        descent.give_out(&copy).await;
    }
}

#[tokio::test]
async fn a_backup_is_restored_again_after_the_first_restored_store_was_opened_often() {
    let (mut descent, original) = Descent::begin().await;
    let backup = descent.back_up(&original);
    let restored = descent.restore(&backup);
    for _ in 0..3 {
        descent.give_out(&restored).await;
    }
    let again = descent.restore(&backup);
    descent.give_out(&again).await;
}

#[tokio::test]
async fn an_older_backup_is_restored_after_a_newer_one() {
    let (mut descent, original) = Descent::begin().await;
    let older = descent.back_up(&original);
    let restored = descent.restore(&older);
    descent.give_out(&restored).await;
    let newer = descent.back_up(&restored);
    let restored = descent.restore(&newer);
    descent.give_out(&restored).await;
    let restored = descent.restore(&older);
    descent.give_out(&restored).await;
}

#[tokio::test]
async fn a_backup_is_restored_after_a_salvage() {
    let (mut descent, original) = Descent::begin().await;
    let backup = descent.back_up(&original);
    let salvaged = descent.salvage(&original);
    descent.give_out(&salvaged).await;
    let restored = descent.restore(&backup);
    descent.give_out(&restored).await;
}

/// The log of a restored store has only the changes since, so it cannot replace the snapshot that the restore wrote.
#[tokio::test]
async fn a_restored_store_without_its_first_snapshot_does_not_open() {
    let (mut descent, original) = Descent::begin().await;
    let backup = descent.back_up(&original);
    for is_damaged in [true, false] {
        let restored = descent.restore(&backup);
        descent.give_out(&restored).await;
        let files = fs::read_dir(&restored)
            .unwrap()
            .map(|it| it.unwrap().path());
        let snapshots: Vec<_> = files
            .filter(|file| file.display().to_string().contains("snapshot-"))
            .collect();
        let [snapshot] = &snapshots[..] else {
            panic!("{snapshots:?}");
        };
        if is_damaged {
            let mut bytes = fs::read(snapshot).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(snapshot, bytes).unwrap();
        } else {
            fs::remove_file(snapshot).unwrap();
        }
        let refused = Store::file(&restored).err();
        assert!(
            matches!(refused, Some(Error::StoreDamaged { .. })),
            "damaged {is_damaged}: {refused:?}"
        );
    }
}
