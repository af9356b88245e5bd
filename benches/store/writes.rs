//! Persistent creates and sets: their rate, and how long each takes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper::{Error, Session, ZnodePath};
use lockkeeper_store::CreateMode;
use tokio::task::JoinHandle;

use crate::args::{Args, Workload};
use crate::common::disk::{Floor, Way};
use crate::common::echo::{EchoFloor, Transport};
use crate::figures::{Row, Times, WriteTimes, medians};
use crate::ground::Ground;
use crate::options::name;
use crate::report::Line;
use crate::sketch;

pub(crate) async fn measure(args: &Args, workload: Workload) {
    let mut floor = args.is_served().then(|| args.serving.echo_floor());
    for clients in args.clients(&[1, 8, 64, 512]) {
        measure_with(args, workload, clients, floor.as_mut()).await;
    }
}

async fn measure_with(
    args: &Args,
    workload: Workload,
    clients: usize,
    mut echo: Option<&mut EchoFloor>,
) {
    let mut ground = Ground::fresh(args).await;
    let mut writers = Vec::new();
    for _ in 0..clients {
        writers.push(Writer::make(&mut ground, workload, args.bytes).await);
    }
    let folder = ground.folder().filter(|_| args.sketch());
    let mut disk = folder.map(|folder| Disk::make(folder, clients, args.bytes));
    let mut rounds = Vec::new();
    for _ in 0..args.timing.rounds {
        let mut beside = Row::new();
        if let Some(echo) = &mut echo {
            let transport = Transport::of(&args.url);
            beside = echo.round(transport, clients, args.timing.floor()).await;
        }
        let (times, per_s) = write_for(&writers, args.round()).await;
        beside.extend(row_of(times, per_s));
        rounds.push(beside);
        if let Some(disk) = &mut disk {
            disk.round(args.round()).await;
        }
    }
    let line = || args.line(&name(workload)).with("clients", clients);
    let full = || {
        line()
            .with("bytes", args.bytes)
            .with("rounds", args.timing.rounds)
    };
    let ours = medians(&rounds);
    full().print(&ours);
    if let Some(disk) = disk {
        disk.compare(&ours, full, line);
    }
    drop(writers);
    ground.end().await;
}

/// Reference measurements in the same rounds as a durable store: the disk's own syncs, and a minimal group commit.
struct Disk {
    folder: PathBuf,
    clients: usize,
    bytes: usize,
    floor: Option<Floor>,
    syncs: Vec<Row>,
    sketches: Vec<Row>,
}

impl Disk {
    /// Uses a folder next to the store's.
    fn make(folder: &Path, clients: usize, bytes: usize) -> Self {
        let folder = folder.parent().expect("it is in a folder");
        Self {
            floor: Some(Floor::make(folder, Way::Overwrite)),
            folder: folder.into(),
            clients,
            bytes,
            syncs: Vec::new(),
            sketches: Vec::new(),
        }
    }

    async fn round(&mut self, time: Duration) {
        let floor = self.floor.take().expect("put back");
        let (floor, row) = floor.round_aside(time / 4).await;
        self.floor = Some(floor);
        self.syncs.push(row);
        let sketch = sketch::round(&self.folder, self.clients, self.bytes, time / 2);
        let (times, per_s) = sketch.await;
        self.sketches.push(row_of(times, per_s));
    }

    fn compare(self, ours: &Row, full: impl Fn() -> Line, line: impl Fn() -> Line) {
        let (sketch, syncs) = (medians(&self.sketches), medians(&self.syncs));
        full().with("system", "sketch").print(&sketch);
        for field in ["writes_per_s", "commit_p50_us"] {
            line().print_ratio(field, "sketch", ours[field] / sketch[field]);
        }
        for name in ["p50", "p99"] {
            let (commit, sync) = (format!("commit_{name}_us"), format!("sync_{name}_us"));
            let to = format!("{} µs for 4 KiB and a sync", syncs[&sync].round());
            line().print_ratio(&commit, &to, ours[&commit] / syncs[&sync]);
        }
    }
}

pub(crate) fn row_of(times: Times, per_s: f64) -> Row {
    let mut row = Row::new();
    row.insert("writes_per_s".into(), per_s);
    times.write(&mut row, "commit");
    row
}

/// A session with a znode that only it writes.
pub(crate) struct Writer {
    session: Session,
    path: ZnodePath,
    data: Bytes,
    /// Number of children created, or `None` to set the znode itself.
    made: Option<AtomicU64>,
}

impl Writer {
    pub(crate) async fn make(ground: &mut Ground, workload: Workload, bytes: usize) -> Arc<Self> {
        let session = ground.session().await;
        let place = ground.root().join("writer-").expect("a valid path");
        let data = Bytes::from(vec![b'x'; bytes]);
        let made = session.create(&place, data.clone(), CreateMode::PersistentSequential);
        let (path, _) = made.await.expect("a znode to write");
        let made = (workload == Workload::Create).then(AtomicU64::default);
        Arc::new(Self {
            session,
            path,
            data,
            made,
        })
    }

    pub(crate) fn path(&self) -> &ZnodePath {
        &self.path
    }

    pub(crate) async fn write(&self) {
        loop {
            match self.try_write().await {
                Ok(()) => return,
                // Without syncs no reply waits for the disk, so writes accumulate until the store refuses more.
                Err(Error::LimitReached { .. }) => tokio::time::sleep(PAUSE).await,
                Err(error) => panic!("a write: {error}"),
            }
        }
    }

    async fn try_write(&self) -> Result<(), Error> {
        let data = self.data.clone();
        match &self.made {
            Some(made) => {
                let number = made.fetch_add(1, Relaxed);
                let path = self.path.join(&format!("{number:010}")).expect("valid");
                let created = self.session.create(&path, data, CreateMode::Persistent);
                created.await.map(drop)
            }
            None => {
                let set = self.session.set_data(&self.path, data, None);
                set.await.map(drop)
            }
        }
    }
}

/// Lets the disk work after such a refusal.
const PAUSE: Duration = Duration::from_millis(1);

pub(crate) trait Notes: Default + Send + 'static {
    fn note(&mut self, asked: Instant, took: Duration);
    fn append(&mut self, other: Self);
}

impl Notes for Times {
    fn note(&mut self, _asked: Instant, took: Duration) {
        self.push(took);
    }

    fn append(&mut self, other: Self) {
        Times::append(self, other);
    }
}

/// Clients that write, each with one request in flight.
pub(crate) struct Writing<N> {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<N>>,
}

impl<N: Notes> Writing<N> {
    pub(crate) fn begin(writers: &[Arc<Writer>]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = writers.iter().map(|writer| {
            let (writer, stop) = (writer.clone(), stop.clone());
            tokio::spawn(async move {
                let mut notes = N::default();
                while !stop.load(Relaxed) {
                    let asked = Instant::now();
                    writer.write().await;
                    notes.note(asked, asked.elapsed());
                    // A store that answers immediately would never let another client run.
                    tokio::task::coop::consume_budget().await;
                }
                notes
            })
        });
        Self {
            tasks: tasks.collect(),
            stop,
        }
    }

    /// Stops each client after its current request.
    pub(crate) async fn end(self) -> N {
        self.stop.store(true, Relaxed);
        let mut notes = N::default();
        for task in self.tasks {
            notes.append(task.await.expect("a client ends well"));
        }
        notes
    }
}

/// Writes with all writers for `time`. Returns the duration of each write, and the writes per second.
pub(crate) async fn write_for(writers: &[Arc<Writer>], time: Duration) -> (Times, f64) {
    let start = Instant::now();
    let writing = Writing::<Times>::begin(writers);
    tokio::time::sleep(time).await;
    let times = writing.end().await;
    let per_s = times.count() as f64 / start.elapsed().as_secs_f64();
    (times, per_s)
}
