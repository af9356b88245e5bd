//! [`Examination`]: one look at all files of a data directory.

use std::path::Path;
use std::time::Duration;

use super::segments::{self, SegmentInfo};
use super::{Inspection, Problem, SessionInfo, SnapshotInfo, subtrees};
use crate::clock::Clock;
use crate::core::{Core, NodeKind};
use crate::error::{Error, Result};
use crate::log::content::bare_core;
use crate::log::disk::Disk;
use crate::log::lock::{self, Holder};
use crate::log::recovery::{self, Facts, Source};
use crate::log::segment::{self, Header, log_name, log_number, spare_number};
use crate::log::snapshot::{self, Form, Head, Unreadable, snapshot_zxid};
use crate::log::view::View;
use crate::log::{content, epoch, identity};
use crate::random::hex;

/// The files that are neither segments nor snapshots.
const SINGLE_FILES: [&str; 5] = [
    identity::NAME,
    identity::UNFINISHED,
    lock::NAME,
    snapshot::UNFINISHED,
    segment::UNFINISHED,
];

pub(super) struct Examination<'a> {
    view: &'a View,
    dir: &'a Path,
    names: Vec<String>,
    problems: Vec<Problem>,
}

impl<'a> Examination<'a> {
    pub(super) fn new(dir: &'a Path, view: &'a View) -> Result<Self> {
        let not_a_store = |reason: String| Error::NotAStore {
            path: dir.to_owned(),
            reason,
        };
        let mut names = view
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
            view,
            dir,
            names,
            problems: Vec::new(),
        })
    }

    pub(super) fn inspect(mut self, top: usize) -> Inspection {
        let holder = lock::holder(self.dir).unwrap_or(Holder::Nobody);
        let identity = match identity::read(self.view) {
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
        let snapshots = self.snapshots();
        let (core, facts) = self.content(store.unwrap_or_default());
        let segments = self.segments(store.unwrap_or_default());
        let (subtrees, data_bytes) = subtrees::largest(&core, top);
        let (in_use, pid) = match holder {
            Holder::Nobody => (false, None),
            Holder::Process(pid) => (true, pid),
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
            file: self.view.path(name),
            offset,
            reason,
        });
    }

    /// Once for each place.
    fn report(&mut self, error: Error) {
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
            other => (self.dir.to_owned(), 0, other.to_string()),
        };
        let problem = Problem {
            file,
            offset,
            reason,
        };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn bytes(&self, name: &str) -> Option<u64> {
        self.view.open(name).ok()?.len().ok()
    }

    fn segments(&self, store: [u8; 16]) -> Vec<SegmentInfo> {
        let is_damaged = |number| {
            let file = self.view.path(&log_name(number));
            self.problems.iter().any(|problem| problem.file == file)
        };
        segments::look(self.view, &self.names, store, is_damaged)
    }

    /// Where `STORE` does not tell whose the directory is, another file may.
    fn any_store(&self) -> Option<[u8; 16]> {
        self.names.iter().find_map(|name| {
            let file = self.view.open(name).ok()?;
            if log_number(name).is_some() {
                return Some(Header::read(&*file).ok()?.ok()?.store);
            }
            snapshot_zxid(name)?;
            Some(Head::read(&*file, Form::Snapshot).ok()?.store)
        })
    }

    /// Newest first; each is read whole.
    fn snapshots(&mut self) -> Vec<SnapshotInfo> {
        let names = content::snapshot_names(self.view).unwrap_or_default();
        names.into_iter().map(|name| self.snapshot(name)).collect()
    }

    fn snapshot(&mut self, name: String) -> SnapshotInfo {
        let file = self.view.open(&name).map_err(Unreadable::from);
        let head = file.as_ref().ok();
        let head = head.and_then(|file| Head::read(&**file, Form::Snapshot).ok());
        let mut core = bare_core();
        let loaded =
            file.and_then(|file| snapshot::load(&*file, Form::Snapshot, &mut core, &mut || Ok(())));
        let is_whole = loaded.is_ok();
        if let Err(unreadable) = loaded {
            self.report(unreadable.of(self.view.path(&name)));
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

    /// The content, as far as it can be read.
    fn content(&mut self, store: [u8; 16]) -> (Core, Facts) {
        let newest = content::newest(self.view, store, &bare_core, &mut || Ok(()));
        let (mut core, start) = match newest {
            Ok((core, loaded)) => (core, loaded.map(|loaded| loaded.head.start)),
            Err(error) => {
                self.report(error);
                return (self.part_of_a_snapshot(), Facts::default());
            }
        };
        let source = Source {
            disk: self.view,
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

    /// Where no snapshot is whole, what can be read of the newest one that tells anything.
    fn part_of_a_snapshot(&self) -> Core {
        for name in content::snapshot_names(self.view).unwrap_or_default() {
            let mut core = bare_core();
            let empty = core.node_count();
            if let Ok(file) = self.view.open(&name) {
                // Why not all of it can be read is reported already.
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
