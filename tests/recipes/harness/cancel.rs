//! Cancels waits at every point: after the first poll, after the second, and so on.

use std::pin::pin;

use crate::common::polled;

/// Runs `attempt` with more and more polls, until it reports that its wait ended before it was cancelled. Returns its
/// number of polls.
pub(crate) async fn at_every_point(attempt: impl AsyncFn(usize) -> bool) -> usize {
    let mut polls = 1;
    loop {
        match attempt(polls).await {
            // If the machine stalls, the answers may overtake the first poll, and there is no point to cancel at.
            true if polls == 1 => {}
            true => return polls,
            false => polls += 1,
        }
    }
}

/// Polls a wait at most this often. Releases the holder once the wait has `joined` the queue or has ended.
pub(crate) async fn cancelled_behind<T>(
    wait: impl Future<Output = T>,
    polls: usize,
    joined: impl Future<Output = ()>,
    let_go: impl AsyncFnOnce(),
) -> Option<T> {
    let mut wait = pin!(polled(wait, polls));
    tokio::select! {
        outcome = &mut wait => {
            let_go().await;
            outcome
        }
        () = joined => {
            let_go().await;
            wait.await
        }
    }
}
