//! Measures the time from the death of a holder's process to the next grant.

use std::time::{Duration, Instant};

use lockkeeper::{LockError, Mutex};
use tokio::task::JoinSet;

use super::lock::Place;

pub async fn kill_to_grant(
    mutex: &Mutex,
    place: &Place,
    kill: impl FnOnce(),
) -> Result<Duration, LockError> {
    let waiting = mutex.clone();
    // Dropping this `JoinSet` aborts the waiter. Otherwise the waiter would continue and create the lock's znodes
    // again.
    let mut waiter = JoinSet::new();
    waiter.spawn(async move {
        let guard = waiting.lock().await?;
        Ok((Instant::now(), guard))
    });
    place.queued(mutex.path(), 2).await?;
    place.settled_again().await;
    let killed = Instant::now();
    kill();
    let granted = waiter.join_next().await.expect("there is a waiter");
    let granted: Result<_, LockError> = granted.expect("the waiter does not panic");
    let (at, guard) = granted?;
    guard.release().await?;
    Ok(at - killed)
}
