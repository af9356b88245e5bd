//! Workers call a service that refuses concurrent calls above its quota, and the quota changes while they work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use lockkeeper::{Client, LockError, Semaphore, observe};
use testkit::on_every_backend;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

const QUOTA: &str = "/api_quota";
const WORKERS: u32 = 6;
/// Calls of each worker before the quota changes, and after each change.
const CALLS: u32 = 8;
const BATCH: u32 = 2;
/// The first quota, and each later one.
const QUOTAS: [u32; 4] = [4, 2, 6, 3];
const CALL: Duration = Duration::from_millis(5);

/// Counts the calls and refuses those above its limit.
struct Service {
    limit: AtomicU32,
    running: AtomicU32,
    busiest: watch::Sender<u32>,
    /// The number of concurrent calls that use this phase's quota.
    full: AtomicU32,
    called: Notify,
}

impl Service {
    fn new(limit: u32) -> Self {
        Self {
            limit: AtomicU32::new(limit),
            running: AtomicU32::new(0),
            busiest: watch::Sender::new(0),
            full: AtomicU32::new(0),
            called: Notify::new(),
        }
    }

    async fn call(&self, count: u32) {
        let running = self.running.fetch_add(count, SeqCst) + count;
        let limit = self.limit.load(SeqCst);
        assert!(running <= limit, "{running} calls at once of {limit}");
        self.busiest
            .send_modify(|busiest| *busiest = running.max(*busiest));
        // The first calls of a phase wait until the quota is used, however slowly they arrive.
        let full = self.full.load(SeqCst);
        let mut busiest = self.busiest.subscribe();
        busiest.wait_for(|busiest| *busiest >= full).await.unwrap();
        tokio::time::sleep(CALL).await;
        self.running.fetch_sub(count, SeqCst);
        self.called.notify_waiters();
    }

    fn begin_phase(&self, quota: u32) {
        self.busiest.send_replace(0);
        // A batch may leave one permit that no other job wants at that moment.
        self.full.store(quota.saturating_sub(BATCH - 1), SeqCst);
    }
}

/// Lowers the permits before the service's quota, and raises them after it. So the permits never allow more than the
/// service, once earlier ones have been returned.
async fn change(operator: &Semaphore, service: &Service, from: u32, to: u32) {
    if to > from {
        service.limit.store(to, SeqCst);
        return operator.set_permits(to).await.unwrap();
    }
    operator.set_permits(to).await.unwrap();
    // Nothing is revoked. Permits above the new number end when they are released.
    let mut held = observe(operator.client(), format!("{QUOTA}/leases")).unwrap();
    while held.next().await.unwrap().unwrap().len() > to as usize {}
    service.limit.store(to, SeqCst);
}

/// Alternates single calls and batches. A batch needs as many permits as it has calls.
async fn work(client: Client, number: u32, service: Arc<Service>) {
    let semaphore = Semaphore::open(&client, QUOTA).unwrap();
    for call in 0..CALLS {
        let count = match (number + call).is_multiple_of(2) {
            true => 1,
            false => BATCH,
        };
        let permit = semaphore.acquire_many(count).await.unwrap();
        service.call(count).await;
        permit.release().await.unwrap();
    }
    client.close().await.unwrap();
}

on_every_backend! {
    async fn a_quota_is_kept_and_used_while_it_changes(env: Env) {
        let service = Arc::new(Service::new(QUOTAS[0]));
        let operator = Semaphore::new(&env.client().await, QUOTA, QUOTAS[0]).unwrap();
        assert_eq!(operator.permits().await.unwrap(), QUOTAS[0]);
        let mistaken = Semaphore::new(&env.client().await, QUOTA, 100).unwrap();
        let refused = mistaken.acquire().await;
        assert!(matches!(refused, Err(LockError::PermitsMismatch { .. })), "{refused:?}");

        for (phase, quota) in QUOTAS.into_iter().enumerate() {
            service.begin_phase(quota);
            let mut workers = JoinSet::new();
            for number in 0..WORKERS {
                workers.spawn(work(env.client().await, number, service.clone()));
            }
            if let Some(next) = QUOTAS.get(phase + 1) {
                service.called.notified().await;
                change(&operator, &service, quota, *next).await;
            }
            while let Some(worker) = workers.join_next().await {
                worker.unwrap();
            }
            let busiest = *service.busiest.borrow();
            assert!(busiest >= service.full.load(SeqCst), "phase {phase}: {busiest} of {quota}");
        }

        let total = operator.permits().await.unwrap();
        let refused = operator.acquire_many(total + 1).await;
        assert!(matches!(refused, Err(LockError::TooManyPermits { .. })), "{refused:?}");
        assert!(operator.holders().await.unwrap().is_empty());
        assert!(operator.waiters().await.unwrap().is_empty());
        assert_eq!(operator.available().await.unwrap(), QUOTAS[QUOTAS.len() - 1]);
    }
}
