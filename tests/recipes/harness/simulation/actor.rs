//! The behaviour that contenders of all recipes share.

use std::ops::Range;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lockkeeper::{Clock, LockError};

use super::{Counters, Random};

/// The clock, the randomness and the counters of one actor.
pub(crate) struct Actor {
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) counters: Counters,
}

impl Actor {
    /// Adds one to a counter of the run.
    pub(crate) fn count(&self, counter: &'static str) {
        self.counters.add(counter, 1);
    }

    /// Returns a random length of time, shorter than this.
    pub(crate) fn duration(&mut self, longest_ms: u64) -> Duration {
        Duration::from_millis(self.random.within(0..longest_ms))
    }

    pub(crate) async fn rest(&mut self, longest_ms: u64) {
        let length = self.duration(longest_ms);
        self.clock.sleep(length).await;
    }

    /// Returns the limit of a stay inside: once in a while it outlasts any session.
    pub(crate) fn longest_stay(&mut self) -> u64 {
        match self.random.within(0..8) {
            0 => 40_000,
            _ => 1_500,
        }
    }

    /// Keeps a grant for a random time.
    pub(crate) async fn work_inside(&mut self) {
        let longest = self.longest_stay();
        self.rest(longest).await;
    }

    /// Lets a holding go in one of three ways: drops it, drops the future of its release, or awaits that.
    pub(crate) async fn let_go<H, F: Future>(&mut self, holding: H, release: impl FnOnce(H) -> F) {
        match self.random.within(0..3) {
            0 => drop(holding),
            1 => drop(release(holding)),
            _ => drop(release(holding).await),
        }
    }
}

/// One contender, which tries its luck in different ways.
pub(crate) trait Contender {
    type Granted;

    fn actor(&mut self) -> &mut Actor;

    /// Tries once, in a random way; `None` if it gave up.
    async fn contend(&mut self) -> Result<Option<Self::Granted>, LockError>;

    /// Waits for as long as it takes; `None` if it has held as well by now.
    async fn insist(&mut self) -> Result<Option<Self::Granted>, LockError>;

    async fn hold(&mut self, granted: Self::Granted);
}

/// Contends some times, and at last until it has held: no waiter is forgotten.
pub(crate) async fn compete(mut contender: impl Contender, turns: Range<u64>) {
    for _ in 0..contender.actor().random.within(turns) {
        contender.actor().rest(2_000).await;
        match contender.contend().await {
            Ok(Some(granted)) => contender.hold(granted).await,
            Ok(None) | Err(LockError::Timeout { .. }) => {}
            Err(error) => assert!(error.is_session_end(), "{error}"),
        }
    }
    loop {
        match contender.insist().await {
            Ok(Some(granted)) => return contender.hold(granted).await,
            Ok(None) => return,
            Err(error) => assert!(error.is_session_end(), "{error}"),
        }
    }
}

/// Returns the outcome of a wait, or `None` if it is cancelled before.
pub(crate) async fn or_cancelled<T, E>(
    wait: impl Future<Output = Result<T, E>>,
    cancel: impl Future<Output = ()>,
) -> Result<Option<T>, E> {
    let (mut wait, mut cancel) = (pin!(wait), pin!(cancel));
    std::future::poll_fn(|context| match wait.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(outcome.map(Some)),
        Poll::Pending => cancel.as_mut().poll(context).map(|()| Ok(None)),
    })
    .await
}
