//! A job that runs once per period.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::testing::{RequestKind, TestStore};
use lockkeeper::{Attempt, Client, LockError, LockOptions, LostReason, Mutex, OncePer, Run};
use lockkeeper::{Clock, Store, StoreOptions};
use testkit::{TempFolder, on_every_backend};

use crate::common::*;

const HOUR: Duration = Duration::from_secs(3600);

fn job(client: &Client, period: Duration) -> OncePer {
    OncePer::new(client, LOCK, period).unwrap()
}

async fn begun(job: &OncePer) -> Run {
    job.try_begin()
        .await
        .unwrap()
        .due()
        .expect("the job is due")
}

async fn is_not_due(job: &OncePer) -> bool {
    matches!(job.try_begin().await.unwrap(), Attempt::NotDue { .. })
}

on_every_backend! {
    async fn a_job_runs_once_a_period_however_short_it_is(env: Env) {
        let world = World::new(env).await;
        let (one, other) = (world.client().await, world.client().await);
        begun(&job(&one, HOUR)).await.finish().await.unwrap();
        for client in [&one, &other, &one] {
            let Attempt::NotDue { since_end, due_in } = job(client, HOUR).try_begin().await.unwrap() else {
                panic!("it is not due");
            };
            assert!(since_end < HOUR && due_in <= HOUR && due_in > HOUR / 2);
        }
        if world.env.is_etcd() {
            return;
        }
        // Each caller chooses its period. With a millisecond, the job is due soon.
        let often = job(&other, Duration::from_millis(1));
        while is_not_due(&often).await {}
    }

    async fn a_fleet_that_starts_at_once_runs_once(env: Env) {
        let world = World::new(env).await;
        let runs = Arc::new(AtomicUsize::new(0));
        let mut fleet = Vec::new();
        for number in 0..50 {
            let (job, runs) = (job(&world.client().await, HOUR), runs.clone());
            fleet.push(tokio::spawn(async move {
                // Half of them wait for the run.
                let turn = match number % 2 {
                    0 => job.try_begin().await.unwrap(),
                    _ => job.begin().await.unwrap(),
                };
                if let Some(run) = turn.due() {
                    runs.fetch_add(1, Ordering::Relaxed);
                    run.finish().await.unwrap();
                }
            }));
        }
        for process in fleet {
            process.await.unwrap();
        }
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }

    async fn while_one_runs_a_try_skips_and_a_wait_comes_to_skip_later(env: Env) {
        let world = World::new(env).await;
        let run = begun(&job(&world.client().await, HOUR)).await;
        let other = job(&world.client().await, HOUR);
        assert!(matches!(other.try_begin().await.unwrap(), Attempt::Running));
        let waiter = world.queue_up_at(LOCK, async move { other.begin().await }).await;
        assert!(!waiter.is_finished());
        run.finish().await.unwrap();
        let turn = waiter.await.unwrap().unwrap();
        assert!(matches!(turn, Attempt::NotDue { .. }), "{turn:?}");
        world.until_count(1).await;
        assert_eq!(world.children().await, [":last-run"]);
    }

    async fn a_run_that_is_dropped_does_not_count(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        drop(begun(&job(&client, HOUR)).await);
        let session = world.observing().await;
        until(&session, LOCK, |names| names.iter().all(|name| name == ":last-run")).await;
        begun(&job(&world.client().await, HOUR)).await.finish().await.unwrap();
        assert!(is_not_due(&job(&client, HOUR)).await);
    }

    async fn a_run_that_is_released_does_not_count(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        begun(&job(&client, HOUR)).await.release().await.unwrap();
        // Immediately, because the release was confirmed.
        begun(&job(&world.client().await, HOUR)).await.finish().await.unwrap();
        assert!(is_not_due(&job(&client, HOUR)).await);
    }

    async fn a_run_whose_process_dies_does_not_count(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let run = begun(&job(&client, HOUR)).await;
        let other = job(&world.client().await, HOUR);
        let waiter = world.queue_up_at(LOCK, async move { other.begin().await }).await;
        world.end_session(&client).await;
        let next = waiter.await.unwrap().unwrap().due().expect("it is due");
        // The first one is late, and its run is neither recorded nor holds the lock.
        let refusal = run.finish().await.unwrap_err();
        assert!(matches!(refusal, LockError::Lost(_) | LockError::Store(_)), "{refusal}");
        assert!(world.children().await.iter().all(|name| name != ":last-run"));
        next.finish().await.unwrap();
        assert!(world.children().await.iter().any(|name| name == ":last-run"));
    }

    async fn a_run_whose_lock_was_taken_away_is_not_recorded(env: Env) {
        let world = World::new(env).await;
        let run = begun(&job(&world.client().await, HOUR)).await;
        world.revoke(run.guard().path()).await;
        let refusal = run.finish().await.unwrap_err();
        assert_eq!(refusal, LockError::Lost(LostReason::Revoked));
        begun(&job(&world.client().await, HOUR)).await.finish().await.unwrap();
    }

    async fn the_lock_is_that_of_the_mutex_at_the_path(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let guard = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
        assert!(matches!(job(&client, HOUR).try_begin().await.unwrap(), Attempt::Running));
        guard.release().await.unwrap();
        let run = begun(&job(&client, HOUR)).await;
        let mutex = world.mutex().await;
        assert!(mutex.try_lock().await.unwrap().is_none());
        run.finish().await.unwrap();
        // The record is no contender.
        let guard = mutex.try_lock().await.unwrap().expect("it is free");
        guard.release().await.unwrap();
    }

    async fn a_lost_reply_neither_loses_nor_doubles_a_run(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let run = begun(&job(&client, HOUR)).await;
        world.lose(&client, (&[RequestKind::Multi], &[RequestKind::Multi]));
        run.finish().await.unwrap();
        assert!(is_not_due(&job(&world.client().await, HOUR)).await);
    }

    async fn a_wait_for_a_turn_ends_with_its_timeout(env: Env) {
        let world = World::new(env).await;
        let run = begun(&job(&world.client().await, HOUR)).await;
        let timeout = Duration::from_millis(30);
        let options = LockOptions::new().timeout(timeout);
        let refusal = job(&world.client().await, HOUR).begin_with(options).await.unwrap_err();
        assert_timed_out(&refusal, LOCK, timeout);
        run.finish().await.unwrap();
    }
}

/// In virtual time: the period, to the millisecond, by the store's clock.
#[tokio::test]
async fn a_job_is_due_again_when_its_period_is_over() {
    let store = TestStore::new();
    let client = store.client().await.unwrap();
    let job = job(&client, HOUR);
    let run = begun(&job).await;
    store.advance(HOUR / 4).await;
    run.finish().await.unwrap();
    // Counted from the start of the run.
    store.advance(HOUR / 4).await;
    let Attempt::NotDue { since_end, due_in } = job.try_begin().await.unwrap() else {
        panic!("it is not due");
    };
    assert_eq!((since_end, due_in), (HOUR / 4, HOUR / 2));
    store.advance(HOUR / 2 - Duration::from_millis(1)).await;
    assert!(is_not_due(&job).await);
    store.advance(Duration::from_millis(1)).await;
    begun(&job).await.finish().await.unwrap();
    assert!(is_not_due(&job).await);
}

/// A waiter's time is when it gets its turn, not when it arrives.
#[tokio::test]
async fn a_long_wait_counts_for_the_period() {
    let store = TestStore::new();
    let client = store.client().await.unwrap();
    let job = job(&client, HOUR);
    begun(&job).await.finish().await.unwrap();
    store.advance(HOUR / 2).await;
    let holder = Mutex::new(&client, LOCK).unwrap().lock().await.unwrap();
    let waiter = tokio::spawn({
        let job = job.clone();
        async move { job.begin().await }
    });
    store.settle().await;
    store.advance(HOUR).await;
    holder.release().await.unwrap();
    let turn = waiter.await.unwrap().unwrap();
    turn.due().expect("it is due").finish().await.unwrap();
}

/// Opens the store in a directory with a clock this far from its start.
async fn opened(folder: &TempFolder, elapsed: Duration) -> (Client, Clock) {
    let clock = Clock::new_virtual();
    clock.advance(elapsed);
    let options = StoreOptions::new().clock(clock.clone());
    let store = Store::file_with(folder.path(), options).unwrap();
    (store.connect().await.unwrap(), clock)
}

/// The record says "in a week". The job must not wait that long.
#[tokio::test]
async fn a_clock_that_was_set_back_delays_a_job_by_one_period() {
    let folder = TempFolder::new("once-per");
    let (client, _) = opened(&folder, 7 * 24 * HOUR).await;
    begun(&job(&client, HOUR)).await.finish().await.unwrap();
    client.close().await.unwrap();
    drop(client);
    let (client, clock) = opened(&folder, Duration::ZERO).await;
    let job = job(&client, HOUR);
    let Attempt::NotDue { since_end, due_in } = job.try_begin().await.unwrap() else {
        panic!("it is not due");
    };
    assert_eq!((since_end, due_in), (Duration::ZERO, HOUR));
    clock.advance(HOUR - Duration::from_millis(1));
    assert!(is_not_due(&job).await);
    clock.advance(Duration::from_millis(1));
    begun(&job).await.finish().await.unwrap();
    assert!(is_not_due(&job).await);
}
