//! The disk's own time for a durable write, which is the floor of every acknowledgement.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::figures::{Row, Times, WriteTimes};

/// The way to write and sync, as databases do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// 4 KiB after 4 KiB in a file that was written before. Measures only the medium.
    Overwrite,
    /// The same with short records, which rewrite the previous page too.
    OverwriteRecord,
    /// 4 KiB at the end of a growing file, which adds the file system's journal.
    Append,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Overwrite, Self::OverwriteRecord, Self::Append];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Overwrite => "overwrite",
            Self::OverwriteRecord => "overwrite-record",
            Self::Append => "append",
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Overwrite | Self::Append => 4096,
            Self::OverwriteRecord => 190,
        }
    }
}

/// A file to be written and synced. Dropping it deletes the file.
///
/// All rounds share one, because creating another would involve the file system's journal.
pub(crate) struct Floor {
    file: File,
    path: PathBuf,
    way: Way,
    at: u64,
}

const WRITTEN_BYTES: u64 = 64 << 20;

impl Floor {
    pub(crate) fn make(folder: &Path, way: Way) -> Self {
        let path = folder.join(format!("floor-{}-{}", way.name(), super::fresh_name()));
        let mut file = File::create(&path).expect("a file to write");
        if way != Way::Append {
            let zeros = vec![0; 1 << 20];
            for _ in 0..WRITTEN_BYTES / zeros.len() as u64 {
                file.write_all(&zeros).expect("room on the disk");
            }
        }
        file.sync_all().expect("synced");
        Self {
            file,
            path,
            way,
            at: 0,
        }
    }

    /// Writes and syncs for `time`. Returns the duration of each.
    pub(crate) fn times(&mut self, time: Duration) -> Times {
        let bytes = vec![0x5a; self.way.bytes()];
        let mut times = Times::default();
        let start = Instant::now();
        while start.elapsed() < time {
            let asked = Instant::now();
            self.write_and_sync(&bytes);
            times.push(asked.elapsed());
        }
        times
    }

    /// Like `times`. The row has `sync_p50_us`.
    pub(crate) fn round(&mut self, time: Duration) -> Row {
        let mut row = Row::new();
        self.times(time).write(&mut row, "sync");
        row
    }

    /// Runs a round on a thread where blocking delays no other task.
    pub(crate) async fn round_aside(mut self, time: Duration) -> (Self, Row) {
        let measured = tokio::task::spawn_blocking(move || {
            let row = self.round(time);
            (self, row)
        });
        measured.await.expect("the disk works")
    }

    /// Writes after the previous write, and syncs.
    pub(crate) fn write_and_sync(&mut self, bytes: &[u8]) {
        if self.way != Way::Append && self.at + bytes.len() as u64 > WRITTEN_BYTES {
            self.at = 0;
        }
        let written = self.file.write_all_at(bytes, self.at);
        written.expect("room on the disk");
        self.file.sync_data().expect("synced");
        self.at += bytes.len() as u64;
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // A leftover file does no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}
