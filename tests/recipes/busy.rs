//! Distinguishing "busy" from "down": by timeouts, by connect errors and in the log.

use std::time::Duration;

use lockkeeper::{ConnectOptions, Error, ReentrantMutex, Semaphore, connect_with};
use testkit::{Log, alone, free_address, on_every_backend, within_reason};
use tracing::Level;

use super::common::*;

/// Enough for a wait to join its queue, unless the machine is busy.
const SHORT: Duration = Duration::from_millis(500);

on_every_backend! {
    async fn a_timeout_says_how_many_were_ahead(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let holder = mutex.lock().await.unwrap();
        let waiter = world.queue_up(&world.mutex().await).await;
        let late = world.mutex().await;
        let said = timed_out_in_queue(SHORT, async |limit| late.lock_timeout(limit).await).await.to_string();
        assert!(said.contains(LOCK) && said.contains("2 ahead"), "{said}");

        let owner = ReentrantMutex::new(&world.client().await, LOCK).unwrap().owner();
        let said = timed_out_in_queue(SHORT, async |limit| owner.lock_timeout(limit).await).await.to_string();
        assert!(said.contains("2 ahead"), "{said}");

        let keys = ["/lock/free", LOCK];
        let client = world.client().await;
        let said = timed_out_in_queue(SHORT, async |limit| {
            let options = lockkeeper::LockOptions::new().timeout(limit);
            lockkeeper::lock_all_with(&client, keys, options).await
        })
        .await
        .to_string();
        assert!(said.contains(LOCK) && said.contains("2 ahead"), "{said}");
        holder.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
    }

    async fn a_timeout_at_the_head_counts_no_contender_ahead(env: Env) {
        let semaphore = Semaphore::new(&env.client().await, "/quota", 1).unwrap();
        let _permit = semaphore.acquire().await.unwrap();
        let said = timed_out_in_queue(SHORT, async |limit| semaphore.acquire_timeout(limit).await).await.to_string();
        assert!(said.contains("0 ahead"), "{said}");
    }

    async fn a_timeout_says_that_the_store_did_not_answer(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        world.disconnect(&mutex.client().current_session());
        let said = mutex.lock_timeout(SHORT).await.unwrap_err().to_string();
        assert!(said.contains(LOCK) && said.contains("the store did not answer"), "{said}");
        world.reconnect(&mutex.client().current_session());
    }
}

#[tokio::test]
async fn a_refused_port_says_how_to_start_a_server() {
    let port = free_address().port();
    let options = ConnectOptions::new().connect_timeout(SHORT);
    let refusal = async |url: &str| {
        let connecting = connect_with(url, options.clone());
        within_reason(connecting).await.unwrap_err().to_string()
    };
    let url = format!("lockkeeper://127.0.0.1:{port}/app");
    let said = refusal(&url).await;
    assert!(said.contains(&url) && said.contains("refused"), "{said}");
    let command = format!("lockkeeper serve --listen 127.0.0.1:{port}");
    assert!(said.contains(&command), "{said}");
    let url = format!("zookeeper://127.0.0.1:{port}/app");
    let said = refusal(&url).await;
    assert!(said.contains(&url) && said.contains("refused"), "{said}");
}

#[tokio::test]
async fn a_refused_port_is_warned_of_at_once_and_once() {
    if !alone() {
        return;
    }
    let log = Log::of_process(Level::WARN);
    let url = format!("lockkeeper://{}", free_address());
    let options = ConnectOptions::new().connect_timeout(LONG);
    let mut connecting = Box::pin(connect_with(url.as_str(), options));
    let warning = within_reason(async {
        tokio::select! {
            warning = log.next("") => format!("{warning:?}"),
            _ = &mut connecting => panic!("nobody listens there"),
        }
    })
    .await;
    assert!(
        warning.contains(&url) && warning.contains("lockkeeper serve"),
        "{warning}"
    );
    // After several attempts.
    let more = tokio::time::timeout(SHORT, connecting).await;
    assert!(more.is_err() && log.rest().is_empty());
}

#[test]
fn the_error_of_a_changed_store_says_what_to_do() {
    let error = Error::StoreChanged {
        target: "zookeeper://zk1".to_owned(),
        expected: "one".to_owned(),
        found: "other".to_owned(),
    };
    let said = error.to_string();
    assert!(
        said.contains("correct the URL") && said.contains("connect again"),
        "{said}"
    );
}
