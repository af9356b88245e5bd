//! Metrics of all locks of this process, for Prometheus (feature `metrics`).
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let registry = prometheus::Registry::new();
//! lockkeeper::metrics::register(&registry)?;
//!
//! let client = lockkeeper::connect("memory:").await?;
//! let _guard = lockkeeper::Mutex::new(&client, "/lock/orders")?.lock().await?;
//!
//! let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather())?;
//! assert!(text.contains(r#"lockkeeper_locks_held{kind="mutex"} 1"#));
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! Each metric is a sum over all clients and stores of the process. The label `kind` is `mutex`, `reader`, `writer`,
//! `semaphore` or `election`. Lock names are not labels, because their number is unlimited.
//!
//! | metric | type | labels | |
//! |---|---|---|---|
//! | `lockkeeper_locks_held` | gauge | `kind` | held locks, or held permits of semaphores |
//! | `lockkeeper_lock_waiters` | gauge | `kind` | current waits |
//! | `lockkeeper_lock_wait_seconds` | histogram | `kind` | from the call to the grant, for granted locks |
//! | `lockkeeper_lock_hold_seconds` | histogram | `kind` | from the grant to the confirmed release, or to the loss |
//! | `lockkeeper_lock_hand_overs_total` | counter | `kind` | grants to a contender that had to wait for another |
//! | `lockkeeper_lock_waits_ended_total` | counter | `kind`, `outcome` | waits that ended without a grant: `timeout`, `cancelled`, `taken` (a try did not get the lock), or `failed` (any other error) |
//! | `lockkeeper_locks_lost_total` | counter | `kind`, `reason` | losses: `session_expired`, `session_closed`, `lease_expired` or `revoked` |
//! | `lockkeeper_revocations_requested_total` | counter | `kind` | requests that reached a holder |
//! | `lockkeeper_overdue_locks_total` | counter | `level` | overdue holders reported by wardens of this process: at `expected`, `alert` or `auto_unlock` |
//! | `lockkeeper_overdue_locks_removed_total` | counter | | overdue holders removed by these wardens |
//! | `lockkeeper_pending_cleanups` | gauge | | deletes that the stores have not executed yet, as in [`Client::pending_cleanups`](crate::Client::pending_cleanups) |

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    exponential_buckets,
};

use crate::error::LostReason;

/// Adds the metrics of this process's locks to a registry. Counting starts with the first call.
///
/// # Errors
/// `AlreadyReg`, if the registry already contains them.
pub fn register(registry: &Registry) -> prometheus::Result<()> {
    registry.register(Box::new(Locks))?;
    IS_REGISTERED.store(true, Ordering::Relaxed);
    Ok(())
}

static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

#[inline]
pub(crate) fn is_registered() -> bool {
    IS_REGISTERED.load(Ordering::Relaxed)
}

pub(crate) static METRICS: LazyLock<Metrics> =
    LazyLock::new(|| Metrics::new().expect("the names are valid"));

pub(crate) struct Metrics {
    pub(crate) held: IntGaugeVec,
    pub(crate) waiters: IntGaugeVec,
    pub(crate) wait: HistogramVec,
    pub(crate) hold: HistogramVec,
    pub(crate) hand_overs: IntCounterVec,
    pub(crate) waits_ended: IntCounterVec,
    pub(crate) lost: IntCounterVec,
    pub(crate) revocations: IntCounterVec,
    pub(crate) overdue: IntCounterVec,
    pub(crate) removed: IntCounter,
    cleanups: IntGauge,
}

impl Metrics {
    fn new() -> prometheus::Result<Self> {
        let kind = &["kind"];
        let gauges = |name, help| IntGaugeVec::new(Opts::new(name, help), kind);
        let counters =
            |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        // The buckets reach from 10 µs (a lock in memory) to about 3 hours (a job under a lock).
        let seconds = |name, help| {
            let buckets = exponential_buckets(1e-5, 4.0, 16)?;
            HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), kind)
        };
        Ok(Self {
            held: gauges("lockkeeper_locks_held", "Locks that are held.")?,
            waiters: gauges(
                "lockkeeper_lock_waiters",
                "Waits for a lock that are under way.",
            )?,
            wait: seconds(
                "lockkeeper_lock_wait_seconds",
                "Time from the call to the grant, in seconds.",
            )?,
            hold: seconds(
                "lockkeeper_lock_hold_seconds",
                "Time from the grant to the release or the loss, in seconds.",
            )?,
            hand_overs: counters(
                "lockkeeper_lock_hand_overs_total",
                "Grants to a contender that had to wait for another.",
                kind,
            )?,
            waits_ended: counters(
                "lockkeeper_lock_waits_ended_total",
                "Waits that ended without a grant.",
                &["kind", "outcome"],
            )?,
            lost: counters(
                "lockkeeper_locks_lost_total",
                "Locks that were lost while they were held.",
                &["kind", "reason"],
            )?,
            revocations: counters(
                "lockkeeper_revocations_requested_total",
                "Requests to release a lock that its holder has received.",
                kind,
            )?,
            overdue: counters(
                "lockkeeper_overdue_locks_total",
                "Overdue holders that wardens have reported.",
                &["level"],
            )?,
            removed: IntCounter::new(
                "lockkeeper_overdue_locks_removed_total",
                "Overdue holders that wardens have removed.",
            )?,
            cleanups: IntGauge::new(
                "lockkeeper_pending_cleanups",
                "Deletes of entries that the stores have not carried out yet.",
            )?,
        })
    }

    pub(crate) fn lost(&self, kind: &str, reason: LostReason) {
        let reason = match reason {
            LostReason::SessionExpired => "session_expired",
            LostReason::SessionClosed => "session_closed",
            LostReason::LeaseExpired => "lease_expired",
            LostReason::Revoked => "revoked",
            LostReason::Released => return,
        };
        self.lost.with_label_values(&[kind, reason]).inc();
    }

    fn collectors(&self) -> [&dyn Collector; 11] {
        [
            &self.held,
            &self.waiters,
            &self.wait,
            &self.hold,
            &self.hand_overs,
            &self.waits_ended,
            &self.lost,
            &self.revocations,
            &self.overdue,
            &self.removed,
            &self.cleanups,
        ]
    }
}

/// One collector for all metrics, for any number of registries.
struct Locks;

impl Collector for Locks {
    fn desc(&self) -> Vec<&Desc> {
        METRICS
            .collectors()
            .into_iter()
            .flat_map(Collector::desc)
            .collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let pending = lockkeeper_store::pending_cleanups();
        METRICS
            .cleanups
            .set(i64::try_from(pending).unwrap_or(i64::MAX));
        METRICS
            .collectors()
            .into_iter()
            .flat_map(Collector::collect)
            .collect()
    }
}
