//! The end of a Unix socket's file, where the system does not tell it.

use std::path::Path;

/// Never completes.
pub(crate) async fn removed(_path: &Path) {
    std::future::pending().await
}
