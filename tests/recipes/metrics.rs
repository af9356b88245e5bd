//! Metrics of this process's locks after known actions. Each test runs in its own process, because metrics cover the
//! whole process.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::{FencingEnforced, LockOptions, RwLock, Semaphore, Warden, WardenReport};
use prometheus::{Registry, TextEncoder};
use testkit::{alone, on_every_backend};

use crate::common::*;

struct Metrics(Registry);

impl Metrics {
    fn new() -> Self {
        let registry = Registry::new();
        lockkeeper::metrics::register(&registry).unwrap();
        Self(registry)
    }

    fn text(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.0.gather())
            .unwrap()
    }

    fn samples(&self) -> BTreeMap<String, f64> {
        let text = self.text();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse::<f64>().unwrap())
        });
        samples.filter(|(_, value)| *value != 0.0).collect()
    }

    fn get(&self, name: &str) -> f64 {
        self.samples().get(name).copied().unwrap_or_default()
    }

    /// Waits for background work.
    async fn until(&self, name: &str, value: f64) {
        while self.get(name) != value {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

on_every_backend! {
    async fn a_wait_a_hold_and_a_hand_over_are_counted(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let metrics = Metrics::new();
        assert_eq!(metrics.samples(), BTreeMap::new());
        let (first, second) = (world.mutex().await, world.mutex().await);
        let guard = first.lock().await.unwrap();
        assert_eq!(metrics.get(r#"lockkeeper_locks_held{kind="mutex"}"#), 1.0);
        let waiter = world.queue_up(&second).await;
        assert_eq!(metrics.get(r#"lockkeeper_lock_waiters{kind="mutex"}"#), 1.0);
        assert_eq!(metrics.get(r#"lockkeeper_lock_hand_overs_total{kind="mutex"}"#), 0.0);
        guard.release().await.unwrap();
        let guard = granted(waiter).await;
        assert_eq!(metrics.get(r#"lockkeeper_lock_hand_overs_total{kind="mutex"}"#), 1.0);
        assert_eq!(metrics.get(r#"lockkeeper_lock_waiters{kind="mutex"}"#), 0.0);
        assert_eq!(metrics.get(r#"lockkeeper_lock_wait_seconds_count{kind="mutex"}"#), 2.0);
        drop(guard);
        metrics.until(r#"lockkeeper_lock_hold_seconds_count{kind="mutex"}"#, 2.0).await;
        assert_eq!(metrics.get(r#"lockkeeper_locks_held{kind="mutex"}"#), 0.0);
        metrics.until("lockkeeper_pending_cleanups", 0.0).await;
    }

    async fn the_end_of_a_wait_has_its_outcome(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let metrics = Metrics::new();
        let ended = |outcome: &str| {
            metrics.get(&format!(
                r#"lockkeeper_lock_waits_ended_total{{kind="mutex",outcome="{outcome}"}}"#
            ))
        };
        let holder = world.mutex().await.lock().await.unwrap();
        let mutex = world.mutex().await;
        mutex.lock_timeout(Duration::from_millis(50)).await.unwrap_err();
        assert_eq!((ended("timeout"), ended("cancelled")), (1.0, 0.0));
        let waiter = world.queue_up(&mutex).await;
        waiter.abort();
        waiter.await.unwrap_err();
        assert_eq!((ended("timeout"), ended("cancelled")), (1.0, 1.0));
        mutex.lock_with(LockOptions::new().queue_limit(0)).await.unwrap_err();
        assert_eq!((ended("failed"), ended("cancelled")), (1.0, 1.0));
        assert_eq!(metrics.get(r#"lockkeeper_lock_waiters{kind="mutex"}"#), 0.0);
        holder.release().await.unwrap();
    }

    async fn a_loss_has_its_reason(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let metrics = Metrics::new();
        let lost = |reason: &str| {
            metrics.get(&format!(
                r#"lockkeeper_locks_lost_total{{kind="mutex",reason="{reason}"}}"#
            ))
        };
        let mutex = world.mutex().await;
        let guard = mutex.lock().await.unwrap();
        world.revoke(guard.path()).await;
        guard.lost().await;
        // Before the guard is gone.
        metrics.until(r#"lockkeeper_locks_held{kind="mutex"}"#, 0.0).await;
        guard.release().await.unwrap_err();
        assert_eq!((lost("revoked"), lost("session_expired")), (1.0, 0.0));
        let guard = mutex.lock().await.unwrap();
        world.end_session(mutex.client()).await;
        guard.lost().await;
        guard.release().await.unwrap_err();
        assert_eq!((lost("revoked"), lost("session_expired")), (1.0, 1.0));
        assert_eq!(metrics.get(r#"lockkeeper_locks_held{kind="mutex"}"#), 0.0);
    }

    async fn a_warden_counts_what_it_reports(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let metrics = Metrics::new();
        let soon = Duration::from_millis(5);
        let overdue = LockOptions::new().alert_after(soon).auto_unlock_after(soon);
        for (round, watches_prefix) in [(1.0, false), (2.0, true)] {
            let warden = Warden::builder(&world.observer);
            let warden = match watches_prefix {
                false => warden.watch(LOCK).unwrap(),
                true => warden.watch_prefix(LOCK).unwrap(),
            };
            let (_warden, mut reports) = warden.remove_overdue(FencingEnforced).start();
            let guard = world.mutex().await.lock_with(overdue.clone()).await.unwrap();
            while !matches!(reports.next().await, Some(WardenReport::Removed { .. })) {}
            guard.lost().await;
            assert_eq!(metrics.get("lockkeeper_overdue_locks_removed_total"), round);
            let alerts = metrics.get(r#"lockkeeper_overdue_locks_total{level="alert"}"#);
            assert_eq!(alerts, round, "{}", metrics.text());
        }
    }

    async fn each_kind_has_a_label_of_its_own(env: Env) {
        if !alone() {
            return;
        }
        let world = World::new(env).await;
        let metrics = Metrics::new();
        let client = world.client().await;
        let held = |kind: &str| metrics.get(&format!(r#"lockkeeper_locks_held{{kind="{kind}"}}"#));
        let quota = Semaphore::new(&client, "/metered/quota", 3).unwrap();
        let permit = quota.acquire_many(2).await.unwrap();
        assert_eq!(held("semaphore"), 2.0);
        let rwlock = RwLock::new(&client, "/metered/rwlock").unwrap();
        let reader = rwlock.read().await.unwrap();
        assert_eq!((held("reader"), held("writer")), (1.0, 0.0));
        reader.release().await.unwrap();
        let writer = rwlock.write().await.unwrap();
        assert_eq!((held("reader"), held("writer")), (0.0, 1.0));
        let reader = writer.downgrade().await.unwrap();
        assert_eq!((held("reader"), held("writer")), (1.0, 0.0));
        reader.release().await.unwrap();
        permit.release().await.unwrap();
        assert_eq!((held("semaphore"), held("reader")), (0.0, 0.0));
    }
}

#[test]
fn two_registries_can_have_them_and_one_has_them_once() {
    let (first, _second) = (Metrics::new(), Metrics::new());
    assert!(lockkeeper::metrics::register(&first.0).is_err());
}
