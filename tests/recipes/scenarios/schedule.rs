//! A file that leaders write, in one process or several, and that checks their epochs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{FencingGate, FencingToken, StaleToken};
use serde::{Deserialize, Serialize};

/// A resource that checks tokens. The gate is stored in the file and updated in one step with the data, under the
/// file's lock.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    file: PathBuf,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    gate: FencingGate,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    epoch: FencingToken,
    leader: String,
}

impl Schedule {
    pub(super) fn at(file: &Path) -> Self {
        Self { file: file.into() }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Writes an entry unless a leader with a newer epoch has written.
    pub(super) fn write(&self, epoch: FencingToken, leader: &str) -> Result<(), StaleToken> {
        let lock = File::create(self.file.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        let mut content = self.read();
        content.gate.admit(epoch)?;
        content.entries.push(Entry {
            epoch,
            leader: leader.into(),
        });
        // Atomic, because a writer may be killed in the middle.
        let new = self.file.with_extension("new");
        fs::write(&new, serde_json::to_vec(&content).unwrap()).unwrap();
        fs::rename(&new, &self.file).unwrap();
        Ok(())
    }

    fn read(&self) -> Content {
        match fs::read(&self.file) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Content::default(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until a leader with a newer epoch has written. Polls, because file changes cause no event here.
    pub(super) async fn until_newer(&self, epoch: Option<FencingToken>) {
        while self.read().gate.newest() <= epoch {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Checks that no entry of an old leader was accepted after a new leader's, and that each epoch had one leader.
    /// Returns the leaders in epoch order.
    pub(super) fn check(&self) -> Vec<String> {
        let content = self.read();
        assert!(content.entries.is_sorted_by_key(|entry| entry.epoch));
        let mut leaders = BTreeMap::new();
        for Entry { epoch, leader } in content.entries {
            let first = leaders.entry(epoch).or_insert(leader.clone());
            assert_eq!(*first, leader, "both led in epoch {epoch}");
        }
        leaders.into_values().collect()
    }
}
