//! Workers post transfers to a ledger file, one at a time, under a fair lock.
//!
//! ```text
//! cargo run --release --example ledger
//! cargo run --release --example ledger -- --url zookeeper://127.0.0.1:2181
//! cargo run --release --example ledger -- --crash 3
//! cargo run --release --example ledger -- --without-lock
//! ```
//!
//! Posting a transfer reads the whole ledger, changes it, and writes it back, so two workers that
//! overlap would lose money. [`worker`] shows the use of the lock, [`book`] the check of fencing tokens
//! at the resource. At the end the ledger is compared with the sum of the input, computed without
//! locks, and the order of the grants with the order of arrival that another session has seen
//! ([`observer`]).
//!
//! A death in the middle of a write (`--crash`) does no harm: a write becomes the ledger in one step or
//! not at all; a transfer whose worker died goes back to the others; and the ledger refuses the dead
//! worker's late write, since it has seen a newer token.
//!
//! The last lines of the output:
//!
//! ```text
//! transfers applied         3000 of 3000
//! final balances            as computed without locks
//! overlaps seen             0
//! tokens out of order       0 of 3000
//! grants out of order       0 of 3000, against the arrivals that another session saw
//! wait for the lock         p50 930 µs, p99 2460 µs
//! 8 workers on memory: in 0.37 s: 8108 transfers/s
//! All is right.
//! ```

mod args;
mod book;
mod input;
mod mortal;
mod observer;
mod summary;
mod teller;
mod worker;

use std::error::Error;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lockkeeper::{ConnectOptions, LockPath, connect_with};
use tokio::sync::{mpsc, watch};

use crate::args::Args;
use crate::book::{Book, Ledger};
use crate::input::Transfer;
use crate::observer::{Arrivals, Observer};
use crate::summary::Summary;
use crate::teller::Teller;
use crate::worker::{Failure, Run, Task};

fn main() -> ExitCode {
    let args = Args::read();
    match run(&args) {
        Ok(summary) => report(&args, &summary),
        Err(error) => {
            eprintln!("ledger: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the summary, and returns the exit status.
fn report(args: &Args, summary: &Summary) -> ExitCode {
    let wrongs = summary.wrongs();
    let verdict = match wrongs.as_slice() {
        [] => "All is right.".to_owned(),
        wrongs => format!("WRONG: {}.", wrongs.join("; ")),
    };
    let mut text = format!("\n{summary}\n{verdict}\n");
    if let Some(kept) = &summary.kept {
        text += &format!("The ledger is kept: {}\n", kept.display());
    }
    if args.json {
        text += &serde_json::to_string(summary).expect("numbers and texts are JSON");
        text.push('\n');
    }
    // A reader that has gone away changes nothing about the verdict.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::from(u8::from(!wrongs.is_empty()))
}

fn run(args: &Args) -> Result<Summary, Box<dyn Error>> {
    let opening = input::accounts(&args.accounts)?;
    let transfers = input::transfers(&args.transfers, &opening)?;
    let place = Place::of(args.ledger.as_deref())?;
    let ledger = Ledger::open(&place.file, "main")?;
    let book = ledger.open_book(&opening)?;
    let left = left_to_post(&book, &transfers)?;
    if left.len() < args.crash.into() {
        let (crash, left) = (args.crash, left.len());
        return Err(format!("{crash} workers cannot die over {left} transfers").into());
    }

    let began = Instant::now();
    let (grants, arrivals, mut summary) =
        work(args, &place.file.canonicalize()?, left, transfers.len())?;
    summary.elapsed_ms = began.elapsed().as_millis() as u64;
    summary.check_book(&ledger.read()?, &opening, &transfers);
    summary.check_order(grants, &arrivals);
    if !summary.wrongs().is_empty() {
        summary.kept = Some(place.keep());
    }
    Ok(summary)
}

/// The transfers that the ledger does not have yet.
fn left_to_post(book: &Book, transfers: &[Transfer]) -> Result<Vec<Transfer>, String> {
    let posted: std::collections::HashSet<u64> = book.posted.iter().copied().collect();
    let left: Vec<_> = transfers
        .iter()
        .filter(|transfer| !posted.contains(&transfer.id))
        .cloned()
        .collect();
    if left.len() + posted.len() != transfers.len() {
        return Err("the ledger has transfers that are not in the input".to_owned());
    }
    Ok(left)
}

type Outcome = (Vec<worker::Grant>, Arrivals, Summary);
type Results = mpsc::UnboundedReceiver<Result<(), Failure>>;

/// Has the workers post what is left.
#[tokio::main(flavor = "current_thread")]
async fn work(
    args: &Args,
    ledger: &Path,
    left: Vec<Transfer>,
    transfers: usize,
) -> Result<Outcome, Box<dyn Error>> {
    let lock = LockPath::new("/ledger")?.key(&ledger.to_string_lossy());
    let observer = if args.without_lock {
        None
    } else {
        let options = ConnectOptions::new().create_chroot();
        let client = connect_with(args.url.clone(), options).await?;
        let observer = Observer::start(&client, &lock).await?;
        Some((client, observer))
    };
    let posted_before = transfers - left.len();
    let (teller, printing) = match args.quiet {
        true => (Teller::quiet(), None),
        false => {
            let (teller, printing) = Teller::start(args.all_events, transfers, posted_before);
            (teller, Some(printing))
        }
    };
    let run = Arc::new(Run {
        target: args.url.clone(),
        lock,
        ledger: ledger.to_owned(),
        teller: teller.clone(),
        inside: 0.into(),
        overlaps: 0.into(),
        grants: Vec::new().into(),
        newest_token: watch::Sender::new(None),
        crashed: 0.into(),
        late_writes_refused: 0.into(),
    });
    let mut results = start(args, &run, left);
    let worked: Result<(), Failure> = async {
        for _ in 0..args.workers {
            results.recv().await.ok_or(Failure::Panicked)??;
        }
        Ok(())
    }
    .await;
    teller.end();
    if let Some(printing) = printing {
        printing.join().map_err(|_| "the printing failed")?;
    }
    worked?;

    let mut arrivals = Arrivals::default();
    if let Some((client, observer)) = observer {
        arrivals = observer.finish().await?;
        client.close().await?;
    }
    let summary = Summary {
        posted_before,
        overlaps: run.overlaps.load(Ordering::SeqCst),
        workers: args.workers.into(),
        crash: args.crash.into(),
        crashed: run.crashed.load(Ordering::SeqCst),
        late_writes_refused: run.late_writes_refused.load(Ordering::SeqCst),
        with_lock: !args.without_lock,
        url: args.url.to_string(),
        ..Summary::default()
    };
    Ok((std::mem::take(&mut *run.grants.lock()), arrivals, summary))
}

/// Starts the workers, those that are to die last, and returns the receiver of their results.
fn start(args: &Args, run: &Arc<Run>, mut left: Vec<Transfer>) -> Results {
    let (put, jobs) = mpsc::unbounded_channel();
    let jobs = Arc::new(tokio::sync::Mutex::new(jobs));
    let (results, received) = mpsc::unbounded_channel();
    let (count, crash) = (usize::from(args.workers), usize::from(args.crash));
    // They die over transfers from the front, so that the others have enough left to do.
    let fatal: Vec<_> = left.drain(..crash).collect();
    for transfer in left {
        put.send(transfer).expect("the receiver is here");
    }
    for number in 1..=count - crash {
        let jobs = jobs.clone();
        let task = if args.without_lock {
            Task::PostWithoutLock(jobs)
        } else {
            Task::Post(jobs)
        };
        worker::spawn(run, number, task, results.clone());
    }
    for (index, transfer) in fatal.into_iter().enumerate() {
        let number = count - crash + 1 + index;
        let task = Task::Die(transfer, put.clone());
        worker::spawn(run, number, task, results.clone());
    }
    received
}

/// Location of the ledger. A temporary one is removed in the end, unless it is kept.
struct Place {
    file: PathBuf,
    temporary: Option<PathBuf>,
}

impl Place {
    fn of(chosen: Option<&Path>) -> io::Result<Self> {
        if let Some(file) = chosen {
            return Ok(Self {
                file: file.to_owned(),
                temporary: None,
            });
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        let started = started.unwrap_or_default().as_nanos();
        let name = format!("lockkeeper-ledger-{}-{started}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory)?;
        Ok(Self {
            file: directory.join("ledger.json"),
            temporary: Some(directory),
        })
    }

    /// Leaves the ledger where it is, for somebody to look at.
    fn keep(mut self) -> PathBuf {
        self.temporary = None;
        std::mem::take(&mut self.file)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(directory) = &self.temporary {
            // What stays behind is where the system clears up by itself.
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}
