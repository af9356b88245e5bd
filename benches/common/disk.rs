//! The disk's own time for a durable write: the floor of every acknowledgement.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::figures::{Row, Times};

/// A file that has been written before, as a log's is; it goes when this is dropped. One for all rounds:
/// making another would have the file system's journal in them.
pub(crate) struct Floor {
    file: File,
    path: PathBuf,
}

impl Floor {
    pub(crate) fn make(folder: &Path) -> Self {
        let path = folder.join(format!("floor-{}", std::process::id()));
        let file = File::create(&path).expect("a file to write");
        let block = vec![0x5a; BLOCK_BYTES];
        for number in 0..BLOCKS {
            write(&file, number, &block);
        }
        file.sync_all().expect("synced");
        Self { file, path }
    }

    /// Writes 4 KiB and syncs it, again and again. The row has `sync_p50_us`.
    pub(crate) fn round(&self, time: Duration) -> Row {
        let block = vec![0xa5; BLOCK_BYTES];
        let (mut times, start) = (Times::default(), Instant::now());
        for number in 0.. {
            if start.elapsed() >= time {
                break;
            }
            let asked = Instant::now();
            write(&self.file, number % BLOCKS, &block);
            self.file.sync_data().expect("synced");
            times.push(asked.elapsed());
        }
        let mut row = Row::new();
        times.write(&mut row, "sync");
        row
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // What is left over is only a file too many.
        let _ = std::fs::remove_file(&self.path);
    }
}

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 4096;

fn write(file: &File, number: u64, block: &[u8]) {
    let written = file.write_all_at(block, number * BLOCK_BYTES as u64);
    written.expect("room on the disk");
}
