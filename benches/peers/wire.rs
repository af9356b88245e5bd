//! The store under test once more, without any client library of ZooKeeper's: what an uncontended lock
//! asks for, over connections like those to Redis and Postgres. It shows what is the server's, and
//! what is the client's.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::pipe::{Pipe, Protocol};
use crate::systems::Lock;
use crate::workloads::{Case, Workload};

/// Sessions over plain connections.
pub(crate) struct Wire {
    port: u16,
}

impl Wire {
    /// `None` where the server is not one of this machine.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let port = url.strip_prefix("lockkeeper://127.0.0.1:")?;
        Some(Self {
            port: port.parse().ok()?,
        })
    }

    /// The handles that a case needs; `None` where clients wait for one another.
    pub(crate) async fn locks(&self, case: &Case) -> Option<Vec<WireLock>> {
        let count = match case.workload {
            Workload::W1 => 1,
            Workload::W4 => case.n,
            _ => return None,
        };
        let mut sessions = Vec::new();
        for _ in 0..case.clients {
            sessions.push(open(self.port).await);
        }
        static USED: AtomicUsize = AtomicUsize::new(0);
        let number = USED.fetch_add(1, Ordering::Relaxed);
        let root = format!("/wire-{}-{number}", std::process::id());
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

/// A session's handle to a lock for which nobody else asks.
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

    async fn lock(&self) -> WireGuard {
        let entry = format!(
            "{}/_c_6f1d2c9a-3b7e-4c58-9a43-0d5e8f7a1b26-lock-",
            self.queue
        );
        let created = self
            .session
            .send(create_request(&entry, EPHEMERAL_SEQUENTIAL));
        let mut list = request(GET_CHILDREN, &self.queue);
        list.push(0);
        let listed = self.session.send(framed(list));
        let created = created.await.expect("the server answers");
        let listed = listed.await.expect("the server answers");
        assert_eq!((created.error, listed.error), (0, 0), "granted");
        assert_eq!(listed.count, 1, "nobody else is there");
        WireGuard {
            session: self.session.clone(),
            entry: created.text,
        }
    }

    async fn unlock(guard: WireGuard) {
        let mut delete = request(DELETE, &guard.entry);
        delete.extend_from_slice(&(-1_i32).to_be_bytes());
        let deleted = guard.session.ask(framed(delete)).await;
        assert_eq!(deleted.error, 0, "released");
    }

    fn token(_guard: &WireGuard) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) {}

    async fn settled_again(&self) {}
}

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const GET_CHILDREN: i32 = 8;
const PERSISTENT: i32 = 0;
const EPHEMERAL_SEQUENTIAL: i32 = 3;

async fn open(port: u16) -> Pipe<Jute> {
    let session = Pipe::<Jute>::connect(port).await;
    let session = session.expect("the server listens");
    let mut connect = vec![0; 12];
    connect.extend_from_slice(&30_000_i32.to_be_bytes());
    connect.extend_from_slice(&[0; 8]);
    put_text(&mut connect, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    connect.push(0);
    session.ask(framed(connect)).await;
    session
}

async fn create(session: &Pipe<Jute>, path: &str, mode: i32) {
    let created = session.ask(create_request(path, mode)).await;
    assert_eq!(created.error, 0, "{path} is made");
}

fn create_request(path: &str, mode: i32) -> Vec<u8> {
    let mut body = request(CREATE, path);
    put_text(&mut body, "");
    for number in [1_i32, 0x1f] {
        body.extend_from_slice(&number.to_be_bytes());
    }
    put_text(&mut body, "world");
    put_text(&mut body, "anyone");
    body.extend_from_slice(&mode.to_be_bytes());
    framed(body)
}

fn request(op: i32, path: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    for number in [1, op] {
        body.extend_from_slice(&number.to_be_bytes());
    }
    put_text(&mut body, path);
    body
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    to.extend_from_slice(&(text.len() as i32).to_be_bytes());
    to.extend_from_slice(text.as_bytes());
}

fn framed(body: Vec<u8>) -> Vec<u8> {
    let mut frame = (body.len() as i32).to_be_bytes().to_vec();
    frame.extend_from_slice(&body);
    frame
}

/// ZooKeeper's protocol, as far as it is needed here.
pub(crate) struct Jute;

pub(crate) struct Answer {
    error: i32,
    /// The number that the record begins with: of a list, how many names there are.
    count: i32,
    /// The text that the record of a create is.
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
        // Behind the length: xid, zxid, error, record.
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
