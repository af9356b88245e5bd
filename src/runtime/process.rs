//! [`ProcessIdentity`]: distinguishes a process from all others, on any machine and at any time.
//!
//! A PID does not identify a process, because the system reuses PIDs, every container has its own PIDs, and a socket
//! may be forwarded to another machine. On Linux, /proc provides the rest of the identity. On other systems, processes
//! have no identity.
//!
//! [`is_forked`] detects a fork without exec. A forked child gets a copy of every handle, but none of the threads
//! behind the handles. Without a check, parent and child would both consider the same locks held. Therefore every
//! handle in the child returns errors, no lock counts as held, and dropped handles send nothing to the store (invariant
//! 5).

use std::fs;
use std::sync::LazyLock;

/// Counts forks with a `pthread_atfork` handler. A check takes two loads and no system call.
static FIRST_USE: LazyLock<forkguard::Guard> = LazyLock::new(forkguard::new);

/// Returns true in a process that was forked after its parent had used this library.
#[inline]
pub(crate) fn is_forked() -> bool {
    // Clone the guard, because a guard reports each fork only once.
    FIRST_USE.clone().detected_fork()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    pub(crate) boot_id: String,
    /// Inode of the pid namespace that `pid` belongs to.
    pub(crate) pid_namespace: u64,
    pub(crate) pid: i32,
    /// Start time in clock ticks since boot. An exec does not change it.
    pub(crate) start_time: u64,
}

/// A process in this process's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalProcess {
    pub(crate) pid: i32,
    pub(crate) start_time: u64,
}

/// Identifies the boot and the pid and time namespaces in which a [`LocalProcess`] is valid. `None` if the system does
/// not provide them.
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "only a server knows processes")
)]
pub(crate) fn numbering() -> Option<String> {
    let own = ProcessIdentity::own()?;
    // The link is missing before Linux 5.6, which has no time namespaces.
    let times = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!(
        "{} {} {}",
        own.boot_id,
        own.pid_namespace,
        times.display()
    ))
}

impl ProcessIdentity {
    pub(crate) fn own() -> Option<Self> {
        let (pid, start_time) = stat("self")?;
        // If /proc belongs to another pid namespace, its numbers refer to other processes.
        if i64::from(pid) != i64::from(std::process::id()) {
            return None;
        }
        Some(Self {
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .ok()?
                .trim_end()
                .to_owned(),
            pid_namespace: pid_namespace()?,
            pid,
            start_time,
        })
    }
}

#[cfg(feature = "server")]
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "no process is watched there")
)]
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    let (found, start_time) = stat(&pid.to_string())?;
    (found == pid).then_some(start_time)
}

#[cfg(all(feature = "server", feature = "metrics"))]
pub(crate) fn own_start_time() -> Option<u64> {
    stat("self").map(|(_, start_time)| start_time)
}

fn pid_namespace() -> Option<u64> {
    // For example `pid:[4026531836]`.
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let number = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
    number.parse().ok()
}

fn stat(name: &str) -> Option<(i32, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{name}/stat")).ok()?)
}

/// Parses /proc/PID/stat: the number, the name in parentheses, then fields separated by blanks. Field 22 is the start
/// time.
fn parse_stat(text: &str) -> Option<(i32, u64)> {
    let (pid, _) = text.split_once(" (")?;
    // Split from the right, because a process may choose a name with blanks and parentheses.
    let (_, rest) = text.rsplit_once(") ")?;
    Some((pid.parse().ok()?, rest.split(' ').nth(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_does_not_move_the_fields() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 19 20";
        for name in ["cat", "a b", "a) S 1", ") ("] {
            let text = format!("42 ({name}) {rest}");
            assert_eq!(parse_stat(&text), Some((42, 777)), "{text}");
        }
        assert_eq!(parse_stat("42 (cat) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_knows_itself() {
        let own = ProcessIdentity::own().unwrap();
        assert_eq!(own.pid, std::process::id() as i32);
        assert_eq!(own.boot_id.len(), 36, "{own:?}");
        assert_eq!(ProcessIdentity::own(), Some(own));
    }
}
