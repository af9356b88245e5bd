//! Effect of a snapshot on writers, and its cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::args::{Args, Workload};
use crate::figures::{Row, Times, WriteTimes};
use crate::ground::{self, Ground};
use crate::report::Line;
use crate::writes::{Notes, Writer, Writing};

const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn measure(args: &Args) {
    for clients in args.clients(&[64]) {
        let line = args.line("snapshot").with("clients", clients);
        measure_with(args, clients, line).await;
    }
}

async fn measure_with(args: &Args, clients: usize, line: Line) {
    let mut ground = Ground::fresh(args).await;
    let Some(folder) = ground.folder().map(Path::to_owned) else {
        line.print_skipped("only file: makes snapshots in this process");
        return ground.end().await;
    };
    ground::fill(&mut ground, args.znodes, args.bytes).await;
    let mut writers = Vec::new();
    for _ in 0..clients {
        writers.push(Writer::make(&mut ground, Workload::Set, args.bytes).await);
    }
    let lookout = Lookout::begin(folder.clone());
    let writing = Writing::<Dated>::begin(&writers);
    let start = Instant::now();
    // Includes snapshots that were triggered by filling.
    while start.elapsed() < PATIENCE && lookout.seen() < SNAPSHOTS {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(args.timing.seconds).await;
    let dated = writing.end().await;
    let makings = lookout.end();
    if makings.is_empty() {
        line.print_skipped("no snapshot was begun and ended in 120 s");
    } else {
        let newest = newest_snapshot(&folder).expect("one was made");
        let bytes = fs::metadata(newest).expect("its size").len();
        let row = summary(&dated, &makings, bytes);
        let line = line.with("znodes", args.znodes).with("bytes", args.bytes);
        line.with("snapshots", makings.len()).print(&row);
        let line = args.line("snapshot").with("clients", clients);
        let ratio = row["commit_during_p99_us"] / row["commit_without_p99_us"];
        line.print_ratio("commit_during_p99_us", "commit_without_p99_us", ratio);
    }
    drop(writers);
    ground.end().await;
}

const SNAPSHOTS: usize = 2;

fn summary(dated: &Dated, makings: &[Making], bytes: u64) -> Row {
    let (mut during, mut without) = (Times::default(), Times::default());
    for &(asked, took) in &dated.0 {
        let overlaps = |making: &&Making| asked < making.end && asked + took > making.begin;
        match makings.iter().find(overlaps) {
            Some(_) => during.push(took),
            None => without.push(took),
        }
    }
    let mut row = Row::new();
    during.write(&mut row, "commit_during");
    without.write(&mut row, "commit_without");
    let seconds = |making: &Making| (making.end - making.begin).as_secs_f64();
    let longest = makings.iter().map(seconds).fold(0.0, f64::max);
    row.insert("snapshot_s".into(), longest);
    row.insert("snapshot_bytes".into(), bytes as f64);
    row
}

/// Start and duration of each write.
#[derive(Default)]
struct Dated(Vec<(Instant, Duration)>);

impl Notes for Dated {
    fn note(&mut self, asked: Instant, took: Duration) {
        self.0.push((asked, took));
    }

    fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }
}

/// A snapshot, from the first work on it until its file has its name.
#[derive(Clone, Copy)]
struct Making {
    begin: Instant,
    end: Instant,
}

/// A thread that watches for snapshots.
struct Lookout {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Making>>>,
    thread: JoinHandle<()>,
}

impl Lookout {
    fn begin(folder: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::default());
        let thread = std::thread::spawn({
            let (stop, seen) = (stop.clone(), seen.clone());
            move || look_out(&folder, &stop, &seen)
        });
        Self { stop, seen, thread }
    }

    fn seen(&self) -> usize {
        self.seen.lock().len()
    }

    fn end(self) -> Vec<Making> {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("the lookout ends well");
        self.seen.lock().clone()
    }
}

/// Kernel's name of the store's snapshot thread.
const MAKER: &str = "lockkeeper-snap";

/// Maximum working time of a spurious wakeup.
const IDLE_NS: u64 = 1_000_000;

fn look_out(folder: &Path, stop: &AtomicBool, seen: &Mutex<Vec<Making>>) {
    let schedstat = schedstat_of(MAKER).expect("the store's thread that makes snapshots");
    let worked_ns = || {
        let text = fs::read_to_string(&schedstat).expect("the thread lives");
        let first = text.split(' ').next().expect("three numbers");
        first.parse::<u64>().expect("a number")
    };
    let (mut idle_at, mut newest) = (worked_ns(), newest_snapshot(folder));
    // A snapshot already in progress does not count, because we did not see its start.
    let mut begun = None;
    while !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(2));
        let (now, name) = (Instant::now(), newest_snapshot(folder));
        if name != newest {
            if let Some(begin) = begun.take() {
                seen.lock().push(Making { begin, end: now });
            }
            // Let it clean up.
            std::thread::sleep(Duration::from_millis(20));
            (newest, idle_at) = (name, worked_ns());
        } else if begun.is_none() && worked_ns() - idle_at > IDLE_NS {
            begun = Some(now);
        }
    }
}

/// Returns the kernel's file with the working time of a thread of this process.
fn schedstat_of(name: &str) -> Option<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").ok()?.flatten();
    let mut tasks = tasks.map(|task| task.path());
    let task = tasks.find(|task| {
        let comm = fs::read_to_string(task.join("comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    });
    Some(task?.join("schedstat"))
}

fn newest_snapshot(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).expect("a list").flatten();
    let snapshots = files.map(|file| file.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("snapshot-")
    });
    snapshots.max()
}
