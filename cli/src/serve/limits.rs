//! The process's limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

const OTHER_FILES: u64 = 128;

const DEFAULT_CONNECTIONS: usize = 16_384;

/// Returns the default of `--max-connections`. Each connection needs `of_each` files, and all pages together need
/// `of_pages` files.
pub(crate) fn default_connections(of_each: usize, of_pages: usize) -> usize {
    // `None` means unlimited.
    let Some(limit) = getrlimit(Resource::Nofile).maximum else {
        return DEFAULT_CONNECTIONS;
    };
    // Reserve at least half of the files for connections, even with a very low limit, because the other files are
    // seldom all needed.
    let for_clients = limit
        .saturating_sub(OTHER_FILES + of_pages as u64)
        .max(limit / 2);
    let connections = usize::try_from(for_clients).map_or(usize::MAX, |files| files / of_each);
    connections.clamp(1, DEFAULT_CONNECTIONS)
}

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
