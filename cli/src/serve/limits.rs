//! How many files the process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Files that are no connections: the log, its snapshots, the runtime's own, and some to spare.
const OTHER_FILES: u64 = 128;

/// Raises the limit to what so many connections need, as far as the system lets.
pub(crate) fn raise_open_files(connections: usize) {
    let needed = connections as u64 + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is no limit.
    let Some(limit) = current.filter(|limit| *limit < needed) else {
        return;
    };
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed));
    let limits = Rlimit {
        current: Some(raised),
        maximum,
    };
    let raised = match setrlimit(Resource::Nofile, limits) {
        Ok(()) => raised,
        Err(_) => limit,
    };
    if raised < needed {
        warn!(
            open_files = raised,
            needed,
            "the system allows fewer open files than --max-connections needs: connections beyond that will be \
             refused; raise it with `ulimit -Hn` or systemd's LimitNOFILE"
        );
    }
}
