//! Workers share a batch of jobs: `try_lock_many` for what is free, then `lock_each` for the rest.
//!
//! ```text
//! cargo run --release --example batch_jobs
//! cargo run --release --example batch_jobs -- --url zookeeper://127.0.0.1:2181
//! ```
//!
//! Each worker takes at once what nobody works at, does it, and releases it; then it comes to each of
//! the other jobs as soon as whoever had it is done with it, and sees whether something was left. One
//! worker gives up in the middle: another does the rest. The program checks that each job is done
//! once, never by two at a time, and exits with 1 when not.

#[path = "common/args.rs"]
mod args;

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, FencingGate, Guard, LockPath, Target};
use lockkeeper::{connect_with, lock_each, try_lock_many};

const JOBS: usize = 12;
const WORKERS: usize = 3;
/// This one goes home without having done what it took.
const LAZY: usize = 0;
const WORK: Duration = Duration::from_millis(2);
/// Nothing here takes that long: who waits longer is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const ABOUT: &str =
    "Workers share a batch of jobs: each takes what is free, then the rest as it comes free.";

fn main() -> ExitCode {
    let target = match args::target(ABOUT) {
        Ok(target) => target,
        Err(status) => return status,
    };
    match show(&target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("batch_jobs: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a lock protects.
#[derive(Default)]
struct Job {
    gate: FencingGate,
    worker: Option<usize>,
    done_by: Vec<usize>,
}

struct Batch {
    jobs: Vec<Mutex<Job>>,
    locks: LockPath,
}

impl Batch {
    fn at<T>(&self, job: usize, work: impl FnOnce(&mut Job) -> T) -> T {
        work(&mut self.jobs[job].lock().expect("no worker panics"))
    }

    fn lock_of(&self, job: usize) -> LockPath {
        self.locks.key(&job.to_string())
    }

    /// Which job a lock stands for.
    fn job_of(&self, lock: &LockPath) -> Outcome<usize> {
        let job = (0..JOBS).find(|job| self.lock_of(*job) == *lock);
        Ok(job.ok_or("a lock that stands for no job")?)
    }

    /// Does a job, unless it is done already; whether there was something to do.
    async fn work_at(&self, job: usize, worker: usize, guard: &Guard) -> Outcome<bool> {
        let is_done = self.at(job, |job| {
            job.gate.admit(guard.fencing_token())?;
            if let Some(other) = job.worker.replace(worker) {
                return Err(format!("workers {other} and {worker} are at one job").into());
            }
            Outcome::Ok(!job.done_by.is_empty())
        })?;
        if !is_done {
            tokio::time::sleep(WORK).await;
        }
        self.at(job, |job| {
            job.gate.admit(guard.fencing_token())?;
            job.worker = None;
            if !is_done {
                job.done_by.push(worker);
            }
            Ok(!is_done)
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn show(target: &Target) -> Outcome {
    println!("{WORKERS} workers share {JOBS} jobs. Worker {LAZY} will take some and not do them.");
    let batch = Arc::new(Batch {
        jobs: (0..JOBS).map(|_| Mutex::default()).collect(),
        locks: LockPath::new(format!("/batch_jobs-{}", std::process::id()))?,
    });
    let mut shares = Vec::new();
    for worker in 0..WORKERS {
        let client = connect_with(target.clone(), ConnectOptions::new().create_chroot()).await?;
        // The next one wants all that this one has taken, and some more.
        let wanted: Vec<_> = (0..JOBS * (worker + 1) / WORKERS).collect();
        let taken = take_free(&client, &batch, worker, &wanted).await?;
        shares.push((client, taken));
    }
    let shares = shares.into_iter().enumerate();
    let workers: Vec<_> = shares
        .map(|(worker, (client, taken))| tokio::spawn(work(client, batch.clone(), worker, taken)))
        .collect();
    let done = async {
        for worker in workers {
            worker.await??;
        }
        Outcome::Ok(())
    };
    let in_time = tokio::time::timeout(PATIENCE, done).await;
    in_time.map_err(|_| format!("the workers are stuck: not done after {PATIENCE:?}"))??;
    check(&batch)
}

/// Takes those of the wanted jobs that nobody works at.
async fn take_free(
    client: &Client,
    batch: &Batch,
    worker: usize,
    wanted: &[usize],
) -> Outcome<Vec<(LockPath, Guard)>> {
    let locks = wanted.iter().map(|job| batch.lock_of(*job));
    let tried = try_lock_many(client, locks).await?;
    println!(
        "  worker {worker} wanted {} jobs and took {}; {} are with others",
        wanted.len(),
        tried.acquired.len(),
        tried.contended.len()
    );
    if tried.acquired.len() != JOBS / WORKERS {
        return Err(format!("worker {worker} should have got {}", JOBS / WORKERS).into());
    }
    Ok(tried.acquired)
}

async fn work(
    client: Client,
    batch: Arc<Batch>,
    worker: usize,
    taken: Vec<(LockPath, Guard)>,
) -> Outcome {
    if worker == LAZY {
        println!("  worker {worker} goes home");
        // Which releases what it took.
        client.close().await?;
        return Ok(());
    }
    let mut mine = Vec::new();
    for (lock, guard) in taken {
        batch.work_at(batch.job_of(&lock)?, worker, &guard).await?;
        guard.release().await?;
        mine.push(lock);
    }
    println!("  worker {worker} has done the {} that it took", mine.len());
    let rest = (0..JOBS).map(|job| batch.lock_of(job));
    let rest: Vec<_> = rest.filter(|lock| !mine.contains(lock)).collect();
    let mut each = lock_each(&client, rest)?;
    while let Some(granted) = each.next().await {
        let (lock, guard) = granted?;
        let job = batch.job_of(&lock)?;
        if batch.work_at(job, worker, &guard).await? {
            println!("  worker {worker} came to job {job}, and it was not done: did it");
        }
        guard.release().await?;
    }
    println!("  worker {worker} has seen all the others");
    client.close().await?;
    Ok(())
}

fn check(batch: &Batch) -> Outcome {
    for job in 0..JOBS {
        let done_by = batch.at(job, |job| job.done_by.clone());
        match done_by[..] {
            [worker] if worker != LAZY => println!("Job {job} was done by worker {worker}."),
            _ => return Err(format!("job {job} was done by {done_by:?}").into()),
        }
    }
    println!("All {JOBS} jobs are done, each once.");
    Ok(())
}
