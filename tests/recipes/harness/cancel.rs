//! Waits that are cancelled at every point: after their first poll, after their second, and so on.

use std::pin::pin;

use crate::common::polled;

/// Runs `attempt` with ever more polls, until it says that its wait ended before it was cancelled. Returns the number
/// of polls of that one.
pub(crate) async fn at_every_point(attempt: impl AsyncFn(usize) -> bool) -> usize {
    let mut polls = 1;
    loop {
        match attempt(polls).await {
            // On a machine that stood still the answers may overtake the very first poll: then there was no point to
            // cancel at, this time.
            true if polls == 1 => {}
            true => return polls,
            false => polls += 1,
        }
    }
}

/// Polls a wait at most this often. The holder in its way is let go once the wait has `joined` the queue, or has
/// ended.
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
