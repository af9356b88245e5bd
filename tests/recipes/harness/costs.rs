//! Costs of a recipe: requests, events and bytes of a session, the hand-overs of a long queue, and the
//! frames on a wire to a ZooKeeper.

use lockkeeper::testing::{RequestKind, Traffic};
use lockkeeper::{Client, ConnectOptions, LockError, Session, connect_with};
use tokio::sync::mpsc;

use crate::common::*;
use crate::support::{Frame, Proxy, unique, zookeeper};

/// Queue lengths at which a hand-over must cost the same.
pub(crate) const SIZES: [usize; 3] = [2, 100, 1_000];

/// Number of hand-overs that are measured: a renewal of the session may fall into one of them.
pub(crate) const HAND_OVERS: usize = 5;

/// Requests, events and bytes.
pub(crate) type Cost = (u64, u64, u64);

pub(crate) fn cost(traffic: Traffic) -> Cost {
    (
        traffic.requests(RequestKind::Any),
        traffic.events,
        traffic.bytes,
    )
}

/// Fails unless all cost as many requests and events, and as many bytes but for these: the numbers in names and
/// marks have more digits in a longer queue. Returns the requests and events.
pub(crate) fn assert_flat(costs: &[Cost], digits: u64) -> (u64, u64) {
    let (requests, events, bytes) = costs[0];
    for cost in costs {
        assert_eq!((cost.0, cost.1), (requests, events), "{costs:?}");
        assert!(cost.2 <= bytes + digits, "{costs:?}");
    }
    (requests, events)
}

/// Waits until no request of a session is under way, and returns its traffic so far.
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

/// Waiters of one session in a known order, and the guards that are held before them.
pub(crate) struct Queue<H> {
    pub(crate) held: Vec<H>,
    grants: mpsc::UnboundedReceiver<Result<H, LockError>>,
}

impl<H: Send + 'static> Queue<H> {
    /// Starts these waits, and returns when each stands in the queue at this path.
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
            // At the end of the test the receiver is gone, and the grant is dropped.
            tokio::spawn(async move { send.send(wait.await).map_err(drop) });
            queued += 1;
            // Tasks run in the order of their spawning, and so do the requests of one session.
            tokio::task::yield_now().await;
        }
        until(session, at, |names| names.len() == queued).await;
        Self { held, grants }
    }

    /// Waits for the next grant.
    pub(crate) async fn next(&mut self) -> H {
        self.grants.recv().await.unwrap().unwrap()
    }

    /// Releases the oldest guard, and waits for the next grant.
    pub(crate) async fn hand_over<R>(&mut self, release: impl FnOnce(H) -> R)
    where
        R: Future<Output = Result<(), LockError>>,
    {
        release(self.held.remove(0)).await.unwrap();
        let next = self.next().await;
        self.held.push(next);
    }

    /// Hands over twice: the first holder has not waited, and leaves no mark.
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

/// Numbers of operations on the wire.
pub(crate) mod op {
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE2: i32 = 15;
    pub(crate) const MULTI_READ: i32 = 22;
}

/// Connects a client through a proxy that counts its frames.
pub(crate) async fn wired(proxy: &Proxy) -> Client {
    let url = format!("zookeeper://{}/{}", proxy.hosts(), unique("wire"));
    let options = ConnectOptions::new().create_chroot().session_timeout(LONG);
    connect_with(url.as_str(), options).await.unwrap()
}

/// Returns the frames since the last call, without reads of a single znode.
pub(crate) async fn frames(proxy: &Proxy, session: &Session) -> Vec<Frame> {
    const EVENT: i32 = -1;
    // All before it has been counted when this is answered; itself it may have been or not.
    session.exists(&path(LOCK)).await.unwrap();
    let mut frames = proxy.take_frames();
    let asked = |frame: &&Frame| frame.to_server && frame.operation != op::EXISTS;
    let asked: Vec<_> = frames.iter().filter(asked).map(|frame| frame.xid).collect();
    frames.retain(|frame| frame.xid == EVENT || asked.contains(&frame.xid));
    frames
}

pub(crate) fn operations(frames: &[Frame]) -> Vec<i32> {
    frames
        .iter()
        .filter(|frame| frame.to_server)
        .map(|frame| frame.operation)
        .collect()
}

/// Fails unless the cheapest hand-over takes as many bytes on the wire to a ZooKeeper for each length of the queue, but
/// for these: the numbers in names and marks have more digits in a longer queue.
pub(crate) async fn assert_wire_bytes_flat<H, R>(
    queue: impl AsyncFn(&Client, usize) -> Queue<H>,
    release: impl Fn(H) -> R,
    digits: usize,
) where
    H: Send + 'static,
    R: Future<Output = Result<(), LockError>>,
{
    let mut sizes = Vec::new();
    for waiters in SIZES {
        let proxy = Proxy::to(zookeeper().address());
        let client = wired(&proxy).await;
        let mut queue = queue(&client, waiters).await;
        let session = client.current_session();
        let mut cheapest = usize::MAX;
        for _ in 0..HAND_OVERS {
            settle(&session).await;
            frames(&proxy, &session).await;
            queue.hand_over(&release).await;
            settle(&session).await;
            let bytes = frames(&proxy, &session).await;
            cheapest = cheapest.min(bytes.iter().map(|frame| frame.bytes).sum());
        }
        sizes.push(cheapest);
    }
    assert!(
        sizes.iter().all(|size| *size <= sizes[0] + digits),
        "{SIZES:?} wait: {sizes:?} bytes"
    );
}

/// Lets all waiters that were woken look, each by a few requests.
async fn settle(session: &Session) {
    for _ in 0..20 {
        session.exists(&path(LOCK)).await.unwrap();
        tokio::task::yield_now().await;
    }
}
