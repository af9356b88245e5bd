//! [`Schedule`]: the file that leaders write, and that checks their epochs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{FencingGate, FencingToken, StaleToken};
use serde::{Deserialize, Serialize};

/// What a leader plans, in a file that processes share.
///
/// It is a resource that checks tokens: the gate stands in the file itself, and is asked and written
/// back in the same step as the data, under the file's lock. (The lock of the file makes this one
/// step of the resource's; that there is one leader is not its business.)
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    file: PathBuf,
}

/// What stands in the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    gate: FencingGate,
    entries: Vec<Entry>,
    refused: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) epoch: FencingToken,
    pub(crate) leader: String,
}

impl Schedule {
    pub(crate) fn at(file: &Path) -> Self {
        Self { file: file.into() }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Writes an entry, unless a leader with a newer epoch has written before.
    pub(crate) fn write(
        &self,
        epoch: FencingToken,
        leader: &str,
    ) -> io::Result<Result<(), StaleToken>> {
        let lock = File::create(self.file.with_extension("lock"))?;
        lock.lock()?;
        let mut content = self.read()?;
        let admitted = content.gate.admit(epoch);
        match admitted {
            Ok(()) => content.entries.push(Entry {
                epoch,
                leader: leader.into(),
            }),
            Err(_) => content.refused += 1,
        }
        // In one step, or not at all: a writer may be killed in the middle.
        let new = self.file.with_extension("new");
        fs::write(&new, serde_json::to_vec(&content)?)?;
        fs::rename(&new, &self.file)?;
        Ok(admitted)
    }

    fn read(&self) -> io::Result<Content> {
        match fs::read(&self.file) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Content::default()),
            Err(error) => Err(error),
        }
    }

    /// Waits until a leader with a newer epoch than this has written.
    pub(crate) async fn until_newer(&self, epoch: Option<FencingToken>) -> io::Result<()> {
        while self.read()?.gate.newest() <= epoch {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// What is wrong with what has been accepted, and how much was accepted and refused.
    pub(crate) fn check(&self) -> io::Result<Checked> {
        let content = self.read()?;
        let mut wrongs = Vec::new();
        if !content.entries.is_sorted_by_key(|entry| entry.epoch) {
            wrongs.push("an old leader's entry was accepted after a new leader's".to_owned());
        }
        let mut leaders = BTreeMap::new();
        for Entry { epoch, leader } in &content.entries {
            let first = leaders.entry(*epoch).or_insert(leader);
            if *first != leader {
                wrongs.push(format!("{first} and {leader} both led in epoch {epoch}"));
            }
        }
        Ok(Checked {
            terms: leaders.len(),
            entries: content.entries.len(),
            refused: content.refused,
            wrongs,
        })
    }
}

/// What [`Schedule::check`] has found.
pub(crate) struct Checked {
    pub(crate) terms: usize,
    pub(crate) entries: usize,
    pub(crate) refused: usize,
    pub(crate) wrongs: Vec<String>,
}
