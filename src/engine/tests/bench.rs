//! A disk on which stores are opened one after the other, with sessions of other processes and their connections.

use super::world::*;
use super::*;
use crate::core::CoreReply;
use crate::engine::connection::{Connection, SessionRequest};
use crate::engine::outbox::{Message, Taken};
use crate::engine::remote::Remote;
use crate::log::{Boot, SimDisk, StepWriter};
use crate::model::protocol::{Create, Reply, Request};

pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const LIMIT: usize = 1 << 20;

pub(super) fn ask(connection: &Connection, request: Request) {
    assert_eq!(
        connection.submit(&mut [SessionRequest::Request(request)].into()),
        1
    );
}

pub(super) fn told(connection: &Connection) -> (Vec<Message>, Taken) {
    let mut said = std::collections::VecDeque::new();
    let may_leave = |bound| connection.may_leave(bound);
    loop {
        let before = said.len();
        let taken = connection.outbox().take(LIMIT, may_leave, &mut said);
        if taken != Taken::Some || said.len() == before {
            return (said.into(), taken);
        }
    }
}

pub(super) fn answer(connection: &Connection) -> Option<Result<CoreReply>> {
    match told(connection).0.pop()? {
        Message::Answer { answer, .. } => Some(answer),
        Message::WatchUpdate { news, .. } => panic!("{news:?}"),
    }
}

pub(super) fn taken_up(remote: &Remote, id: SessionId, password: [u8; 16]) -> Option<Connection> {
    now(remote.reattach(id, password, TIMEOUT, LIMIT))
        .unwrap()
        .ok()
}

pub(super) struct Bench {
    pub(super) disk: SimDisk,
    pub(super) options: StoreOptions,
    pub(super) clock: Clock,
}

impl Bench {
    pub(super) fn new(durability: Durability) -> Self {
        let clock = Clock::new_virtual();
        Self {
            disk: SimDisk::new(),
            options: options(&clock).durability(durability),
            clock,
        }
    }

    pub(super) fn open(&self) -> World {
        World::open(Boot::new(&self.disk), &self.options).unwrap()
    }

    /// The power fails. Only synced data is left.
    pub(super) fn crash(&self) {
        self.disk.crash_keeping(|| false);
    }
}

pub(super) fn write_all(world: &mut World) {
    let hand = world.hand.as_mut().unwrap();
    while hand.write() || hand.make_room() {}
}

pub(super) fn close(mut world: World) {
    drop(std::mem::take(&mut world.sessions));
    world.hand.take().map(StepWriter::close).unwrap();
}

pub(super) fn opened(world: &mut World, remote: &Remote) -> Connection {
    let mut opening = Box::pin(remote.open(TIMEOUT, LIMIT));
    assert!(poll(&mut opening).is_pending(), "it is not synced yet");
    write_all(world);
    now(opening).unwrap()
}

pub(super) fn create(at: &str, mode: CreateMode) -> Request {
    Request::Create(Create {
        path: path(at),
        data: bytes::Bytes::new(),
        mode,
        acl: Acl::open(),
    })
}

pub(super) fn exists(world: &mut World, at: &str) -> bool {
    world.connect().unwrap();
    let asker = world.sessions.pop().unwrap();
    let (path, watch) = (path(at), false);
    let response = asker.backend.submit(Request::Exists { path, watch });
    write_all(world);
    match now(response).unwrap() {
        Reply::Exists { stat, .. } => stat.is_some(),
        reply => panic!("{reply:?}"),
    }
}
