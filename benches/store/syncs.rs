//! The disk's own time for the writes of a log: the floor of every durable write.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::figures::{Row, Times, medians};
use crate::ground;
use crate::{sketch, writes};

/// A write and its sync, as databases do them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// 4 KiB after 4 KiB, of a file that has been written before: the medium alone.
    Overwrite,
    /// The same, but as short as a record: the page before is written again, too.
    OverwriteRecord,
    /// 4 KiB at the end of a file that grows: the file system's journal in addition.
    Append,
}

impl Way {
    const ALL: [Self; 3] = [Self::Overwrite, Self::OverwriteRecord, Self::Append];

    fn name(self) -> &'static str {
        match self {
            Self::Overwrite => "overwrite",
            Self::OverwriteRecord => "overwrite-record",
            Self::Append => "append",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Overwrite | Self::Append => 4096,
            Self::OverwriteRecord => 190,
        }
    }
}

/// A file to be written and synced; it goes when this is dropped.
pub(crate) struct Floor {
    file: File,
    path: PathBuf,
    way: Way,
    at: u64,
}

/// Bytes written before the measurement.
const WRITTEN_BYTES: u64 = 64 << 20;

impl Floor {
    pub(crate) fn make(folder: &Path, way: Way) -> Self {
        let path = folder.join(format!("floor-{}-{}", way.name(), ground::fresh_name()));
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

    /// Writes and syncs for so long, on a thread where that disturbs nobody.
    pub(crate) async fn round(self, time: Duration) -> (Self, Times) {
        let measured = tokio::task::spawn_blocking(move || self.run(time));
        measured.await.expect("the disk works")
    }

    fn run(mut self, time: Duration) -> (Self, Times) {
        let bytes = vec![0x5a; self.way.bytes()];
        let mut times = Times::default();
        let start = Instant::now();
        while start.elapsed() < time {
            let asked = Instant::now();
            self.write_and_sync(&bytes);
            times.push(asked.elapsed());
        }
        (self, times)
    }

    /// Behind what was written last.
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
        // What is left over is only a file too many.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The ways in turns, round by round; then the simplest group commit.
pub(crate) async fn measure(args: &Args) {
    let Some(parent) = args.folder() else {
        return args
            .line("syncs")
            .print_skipped("only file: has a disk of its own");
    };
    let folder = ground::fresh_folder(&parent);
    let mut floors = Way::ALL.map(|way| Some(Floor::make(&folder, way)));
    let mut rounds = Way::ALL.map(|_| Vec::new());
    for _ in 0..args.timing.rounds {
        for (floor, rows) in floors.iter_mut().zip(&mut rounds) {
            let (done, times) = floor.take().expect("put back").round(args.round()).await;
            *floor = Some(done);
            let mut row = Row::new();
            times.write(&mut row, "sync");
            rows.push(row);
        }
    }
    for (way, rows) in Way::ALL.into_iter().zip(&rounds) {
        let line = args.line("syncs").with("way", way.name());
        line.with("bytes", way.bytes()).print(&medians(rows));
    }
    drop(floors);
    for clients in args.clients(&[1, 8, 64, 512]) {
        let mut rows = Vec::new();
        for _ in 0..args.timing.rounds {
            let (times, per_s) = sketch::round(&folder, clients, args.bytes, args.round()).await;
            rows.push(writes::row_of(times, per_s));
        }
        let line = args.line("syncs").with("system", "sketch");
        let line = line.with("way", "group").with("clients", clients);
        line.with("bytes", args.bytes).print(&medians(&rows));
    }
    ground::remove_folder(&folder);
}
