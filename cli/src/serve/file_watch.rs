//! [`FileWatch`]: checks once per second whether any of a set of files has changed.
//!
//! The check follows symbolic links, because Kubernetes updates a secret by changing a link.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct FileWatch {
    files: Vec<PathBuf>,
    seen: Looks,
}

type Looks = Vec<Option<(u64, u64, u64, i64, i64)>>;

impl FileWatch {
    pub(super) fn new(files: Vec<PathBuf>) -> Self {
        let seen = look(&files);
        Self { files, seen }
    }

    /// Watches these files from now on. Treats a changed list like a changed file, because the new files may have
    /// changed after they were read.
    pub(super) fn watch(&mut self, files: Vec<PathBuf>) {
        if !self.files.is_empty() && self.files != files {
            self.files = files;
            self.seen.clear();
        }
    }

    /// Waits until a file has changed, and then until no file changes for a second, so that we do not read a
    /// half-written file. Never completes if there are no files. Cancel safe, because the next call reports the change.
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
