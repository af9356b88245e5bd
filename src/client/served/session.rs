//! [`ClientSession`]: a client's session at a server, without its socket and its clock. Bytes and the time go in;
//! bytes, replies, events and changes of state come out.
//!
//! The caller moves bytes between it and a connection, calls [`handle_timeout`](ClientSession::handle_timeout) when
//! [`next_timeout`](ClientSession::next_timeout) has come, and carries out what
//! [`next_output`](ClientSession::next_output) returns, in that order: a watch event is put out before any later reply
//! (invariant 3), and a change of state before any reply of the new connection.

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
use super::codec::{self, Chroot, Dialect};
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

/// Terms on which a session is opened.
#[derive(Clone, Debug)]
pub(super) struct SessionOptions {
    /// The timeout that the client asks for.
    pub(super) timeout: Duration,
    /// Limit of the wait for the reply to a closeSession.
    pub(super) close_timeout: Duration,
    /// Identities to prove on each connection.
    pub(super) auth: Vec<(String, Secret)>,
    /// The process, for a server of this machine that is to end the session with it.
    pub(super) process: Option<ProcessIdentity>,
    /// Longest pause between two attempts to connect.
    pub(super) longest_pause: Duration,
    /// True if it asks for no extension of the protocol.
    pub(super) is_plain: bool,
    /// The tick of an ensemble, for a server that does not say that it is ours.
    pub(super) tick: Duration,
    /// Number of servers that give the session.
    pub(super) servers: usize,
    /// Seed of the order of those servers, and of the pauses between attempts to connect, so that the clients of one
    /// server do not come back together.
    pub(super) seed: u64,
}

/// An attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dial {
    /// Number of the server: the first is 0.
    pub(crate) server: usize,
    /// Number of attempts that the session has made at this server before.
    pub(crate) round: usize,
}

/// A change that the caller carries out.
#[derive(Debug)]
pub(super) enum Output<T> {
    /// Begin an attempt to connect, then call [`ClientSession::connected`] or [`ClientSession::disconnected`].
    Connect(Dial),
    /// Close the connection, or give the attempt up.
    Disconnect,
    /// The session is open at the server, for the first time or again.
    Opened(Opened),
    /// The connection is lost. The session may live on at the server.
    Suspended,
    /// The session is over.
    Ended(End),
    /// A request is answered, or will never be.
    Reply(T, Result<Reply<WatchKey, WatchKey>>),
    /// A watch has fired.
    Event {
        key: WatchKey,
        /// True if the watch is gone with it.
        is_last: bool,
        event: WatchedEvent,
    },
    /// Events of a persistent watch may have been lost.
    Interrupted(WatchKey),
    /// A watch on a predecessor has ended with its connection.
    Unwatched(WatchKey),
}

/// Terms of the server, at the beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) id: SessionId,
    /// The timeout that the server grants.
    pub(super) timeout: Duration,
    /// Time at which the handshake was sent: the session was alive at the server after it.
    pub(super) sent: BootInstant,
    /// The tick of an ensemble, at which only a committed write proves that the session is alive; `None` of a server that
    /// has said that it is ours.
    pub(super) tick: Option<Duration>,
}

/// Reason for which a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server has expired it, or was out of reach for so long that the client has given it up.
    Expired,
    /// The client has closed it.
    Closed,
    /// The server has refused a proof of identity that it had not accepted before.
    AuthFailed,
}

/// A client's session. `T` stands for the caller of a request.
#[derive(Debug)]
pub(super) struct ClientSession<T> {
    options: SessionOptions,
    phase: Phase,
    /// Operations of this connection's server.
    dialect: Dialect,
    /// Limit of a request's frame on this connection, in bytes; `usize::MAX` where the server has not stated it. A longer
    /// one would close the connection, and its caller might send it again without end.
    max_request_bytes: usize,
    /// True once a server was too old for a multiRead.
    lacks_multi_read: bool,
    chroot: Chroot,
    id: SessionId,
    password: [u8; PASSWORD_BYTES],
    /// The timeout granted last; before that the one asked for.
    timeout: Duration,
    last_zxid: i64,
    last_xid: i32,
    /// Requests that were sent on this connection and are not answered, oldest first.
    under_way: VecDeque<UnderWay<T>>,
    /// Requests of several reads among them, oldest first.
    reads: VecDeque<Reads<T>>,
    /// Likewise proofs of identity, which a ZooKeeper server answers ahead of requests.
    proofs: VecDeque<Proof<T>>,
    /// Requests that were submitted without a connection, oldest first.
    queued: VecDeque<(T, Request)>,
    /// About the size of the requests under way and queued, in bytes.
    held_bytes: usize,
    /// Znodes to be deleted on the next connection: see [`Awaited::Undo`].
    undone: Vec<ZnodePath>,
    watches: WatchTable,
    frames: Frames,
    out: Vec<u8>,
    /// Number of its bytes that have been sent.
    sent: usize,
    /// Time at which the closing of the session is given up, once it has been requested.
    close_by: Option<BootInstant>,
    /// Time of the last bytes received.
    heard: BootInstant,
    /// Time of the last bytes that show the session alive at the server.
    alive: BootInstant,
    /// Time of the last bytes submitted.
    spoken: BootInstant,
    /// Time at which the session was last opened or resumed.
    opened: BootInstant,
    /// Terms of this connection, until the server has accepted the identities of the former one again. Until then the
    /// connection proves nothing: the session is not reported as reconnected, and its lease is not extended.
    returning: Option<Opened>,
    /// True from a refused proof of identity until the session is reconnected.
    is_refused: bool,
    /// The servers, in the order of the attempts.
    order: Vec<usize>,
    /// Number of all attempts to connect.
    dials: usize,
    /// Number of attempts to connect since a connection lasted.
    attempts: u32,
    /// The last answer of a server that broke the protocol, until it is taken.
    violation: Option<&'static str>,
    outputs: VecDeque<Output<T>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Without a connection. The next attempt begins at this time.
    Pausing(BootInstant),
    /// An attempt to connect is under way, and given up at this time.
    Connecting(BootInstant),
    /// The handshake was sent at `sent`.
    Handshaking {
        sent: BootInstant,
        until: BootInstant,
    },
    Connected,
    Over(End),
}

/// A request that is not answered.
#[derive(Debug)]
struct UnderWay<T> {
    xid: i32,
    op: Op,
    /// Size of the request, as far as it counts for [`MAX_HELD_BYTES`].
    bytes: usize,
    what: Awaited<T>,
}

#[derive(Debug)]
enum Awaited<T> {
    Reply(T, Request),
    /// The first request of an enqueue. The second, [`Listing`](Self::Listing), is the next that is under way.
    Entry(Create),
    /// The second request of an enqueue, with what the first has created.
    Listing(T, Option<Result<(ZnodePath, Zxid)>>),
    /// One of several reads: the next of the first [`Reads`].
    Read,
    /// The delete of a znode whose creator was told that it does not exist.
    Undo(ZnodePath),
    /// A reply that means nothing.
    Ignored,
}

/// Reads of one request, sent one by one.
#[derive(Debug)]
struct Reads<T> {
    caller: T,
    ops: Vec<ReadOp>,
    replies: Vec<Result<ReadReply>>,
}

#[derive(Debug)]
enum Proof<T> {
    /// One of [`SessionOptions::auth`], or an earlier one of the session's.
    Repeated,
    Requested(T, String, Secret),
}

/// Number of requests of one session that may wait for an answer.
pub(super) const MAX_UNDER_WAY: usize = 100_000;

/// Limit of the requests of one session that wait for an answer, in bytes. They are held until then.
pub(super) const MAX_HELD_BYTES: usize = 256 << 20;

/// Limit of a frame from the server. A reply may be much larger than any request: a list of children, a multiRead.
const LARGEST_REPLY_BYTES: usize = 256 << 20;

/// Bytes of a frame that the server would take, and a request may not use: a watch comes back in a setWatches2, which takes
/// more than the request that has armed it.
const REARMING_ROOM: usize = 64;

/// Capacity that the output buffer of an idle session keeps.
pub(super) const KEPT_BYTES: usize = 8 << 10;

/// Pings in a timeout, where nothing else is sent.
const PINGS: u32 = 3;

/// Half the first pause between two attempts to connect; that of each later round over the servers is twice as long, up
/// to [`SessionOptions::longest_pause`]. The first round has none.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Limits of one attempt to connect, handshake included. Of one server it lasts a third of the timeout; with more servers
/// it is shorter, so that a session outlives some that do not answer.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(100);
const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);

/// Part of a timeout, in tenths, after which a session is given up that nothing was heard of. Its lease has ended long
/// before. The server has expired it by then, or will within a tick; a server that was restarted may keep it longer.
const GIVE_UP_TENTHS: u32 = 14;

impl<T> ClientSession<T> {
    /// Begins a session. It connects at once.
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

    /// Sets the chroot. Requests that were submitted before keep the one before.
    pub(super) fn set_chroot(&mut self, chroot: &ZnodePath) {
        self.chroot = Chroot::new(chroot);
    }

    /// Returns the timeout that the server has granted; before that the one that was asked for.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the number of requests that were sent and are not answered.
    pub(super) fn requests_under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Returns the time of the last bytes received.
    pub(super) fn heard(&self) -> BootInstant {
        self.heard
    }

    /// Returns true once the server has opened the session.
    pub(super) fn is_opened(&self) -> bool {
        self.id.0 != 0
    }

    /// Returns true if the server has refused a proof of identity, and has not accepted it since.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Sends a closeSession without knowing it: the session then finds itself expired.
    #[cfg(feature = "test-util")]
    pub(super) fn expire_at_server(&mut self) {
        if self.phase == Phase::Connected {
            let xid = self.next_xid();
            let request = wire::Request::CloseSession;
            put_frame(&mut self.out, |to| request.put_with_header(xid, to));
            self.await_reply(xid, request.op(), 0, Awaited::Ignored);
        }
    }

    /// Returns true once the session has ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    /// Returns the bytes to send.
    pub(super) fn outgoing(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// Records that bytes have been sent.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.out.len() {
            self.out.clear();
            self.out.shrink_to(KEPT_BYTES);
            self.sent = 0;
        }
    }

    /// Hands the bytes to send over, in exchange for an empty buffer.
    pub(super) fn take_outgoing(&mut self, to: &mut Vec<u8>) {
        debug_assert!(to.is_empty(), "its bytes would be sent later");
        self.out.drain(..self.sent);
        self.sent = 0;
        std::mem::swap(&mut self.out, to);
    }

    /// Takes bytes back that could not be sent: they precede those that were put out meanwhile.
    pub(super) fn restore_outgoing(&mut self, bytes: &[u8]) {
        self.out.splice(self.sent..self.sent, bytes.iter().copied());
    }

    /// Takes the reason for which the connection was given up, if the server has broken the protocol.
    pub(super) fn take_violation(&mut self) -> Option<&'static str> {
        self.violation.take()
    }

    /// Returns the next thing to be carried out.
    pub(super) fn next_output(&mut self) -> Option<Output<T>> {
        self.outputs.pop_front()
    }

    fn reply(&mut self, caller: T, reply: Result<Reply<WatchKey, WatchKey>>) {
        self.outputs.push_back(Output::Reply(caller, reply));
    }

    // -- Connections

    /// Begins the handshake over a new connection.
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

    /// Records that the connection is lost, or that an attempt has failed.
    pub(super) fn disconnected(&mut self, now: BootInstant) {
        match self.phase {
            Phase::Over(_) | Phase::Pausing(_) => {}
            Phase::Connecting(_) | Phase::Handshaking { .. } => self.pause(now),
            Phase::Connected => {
                self.outputs.push_back(Output::Suspended);
                // The server may have received closeSession; if it has not, it expires the session.
                if self.close_by.is_some() {
                    return self.end(End::Closed);
                }
                self.fail_replies(&Error::ConnectionLoss);
                // A server that admits the session and then closes the connection must not be asked without a pause.
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

    /// Returns a pause of half to all of this length.
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

    /// Fails the requests under way. After [`Error::ConnectionLoss`] each of them may have been carried out.
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

    /// Ends the connection because of what the server has sent.
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

    /// Ends the session, with this error for requests that were never sent. The end comes before all answers: who is
    /// answered finds the session over.
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

    // -- Time

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is to be called.
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

    /// Does what is due.
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

    /// Gives up a session that was never opened.
    pub(super) fn abandon(&mut self) {
        if !self.is_opened() {
            self.give_up();
        }
    }

    /// Gives up the session, whatever its state.
    pub(super) fn give_up(&mut self) {
        if !self.is_over() {
            self.give_up_closing();
        }
    }

    /// Closes the connection without a reply to closeSession: the server ends the session after its timeout.
    fn give_up_closing(&mut self) {
        if !matches!(self.phase, Phase::Pausing(_)) {
            self.outputs.push_back(Output::Disconnect);
        }
        self.end_with(End::Closed, |_| Error::ConnectionLoss);
    }

    /// Returns the time at which the session is given up; `None` for one that was never opened.
    fn given_up_at(&self) -> Option<BootInstant> {
        (self.id.0 != 0).then(|| self.alive.after(self.timeout * GIVE_UP_TENTHS / 10))
    }

    /// The server answers pings, so silence of two thirds of the timeout means that the connection is dead.
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

/// Returns the numbers of servers in a random order.
fn shuffled(servers: usize, seed: &mut u64) -> Vec<usize> {
    let mut order: Vec<_> = (0..servers).collect();
    for last in (1..servers).rev() {
        order.swap(last, (draw(seed) % (last as u64 + 1)) as usize);
    }
    order
}

/// Draws a number. xorshift64: there is no need for more than that clients differ.
fn draw(seed: &mut u64) -> u64 {
    let mut next = *seed | 1;
    next ^= next << 13;
    next ^= next >> 7;
    next ^= next << 17;
    *seed = next;
    next
}
