//! Inspection of a data directory.

mod show;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) use self::show::Bytes;
pub use self::show::Subtree;
use super::disk::{Disk, View};
use super::frame::Scanner;
use super::lock::{self, LockOwner};
use super::recovery::{self, Facts, LogSource, bare_core};
use super::segment::{self, Header, log_name, log_number, spare_number};
use super::snapshot::{self, Form, Head, Unreadable, snapshot_zxid};
use super::{epoch, identity, processes};
use crate::core::{Core, NodeKind};
use crate::model::error::{Error, Result};
use crate::model::types::{SessionId, Zxid};
use crate::runtime::clock::Clock;
use crate::runtime::platform::hex;

/// Content of a data directory. `to_string()` formats it for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The directory.
    pub dir: PathBuf,
    /// The id of the store, if any file contains it.
    pub store_id: Option<String>,
    /// True for a copy that was not opened yet. Opening the copy starts a new epoch above all zxids of the original.
    pub is_copied: bool,
    /// True if a process has the store open.
    pub in_use: bool,
    /// The pid of the process that has the store open, if known.
    pub pid: Option<u32>,
    /// The last transaction that could be read.
    pub zxid: Zxid,
    /// The last epoch (`zxid >> 32`) that the log has reserved. No transaction has a zxid in a later epoch.
    pub epoch: u32,
    /// True if the store was closed cleanly.
    pub was_clean: bool,
    /// The longest session timeout that a remote client ever got.
    pub longest_timeout: Duration,
    /// Number of znodes, including the four that every store has.
    pub znodes: u64,
    /// Size of the data of all znodes in bytes.
    pub data_bytes: u64,
    /// The persisted sessions, by id.
    pub sessions: Vec<SessionInfo>,
    /// The largest subtrees, most bytes first. A subtree that consists almost entirely of one child's subtree is left
    /// out.
    pub subtrees: Vec<Subtree>,
    /// The snapshots, newest first.
    pub snapshots: Vec<SnapshotInfo>,
    /// The segments of the log, in order.
    pub segments: Vec<SegmentInfo>,
    /// Number of segments waiting to be reused.
    pub spare_segments: usize,
    /// Total size of all files in bytes.
    pub bytes: u64,
    /// Files that do not belong to a store.
    pub unknown_files: Vec<String>,
    /// Places in the files that cannot be read. The store can be opened only if there are none, or if all of them are
    /// in snapshots and another snapshot is whole.
    pub problems: Vec<Problem>,
}

/// A place in a file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// Expected and found content.
    pub reason: String,
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let (file, offset, reason) = match error {
            Error::StoreDamaged {
                file,
                offset,
                reason,
            } => (file, offset, reason),
            Error::StoreTooNew {
                file,
                version,
                known,
            } => {
                let reason = format!(
                    "it is of format {version}, and this build knows formats up to {known}"
                );
                (file, 8, reason)
            }
            Error::StoreFailed { path, reason } => (path, 0, reason),
            other => (PathBuf::new(), 0, other.to_string()),
        };
        Self {
            file,
            offset,
            reason,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, offset) = (self.file.display(), self.offset);
        write!(f, "{file} at byte {offset}: {}", self.reason)
    }
}

/// A persisted session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Id of the session.
    pub id: SessionId,
    /// Timeout of the session. `None` if the session never expires.
    pub timeout: Option<Duration>,
    /// True if the session ends when the process that has the store open ends.
    pub is_local: bool,
    /// Number of ephemeral znodes of the session.
    pub ephemerals: u64,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// The file's name.
    pub name: String,
    /// The snapshot includes all transactions up to this one.
    pub zxid: Zxid,
    /// Age of the snapshot, with a precision of about four seconds. `None` if the header cannot be read.
    pub age: Option<Duration>,
    /// First segment of the log that is needed in addition to this snapshot. `None` if the header cannot be read.
    pub first_segment: Option<u64>,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// True if the whole snapshot can be read.
    pub is_whole: bool,
}

/// Inspects the data directory `dir` and its ten largest subtrees.
///
/// Opens nothing for writing, so the directory may be in use. For a damaged directory, returns the readable part and
/// the places that cannot be read. Blocks the thread, and needs as much memory as the store's content.
///
/// # Errors
/// [`Error::NotAStore`] if the directory contains no files of a store.
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

/// Like [`inspect`], but with the `top` largest subtrees.
///
/// # Errors
/// As for [`inspect`].
pub fn inspect_top(dir: impl AsRef<Path>, top: usize) -> Result<Inspection> {
    let dir = dir.as_ref();
    let view = View::new(dir);
    let has_no_problem =
        |seen: &Result<Inspection>| !matches!(seen, Ok(seen) if !seen.problems.is_empty());
    recovery::read_in_use(&view, has_no_problem, || {
        let holder = lock::holder(dir).unwrap_or(LockOwner::Unlocked);
        Ok(Inspector::new(dir, &view)?.inspect(holder, top))
    })
}

#[cfg(feature = "simulation")]
pub(crate) fn inspect_on(disk: &super::sim::SimDisk) -> Result<Inspection> {
    let dir = disk.path("");
    Ok(Inspector::new(&dir, disk)?.inspect(LockOwner::Unlocked, 10))
}

const SINGLE_FILES: [&str; 7] = [
    identity::NAME,
    identity::UNFINISHED,
    lock::NAME,
    snapshot::UNFINISHED,
    segment::UNFINISHED,
    processes::NAME,
    processes::UNFINISHED,
];

struct Inspector<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    names: Vec<String>,
    problems: Vec<Problem>,
}

impl<'a> Inspector<'a> {
    fn new(dir: &'a Path, disk: &'a dyn Disk) -> Result<Self> {
        let not_a_store = |reason: String| Error::NotAStore {
            path: dir.to_owned(),
            reason,
        };
        let mut names = disk
            .list()
            .map_err(|error| not_a_store(error.to_string()))?;
        names.sort();
        let is_ours = |name: &String| name == identity::NAME || log_number(name).is_some();
        if !names
            .iter()
            .any(|name| is_ours(name) || snapshot_zxid(name).is_some())
        {
            return Err(not_a_store(format!("it has no file {}", identity::NAME)));
        }
        Ok(Self {
            disk,
            dir,
            names,
            problems: Vec::new(),
        })
    }

    fn inspect(mut self, holder: LockOwner, top: usize) -> Inspection {
        let identity = match identity::read(self.disk) {
            Ok(Some(identity)) => Some(identity),
            Ok(None) => {
                let reason = "the file is missing".to_owned();
                self.problem(identity::NAME, 0, reason);
                None
            }
            Err(error) => {
                self.report(error);
                None
            }
        };
        let store = identity
            .map(|identity| identity.store)
            .or_else(|| self.any_store());
        // Read the content before the segments, because `segments` marks a file as damaged if reading the content found
        // a problem in it.
        let snapshots = self.snapshots();
        let (core, facts) = self.content(store.unwrap_or_default());
        let segments = self.segments(store.unwrap_or_default());
        let (subtrees, data_bytes) = show::largest_subtrees(&core, top);
        let (in_use, pid) = match holder {
            LockOwner::Unlocked => (false, None),
            LockOwner::Process(pid) => (true, pid),
        };
        let spares = self
            .names
            .iter()
            .filter(|name| spare_number(name).is_some());
        Inspection {
            dir: self.dir.to_owned(),
            store_id: store.map(hex),
            is_copied: identity.is_some_and(|identity| identity.is_copied),
            in_use,
            pid,
            zxid: facts.zxid,
            epoch: facts.epoch,
            was_clean: facts.is_clean,
            longest_timeout: Duration::from_millis(facts.longest_timeout_ms),
            znodes: core.node_count() as u64,
            data_bytes,
            sessions: sessions(&core),
            subtrees,
            snapshots,
            segments,
            spare_segments: spares.count(),
            bytes: self.names.iter().filter_map(|name| self.bytes(name)).sum(),
            unknown_files: self
                .names
                .iter()
                .filter(|name| is_unknown(name))
                .cloned()
                .collect(),
            problems: self.problems,
        }
    }

    fn problem(&mut self, name: &str, offset: u64, reason: String) {
        self.problems.push(Problem {
            file: self.disk.path(name),
            offset,
            reason,
        });
    }

    fn report(&mut self, error: Error) {
        let problem = Problem::from(error);
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn bytes(&self, name: &str) -> Option<u64> {
        self.disk.open(name).ok()?.len().ok()
    }

    fn segments(&self, store: [u8; 16]) -> Vec<SegmentInfo> {
        let is_damaged = |number| {
            let file = self.disk.path(&log_name(number));
            self.problems.iter().any(|problem| problem.file == file)
        };
        inspect_segments(self.disk, &self.names, store, is_damaged)
    }

    fn any_store(&self) -> Option<[u8; 16]> {
        self.names.iter().find_map(|name| {
            let file = self.disk.open(name).ok()?;
            if log_number(name).is_some() {
                return Some(Header::read(&*file).ok()?.ok()?.store);
            }
            snapshot_zxid(name)?;
            Some(Head::read(&*file, Form::Snapshot).ok()?.store)
        })
    }

    fn snapshots(&mut self) -> Vec<SnapshotInfo> {
        let names = recovery::snapshot_names(self.disk).unwrap_or_default();
        names.into_iter().map(|name| self.snapshot(name)).collect()
    }

    fn snapshot(&mut self, name: String) -> SnapshotInfo {
        let file = self.disk.open(&name).map_err(Unreadable::from);
        let head = file.as_ref().ok();
        let head = head.and_then(|file| Head::read(&**file, Form::Snapshot).ok());
        let mut core = bare_core();
        let loaded =
            file.and_then(|file| snapshot::load(&*file, Form::Snapshot, &mut core, &mut || Ok(())));
        let is_whole = loaded.is_ok();
        if let Err(unreadable) = loaded {
            self.report(unreadable.of(self.disk.path(&name)));
        }
        let age = |head: Head| epoch::since(head.made, Clock::system().unix_ms());
        SnapshotInfo {
            zxid: snapshot_zxid(&name).unwrap_or_default(),
            age: head.map(age),
            first_segment: head.map(|head| head.start.segment),
            bytes: self.bytes(&name).unwrap_or(0),
            is_whole,
            name,
        }
    }

    fn content(&mut self, store: [u8; 16]) -> (Core, Facts) {
        let newest = recovery::newest(self.disk, store, &bare_core, &mut || Ok(()));
        let (mut core, start) = match newest {
            Ok((core, loaded)) => (core, loaded.map(|loaded| loaded.head.start)),
            Err(error) => {
                self.report(error);
                return (self.part_of_a_snapshot(), Facts::default());
            }
        };
        let source = LogSource {
            disk: self.disk,
            store,
            start: start.unwrap_or_default(),
        };
        let before = source.start.facts;
        let recovered = recovery::recover(&source, &mut |txn| core.replay(txn));
        let facts = match recovered {
            Ok(recovered) => recovered.facts,
            Err(error) => {
                self.report(error);
                Facts {
                    zxid: core.last_zxid(),
                    is_clean: false,
                    ..before
                }
            }
        };
        (core, facts)
    }

    fn part_of_a_snapshot(&self) -> Core {
        for name in recovery::snapshot_names(self.disk).unwrap_or_default() {
            let mut core = bare_core();
            let empty = core.node_count();
            if let Ok(file) = self.disk.open(&name) {
                // Ignore the error, which was already reported. The core has the records before the damage.
                let _ = snapshot::load(&*file, Form::Snapshot, &mut core, &mut || Ok(()));
            }
            if core.node_count() > empty {
                return core;
            }
        }
        bare_core()
    }
}

fn is_unknown(name: &str) -> bool {
    !SINGLE_FILES.contains(&name)
        && log_number(name).is_none()
        && spare_number(name).is_none()
        && snapshot_zxid(name).is_none()
}

fn sessions(core: &Core) -> Vec<SessionInfo> {
    let mut counts = std::collections::BTreeMap::new();
    for node in core
        .node_images()
        .filter(|node| node.kind == NodeKind::Ephemeral)
    {
        *counts.entry(node.owner).or_insert(0) += 1;
    }
    let info = |session: crate::core::SessionImage| SessionInfo {
        id: session.id,
        timeout: (session.timeout_ms > 0).then(|| Duration::from_millis(session.timeout_ms)),
        is_local: session.is_local,
        ephemerals: counts.get(&session.id).copied().unwrap_or(0),
    };
    let mut sessions: Vec<_> = core.session_images().map(info).collect();
    sessions.sort_by_key(|session| session.id);
    sessions
}

/// A segment of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Number of the segment.
    pub number: u64,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Number of bytes up to the end of the last frame.
    pub used_bytes: u64,
    /// Number of frames before the first place that has no whole frame.
    pub frames: u64,
    /// The first and last zxid in the frames of the segment. `None` if the segment has no frames.
    pub zxids: Option<(Zxid, Zxid)>,
    /// State of the segment.
    pub state: SegmentState,
}

/// State of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentState {
    /// The log continues in the next segment.
    Sealed,
    /// The log ends here.
    Current,
    /// The log ends here with a frame that was incomplete when the store stopped. The store erases this frame when it
    /// is opened.
    Torn,
    /// Prepared and not written yet.
    Prepared,
    /// Unreadable, or readable only up to [`SegmentInfo::used_bytes`].
    Damaged,
}

fn inspect_segments(
    disk: &dyn Disk,
    names: &[String],
    store: [u8; 16],
    is_damaged: impl Fn(u64) -> bool,
) -> Vec<SegmentInfo> {
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| log_number(name)).collect();
    numbers.sort_unstable();
    let mut segments: Vec<_> = numbers
        .into_iter()
        .map(|number| inspect_segment(disk, number, &store))
        .collect();
    for segment in &mut segments {
        if is_damaged(segment.number) {
            segment.state = SegmentState::Damaged;
        }
    }
    let is_used =
        |segment: &SegmentInfo| segment.frames > 0 || segment.state == SegmentState::Damaged;
    let last_used = segments.iter().rposition(is_used);
    for (index, segment) in segments.iter_mut().enumerate() {
        if segment.state != SegmentState::Damaged && Some(index) < last_used {
            segment.state = SegmentState::Sealed;
        }
    }
    segments
}

fn inspect_segment(disk: &dyn Disk, number: u64, store: &[u8; 16]) -> SegmentInfo {
    let mut info = SegmentInfo {
        number,
        bytes: 0,
        used_bytes: 0,
        frames: 0,
        zxids: None,
        state: SegmentState::Damaged,
    };
    if let Ok(mut segment) = Scanner::open(disk, number, store) {
        info.bytes = segment.header().size;
        info.state = walk(&mut segment, &mut info).unwrap_or(SegmentState::Damaged);
    }
    info
}

fn walk(segment: &mut Scanner<'_>, info: &mut SegmentInfo) -> crate::Result<SegmentState> {
    let mut at = Scanner::FIRST;
    while let Some((head, _)) = segment.frame_at(at)?.filter(|(head, _)| !head.is_mark()) {
        at += head.frame_bytes() as u64;
        info.frames += 1;
        // A store's first frame has no zxids, because it only reserves an epoch.
        if head.last > Zxid(0) {
            let first = info.zxids.map_or(head.first, |(first, _)| first);
            info.zxids = Some((first, head.last));
        }
    }
    info.used_bytes = at;
    Ok(match (segment.is_free(at)?, info.frames) {
        (false, _) => SegmentState::Torn,
        (true, 0) => SegmentState::Prepared,
        (true, _) => SegmentState::Current,
    })
}
