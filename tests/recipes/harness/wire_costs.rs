//! Costs of a recipe on the wire to a ZooKeeper: frames and bytes.

use lockkeeper::{Client, ConnectOptions, LockError, Session, connect_with};
use testkit::{Frame, Proxy, unique, zookeeper};

use super::costs::{HAND_OVERS, Queue, SIZES};
use crate::common::*;

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
    // Once this is answered, everything before is counted. The request itself may not be.
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

/// Asserts that the cheapest hand-over takes equal bytes on the wire for each queue length, except for this many more
/// digits in names and marks.
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

/// Gives all woken waiters time to look, with a few requests each.
async fn settle(session: &Session) {
    for _ in 0..20 {
        session.exists(&path(LOCK)).await.unwrap();
        tokio::task::yield_now().await;
    }
}
