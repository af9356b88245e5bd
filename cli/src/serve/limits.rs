//! The process's limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Number of open files other than connections, for the log, its snapshots and the runtime, with some to spare.
const OTHER_FILES: u64 = 128;

const DEFAULT_CONNECTIONS: usize = 16_384;

/// Returns the default of `--max-connections`. It is as high as the hard limit of open files allows, if each connection
/// needs `of_each` files and all pages together need `of_pages` files.
pub(crate) fn default_connections(of_each: usize, of_pages: usize) -> usize {
    // `None` means unlimited.
    let Some(limit) = getrlimit(Resource::Nofile).maximum else {
        return DEFAULT_CONNECTIONS;
    };
    // With a very low limit, reserve at least half of the files for connections, because the others are seldom all
    // needed.
    let for_clients = limit
        .saturating_sub(OTHER_FILES + of_pages as u64)
        .max(limit / 2);
    let connections = usize::try_from(for_clients).map_or(usize::MAX, |files| files / of_each);
    connections.clamp(1, DEFAULT_CONNECTIONS)
}

/// Raises the limit of open files to the number needed for this many connection files, if the system allows it.
pub(crate) fn raise_open_files(of_connections: usize) {
    let needed = of_connections as u64 + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` means unlimited.
    let Some(limit) = current.filter(|limit| *limit < needed) else {
        return;
    };
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed));
    let limits = Rlimit {
        current: Some(raised),
        maximum,
    };
    // If the system refuses, the current limit still applies, and the server runs with fewer connections.
    let raised = match setrlimit(Resource::Nofile, limits) {
        Ok(()) => raised,
        Err(_) => limit,
    };
    if raised < needed {
        warn!(
            open_files = raised,
            needed,
            "the limit of open files is below what --max-connections needs: connections beyond it will be \
             refused; raise it with `ulimit -Hn` or systemd's LimitNOFILE"
        );
    }
}
