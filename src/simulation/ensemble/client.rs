//! [`Connection`]: a client's connection to a member.
//!
//! A write is forwarded to the leader immediately. Later requests wait until the write is answered, so that answers
//! keep the order of the requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::State;
use super::leader::{Write, WriteKind};
use super::member::{Member, Role, STILL};
use crate::core::{CoreReply, Effects, SessionRef};
use crate::engine::{Message, SessionRequest};
use crate::model::error::{Error, Result};
use crate::model::protocol::{Reply, Request};
use crate::model::types::{SessionId, Stat, Zxid};
use crate::runtime::clock::BootInstant;
use crate::runtime::simnet::SimSocket;
use crate::server::{MAX_FRAME_BYTES, MemberProtocol};
use crate::wire::{
    ConnectRequest, ConnectResponse, Frames, Jute, PASSWORD_BYTES, Reader, put_frame,
};

pub(super) struct Connection {
    socket: SimSocket,
    attention: Arc<Notify>,
    phase: Phase,
    queue: VecDeque<Pending>,
    greeting: Vec<u8>,
    is_over: bool,
}

enum Phase {
    Handshake(Frames),
    /// Waiting for the leader to confirm the session.
    Opening {
        session: SessionId,
        password: [u8; PASSWORD_BYTES],
        timeout: Duration,
        frames: Frames,
    },
    Open(SessionRef, Box<MemberProtocol>),
}

enum Pending {
    /// `None` until the replica has applied the write.
    Write(Option<Result<CoreReply>>),
    /// Number of entries that the replica must have applied before the answer is sent. `None` until the leader has sent
    /// this number.
    Sync(Option<usize>),
    Here(SessionRequest),
}

struct Terms {
    session: SessionId,
    password: [u8; PASSWORD_BYTES],
    timeout: Duration,
    last_zxid: Zxid,
}

fn read_handshake(frame: &[u8]) -> Option<Terms> {
    let request = Reader::new(frame).next::<ConnectRequest<'_>>().ok()?;
    let timeout_ms = u64::try_from(request.timeout_ms).ok()?;
    Some(Terms {
        session: SessionId(request.session),
        password: request.password.try_into().ok()?,
        timeout: Duration::from_millis(timeout_ms),
        last_zxid: Zxid(request.last_zxid_seen),
    })
}

impl State {
    /// Accepts a connection. A member without a leader returns `None`, because it serves no client.
    pub(super) fn accept(
        &mut self,
        member: usize,
        socket: SimSocket,
        attention: Arc<Notify>,
    ) -> Option<u64> {
        let this = &mut self.members[member];
        if !this.is_up || this.is_looking() {
            socket.shutdown();
            return None;
        }
        self.next_connection += 1;
        let connection = Connection {
            socket,
            attention,
            phase: Phase::Handshake(Frames::new(MAX_FRAME_BYTES)),
            queue: VecDeque::new(),
            greeting: Vec::new(),
            is_over: false,
        };
        this.connections.insert(self.next_connection, connection);
        Some(self.next_connection)
    }

    pub(super) fn received(&mut self, member: usize, connection: u64, bytes: &[u8]) {
        let Some(it) = self.members[member].connections.get_mut(&connection) else {
            return;
        };
        match &mut it.phase {
            Phase::Handshake(frames) => {
                frames.push(bytes);
                let terms = match frames.next() {
                    Ok(Some(frame)) => read_handshake(frame),
                    Ok(None) => return,
                    Err(_) => None,
                };
                match terms {
                    Some(terms) => self.greet(member, connection, terms),
                    None => self.close(member, connection),
                }
            }
            Phase::Opening { frames, .. } => frames.push(bytes),
            Phase::Open(_, protocol) => {
                protocol.receive(bytes);
                self.parse(member, connection);
            }
        }
    }

    fn greet(&mut self, member: usize, connection: u64, terms: Terms) {
        let is_ahead = terms.last_zxid > self.members[member].replica.last_zxid();
        if is_ahead {
            return self.close(member, connection);
        }
        let is_new = terms.session == SessionId(0);
        let (session, password) = match is_new {
            true => (self.new_session(), self.new_password()),
            false => (terms.session, terms.password),
        };
        let timeout = terms.timeout;
        let this = &mut self.members[member];
        let Some(it) = this.connections.get_mut(&connection) else {
            return;
        };
        let Phase::Handshake(frames) = &mut it.phase else {
            return;
        };
        let frames = std::mem::replace(frames, Frames::new(MAX_FRAME_BYTES));
        it.phase = Phase::Opening {
            session,
            password,
            timeout,
            frames,
        };
        if is_new {
            let origin = (member, connection);
            let kind = WriteKind::Open { password, timeout };
            return self.forward(
                member,
                Write {
                    origin,
                    session,
                    kind,
                },
            );
        }
        match this.role {
            Role::Leading(_) => {
                let timeout = self.revalidate(member, member, session, password, timeout);
                self.revalidated(member, connection, timeout);
            }
            Role::Following { leader, .. } => {
                let message = super::Message::Revalidate {
                    connection,
                    session,
                    password,
                    timeout,
                };
                self.send(member, leader, message);
            }
            Role::Looking { .. } => {}
        }
    }

    fn new_session(&mut self) -> SessionId {
        SessionId((self.random.next() >> 1).cast_signed() | 1)
    }

    fn new_password(&mut self) -> [u8; PASSWORD_BYTES] {
        let halves = [self.random.next(), self.random.next()].map(u64::to_be_bytes);
        let mut password = [0; PASSWORD_BYTES];
        password[..8].copy_from_slice(&halves[0]);
        password[8..].copy_from_slice(&halves[1]);
        password
    }

    pub(super) fn revalidated(
        &mut self,
        member: usize,
        connection: u64,
        timeout: Option<Duration>,
    ) {
        let this = &mut self.members[member];
        let Some(it) = this.connections.get_mut(&connection) else {
            return;
        };
        let Phase::Opening {
            session,
            password,
            timeout: asked,
            ..
        } = it.phase
        else {
            return;
        };
        if timeout.is_none() {
            it.refuse();
            return self.pump(member, connection);
        }
        let taken =
            this.replica
                .reattach(session, &password, asked, STILL, &mut Effects::default());
        let of = taken.ok().map(|(of, _)| of);
        // The replica cannot serve the session if it has not created the session yet or has already removed it.
        let (Some(of), Some(timeout)) = (of, timeout) else {
            return self.close(member, connection);
        };
        this.displace(of, connection);
        if let Some(it) = this.connections.get_mut(&connection) {
            it.open(Some(of), timeout);
        }
        self.parse(member, connection);
    }

    fn parse(&mut self, member: usize, connection: u64) {
        let this = &mut self.members[member];
        let now = this.clock.now();
        let Some(it) = this.connections.get_mut(&connection) else {
            return;
        };
        let Phase::Open(of, protocol) = &mut it.phase else {
            return self.pump(member, connection);
        };
        let session = of.id;
        let Some(asked) = protocol.requests(now) else {
            return self.close(member, connection);
        };
        if !asked.is_empty() {
            this.touched.insert(session);
            self.touch(member, session);
        }
        for ask in asked {
            let (kind, pending) = match ask {
                SessionRequest::Request(Request::Sync { .. }) => {
                    (Some(WriteKind::Sync), Pending::Sync(None))
                }
                SessionRequest::Request(request) if is_write(&request) => {
                    (Some(WriteKind::Request(request)), Pending::Write(None))
                }
                ask => (None, Pending::Here(ask)),
            };
            if let Some(it) = self.members[member].connections.get_mut(&connection) {
                it.queue.push_back(pending);
            }
            if let Some(kind) = kind {
                let origin = (member, connection);
                self.forward(
                    member,
                    Write {
                        origin,
                        session,
                        kind,
                    },
                );
            }
        }
        self.pump(member, connection);
    }

    pub(super) fn synced(&mut self, member: usize, connection: u64, length: usize) {
        if let Some(it) = self.members[member].connections.get_mut(&connection)
            && let Some(Pending::Sync(known)) = it
                .queue
                .iter_mut()
                .find(|pending| matches!(pending, Pending::Sync(None)))
        {
            *known = Some(length);
        }
        self.pump(member, connection);
    }

    pub(super) fn pump_all(&mut self, member: usize) {
        let connections = self.members[member].connections.keys();
        let connections: Vec<_> = connections.copied().collect();
        for connection in connections {
            // The new entries may have completed the handshake, and requests may already be waiting.
            self.parse(member, connection);
        }
    }

    fn pump(&mut self, member: usize, connection: u64) {
        while self.members[member].answer_next(connection) {}
        let _ = self.transmit(member, connection);
    }

    /// Writes pending bytes. Returns true if the socket is full, and `None` once the connection is over.
    pub(super) fn transmit(&mut self, member: usize, connection: u64) -> Option<bool> {
        let it = self.members[member].connections.get_mut(&connection)?;
        let is_blocked = it.write();
        if is_blocked {
            it.attention.notify_one();
        } else if it.is_done() {
            self.close(member, connection);
            return None;
        }
        Some(is_blocked)
    }

    fn close(&mut self, member: usize, connection: u64) {
        if let Some(it) = self.members[member].connections.get(&connection) {
            it.socket.shutdown();
        }
        self.lose(member, connection);
    }

    pub(super) fn close_all(&mut self, member: usize) {
        let connections = self.members[member].connections.keys();
        let connections: Vec<_> = connections.copied().collect();
        for connection in connections {
            self.close(member, connection);
        }
    }

    pub(super) fn lose(&mut self, member: usize, connection: u64) {
        let this = &mut self.members[member];
        let Some(it) = this.connections.remove(&connection) else {
            return;
        };
        it.attention.notify_one();
        if let Phase::Open(of, _) = it.phase {
            this.replica.detach(of, STILL, &mut Effects::default());
        }
    }
}

fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Create(_)
            | Request::Delete { .. }
            | Request::SetData { .. }
            | Request::SetAcl { .. }
            | Request::Multi(_)
            | Request::Close
    )
}

impl Member {
    fn answer_next(&mut self, connection: u64) -> bool {
        let now = self.clock.now();
        let Some(it) = self.connections.get_mut(&connection) else {
            return false;
        };
        let of = match &it.phase {
            Phase::Open(of, _) if !it.is_over => *of,
            _ => return false,
        };
        let answer = match it.queue.front_mut() {
            None | Some(Pending::Write(None) | Pending::Sync(None)) => return false,
            Some(Pending::Sync(Some(length))) if *length > self.applied => return false,
            Some(Pending::Sync(Some(_))) => Ok(Reply::Done),
            Some(Pending::Write(answer)) => match answer.take() {
                Some(answer) => answer,
                None => return false,
            },
            Some(Pending::Here(_)) => {
                let Some(Pending::Here(ask)) = it.queue.pop_front() else {
                    return false;
                };
                let mut effects = Effects::default();
                let answer = self.look_up(of, ask, &mut effects);
                self.tell(&mut effects);
                return self.encode(connection, answer, now);
            }
        };
        it.queue.pop_front();
        self.encode(connection, answer, now)
    }

    fn encode(&mut self, connection: u64, answer: Result<CoreReply>, now: BootInstant) -> bool {
        let zxid = self.replica.last_zxid();
        let Some(it) = self.connections.get_mut(&connection) else {
            return false;
        };
        // If the session has moved or expired, close the connection, so that the client notices.
        it.is_over |= matches!(
            answer,
            Err(Error::SessionMoved { .. } | Error::SessionExpired { .. })
        );
        if let (Phase::Open(_, protocol), false) = (&mut it.phase, it.is_over) {
            protocol.encode(Message::Answer { zxid, answer }, now);
        }
        !it.is_over
    }

    fn look_up(
        &mut self,
        of: SessionRef,
        ask: SessionRequest,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        let core = &mut self.replica;
        match ask {
            SessionRequest::Request(Request::GetData { path, .. })
                if path.as_str() == "/zookeeper/config" =>
            {
                Ok(Reply::Data {
                    data: self.config.clone(),
                    stat: Stat::default(),
                    watcher: None,
                })
            }
            SessionRequest::Request(request) => core.submit(of, request, STILL, effects),
            SessionRequest::SetWatches(mut asked) => {
                let set = core.set_some_watches(of, &mut asked, usize::MAX, STILL, effects);
                set.map(|_| Reply::Done)
            }
            SessionRequest::CheckWatches(path, which) => {
                let found = core.find_watches(of, &path, which, STILL, effects)?;
                Ok(Reply::Count(found.len().min(1)))
            }
            SessionRequest::RemoveWatches(path, which) => {
                let found = core.find_watches(of, &path, which, STILL, effects)?;
                Ok(Reply::Count(core.remove_watches(&found).into()))
            }
            SessionRequest::Ping
            | SessionRequest::Identify(_)
            | SessionRequest::Search { .. }
            | SessionRequest::ForgetWatch(_) => core.ping(of, STILL, effects).map(|()| Reply::Done),
        }
    }

    pub(super) fn tell(&mut self, effects: &mut Effects) {
        let now = self.clock.now();
        for fired in effects.fired.drain(..) {
            let (watch, news) = (fired.watch, fired.news);
            let connections = self.connections.values_mut();
            let protocols = connections.filter_map(|it| match &mut it.phase {
                Phase::Open(of, protocol) if of.slot == fired.slot && !it.is_over => Some(protocol),
                _ => None,
            });
            for protocol in protocols.take(1) {
                protocol.encode(
                    Message::WatchUpdate {
                        watch,
                        news: news.clone(),
                    },
                    now,
                );
            }
        }
    }

    /// Ends the connections of ended sessions, except the connection whose client asked to close its session.
    pub(super) fn end_sessions(&mut self, effects: &Effects, closing: Option<u64>) {
        for ended in &effects.ended {
            for (connection, it) in &mut self.connections {
                let is_its = matches!(&it.phase, Phase::Open(of, _) if of.id == ended.id);
                it.is_over |= is_its && closing != Some(*connection);
            }
        }
    }

    fn displace(&mut self, of: SessionRef, by: u64) {
        for (connection, it) in &mut self.connections {
            let is_former = matches!(&it.phase, Phase::Open(former, _) if former.id == of.id);
            it.is_over |= is_former && *connection != by;
            if it.is_over {
                it.attention.notify_one();
            }
        }
    }
}

impl Connection {
    pub(super) fn open(&mut self, of: Option<SessionRef>, timeout: Duration) {
        let none = Phase::Handshake(Frames::new(MAX_FRAME_BYTES));
        let (session, password, frames) = match std::mem::replace(&mut self.phase, none) {
            Phase::Opening {
                session,
                password,
                frames,
                ..
            } => (session, password, frames),
            phase => {
                self.phase = phase;
                return;
            }
        };
        let Some(of) = of else {
            return self.refuse();
        };
        let response = ConnectResponse {
            protocol_version: 0,
            timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            session: session.0,
            password: &password,
            read_only: Some(false),
        };
        put_frame(&mut self.greeting, |to| response.put(to));
        self.phase = Phase::Open(of, Box::new(MemberProtocol::new(frames)));
    }

    fn refuse(&mut self) {
        let refusal = ConnectResponse::refused(Some(false));
        put_frame(&mut self.greeting, |to| refusal.put(to));
        self.is_over = true;
    }

    pub(super) fn complete(&mut self, answer: Result<CoreReply>) {
        if matches!(self.phase, Phase::Opening { .. }) {
            return self.refuse();
        }
        let mut waiting = self.queue.iter_mut();
        if let Some(Pending::Write(known)) =
            waiting.find(|pending| matches!(pending, Pending::Write(None)))
        {
            *known = Some(answer);
        }
    }

    fn write(&mut self) -> bool {
        while !self.greeting.is_empty() {
            match self.socket.write(&self.greeting) {
                Ok(count) => drop(self.greeting.drain(..count)),
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        let Phase::Open(_, protocol) = &mut self.phase else {
            return false;
        };
        while !protocol.outgoing().is_empty() {
            match self.socket.write(protocol.outgoing()) {
                Ok(count) => protocol.advance(count),
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        false
    }

    fn is_done(&self) -> bool {
        match &self.phase {
            _ if self.is_over => true,
            Phase::Open(_, protocol) => protocol.is_done(),
            _ => false,
        }
    }
}
