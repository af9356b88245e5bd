//! Stand-in for systems that cannot report the removal of a Unix socket.

use std::path::Path;

pub(crate) async fn removed(_path: &Path) {
    std::future::pending().await
}
