//! Costs of a recipe: a session's requests, events and bytes, and hand-overs of a long queue.

use lockkeeper::testing::{RequestKind, Traffic};
use lockkeeper::{LockError, Session};
use testkit::Env;
use tokio::sync::mpsc;

use crate::common::*;

/// Queue lengths at which a hand-over must cost the same.
pub(crate) const SIZES: [usize; 3] = [2, 100, 1_000];

/// Returns these lengths. Skips the longest for a lent client and for etcd, which take over a minute with it.
pub(crate) fn sizes(env: &Env) -> &'static [usize] {
    match env.is_lent() || env.is_etcd() {
        true => &SIZES[..2],
        false => &SIZES,
    }
}

/// Number of measured hand-overs. One of them may contain a renewal of the session.
pub(crate) const HAND_OVERS: usize = 5;

pub(crate) type Cost = (u64, u64, u64);

pub(crate) fn cost(traffic: Traffic) -> Cost {
    (
        traffic.requests(RequestKind::Any),
        traffic.events,
        traffic.bytes,
    )
}

/// Asserts that all costs have equal requests and events, and equal bytes except for this many more digits in names and
/// marks. Returns the requests and events.
pub(crate) fn assert_flat(costs: &[Cost], digits: u64) -> (u64, u64) {
    let (requests, events, bytes) = costs[0];
    for cost in costs {
        assert_eq!((cost.0, cost.1), (requests, events), "{costs:?}");
        assert!(cost.2 <= bytes + digits, "{costs:?}");
    }
    (requests, events)
}

/// Waits until no request of a session is in flight, and returns its traffic so far.
pub(crate) async fn quiet(world: &World, session: &Session) -> Traffic {
    loop {
        let before = world.traffic_of(session);
        session.exists(&path(LOCK)).await.unwrap();
        tokio::task::yield_now().await;
        let after = world.traffic_of(session);
        let between = after - before;
        if (
            between.requests(RequestKind::Any),
            between.replies,
            between.events,
        ) == (1, 1, 0)
        {
            return after;
        }
    }
}

/// Waiters of one session in a known order, and the guards held before them.
pub(crate) struct Queue<H> {
    pub(crate) held: Vec<H>,
    grants: mpsc::UnboundedReceiver<Result<H, LockError>>,
}

impl<H: Send + 'static> Queue<H> {
    /// Starts these waits, and returns once each is in the queue at this path.
    pub(crate) async fn of<F>(
        session: &Session,
        at: &str,
        held: Vec<H>,
        waits: impl IntoIterator<Item = F>,
    ) -> Self
    where
        F: Future<Output = Result<H, LockError>> + Send + 'static,
    {
        let (send, grants) = mpsc::unbounded_channel();
        let mut queued = children(session, at).await.len();
        for wait in waits {
            let send = send.clone();
            // When the test ends, the receiver is gone and the grant is dropped.
            tokio::spawn(async move { send.send(wait.await).map_err(drop) });
            queued += 1;
            // Tasks run in the order of spawning, and so do the requests of one session.
            tokio::task::yield_now().await;
        }
        until(session, at, |names| names.len() == queued).await;
        Self { held, grants }
    }

    pub(crate) async fn next(&mut self) -> H {
        self.grants.recv().await.unwrap().unwrap()
    }

    pub(crate) async fn hand_over<R>(&mut self, release: impl FnOnce(H) -> R)
    where
        R: Future<Output = Result<(), LockError>>,
    {
        release(self.held.remove(0)).await.unwrap();
        let next = self.next().await;
        self.held.push(next);
    }

    /// Hands over twice, because the first holder has not waited and leaves no mark.
    pub(crate) async fn warmed_up<R>(mut self, release: impl Fn(H) -> R) -> Self
    where
        R: Future<Output = Result<(), LockError>>,
    {
        for _ in 0..2 {
            self.hand_over(&release).await;
        }
        self
    }
}
