//! [`Memory`]: divides the process's memory limit into limits for its parts.

use std::fs;
use std::path::Path;

use super::flags::Flags;
use super::machine_memory;
use crate::values::Data;

/// The parts of `--max-memory`, in bytes. The process stays within `--max-memory` even if all parts are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: usize,
    /// Znodes, watches, sessions and identities.
    pub(crate) store: usize,
    /// Unread replies and events of all clients.
    pub(crate) outgoing: usize,
    /// Unread replies and events of one client. Also limits the client's largest reply.
    pub(crate) client: usize,
    pub(crate) unfinished: usize,
    pub(crate) segment: usize,
    pub(crate) connections: usize,
    /// The list of locks. `None` if the server follows no locks.
    pub(crate) locks: Option<usize>,
}

const MIB: usize = 1 << 20;

/// Memory of the process without any data, such as code, threads and the runtime.
const BASE: usize = 24 * MIB;

/// Memory of a connection with its buffers, after some use.
const CONNECTION: usize = 24 << 10;

/// Memory of a reply, in addition to the largest znode.
const ANSWER: usize = 64 << 10;

const LEAST_STORE: usize = 4 * MIB;

/// Size of a log's first segment, and the smallest size of a segment that can contain any transaction.
const FIRST_SEGMENT: usize = 16 * MIB;
const LEAST_SEGMENT: usize = 9 * MIB;

const LARGEST_SEGMENT: usize = 64 * MIB;

const LARGEST_LIST: usize = 64 * MIB;

/// Memory for building a list of short names, as a multiple of the list's encoded size.
const BUILDING: usize = 5;

impl Memory {
    pub(crate) fn of(flags: &Flags) -> Result<Self, String> {
        let total = flags.max_memory.unwrap_or_else(default_total);
        let locks = (total / 16).min(LARGEST_LIST);
        let locks = flags.follows_locks().then_some(locks);
        // The list of locks exists twice, once as shown and once for the comparison with the store.
        let lists = 2 * locks.unwrap_or(0);
        let rest = total.saturating_sub(BASE + lists);
        let client = (rest / 32).max(flags.max_frame + ANSWER);
        let client = client.min(flags.max_outgoing);
        let outgoing = (rest / 16).max(2 * client);
        let unfinished = (rest / 32).max(4 * MIB).min(flags.max_unfinished);
        let segment = (rest / 32).clamp(LEAST_SEGMENT, LARGEST_SEGMENT);
        let connections = (rest / 16 / CONNECTION).max(1).min(flags.max_connections());
        // Events exist twice while they are sent to several clients, and a growing buffer is up to twice as large as
        // its content. An eighth of `rest` is reserved for fragmentation.
        let beside = outgoing + outgoing / 2 + 2 * unfinished + BUILDING * client + rest / 8;
        let beside = beside + CONNECTION * connections;
        let is_kept = matches!(flags.data, Data::Folder(_));
        // A snapshot replays the log into a second copy of the store, and a concurrent backup into a third.
        let copies = 2 + usize::from(flags.backup_every.is_some());
        let (log, copies) = if is_kept {
            (2 * segment, copies)
        } else {
            (0, 1)
        };
        let store = rest.saturating_sub(beside + log) / copies;
        if store < LEAST_STORE {
            let least = (BASE + lists + beside + log + copies * LEAST_STORE).div_ceil(MIB);
            return Err(format!(
                "--max-memory is {} MiB, which leaves too little for the store with these options: at least \
                 {least} MiB are needed, or smaller --max-outgoing, --max-frame and --max-unfinished",
                total / MIB
            ));
        }
        Ok(Self {
            total,
            store,
            outgoing,
            client,
            unfinished,
            segment,
            connections,
            locks,
        })
    }

    pub(crate) fn first_segment(&self) -> usize {
        self.segment.min(FIRST_SEGMENT)
    }
}

/// Returns the default of `--max-memory`. This is three quarters of the control group's limit, because the kernel also
/// counts sockets and cached files towards this limit. Without a limit, it is half of the machine's memory.
fn default_total() -> usize {
    let machine = machine_memory::bytes();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = group_limit(Path::new("/sys/fs/cgroup"), &groups);
    let total = match limit.filter(|limit| *limit < machine) {
        Some(limit) => limit / 4 * 3,
        None => machine / 2,
    };
    usize::try_from(total).unwrap_or(usize::MAX)
}

/// Returns the smallest memory limit of the process's control groups and their ancestors. `groups` is the content of
/// `/proc/self/cgroup`.
fn group_limit(mount: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        match controllers {
            "" => least_upwards(mount, path, "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                least_upwards(&mount.join("memory"), path, "memory.limit_in_bytes")
            }
            _ => None,
        }
    });
    limits.min()
}

/// Returns the smallest limit in the files named `file` of a group and its ancestors. Ignores missing files, because in
/// a container `path` may be a path on the host, and only the topmost folder exists.
fn least_upwards(mount: &Path, path: &str, file: &str) -> Option<u64> {
    let path = Path::new(path.trim_start_matches('/'));
    let limits = path.ancestors().filter_map(|group| {
        let text = fs::read_to_string(mount.join(group).join(file)).ok()?;
        // `max` (no limit) does not parse.
        text.trim().parse().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(options: &[&str]) -> Flags {
        let mut flags = Command::parse_from(["serve"].iter().chain(options)).flags;
        if !options.contains(&"--data") {
            flags.data = Data::Memory;
        }
        flags
    }

    #[test]
    fn the_parts_stay_within_the_limit() {
        for options in [
            &["--max-memory", "128M"][..],
            &["--max-memory", "256M"],
            &["--max-memory", "1G"],
            &["--max-memory", "64G"],
            &["--max-memory", "1G", "--max-outgoing", "512M"],
            &["--max-memory", "1G", "--data", "/tmp"],
            &["--max-memory", "1G", "--data", "/tmp", "--backup-every=1h"],
            &[
                "--max-memory",
                "64G",
                "--data",
                "/tmp",
                "--max-unfinished",
                "8G",
            ],
        ] {
            let memory = Memory::of(&flags(options)).unwrap();
            let (log, copies) = match options.contains(&"/tmp") {
                true if options.contains(&"--backup-every=1h") => (2 * memory.segment, 3),
                true => (2 * memory.segment, 2),
                false => (0, 1),
            };
            let parts = BASE
                + copies * memory.store
                + memory.outgoing * 3 / 2
                + 2 * memory.unfinished
                + BUILDING * memory.client
                + CONNECTION * memory.connections
                + log;
            assert!(parts <= memory.total, "{options:?}: {memory:?}");
            assert!(memory.client <= memory.outgoing / 2, "{memory:?}");
        }
    }

    /// 96 MiB is the default in a control group of 128 MiB.
    #[test]
    fn a_small_machine_will_do() {
        let small = flags(&["--max-memory", "96M", "--data", "/tmp"]);
        assert!(Memory::of(&small).is_ok());
    }

    #[test]
    fn too_low_a_limit_is_refused_with_the_least_that_suffices() {
        let refused = Memory::of(&flags(&["--max-memory", "48M"])).unwrap_err();
        let needed = refused.split("at least ").nth(1).unwrap();
        let (needed, _) = needed.split_once(' ').unwrap();
        let needed: usize = needed.parse().unwrap();
        let more = format!("{}M", needed * 8 / 7 + 1);
        assert!(Memory::of(&flags(&["--max-memory", &more])).is_ok());
    }

    #[test]
    fn the_least_limit_of_all_groups_counts() {
        let mount = std::env::temp_dir().join(format!("lockkeeper-groups-{}", std::process::id()));
        for (group, file, text) in [
            ("", "memory.max", "max\n"),
            ("a", "memory.max", "2000\n"),
            ("a/b", "memory.max", "3000\n"),
            ("memory", "memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/c", "memory.limit_in_bytes", "1500\n"),
        ] {
            let folder = mount.join(group);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), text).unwrap();
        }
        for (groups, limit) in [
            ("0::/a/b\n", Some(2_000)),
            ("0::/\n", None),
            ("0::/elsewhere/a\n", None),
            ("3:cpu:/c\n2:rdma,memory:/c/d\n", Some(1_500)),
            ("2:memory:/host\n", Some(9_223_372_036_854_771_712)),
            ("2:memory:/c\n0::/a\n", Some(1_500)),
            ("", None),
        ] {
            assert_eq!(group_limit(&mount, groups), limit, "{groups:?}");
        }
        fs::remove_dir_all(&mount).unwrap();
    }
}
