//! The descendants of this process, read from /proc.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use rustix::process::{Pid, getpid};

/// A process, which may have ended and not been waited for.
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) group: Pid,
    parent: Pid,
    /// True if all of its threads have ended. The state alone says so of the first one.
    pub(super) is_zombie: bool,
}

/// Returns the descendants of this process among `processes`, without `others` and theirs.
pub(super) fn among(processes: Vec<Process>, others: &[Pid]) -> Vec<Process> {
    let mut by_parent: HashMap<Pid, Vec<Process>> = HashMap::new();
    for process in processes {
        by_parent.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut next) = (Vec::new(), vec![getpid()]);
    let mut seen: HashSet<Pid> = others.iter().copied().collect();
    while let Some(parent) = next.pop() {
        for process in by_parent.remove(&parent).into_iter().flatten() {
            // /proc is not read at one moment: a process may seem to be its own ancestor.
            if !seen.insert(process.pid) {
                continue;
            }
            next.push(process.pid);
            found.push(process);
        }
    }
    found
}

/// Returns the children of this process.
pub(super) fn children() -> Vec<Pid> {
    let own = getpid();
    let children = all().into_iter().filter(|process| process.parent == own);
    children.map(|process| process.pid).collect()
}

/// Checks that /proc shows the processes of this one's pid namespace. With that of another namespace a running command
/// would seem to have ended, and its lock would be released.
pub(super) fn can_be_seen() -> io::Result<()> {
    let shown = fs::read_link("/proc/self").ok();
    let shown = shown.and_then(|it| it.to_str()?.parse::<i32>().ok());
    if shown == Some(getpid().as_raw_pid()) {
        return Ok(());
    }
    Err(io::Error::other(
        "/proc does not show this process, so no command could be ended: mount the one of its pid namespace (`unshare \
         --mount-proc`)",
    ))
}

/// Returns the processes that /proc shows.
pub(super) fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let pids = names.filter_map(|name| name.parse::<i32>().ok());
    // One that has ended meanwhile has no file.
    pids.filter_map(|pid| parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// Parses /proc/PID/stat: `pid (name) state parent group …`, with the number of threads 15 fields later. A process chooses
/// its name, which may hold blanks and parentheses.
fn parse(stat: &str) -> Option<Process> {
    let (pid, _) = stat.split_once(" (")?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    // The parent of the first process of a pid namespace is 0, which is no process.
    let mut number = || Pid::from_raw(fields.next()?.parse().ok()?);
    let (parent, group) = (number()?, number()?);
    let threads: u32 = fields.nth(14)?.parse().ok()?;
    Some(Process {
        parent,
        group,
        pid: Pid::from_raw(pid.parse().ok()?)?,
        is_zombie: matches!(state, "Z" | "X") && threads <= 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(start: &str, threads: u32) -> String {
        format!("{start} 4 0 -1 1 0 0 0 0 9 9 9 9 20 0 {threads} 0")
    }

    #[test]
    fn a_process_lives_as_long_as_any_of_its_threads() {
        for (threads, is_zombie) in [(0, true), (1, true), (2, false)] {
            let process = parse(&stat("42 (cat) Z 7 40", threads)).unwrap();
            assert_eq!(process.is_zombie, is_zombie);
        }
    }

    #[test]
    fn the_name_of_a_process_does_not_move_the_fields() {
        for name in ["cat", "a b", "a) Z 1", ") ("] {
            let process = parse(&stat(&format!("42 ({name}) S 7 40"), 1)).unwrap();
            let numbers = [process.pid, process.parent, process.group].map(Pid::as_raw_pid);
            assert_eq!((numbers, process.is_zombie), ([42, 7, 40], false), "{name}");
        }
        assert!(parse(&stat("1 (init) S 0 1", 1)).is_none());
        assert!(parse("").is_none());
    }
}
