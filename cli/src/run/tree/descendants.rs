//! The descendants of this process, as listed in /proc. Only the list of our own children is complete. The list of all
//! descendants is good enough for sending signals, but not for deciding whether any process is left.

use std::fs;
use std::io;

use rustix::process::{Pid, getpid};

/// Maximum number of processes in one pass, so that a command that keeps forking cannot keep us busy.
const MOST: usize = 1 << 16;

/// Checks that /proc lists our children by their numbers in our own pid namespace.
pub(super) fn can_be_seen() -> io::Result<()> {
    let own = getpid().as_raw_pid().to_string();
    let is_own = fs::read_link("/proc/self").is_ok_and(|shown| shown.as_os_str() == &*own);
    if is_own && fs::exists(format!("/proc/self/task/{own}/children"))? {
        return Ok(());
    }
    Err(io::Error::other(
        "/proc does not list the children of this process, and it may not create a cgroup, so it could not end a command: \
         mount the /proc of its pid namespace (`unshare --mount-proc`)",
    ))
}

/// Returns the descendants of this process, without `others` and their descendants.
pub(super) fn without(others: &[Pid]) -> Vec<Pid> {
    let (mut found, mut next) = (children(), 0);
    found.retain(|child| !others.contains(child));
    while next < found.len().min(MOST) {
        found.extend(children_of(&found[next].as_raw_pid().to_string()));
        next += 1;
    }
    found
}

pub(super) fn children() -> Vec<Pid> {
    match can_be_seen() {
        Ok(()) => children_of("self"),
        Err(_) => Vec::new(),
    }
}

fn children_of(process: &str) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let children =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<_> = children.collect();
    let numbers = children
        .iter()
        .flat_map(|children| children.split_whitespace());
    numbers
        .filter_map(|number| Pid::from_raw(number.parse().ok()?))
        .collect()
}
