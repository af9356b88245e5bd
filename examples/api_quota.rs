//! Workers call a service that refuses more calls at once than its quota allows; the quota is
//! changed while they work.
//!
//! ```text
//! cargo run --release --example api_quota
//! cargo run --release --example api_quota -- --url zookeeper://127.0.0.1:2181
//! ```
//!
//! Each worker has a client, and so a session, of its own, as if it were a program of its own. The
//! program checks that the service refused nobody, and that the quota was used to the full; it exits
//! with 1 when it is not so.

#[path = "common/args.rs"]
mod args;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, LockError, Semaphore, Target, connect_with, observe};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// How many workers there are, each with single calls and with batches.
const WORKERS: u32 = 6;
/// How many calls each makes before the quota is changed, and after each change.
const CALLS: u32 = 8;
/// A batch makes so many calls at once.
const BATCH: u32 = 2;
/// How many calls at once the service allows at first, and after each change.
const QUOTAS: [u32; 4] = [4, 2, 6, 3];
/// How long a call takes.
const CALL: Duration = Duration::from_millis(5);
/// Nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const ABOUT: &str = "Workers call a service that allows so many calls at once; the quota is changed while they work.";

fn main() -> ExitCode {
    let target = match args::target(ABOUT) {
        Ok(target) => target,
        Err(status) => return status,
    };
    match show(&target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("api_quota: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn show(target: &Target) -> Outcome {
    tokio::time::timeout(PATIENCE, run(target))
        .await
        .map_err(|_| format!("not done after {PATIENCE:?}"))?
}

async fn run(target: &Target) -> Outcome {
    let service = Arc::new(Service::new(QUOTAS[0]));
    let operator = Semaphore::new(&connect(target).await?, quota(), QUOTAS[0])?;
    println!(
        "The service allows {} calls at once. {WORKERS} workers call it, one by one and {BATCH} at once.",
        operator.permits().await?
    );
    stating_another_number(target).await?;
    for (phase, quota) in QUOTAS.into_iter().enumerate() {
        service.begin_phase(quota);
        let mut workers = JoinSet::new();
        for number in 0..WORKERS {
            workers.spawn(work(target.clone(), number, service.clone()));
        }
        if let Some(next) = QUOTAS.get(phase + 1) {
            // In the middle of the work.
            service.until_called().await;
            change(&operator, &service, quota, *next).await?;
        }
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        service.check(quota, phase)?;
    }
    too_large_a_request(&operator).await?;
    let left = operator.holders().await?.len() + operator.waiters().await?.len();
    if left != 0 || operator.available().await? != QUOTAS[QUOTAS.len() - 1] {
        return Err(format!("{left} entries are left behind").into());
    }
    println!("\nNo call was refused, and nothing is left behind.");
    Ok(())
}

/// A quota of this run's own.
fn quota() -> String {
    format!("/api_quota-{}", std::process::id())
}

async fn connect(target: &Target) -> Outcome<Client> {
    Ok(connect_with(target.clone(), ConnectOptions::new().create_chroot()).await?)
}

/// The number is the same for all: who believes in another one is told.
async fn stating_another_number(target: &Target) -> Outcome {
    let mistaken = Semaphore::new(&connect(target).await?, quota(), 100)?;
    match mistaken.acquire().await {
        Err(error @ LockError::PermitsMismatch { .. }) => {
            println!("A program that was told another number is refused: {error}.");
            Ok(())
        }
        other => Err(format!("expected a refusal, met {other:?}").into()),
    }
}

/// The quota at the service goes down after the permits, and up before them: so the permits never
/// allow more than the service does, once those that were given out before have come back.
async fn change(operator: &Semaphore, service: &Service, from: u32, to: u32) -> Outcome {
    let word = if to < from { "lowered" } else { "raised" };
    println!("\nThe quota is {word} from {from} to {to} while they work.");
    if to < from {
        operator.set_permits(to).await?;
        // Nothing is revoked: what is held above the new number ends by itself.
        let mut held = observe(operator.client(), format!("{}/leases", quota()))?;
        while let Some(leases) = held.next().await {
            if leases?.len() <= to as usize {
                break;
            }
        }
        service.limit.store(to, Ordering::SeqCst);
    } else {
        service.limit.store(to, Ordering::SeqCst);
        operator.set_permits(to).await?;
    }
    Ok(())
}

async fn too_large_a_request(operator: &Semaphore) -> Outcome {
    let total = operator.permits().await?;
    match operator.acquire_many(total + 1).await {
        Err(error @ LockError::TooManyPermits { .. }) => {
            println!("\nA request that can never be granted is refused at once: {error}.");
            Ok(())
        }
        other => Err(format!("expected a refusal, met {other:?}").into()),
    }
}

/// One worker: every other time it makes a batch of calls, for which it needs as many permits.
async fn work(target: Target, number: u32, service: Arc<Service>) -> Outcome {
    // It need not know the number.
    let semaphore = Semaphore::open(&connect(&target).await?, quota())?;
    for call in 0..CALLS {
        let count = if (number + call).is_multiple_of(2) {
            1
        } else {
            BATCH
        };
        let permit = semaphore.acquire_many(count).await?;
        service.call(count).await?;
        permit.release().await?;
    }
    semaphore.client().close().await?;
    Ok(())
}

/// What is called. It counts, and refuses calls above its limit.
struct Service {
    limit: AtomicU32,
    running: AtomicU32,
    busiest: watch::Sender<u32>,
    /// How many calls at once use the quota of this phase.
    full: AtomicU32,
    calls: AtomicU32,
    called: Notify,
}

impl Service {
    fn new(limit: u32) -> Self {
        Self {
            limit: AtomicU32::new(limit),
            running: AtomicU32::new(0),
            busiest: watch::Sender::new(0),
            full: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            called: Notify::new(),
        }
    }

    async fn call(&self, count: u32) -> Outcome {
        let running = self.running.fetch_add(count, Ordering::SeqCst) + count;
        let limit = self.limit.load(Ordering::SeqCst);
        if running > limit {
            return Err(
                format!("refused: {running} calls at once, and {limit} are allowed").into(),
            );
        }
        self.calls.fetch_add(count, Ordering::SeqCst);
        self.busiest
            .send_modify(|busiest| *busiest = running.max(*busiest));
        // The first calls of a phase wait until the quota is used, however slowly they come.
        let full = self.full.load(Ordering::SeqCst);
        let mut busiest = self.busiest.subscribe();
        busiest.wait_for(|busiest| *busiest >= full).await?;
        tokio::time::sleep(CALL).await;
        self.running.fetch_sub(count, Ordering::SeqCst);
        self.called.notify_waiters();
        Ok(())
    }

    async fn until_called(&self) {
        self.called.notified().await;
    }

    fn begin_phase(&self, quota: u32) {
        self.busiest.send_replace(0);
        // A batch may leave one permit that nobody else wants at that moment.
        self.full
            .store(quota.saturating_sub(BATCH - 1), Ordering::SeqCst);
        self.calls.store(0, Ordering::SeqCst);
    }

    fn check(&self, quota: u32, phase: usize) -> Outcome {
        let (busiest, calls) = (*self.busiest.borrow(), self.calls.load(Ordering::SeqCst));
        println!("  {calls} calls, at most {busiest} at once.");
        if busiest < self.full.load(Ordering::SeqCst) {
            return Err(format!("phase {phase}: the quota of {quota} was not used").into());
        }
        Ok(())
    }
}
