//! [`ProcessIdentity`]: tells a process from every other one, of any time and of any machine.
//!
//! A process number alone does not: it is given again after the process's end, every container counts its own, and
//! a socket may be passed on between machines. Linux tells the rest in /proc; elsewhere no process is identified.

use std::fs;

/// Identity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    /// Id of the machine's start, as text.
    pub(crate) boot_id: String,
    /// Inode of the pid namespace, in which `pid` counts.
    pub(crate) pid_namespace: u64,
    pub(crate) pid: i32,
    /// Time of its start in clock ticks since the machine's; it stays the same through an exec.
    pub(crate) start_time: u64,
}

/// A process of this machine, as this process numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalProcess {
    pub(crate) pid: i32,
    pub(crate) start_time: u64,
}

/// Returns a text that is another one wherever a [`LocalProcess`] means another process: after a start of the machine,
/// and in another namespace of numbers or of times. `None` where the system does not tell.
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "only a server knows processes")
)]
pub(crate) fn numbering() -> Option<String> {
    let own = ProcessIdentity::own()?;
    // Missing before Linux 5.6, which has no such namespaces.
    let times = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!(
        "{} {} {}",
        own.boot_id,
        own.pid_namespace,
        times.display()
    ))
}

impl ProcessIdentity {
    /// Returns the identity of this process; `None` where the system does not tell it.
    pub(crate) fn own() -> Option<Self> {
        let (pid, start_time) = stat("self")?;
        // Of another pid namespace's /proc the numbers would mean other processes.
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

/// Returns the start time of a process that /proc shows.
#[cfg(feature = "server")]
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "no process is watched there")
)]
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    let (found, start_time) = stat(&pid.to_string())?;
    (found == pid).then_some(start_time)
}

/// Returns the start time of this process, in clock ticks since the machine's.
#[cfg(all(feature = "server", feature = "metrics"))]
pub(crate) fn own_start_time() -> Option<u64> {
    stat("self").map(|(_, start_time)| start_time)
}

fn pid_namespace() -> Option<u64> {
    // As `pid:[4026531836]`.
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let number = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// Returns the number and the start time of a process.
fn stat(name: &str) -> Option<(i32, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{name}/stat")).ok()?)
}

/// Fields of /proc/PID/stat: the number, the name in parentheses, then others, separated by blanks; the start time is
/// the 22nd.
fn parse_stat(text: &str) -> Option<(i32, u64)> {
    let (pid, _) = text.split_once(" (")?;
    // A process chooses its name, which may hold blanks and parentheses.
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
