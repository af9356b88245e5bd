//! A look at a data directory: all that can be read, and the first place that cannot.

mod look;
mod segments;
mod show;
mod subtrees;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use self::look::Examination;
use super::content;
use super::view::View;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::types::{SessionId, Zxid};

pub use self::segments::{SegmentInfo, SegmentState};
pub use self::subtrees::Subtree;

/// What stands in a data directory. Its text (`to_string()`) is for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The directory.
    pub dir: PathBuf,
    /// The id of the store, if any file tells it.
    pub store_id: Option<String>,
    /// Whether the directory is a copy that was not opened yet: opening it bumps the epoch.
    pub is_copied: bool,
    /// Whether a process has the store open.
    pub in_use: bool,
    /// That process, where it is known.
    pub pid: Option<u32>,
    /// The last transaction that was read.
    pub zxid: Zxid,
    /// No transaction had a zxid beyond the end of this epoch (`zxid >> 32`).
    pub epoch: u32,
    /// Whether the store was closed in order.
    pub was_clean: bool,
    /// The longest session timeout that a remote client was ever given.
    pub longest_timeout: Duration,
    /// How many znodes there are, the four that every store has included.
    pub znodes: u64,
    /// How many bytes their data has.
    pub data_bytes: u64,
    /// The sessions that are kept, by id.
    pub sessions: Vec<SessionInfo>,
    /// The largest subtrees, most bytes first. One that is nearly all another's below it is left out.
    pub subtrees: Vec<Subtree>,
    /// The snapshots, newest first.
    pub snapshots: Vec<SnapshotInfo>,
    /// The segments of the log, in order.
    pub segments: Vec<SegmentInfo>,
    /// How many segments wait to be used again.
    pub spare_segments: usize,
    /// The size of all files together, in bytes.
    pub bytes: u64,
    /// Files that are none of a store's.
    pub unknown_files: Vec<String>,
    /// What cannot be read. The store opens only if this is empty, or if all of it concerns snapshots
    /// of which another is whole.
    pub problems: Vec<Problem>,
}

/// A place that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// Where in it, in bytes from its beginning.
    pub offset: u64,
    /// What was expected and what was met.
    pub reason: String,
}

/// A session that is kept on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its number.
    pub id: SessionId,
    /// Its timeout; `None` if it never expires.
    pub timeout: Option<Duration>,
    /// Whether it ends when the process ends that has the store open.
    pub is_local: bool,
    /// How many ephemeral znodes it owns.
    pub ephemerals: u64,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// The file's name.
    pub name: String,
    /// All transactions up to this one are in it.
    pub zxid: Zxid,
    /// How long ago it was made, to four seconds; `None` where it does not tell.
    pub age: Option<Duration>,
    /// The first segment that is needed beside it; `None` where it does not tell.
    pub first_segment: Option<u64>,
    /// Its size.
    pub bytes: u64,
    /// Whether all of it can be read.
    pub is_whole: bool,
}

/// Looks at the data directory `dir`, and at its ten largest subtrees.
///
/// Nothing is opened for writing, so it may be in use, and it may be damaged: what can be read is
/// told. It takes the memory of the store's content for as long as it lasts, and blocks the thread.
///
/// # Errors
/// [`Error::NotAStore`] when there is nothing of a store.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("lockkeeper-inspect-doc-{}", std::process::id()));
/// let store = lockkeeper_store::Store::file(&dir)?;
/// let seen = lockkeeper_store::disk::inspect(&dir)?;
/// assert!(seen.in_use && seen.problems.is_empty());
/// println!("{seen}");
/// # drop(store);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), lockkeeper_store::Error>(())
/// ```
pub fn inspect(dir: impl AsRef<Path>) -> Result<Inspection> {
    inspect_top(dir, 10)
}

/// As [`inspect`], with as many of the largest subtrees as `top` says.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_top(dir: impl AsRef<Path>, top: usize) -> Result<Inspection> {
    let dir = dir.as_ref();
    let view = View::new(dir);
    let mut attempts = 1;
    loop {
        let before = content::snapshot_names(&view).unwrap_or_default();
        let seen = Examination::new(dir, &view)?.inspect(top);
        let is_moving = content::snapshot_names(&view).unwrap_or_default() != before;
        // Files that a store in use removes while they are read are no problem of its.
        if seen.problems.is_empty() || !is_moving || attempts == MOST_ATTEMPTS {
            return Ok(seen);
        }
        attempts += 1;
    }
}

/// How often a directory in use is read anew when its files go while they are read.
const MOST_ATTEMPTS: usize = 5;
