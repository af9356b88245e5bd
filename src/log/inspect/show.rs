//! An [`Inspection`] as text.

use std::fmt;
use std::time::Duration;

use crate::core::Core;
use crate::log::inspect::{Inspection, SegmentState};
use crate::model::path::ZnodePath;
use crate::model::types::HumanDuration;

const MAX_SESSIONS: usize = 20;

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
            writeln!(
                f,
                "timeouts    up to {}",
                HumanDuration(self.longest_timeout)
            )?;
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
            writeln!(
                f,
                "unknown     \"{}\", no file of a store's",
                name.escape_debug()
            )?;
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
        for session in self.sessions.iter().take(MAX_SESSIONS) {
            let timeout = session.timeout.map_or("no timeout".to_owned(), |timeout| {
                HumanDuration(timeout).to_string()
            });
            let local = if session.is_local {
                "  of the process"
            } else {
                ""
            };
            let (id, count) = (session.id, session.ephemerals);
            writeln!(f, "  {id}  {timeout}  {count} ephemeral znodes{local}")?;
        }
        match self.sessions.len().checked_sub(MAX_SESSIONS) {
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
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

pub(in crate::log) struct Bytes(pub(in crate::log) u64);

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

/// A znode and everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subtree {
    /// The topmost znode.
    pub path: ZnodePath,
    /// Number of znodes, including the topmost.
    pub znodes: u64,
    /// Total size of the data and the paths of these znodes in bytes.
    pub bytes: u64,
}

/// Returns the `top` largest subtrees, most bytes first, and the size of all data. Leaves out the root, the znodes that
/// every store has, and each subtree with more than nine tenths of its bytes in one child's subtree.
pub(super) fn largest_subtrees(core: &Core, top: usize) -> (Vec<Subtree>, u64) {
    let mut data_bytes = 0;
    let mut found: Vec<Subtree> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for node in core.node_images() {
        data_bytes += node.data.len() as u64;
        while open.last().is_some_and(|last| !last.tree.holds(&node.path)) {
            close(&mut open, &mut found, top);
        }
        let bytes = (node.data.len() + node.path.as_str().len()) as u64;
        open.push(Open {
            tree: Subtree {
                path: node.path,
                znodes: 1,
                bytes,
            },
            largest_child: 0,
        });
    }
    while !open.is_empty() {
        close(&mut open, &mut found, top);
    }
    shorten(&mut found, top);
    (found, data_bytes)
}

struct Open {
    tree: Subtree,
    largest_child: u64,
}

impl Subtree {
    fn holds(&self, path: &ZnodePath) -> bool {
        let rest = path.as_str().strip_prefix(self.path.as_str());
        self.path.is_root() || rest.is_some_and(|rest| rest.starts_with('/'))
    }
}

fn close(open: &mut Vec<Open>, found: &mut Vec<Subtree>, top: usize) {
    let Some(Open {
        tree,
        largest_child,
    }) = open.pop()
    else {
        return;
    };
    let Some(parent) = open.last_mut() else {
        return;
    };
    parent.tree.znodes += tree.znodes;
    parent.tree.bytes += tree.bytes;
    parent.largest_child = parent.largest_child.max(tree.bytes);
    let is_of_every_store = tree.path.as_str().starts_with("/zookeeper");
    if !is_of_every_store && tree.bytes / 10 * 9 >= largest_child {
        found.push(tree);
    }
    if found.len() > 64 + 4 * top {
        shorten(found, top);
    }
}

fn shorten(found: &mut Vec<Subtree>, top: usize) {
    found.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.path.cmp(&other.path)));
    found.truncate(top);
}
