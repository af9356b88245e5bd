//! An [`Inspection`] as text.

use std::fmt;
use std::time::Duration;

use super::{Inspection, SegmentState};

/// How many sessions are told one by one.
const MOST_SESSIONS: usize = 20;

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store(f)?;
        self.files(f)?;
        self.tree(f)?;
        self.verdict(f)
    }
}

impl fmt::Display for SegmentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sealed => "sealed",
            Self::Current => "current",
            Self::Torn => "torn",
            Self::Prepared => "prepared",
            Self::Damaged => "DAMAGED",
        })
    }
}

impl Inspection {
    fn store(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "directory   {}", self.dir.display())?;
        let id = self.store_id.as_deref().unwrap_or("unknown");
        let copied = if self.is_copied {
            " (a copy, not opened yet)"
        } else {
            ""
        };
        writeln!(f, "store       {id}{copied}")?;
        match (self.in_use, self.pid) {
            (false, _) => writeln!(f, "in use      no")?,
            (true, Some(pid)) => writeln!(f, "in use      by process {pid}")?,
            (true, None) => writeln!(f, "in use      yes")?,
        }
        let closed = match (self.in_use, self.was_clean) {
            (true, _) => "",
            (false, true) => ", closed in order",
            (false, false) => ", not closed in order",
        };
        writeln!(f, "last zxid   {}{closed}", self.zxid)?;
        writeln!(f, "epoch       {:#x}", self.epoch)?;
        if self.longest_timeout > Duration::ZERO {
            writeln!(f, "timeouts    up to {:?}", self.longest_timeout)?;
        }
        writeln!(f, "on disk     {}", Bytes(self.bytes))
    }

    fn files(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nsnapshots   {}", self.snapshots.len())?;
        for snapshot in &self.snapshots {
            let age = snapshot
                .age
                .map_or("of unknown age".into(), |age| format!("{} old", Age(age)));
            let state = if snapshot.is_whole { "" } else { "  DAMAGED" };
            let (name, bytes) = (&snapshot.name, Bytes(snapshot.bytes));
            writeln!(f, "  {name}  {bytes:>9}  {age}{state}")?;
        }
        writeln!(
            f,
            "segments    {}, and {} spare",
            self.segments.len(),
            self.spare_segments
        )?;
        for segment in &self.segments {
            let (bytes, used) = (Bytes(segment.bytes), Bytes(segment.used_bytes));
            write!(
                f,
                "  log-{:016x}  {bytes:>9}  {:10}  {used:>9} used  {:>7} frames",
                segment.number, segment.state, segment.frames
            )?;
            match segment.zxids {
                Some((first, last)) => writeln!(f, "  {first} to {last}")?,
                None => writeln!(f)?,
            }
        }
        for name in &self.unknown_files {
            writeln!(f, "unknown     {name:?}, no file of a store's")?;
        }
        Ok(())
    }

    fn tree(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let data = Bytes(self.data_bytes);
        writeln!(f, "\nznodes      {}, {data} of data", self.znodes)?;
        for tree in &self.subtrees {
            let bytes = Bytes(tree.bytes);
            writeln!(f, "  {bytes:>9}  {:>9} znodes  {}", tree.znodes, tree.path)?;
        }
        writeln!(f, "sessions    {}", self.sessions.len())?;
        for session in self.sessions.iter().take(MOST_SESSIONS) {
            let timeout = session
                .timeout
                .map_or("no timeout".to_owned(), |timeout| format!("{timeout:?}"));
            let local = if session.is_local {
                "  of the process"
            } else {
                ""
            };
            let (id, count) = (session.id, session.ephemerals);
            writeln!(f, "  {id}  {timeout}  {count} ephemeral znodes{local}")?;
        }
        match self.sessions.len().checked_sub(MOST_SESSIONS) {
            Some(more) if more > 0 => writeln!(f, "  and {more} more"),
            _ => Ok(()),
        }
    }

    fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.problems.is_empty() {
            return write!(f, "\nno damage found");
        }
        write!(f, "\nDAMAGED")?;
        for problem in &self.problems {
            let (file, offset) = (problem.file.display(), problem.offset);
            write!(f, "\n  {file} at byte {offset}: {}", problem.reason)?;
        }
        Ok(())
    }
}

/// A size in the unit that suits it.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        let text = match self.0 {
            0..10_240 => format!("{} B", self.0),
            10_240..10_485_760 => format!("{:.1} KiB", bytes / 1024.0),
            _ => format!("{:.1} MiB", bytes / 1_048_576.0),
        };
        f.pad(&text)
    }
}

/// How long ago, in the two units that suit it.
struct Age(Duration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
        let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
        match (days, hours, minutes) {
            (0, 0, 0) => write!(f, "{seconds} s"),
            (0, 0, _) => write!(f, "{minutes} min {seconds} s"),
            (0, _, _) => write!(f, "{hours} h {minutes} min"),
            _ => write!(f, "{days} d {hours} h"),
        }
    }
}
