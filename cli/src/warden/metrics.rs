//! [`Monitor`]: metrics and health of `lockkeeper warden`.

use std::sync::Arc;

use lockkeeper::{Client, Warden, WardenStats};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntGauge, IntGaugeVec, Opts, Registry};

use crate::http::Health;

#[derive(Clone, Default)]
pub(super) struct Monitor(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    client: Option<Client>,
    warden: Option<Warden>,
}

/// A period in which this warden leads. Dropping it records that the warden no longer leads.
pub(super) struct Term(Monitor);

impl Drop for Term {
    fn drop(&mut self) {
        self.0.0.lock().warden = None;
    }
}

impl Monitor {
    pub(super) fn connected(&self, client: &Client) {
        self.0.lock().client = Some(client.clone());
    }

    pub(super) fn leads(&self, warden: Warden) -> Term {
        self.0.lock().warden = Some(warden);
        Term(self.clone())
    }
}

impl Health for Monitor {
    fn check_alive(&self) -> Result<(), String> {
        Ok(())
    }

    fn check_ready(&self) -> Result<(), String> {
        match &self.0.lock().client {
            None => Err("the store has not been reached yet".into()),
            Some(client) if !client.current_session().state().is_connected() => {
                Err("the connection to the store is lost".into())
            }
            Some(_) => Ok(()),
        }
    }
}

pub(super) fn registry(of: &Monitor) -> prometheus::Result<Registry> {
    let registry = Registry::new();
    lockkeeper::register_process_metrics(&registry)?;
    lockkeeper::metrics::register(&registry)?;
    registry.register(Box::new(WardenCollector::new(of.clone())?))?;
    Ok(registry)
}

struct WardenCollector {
    of: Monitor,
    leads: IntGauge,
    locks: IntGauge,
    holders: IntGauge,
    waiters: IntGauge,
    overdue: IntGaugeVec,
    longest_hold: Gauge,
}

impl WardenCollector {
    fn new(of: Monitor) -> prometheus::Result<Self> {
        Ok(Self {
            of,
            leads: IntGauge::new(
                "lockkeeper_warden_leads",
                "1 while this warden acts, otherwise 0. The other metrics of a warden that does not act are 0.",
            )?,
            locks: IntGauge::new(
                "lockkeeper_warden_locks",
                "Selected locks with a holder that declares a duration.",
            )?,
            holders: IntGauge::new("lockkeeper_warden_holders", "Holders of these locks.")?,
            waiters: IntGauge::new("lockkeeper_warden_waiters", "Waiters for these locks.")?,
            overdue: IntGaugeVec::new(
                Opts::new(
                    "lockkeeper_warden_overdue_holders",
                    "Holders that are overdue now, by the highest level that each has reached.",
                ),
                &["level"],
            )?,
            longest_hold: Gauge::new(
                "lockkeeper_warden_longest_hold_seconds",
                "The longest observed hold without a keep_alive.",
            )?,
        })
    }

    fn collectors(&self) -> [&dyn Collector; 6] {
        [
            &self.leads,
            &self.locks,
            &self.holders,
            &self.waiters,
            &self.overdue,
            &self.longest_hold,
        ]
    }

    fn set(&self, stats: WardenStats) {
        let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.locks.set(whole(stats.locks));
        self.holders.set(whole(stats.holders));
        self.waiters.set(whole(stats.waiters));
        for (level, count) in [
            ("expected", stats.overdue_expected),
            ("alert", stats.overdue_alert),
            ("auto_unlock", stats.overdue_auto_unlock),
        ] {
            self.overdue.with_label_values(&[level]).set(whole(count));
        }
        self.longest_hold.set(stats.longest_hold.as_secs_f64());
    }
}

impl Collector for WardenCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors()
            .into_iter()
            .flat_map(Collector::desc)
            .collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Clone the warden and unlock. Otherwise we might be the last owner of a warden that ends now, and drop the
        // warden under the lock.
        let warden = self.of.0.lock().warden.clone();
        self.leads.set(warden.is_some().into());
        self.set(warden.map(|warden| warden.stats()).unwrap_or_default());
        self.collectors()
            .into_iter()
            .flat_map(Collector::collect)
            .collect()
    }
}
