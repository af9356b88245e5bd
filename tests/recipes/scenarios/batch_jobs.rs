//! Workers share a batch of jobs. Each takes the free ones, then the rest as they become free.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{Client, FencingGate, Guard, LockPath, lock_each, try_lock_many};
use testkit::on_every_backend;

const JOBS: usize = 12;
const WORKERS: usize = 3;
/// This worker ends without doing its share.
const LAZY: usize = 0;
const WORK: Duration = Duration::from_millis(2);

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
        work(&mut self.jobs[job].lock().unwrap())
    }

    fn lock_of(&self, job: usize) -> LockPath {
        self.locks.key(&job.to_string())
    }

    fn job_of(&self, lock: &LockPath) -> usize {
        let mut jobs = 0..JOBS;
        let job = jobs.find(|job| self.lock_of(*job) == *lock);
        job.expect("each lock stands for a job")
    }

    async fn work_at(&self, job: usize, worker: usize, guard: &Guard) {
        let is_done = self.at(job, |job| {
            job.gate.admit(guard.fencing_token()).unwrap();
            let other = job.worker.replace(worker);
            assert_eq!(other, None, "beside worker {worker} at one job");
            !job.done_by.is_empty()
        });
        if !is_done {
            tokio::time::sleep(WORK).await;
        }
        self.at(job, |job| {
            job.gate.admit(guard.fencing_token()).unwrap();
            job.worker = None;
            if !is_done {
                job.done_by.push(worker);
            }
        });
    }
}

async fn take_free(
    client: &Client,
    batch: &Batch,
    wanted: std::ops::Range<usize>,
) -> Vec<(LockPath, Guard)> {
    let locks = wanted.map(|job| batch.lock_of(job));
    let tried = try_lock_many(client, locks).await.unwrap();
    assert_eq!(tried.acquired.len(), JOBS / WORKERS);
    tried.acquired
}

async fn work(client: Client, batch: Arc<Batch>, worker: usize, taken: Vec<(LockPath, Guard)>) {
    if worker == LAZY {
        // This releases its share.
        client.close().await.unwrap();
        return;
    }
    let mut mine = Vec::new();
    for (lock, guard) in taken {
        batch.work_at(batch.job_of(&lock), worker, &guard).await;
        guard.release().await.unwrap();
        mine.push(lock);
    }
    let rest = (0..JOBS).map(|job| batch.lock_of(job));
    let rest: Vec<_> = rest.filter(|lock| !mine.contains(lock)).collect();
    let mut each = lock_each(&client, rest).unwrap();
    while let Some(granted) = each.next().await {
        let (lock, guard) = granted.unwrap();
        batch.work_at(batch.job_of(&lock), worker, &guard).await;
        guard.release().await.unwrap();
    }
    client.close().await.unwrap();
}

on_every_backend! {
    async fn each_job_is_done_once_although_a_worker_gives_up(env: Env) {
        let batch = Arc::new(Batch {
            jobs: (0..JOBS).map(|_| Mutex::default()).collect(),
            locks: LockPath::new("/batch_jobs").unwrap(),
        });
        let mut shares = Vec::new();
        for worker in 0..WORKERS {
            let client = env.client().await;
            // The next worker wants all that this one has taken, and some more.
            let wanted = 0..JOBS * (worker + 1) / WORKERS;
            let taken = take_free(&client, &batch, wanted).await;
            shares.push((client, taken));
        }
        let workers: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(worker, (client, taken))| tokio::spawn(work(client, batch.clone(), worker, taken)))
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
        for job in 0..JOBS {
            let done_by = batch.at(job, |job| job.done_by.clone());
            assert!(matches!(done_by[..], [worker] if worker != LAZY), "job {job}: {done_by:?}");
        }
    }
}
