//! The store under test without a ZooKeeper client library: the requests of an uncontended lock, over connections like
//! the ones to Redis and Postgres. It separates the server's share of the time from the client's.

use lockkeeper::LockError;
use testkit::wire::{self, EPHEMERAL_SEQUENTIAL, PERSISTENT, Session, op, request};

use super::pipe::{Pipe, Protocol};
use crate::common::connection::{TIMEOUT, entry};
use crate::common::fresh_name;
use crate::common::lock::Lock;
use crate::common::socket::Address;
use crate::workloads::{Case, Relayed, Workload};

pub(crate) struct Wire {
    address: Address,
}

impl Wire {
    /// Returns `None` for other stores.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let is_ours = url.starts_with("lockkeeper");
        let address = Address::of(url).filter(|_| is_ours)?;
        Some(Self { address })
    }

    pub(crate) fn is_unix(&self) -> bool {
        matches!(self.address, Address::Unix(_))
    }

    /// Returns the handles for a case. `None` if clients wait for one another.
    pub(crate) async fn locks(&self, case: &Case) -> Option<Vec<WireLock>> {
        let count = match case.workload {
            Workload::W1 => 1,
            Workload::W4 => case.n,
            _ => return None,
        };
        let mut sessions = Vec::new();
        for _ in 0..case.clients {
            sessions.push(open(&self.address).await);
        }
        let root = format!("/wire-{}", fresh_name());
        create(&sessions[0], &root, PERSISTENT).await;
        let mut locks = Vec::new();
        for key in 0..count {
            let queue = format!("{root}/{key}");
            create(&sessions[0], &queue, PERSISTENT).await;
            let session = sessions[key % sessions.len()].clone();
            locks.push(WireLock { session, queue });
        }
        Some(locks)
    }
}

/// A session's handle to an uncontended lock.
#[derive(Clone)]
pub(crate) struct WireLock {
    session: Pipe<Jute>,
    queue: String,
}

pub(crate) struct WireGuard {
    session: Pipe<Jute>,
    entry: String,
}

impl Lock for WireLock {
    type Guard = WireGuard;

    async fn lock(&self) -> Result<WireGuard, LockError> {
        let create = create_request(&entry(&self.queue), EPHEMERAL_SEQUENTIAL);
        let created = self.session.send(create);
        let list = request(1, op::GET_CHILDREN, &wire::read(&self.queue, false));
        let listed = self.session.send(list);
        let created = created.await.expect("the server answers");
        let listed = listed.await.expect("the server answers");
        assert_eq!((created.error, listed.error), (0, 0), "granted");
        assert_eq!(listed.count, 1, "it is uncontended");
        Ok(WireGuard {
            session: self.session.clone(),
            entry: created.text,
        })
    }

    async fn unlock(guard: WireGuard) -> Result<(), LockError> {
        let delete = request(1, op::DELETE, &wire::delete(&guard.entry));
        let deleted = guard.session.ask(delete).await;
        assert_eq!(deleted.error, 0, "released");
        Ok(())
    }

    fn token(_guard: &WireGuard) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) -> Result<(), LockError> {
        Ok(())
    }
}

impl Relayed for WireLock {
    async fn settled_again(&self) {}
}

async fn open(address: &Address) -> Pipe<Jute> {
    let session = Pipe::<Jute>::connect(address).await;
    let session = session.expect("the server listens");
    session.ask(Session::none(TIMEOUT).handshake()).await;
    session
}

async fn create(session: &Pipe<Jute>, path: &str, mode: i32) {
    let created = session.ask(create_request(path, mode)).await;
    assert_eq!(created.error, 0, "{path} is made");
}

fn create_request(path: &str, mode: i32) -> Vec<u8> {
    request(1, op::CREATE, &wire::create(path, b"", mode))
}

/// The needed part of ZooKeeper's protocol.
pub(crate) struct Jute;

pub(crate) struct Answer {
    error: i32,
    /// The first number of the record. In a list it is the number of names.
    count: i32,
    /// The text in the record of a create.
    text: String,
}

impl Protocol for Jute {
    type Answer = Answer;

    fn parse(bytes: &[u8]) -> Option<(usize, Answer)> {
        let int = |at: usize| {
            let four = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(i32::from_be_bytes(four))
        };
        let end = 4 + int(0)? as usize;
        bytes.get(..end)?;
        // After the length: xid, zxid, error, record.
        let count = if end >= 24 { int(20)? } else { 0 };
        let text = bytes
            .get(24..24 + count.max(0) as usize)
            .unwrap_or_default();
        let answer = Answer {
            error: int(16)?,
            count,
            text: String::from_utf8_lossy(text).into_owned(),
        };
        Some((end, answer))
    }
}
