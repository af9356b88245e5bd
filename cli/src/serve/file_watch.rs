//! [`FileWatch`]: notices that one of some files has changed, by looking once a second.
//!
//! Symbolic links are followed. So an edited file, a file that was renamed into its place, and a link with a new target
//! (Kubernetes swaps the directory of a secret in this way) all look different.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct FileWatch {
    files: Vec<PathBuf>,
    seen: Looks,
}

/// State of each file: device, inode, size and time of the last change; `None` for one that cannot be found.
type Looks = Vec<Option<(u64, u64, u64, i64, i64)>>;

impl FileWatch {
    pub(super) fn new(files: Vec<PathBuf>) -> Self {
        let seen = look(&files);
        Self { files, seen }
    }

    /// Watches other files, if their names differ. They may have changed since they were read, so that counts as a change.
    pub(super) fn watch(&mut self, files: Vec<PathBuf>) {
        if !self.files.is_empty() && self.files != files {
            self.files = files;
            self.seen.clear();
        }
    }

    /// Waits until a file has changed, and then for a second in which none of them does: a file that is being written is
    /// not to be read half way. Never completes where there are no files.
    ///
    /// Cancel safe: a change is told by a later call.
    pub(super) async fn changed(&mut self) {
        if self.files.is_empty() {
            return std::future::pending().await;
        }
        let mut before = look(&self.files);
        loop {
            tokio::time::sleep(INTERVAL).await;
            let now = look(&self.files);
            if now == before && now != self.seen {
                self.seen = now;
                return;
            }
            before = now;
        }
    }
}

fn look(files: &[PathBuf]) -> Looks {
    let looks = files.iter().map(|file| {
        let metadata = fs::metadata(file).ok()?;
        Some((
            metadata.dev(),
            metadata.ino(),
            metadata.size(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        ))
    });
    looks.collect()
}
