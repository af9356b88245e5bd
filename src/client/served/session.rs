//! [`ClientSession`]: the protocol of a client's session, without socket and clock.
//!
//! The caller moves bytes between this type and the socket, calls [`handle_timeout`](ClientSession::handle_timeout) at
//! [`next_timeout`](ClientSession::next_timeout), and carries out the results of
//! [`next_output`](ClientSession::next_output) in order. In this order, a watch event precedes all replies that the
//! server sent after it (invariant 3), and a change of state precedes all replies of the new connection.

#[cfg(feature = "simulation")]
pub(crate) mod fuzz;
mod incoming;
mod outgoing;
mod resume;
#[cfg(test)]
pub(super) mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use self::outgoing::request_bytes;
use super::chroot::Chroot;
use super::codec::{self, Dialect};
use super::watches::{WatchKey, WatchTable};
use crate::model::error::{Error, Result};
use crate::model::identity::Secret;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Predecessor, ReadOp, ReadReply, Reply, Request};
use crate::model::types::{HumanDuration, SessionId, Zxid};
use crate::model::watch::WatchedEvent;
use crate::runtime::clock::BootInstant;
use crate::runtime::process::ProcessIdentity;
use crate::wire::{
    self, ConnectRequest, EXTENSION, Frames, Jute, OLDEST_EXTENSION, Op, PASSWORD_BYTES,
    ProcessStatement, put_frame, xid,
};

#[derive(Clone, Debug)]
pub(super) struct SessionOptions {
    pub(super) timeout: Duration,
    pub(super) close_timeout: Duration,
    pub(super) auth: Vec<(String, Secret)>,
    /// Identifies this process, so that a server on this machine can end the session when the process ends.
    pub(super) process: Option<ProcessIdentity>,
    pub(super) longest_pause: Duration,
    pub(super) is_plain: bool,
    pub(super) tick: Duration,
    pub(super) servers: usize,
    /// Varies the order of servers and the pauses between attempts, so that clients do not reconnect in step.
    pub(super) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dial {
    pub(crate) server: usize,
    pub(crate) round: usize,
}

#[derive(Debug)]
pub(super) enum Output<T> {
    /// Start an attempt to connect, then call [`ClientSession::connected`] or [`ClientSession::disconnected`].
    Connect(Dial),
    /// Close the connection, or give up the attempt.
    Disconnect,
    Opened(Opened),
    /// The connection is lost. The session may live on at the server.
    Suspended,
    Ended(End),
    Reply(T, Result<Reply<WatchKey, WatchKey>>),
    Event {
        key: WatchKey,
        is_last: bool,
        event: WatchedEvent,
    },
    /// Events of this persistent watch may have been lost.
    Interrupted(WatchKey),
    /// A watch on a queue predecessor has ended with its connection.
    Unwatched(WatchKey),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) id: SessionId,
    pub(super) timeout: Duration,
    /// Time at which the handshake was sent. The server's answer proves that the session was alive after this time.
    pub(super) sent: BootInstant,
    /// An ensemble's tick. `None` if the server speaks our extension.
    pub(super) tick: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server has expired the session, or the client gave up the session after too long without a connection.
    Expired,
    Closed,
    /// The server has refused a new proof of identity.
    AuthFailed,
}

/// A client's session. `T` identifies the caller of a request.
#[derive(Debug)]
pub(super) struct ClientSession<T> {
    options: SessionOptions,
    phase: Phase,
    dialect: Dialect,
    /// Largest request that we send, in bytes. If we sent a longer request, the server would close the connection, and
    /// the caller might retry forever.
    max_request_bytes: usize,
    lacks_multi_read: bool,
    chroot: Chroot,
    id: SessionId,
    password: [u8; PASSWORD_BYTES],
    timeout: Duration,
    last_zxid: i64,
    last_xid: i32,
    under_way: VecDeque<UnderWay<T>>,
    reads: VecDeque<Reads<T>>,
    /// Unanswered proofs of identity. They need a separate queue, because a ZooKeeper server may answer a proof before
    /// earlier requests.
    proofs: VecDeque<Proof<T>>,
    queued: VecDeque<(T, Request)>,
    held_bytes: usize,
    /// Created znodes whose caller received an error. We delete these znodes on the next connection.
    undone: Vec<ZnodePath>,
    watches: WatchTable,
    frames: Frames,
    out: Vec<u8>,
    sent: usize,
    /// Time at which we stop waiting for the reply to closeSession. `None` until the caller closes the session.
    close_by: Option<BootInstant>,
    heard: BootInstant,
    /// Time of the last bytes that prove that the session is alive at the server.
    alive: BootInstant,
    spoken: BootInstant,
    opened: BootInstant,
    /// Set on a new connection until the server has accepted the session's identities again. Until then, the session is
    /// not reported as reconnected and its lease is not extended.
    returning: Option<Opened>,
    is_refused: bool,
    order: Vec<usize>,
    dials: usize,
    attempts: u32,
    violation: Option<&'static str>,
    outputs: VecDeque<Output<T>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Time of the next attempt to connect.
    Pausing(BootInstant),
    /// Time at which we give up the attempt to connect.
    Connecting(BootInstant),
    Handshaking {
        sent: BootInstant,
        until: BootInstant,
    },
    Connected,
    Over(End),
}

#[derive(Debug)]
struct UnderWay<T> {
    xid: i32,
    op: Op,
    bytes: usize,
    what: Awaited<T>,
}

#[derive(Debug)]
enum Awaited<T> {
    Reply(T, Request),
    /// The create of an enqueue at a ZooKeeper server. The enqueue's [`Listing`](Self::Listing) is the next element of
    /// `under_way`.
    Entry(Create),
    /// The second request of an enqueue at a ZooKeeper server, which lists the queue. Stores the create's result from
    /// its arrival until the list arrives.
    Listing(T, Option<Result<(ZnodePath, Zxid)>>),
    Read,
    Undo(ZnodePath),
    Ignored,
}

/// A multiRead that is sent as single reads, because the server has no multiRead.
#[derive(Debug)]
struct Reads<T> {
    caller: T,
    ops: Vec<ReadOp>,
    replies: Vec<Result<ReadReply>>,
}

#[derive(Debug)]
enum Proof<T> {
    Repeated,
    Requested(T, String, Secret),
}

pub(super) const MAX_UNDER_WAY: usize = 100_000;

pub(super) const MAX_HELD_BYTES: usize = 256 << 20;

/// Largest frame that we accept from the server, in bytes. It is larger than any request, because a reply may list many
/// children.
const LARGEST_REPLY_BYTES: usize = 256 << 20;

/// Bytes that we subtract from the server's limit on requests. After a reconnection, setWatches2 needs a few more bytes
/// than the request that armed the watch, and must not exceed the limit either.
const REARMING_ROOM: usize = 64;

pub(super) const KEPT_BYTES: usize = 8 << 10;

const PINGS: u32 = 3;

/// Shortest pause before an attempt to connect in the second round over the servers. The first round has no pauses.
/// Pauses are random, and each further round doubles their bounds, up to [`SessionOptions::longest_pause`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Bounds on the time limit of an attempt to connect. The limit is a third of the session timeout for one server, and
/// less for more servers, so that the session survives if some servers do not answer.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(100);
const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);

/// Time without an answer after which we give up a session, in tenths of the timeout. By then the lease has ended. The
/// server has expired the session or will do so within a tick, unless the server has restarted.
const GIVE_UP_TENTHS: u32 = 14;

impl<T> ClientSession<T> {
    pub(super) fn new(mut options: SessionOptions, now: BootInstant) -> Self {
        Self {
            order: shuffled(options.servers, &mut options.seed),
            dials: 0,
            phase: Phase::Pausing(now),
            dialect: Dialect::default(),
            max_request_bytes: usize::MAX,
            lacks_multi_read: false,
            chroot: Chroot::default(),
            id: SessionId(0),
            password: [0; PASSWORD_BYTES],
            timeout: options.timeout,
            options,
            last_zxid: 0,
            last_xid: 0,
            under_way: VecDeque::new(),
            reads: VecDeque::new(),
            proofs: VecDeque::new(),
            queued: VecDeque::new(),
            held_bytes: 0,
            undone: Vec::new(),
            watches: WatchTable::default(),
            frames: Frames::new(LARGEST_REPLY_BYTES),
            out: Vec::new(),
            sent: 0,
            close_by: None,
            heard: now,
            alive: now,
            spoken: now,
            opened: now,
            returning: None,
            is_refused: false,
            attempts: 0,
            violation: None,
            outputs: VecDeque::new(),
        }
    }

    /// Sets the chroot. Queued requests and pending replies use the new chroot too.
    pub(super) fn set_chroot(&mut self, chroot: &ZnodePath) {
        self.chroot = Chroot::new(chroot);
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn requests_under_way(&self) -> usize {
        self.under_way.len()
    }

    pub(super) fn heard(&self) -> BootInstant {
        self.heard
    }

    pub(super) fn is_opened(&self) -> bool {
        self.id.0 != 0
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    #[cfg(feature = "test-util")]
    pub(super) fn expire_at_server(&mut self) {
        if self.phase == Phase::Connected {
            let xid = self.next_xid();
            let request = wire::Request::CloseSession;
            put_frame(&mut self.out, |to| request.put_with_header(xid, to));
            self.await_reply(xid, request.op(), 0, Awaited::Ignored);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    pub(super) fn outgoing(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.out.len() {
            self.out.clear();
            self.out.shrink_to(KEPT_BYTES);
            self.sent = 0;
        }
    }

    pub(super) fn take_outgoing(&mut self, to: &mut Vec<u8>) {
        debug_assert!(to.is_empty(), "its bytes would be sent later");
        self.out.drain(..self.sent);
        self.sent = 0;
        std::mem::swap(&mut self.out, to);
    }

    pub(super) fn restore_outgoing(&mut self, bytes: &[u8]) {
        self.out.splice(self.sent..self.sent, bytes.iter().copied());
    }

    pub(super) fn take_violation(&mut self) -> Option<&'static str> {
        self.violation.take()
    }

    pub(super) fn next_output(&mut self) -> Option<Output<T>> {
        self.outputs.pop_front()
    }

    fn reply(&mut self, caller: T, reply: Result<Reply<WatchKey, WatchKey>>) {
        self.outputs.push_back(Output::Reply(caller, reply));
    }

    pub(super) fn connected(&mut self, now: BootInstant) {
        let Phase::Connecting(until) = self.phase else {
            return self.outputs.push_back(Output::Disconnect);
        };
        self.phase = Phase::Handshaking { sent: now, until };
        (self.heard, self.spoken) = (now, now);
        let handshake = ConnectRequest {
            protocol_version: match self.options.is_plain {
                true => 0,
                false => OLDEST_EXTENSION,
            },
            last_zxid_seen: self.last_zxid,
            timeout_ms: i32::try_from(self.options.timeout.as_millis()).unwrap_or(i32::MAX),
            session: self.id.0,
            password: &self.password,
            read_only: Some(false),
        };
        let process = self.options.process.as_ref();
        let statement = process.map(|process| ProcessStatement {
            boot_id: process.boot_id.as_str().into(),
            pid_namespace: process.pid_namespace.cast_signed(),
            pid: process.pid,
            start_time: process.start_time.cast_signed(),
        });
        put_frame(&mut self.out, |to| {
            handshake.put(to);
            statement.iter().for_each(|statement| statement.put(to));
            if !self.options.is_plain {
                EXTENSION.put(to);
            }
        });
    }

    pub(super) fn disconnected(&mut self, now: BootInstant) {
        match self.phase {
            Phase::Over(_) | Phase::Pausing(_) => {}
            Phase::Connecting(_) | Phase::Handshaking { .. } => self.pause(now),
            Phase::Connected => {
                self.outputs.push_back(Output::Suspended);
                // The caller has closed the session, so do not reconnect. If closeSession was lost, the server expires
                // the session.
                if self.close_by.is_some() {
                    return self.end(End::Closed);
                }
                self.fail_replies(&Error::ConnectionLoss);
                // Reset the pauses only after a connection that lasted. Otherwise we would reconnect without pauses to
                // a server that admits the session and then closes the connection each time.
                if now.since(self.opened) >= self.options.longest_pause {
                    self.attempts = 0;
                }
                self.pause(now);
            }
        }
    }

    fn pause(&mut self, now: BootInstant) {
        self.reset_connection();
        let pause = match self.attempts / self.order.len() as u32 {
            0 => Duration::ZERO,
            rounds => {
                let pause = SHORTEST_PAUSE.saturating_mul(1 << rounds.min(10));
                self.jittered(pause.min(self.options.longest_pause))
            }
        };
        self.attempts = self.attempts.saturating_add(1);
        self.phase = Phase::Pausing(now.after(pause));
    }

    fn jittered(&mut self, pause: Duration) -> Duration {
        let seed = draw(&mut self.options.seed);
        pause / 2 + pause.mul_f64((seed >> 11) as f64 / (1_u64 << 53) as f64) / 2
    }

    fn reset_connection(&mut self) {
        self.frames = Frames::new(LARGEST_REPLY_BYTES);
        self.out.clear();
        self.sent = 0;
        self.returning = None;
    }

    /// Fails all unanswered requests. A request that fails with [`Error::ConnectionLoss`] may have been executed.
    fn fail_replies(&mut self, error: &Error) {
        for UnderWay { what, bytes, .. } in std::mem::take(&mut self.under_way) {
            self.held_bytes -= bytes;
            match what {
                Awaited::Reply(caller, _) => self.reply(caller, Err(error.clone())),
                Awaited::Listing(caller, created) => {
                    let created = created.unwrap_or_else(|| Err(error.clone()));
                    let reply = created.map(|(path, czxid)| Reply::Enqueued {
                        path,
                        czxid,
                        ahead: Predecessor::Unknown,
                    });
                    self.reply(caller, reply);
                }
                Awaited::Undo(path) => self.undone.push(path),
                Awaited::Entry(_) | Awaited::Read | Awaited::Ignored => {}
            }
        }
        for Reads { caller, .. } in std::mem::take(&mut self.reads) {
            self.reply(caller, Err(error.clone()));
        }
        for proof in std::mem::take(&mut self.proofs) {
            if let Proof::Requested(caller, ..) = proof {
                self.reply(caller, Err(error.clone()));
            }
        }
    }

    fn disconnect(&mut self, why: &'static str, now: BootInstant) {
        let session = self.id;
        self.violation = Some(why);
        tracing::warn!(%session, why, "connection closed: unexpected bytes from the server");
        self.outputs.push_back(Output::Disconnect);
        self.disconnected(now);
    }

    fn end(&mut self, end: End) {
        self.end_with(end, Self::end_error);
    }

    /// Ends the session. `unsent` is the error for requests that were never sent. The output `Ended` must precede all
    /// replies, so that a caller who receives a failed reply finds the session over.
    fn end_with(&mut self, end: End, unsent: impl Fn(&Self) -> Error) {
        self.reset_connection();
        self.phase = Phase::Over(end);
        self.outputs.push_back(Output::Ended(end));
        self.fail_replies(&Error::ConnectionLoss);
        self.end_queue(unsent);
    }

    fn end_queue(&mut self, error: impl Fn(&Self) -> Error) {
        for (caller, request) in std::mem::take(&mut self.queued) {
            self.held_bytes -= request_bytes(&request);
            self.reply(caller, Err(error(self)));
        }
    }

    fn end_error(&self) -> Error {
        let session = self.id;
        match self.phase {
            Phase::Over(End::Expired | End::AuthFailed) => Error::SessionExpired { session },
            _ => Error::SessionClosed { session },
        }
    }

    pub(super) fn next_timeout(&self) -> Option<BootInstant> {
        let due = match self.phase {
            Phase::Pausing(until) | Phase::Connecting(until) | Phase::Handshaking { until, .. } => {
                self.given_up_at().map_or(until, |it| it.min(until))
            }
            Phase::Connected => self.silent_at().min(self.ping_at()),
            Phase::Over(_) => return None,
        };
        Some(self.close_by.map_or(due, |it| it.min(due)))
    }

    pub(super) fn handle_timeout(&mut self, now: BootInstant) {
        match self.phase {
            Phase::Over(_) => {}
            _ if self.close_by.is_some_and(|close_by| close_by <= now) => self.give_up_closing(),
            Phase::Pausing(_) | Phase::Connecting(_) | Phase::Handshaking { .. }
                if self.given_up_at().is_some_and(|given_up| given_up <= now) =>
            {
                if !matches!(self.phase, Phase::Pausing(_)) {
                    self.outputs.push_back(Output::Disconnect);
                }
                self.end(End::Expired);
            }
            Phase::Pausing(until) if until <= now => {
                self.phase = Phase::Connecting(now.after(self.attempt()));
                let count = self.order.len();
                let (server, round) = (self.order[self.dials % count], self.dials / count);
                self.dials += 1;
                self.outputs
                    .push_back(Output::Connect(Dial { server, round }));
            }
            Phase::Connecting(until) | Phase::Handshaking { until, .. } if until <= now => {
                self.outputs.push_back(Output::Disconnect);
                self.disconnected(now);
            }
            Phase::Connected if self.silent_at() <= now => {
                let (session, limit) = (self.id, now.since(self.heard));
                tracing::info!(%session, limit = %HumanDuration(limit), "connection closed: the server is silent");
                self.outputs.push_back(Output::Disconnect);
                self.disconnected(now);
            }
            Phase::Connected if self.ping_at() <= now => {
                self.spoken = now;
                let ping = wire::Request::Ping;
                put_frame(&mut self.out, |to| ping.put_with_header(xid::PING, to));
            }
            _ => {}
        }
    }

    pub(super) fn abandon(&mut self) {
        if !self.is_opened() {
            self.give_up();
        }
    }

    pub(super) fn give_up(&mut self) {
        if !self.is_over() {
            self.give_up_closing();
        }
    }

    fn give_up_closing(&mut self) {
        if !matches!(self.phase, Phase::Pausing(_)) {
            self.outputs.push_back(Output::Disconnect);
        }
        self.end_with(End::Closed, |_| Error::ConnectionLoss);
    }

    fn given_up_at(&self) -> Option<BootInstant> {
        (self.id.0 != 0).then(|| self.alive.after(self.timeout * GIVE_UP_TENTHS / 10))
    }

    /// The server answers pings, so a connection without bytes for two thirds of the timeout is dead.
    fn silent_at(&self) -> BootInstant {
        self.heard.after(self.timeout * 2 / 3)
    }

    fn ping_at(&self) -> BootInstant {
        self.spoken.after(self.timeout / PINGS)
    }

    fn attempt(&self) -> Duration {
        let attempt = self.timeout / (self.order.len() as u32 + 2);
        attempt.clamp(SHORTEST_ATTEMPT, LONGEST_ATTEMPT)
    }
}

fn shuffled(servers: usize, seed: &mut u64) -> Vec<usize> {
    let mut order: Vec<_> = (0..servers).collect();
    for last in (1..servers).rev() {
        order.swap(last, (draw(seed) % (last as u64 + 1)) as usize);
    }
    order
}

fn draw(seed: &mut u64) -> u64 {
    let mut next = *seed | 1;
    next ^= next << 13;
    next ^= next >> 7;
    next ^= next << 17;
    *seed = next;
    next
}
