//! The file `PROCESSES`, which records the process of each session, if the server knows the process. After a restart,
//! the server ends the sessions of processes that have died.
//!
//! We never sync the file. It only has to survive the end of this process, and after a power loss the new boot id makes
//! it invalid. The file names the epoch of the run that wrote it, so it also becomes invalid if a later run, for
//! example of an older version, does not rewrite it.
//!
//! The first line states the epoch, the boot, and the PID and time namespaces in which the numbers below are valid.
//! Each further line is a change: `+SESSION PID START`, or `-SESSION` if the session no longer belongs to a known
//! process.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile, failed, remove_if_exists};
use crate::model::error::Result;
use crate::model::types::SessionId;
use crate::runtime::process::{self, LocalProcess};

pub(super) const NAME: &str = "PROCESSES";

pub(super) const UNFINISHED: &str = "PROCESSES.new";

pub(crate) type Known = Vec<(SessionId, LocalProcess)>;

const MAX_STALE: usize = 1024;

pub(crate) struct ProcessFile {
    disk: Arc<dyn Disk>,
    /// The last epoch that was reserved before the store was opened, and the last epoch that opening it has reserved.
    epochs: [u32; 2],
    state: FileState,
}

enum FileState {
    Unread,
    Open {
        file: Box<dyn DiskFile>,
        bytes: u64,
        most: usize,
        lines: usize,
    },
    /// We do not write the file any more. Either a write failed and we removed the file, or PIDs cannot be compared
    /// across restarts on this system.
    GivenUp,
}

impl ProcessFile {
    pub(crate) fn new(disk: Arc<dyn Disk>, epochs: [u32; 2]) -> Self {
        Self {
            disk,
            epochs,
            state: FileState::Unread,
        }
    }

    /// Returns the processes that the previous run has recorded, and rewrites the file so that it is valid for this
    /// run. Later calls return nothing.
    pub(crate) fn read(&mut self) -> Known {
        if !matches!(self.state, FileState::Unread) {
            return Vec::new();
        }
        let Some(numbering) = process::numbering() else {
            self.state = FileState::GivenUp;
            return Vec::new();
        };
        let known = read_text(&*self.disk)
            .ok()
            .and_then(|text| parse(&text, &first_line(self.epochs[0], &numbering)))
            .unwrap_or_default();
        if let Err(error) = self.rewrite(&known) {
            self.give_up(&error);
        }
        known
    }

    /// Records the process of a session, or that the session has no known process. `known` returns all valid earlier
    /// records, in case the file has to be rewritten.
    ///
    /// # Errors
    /// `StoreFailed` if an outdated file remains, because it can be neither written nor removed.
    pub(crate) fn record(
        &mut self,
        session: SessionId,
        process: Option<LocalProcess>,
        known: impl FnOnce() -> Known,
    ) -> Result<()> {
        let Err(error) = self.append(&line(session, process), known) else {
            return Ok(());
        };
        if self.give_up(&error) {
            return Ok(());
        }
        let path = self.disk.path(NAME);
        Err(failed(path, "cannot be written or removed", &error))
    }

    fn append(&mut self, line: &str, known: impl FnOnce() -> Known) -> io::Result<()> {
        if matches!(self.state, FileState::Open { lines, most, .. } if lines >= most) {
            self.rewrite(&known())?;
        }
        let FileState::Open {
            file, bytes, lines, ..
        } = &mut self.state
        else {
            return Ok(());
        };
        let at = *bytes;
        *bytes += line.len() as u64;
        *lines += 1;
        file.write_at(at, line.as_bytes())
    }

    fn rewrite(&mut self, known: &Known) -> io::Result<()> {
        let mut text = first_line(self.epochs[1], &process::numbering().unwrap_or_default());
        for (session, process) in known {
            text.push_str(&line(*session, Some(*process)));
        }
        let file = self.disk.create(UNFINISHED)?;
        file.write_at(0, text.as_bytes())?;
        self.disk.rename(UNFINISHED, NAME)?;
        self.state = FileState::Open {
            file,
            bytes: text.len() as u64,
            most: 2 * known.len() + MAX_STALE,
            lines: known.len(),
        };
        Ok(())
    }

    /// Removes the file, because it would soon be outdated. Returns false if it cannot be removed.
    fn give_up(&mut self, error: &io::Error) -> bool {
        let path = self.disk.path(NAME);
        let removed = remove_if_exists(&*self.disk, NAME);
        let is_removed = removed.is_ok();
        if is_removed {
            let _ = remove_if_exists(&*self.disk, UNFINISHED);
            self.state = FileState::GivenUp;
        }
        tracing::warn!(
            path = %path.display(), %error, is_removed,
            "not written: the sessions of processes that die while no server runs end with their timeouts"
        );
        is_removed
    }
}

fn first_line(epoch: u32, numbering: &str) -> String {
    format!("lockkeeper processes 1 {epoch} {numbering}\n")
}

fn line(session: SessionId, process: Option<LocalProcess>) -> String {
    match process {
        Some(LocalProcess { pid, start_time }) => format!("+{} {pid} {start_time}\n", session.0),
        None => format!("-{}\n", session.0),
    }
}

fn read_text(disk: &dyn Disk) -> io::Result<String> {
    let file = disk.open(NAME)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(0)];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn parse(text: &str, first: &str) -> Option<Known> {
    // Ignore a last line without a newline. Its write was interrupted, so no client got an answer that relies on it.
    let changes = text.strip_prefix(first)?.split_inclusive('\n');
    let mut known = HashMap::new();
    for change in changes.filter_map(|line| line.strip_suffix('\n')) {
        if let Some(session) = change.strip_prefix('-') {
            known.remove(&session.parse().ok()?);
            continue;
        }
        let mut fields = change.strip_prefix('+')?.split(' ');
        let session: i64 = fields.next()?.parse().ok()?;
        let process = LocalProcess {
            pid: fields.next()?.parse().ok()?,
            start_time: fields.next()?.parse().ok()?,
        };
        known.insert(session, process);
    }
    let known = known.into_iter();
    Some(
        known
            .map(|(session, process)| (SessionId(session), process))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::disk::Folder;
    use crate::log::sim::{Faults, SimDisk};
    use crate::log::testing::TempFolder;

    const A: LocalProcess = LocalProcess {
        pid: 7,
        start_time: 70,
    };
    const B: LocalProcess = LocalProcess {
        pid: 8,
        start_time: 80,
    };

    fn opened(folder: &TempFolder, former: u32) -> (ProcessFile, Known) {
        let disk = Arc::new(Folder::new(folder.path()));
        let mut file = ProcessFile::new(disk, [former, former + 1]);
        let mut known = file.read();
        known.sort_by_key(|(session, _)| *session);
        (file, known)
    }

    fn record(file: &mut ProcessFile, session: i64, process: Option<LocalProcess>) {
        let known = || unreachable!("it is short");
        file.record(SessionId(session), process, known).unwrap();
    }

    #[test]
    fn the_next_opening_reads_what_was_recorded_last_and_no_later_one_does() {
        let folder = TempFolder::new();
        let (mut file, known) = opened(&folder, 1);
        assert_eq!(known, []);
        record(&mut file, 1, Some(A));
        record(&mut file, 2, Some(A));
        record(&mut file, -3, Some(A));
        record(&mut file, 2, Some(B));
        record(&mut file, 1, None);
        let left = vec![(SessionId(-3), A), (SessionId(2), B)];
        let (_, known) = opened(&folder, 2);
        assert_eq!(known, left);
        let (_, known) = opened(&folder, 3);
        assert_eq!(known, left);
        let (_, known) = opened(&folder, 5);
        assert_eq!(known, []);
    }

    #[test]
    fn an_unfinished_line_is_none_and_any_other_damage_makes_the_file_worthless() {
        let first = first_line(4, "numbers");
        let parsed = |rest: &str| parse(&format!("{first}{rest}"), &first);
        assert_eq!(parsed("+1 7 70\n-1"), Some(vec![(SessionId(1), A)]));
        assert_eq!(parsed("+1 7 70\n+1 8 8"), Some(vec![(SessionId(1), A)]));
        for damaged in ["\n", "+1 7\n", "+1 x 70\n", "-\n", "1 7 70\n"] {
            assert_eq!(parsed(damaged), None, "{damaged:?}");
        }
        for other in [first_line(5, "numbers"), first_line(4, "others")] {
            assert_eq!(parse(&format!("{other}+1 7 70\n"), &first), None);
        }
    }

    #[test]
    fn a_file_with_many_changes_is_rewritten() {
        let folder = TempFolder::new();
        let (mut file, _) = opened(&folder, 1);
        for session in 0..100_000 {
            let known = || vec![(SessionId(session), A)];
            file.record(SessionId(session), Some(A), known).unwrap();
        }
        let bytes = std::fs::metadata(folder.path().join(NAME)).unwrap().len();
        assert!(bytes < 100_000, "{bytes}");
        let (_, known) = opened(&folder, 2);
        assert_eq!(known.last(), Some(&(SessionId(99_999), A)));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_removed() {
        let disk = SimDisk::new();
        let opened = |former| ProcessFile::new(Arc::new(disk.clone()), [former, former + 1]);
        let mut file = opened(1);
        assert_eq!(file.read(), []);
        record(&mut file, 1, Some(A));
        let write_error_every = 1;
        let faults = Faults {
            write_error_every,
            ..Faults::default()
        };
        disk.fail(1, faults);
        record(&mut file, 1, Some(B));
        assert_eq!(disk.list().unwrap(), [""; 0]);
        record(&mut file, 1, Some(A));
        assert_eq!(opened(2).read(), []);
    }
}
