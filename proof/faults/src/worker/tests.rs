//! Tests of workers on a store in memory: they behave well, and each of their mistakes is noticed.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockkeeper::testing::TestStore;

use super::*;
use crate::checks::{Belief, Checker, WorkerId};
use crate::run::no_entry_is_left;
use crate::time::{nanos, now};
use crate::workers::locked;

/// Returns a reporter that passes reports to a checker directly.
fn reporter(number: usize, checker: &Arc<Mutex<Checker>>) -> Arc<Reporter> {
    let id = WorkerId {
        number,
        life: 0,
        belief: Belief::Promised,
    };
    let (own, checker) = (Arc::new(OnceLock::<Arc<Reporter>>::new()), checker.clone());
    let seen = own.clone();
    let reporter = Arc::new(Reporter::new(move |report| {
        let answer = locked(&checker).hear(id, report.clone());
        if let (Some(answer), Report::Use { grant }) = (answer, report) {
            let own = seen.get().expect("it is set before it is used");
            own.used(*grant, answer);
        }
    }));
    let _ = own.set(reporter.clone());
    reporter
}

/// Runs two workers with a mistake, and returns the violations. `expires` makes sessions end early.
async fn wrong(mistake: Option<Mistake>, expires: bool) -> Vec<String> {
    let store = TestStore::system_time();
    let checker = Arc::new(Mutex::new(Checker::new(nanos(Duration::from_secs(60)))));
    let (mut clients, mut reporters, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    let began = now();
    for number in 0..2 {
        let client = store.client().await.expect("the store is in memory");
        let reporter = reporter(number, &checker);
        clients.push(client.clone());
        reporters.push(reporter.clone());
        let options = Options {
            url: String::new(),
            seed: number as u64,
            number: number as u64,
            began,
            timeout: 1_000,
            tick: None,
            mistake,
        };
        tasks.push(tokio::spawn(async move {
            work(&client, &options, &reporter).await;
        }));
    }
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        if expires {
            store.expire(&clients[0]).await.expect("it has a session");
        }
    }
    reporters.iter().for_each(|reporter| reporter.finish());
    let finished = tokio::time::timeout(Duration::from_secs(8), async {
        for task in tasks {
            task.await.expect("no worker panics");
        }
    });
    if finished.await.is_err() {
        locked(&checker).violate("progress: a worker cannot finish".to_owned());
    } else if let Err(left) = no_entry_is_left(&clients[1]).await {
        locked(&checker).violate(left);
    }
    locked(&checker).check_all().to_vec()
}

#[track_caller]
fn notices(kind: &str, wrong: &[String]) {
    let is_noticed = wrong.iter().any(|wrong| wrong.starts_with(kind));
    assert!(is_noticed, "{kind} not in {wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_mistake_nothing_is_wrong() {
    assert_eq!(wrong(None, false).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_another() {
    notices("exclusion:", &wrong(Some(Mistake::WrongLock), false).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_belief_outlasts_the_release() {
    let mistake = Some(Mistake::HoldsAfterRelease);
    notices("exclusion:", &wrong(mistake, false).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_ignored() {
    notices("exclusion:", &wrong(Some(Mistake::IgnoresLoss), true).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_without_a_fault() {
    notices("leases:", &wrong(None, true).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_invented() {
    let mistake = Some(Mistake::InventsAWrite);
    notices("linearizability:", &wrong(mistake, false).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_stays_or_blocks_the_others() {
    let wrong = wrong(Some(Mistake::LeavesAnEntry), false).await;
    let is_noticed = |wrong: &String| wrong.starts_with("left") || wrong.starts_with("progress");
    assert!(wrong.iter().any(is_noticed), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_never_released() {
    notices("progress:", &wrong(Some(Mistake::NeverLetsGo), false).await);
}
