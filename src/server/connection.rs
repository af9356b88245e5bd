//! One connection, from its first byte to its last: this file is how a request is served.
//!
//! A connection is one task on the server's runtime, [`serve`]:
//!
//! 1. The client's first bytes are a four-letter word, which [`Admin`](super::admin::Admin) answers, or a handshake,
//!    which opens a session or reattaches to one ([`handshake`]).
//! 2. [`run_session`] gives the session the identities that the connection itself proves (address, user, certificate), and
//!    runs a [`ConnectionTask`] until the connection ends.
//! 3. The task's *turn* ([`ConnectionTask::poll_turn`]) repeats four steps ([`ConnectionTask::advance`]) until none of
//!    them makes progress, or the turn's share of work is used up and the other connections get theirs:
//!     - `poll_read` reads the bytes that have arrived, unless the protocol is still busy with earlier ones
//!       (backpressure: unread bytes fill the client's own socket);
//!     - `submit_requests` has [`ProtocolState`] parse whole frames into requests, and the store execute all of them
//!       under one acquisition of its lock (where they have fired events, the turn ends here, and the connections that
//!       it has woken send those first);
//!     - `poll_encode` takes answers and events from the session's outbox, in the store's order, each only once the log
//!       has the transaction that it reveals (invariants 2 and 13), and encodes them;
//!     - `poll_write` writes and flushes them.
//! 4. The task ends with a [`CloseReason`]. It is logged, and the connection is closed so that the last bytes arrive
//!    ([`linger_close`]). The session stays in the store, and its client may come back to it until its timeout.
//!
//! No step waits: each registers the task's waker where it stops, so the next turn begins when one of the four can go
//! on.

use std::collections::VecDeque;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;
use tokio::time::{Instant, Sleep, sleep};

use super::Shared;
use super::auth::Admission;
use super::connection_entry::CloseRequest;
use super::connection_table::{ConnectionGuard, Count};
use super::handshake::{HandshakeError, HandshakeOutcome, handshake};
use super::peer::PeerAddress;
use super::process_watch::{NotWatched, ProcessWatch};
use super::protocol::{Agreed, ProtocolState, ProtocolViolation, Turn};
use super::transport::{Transport, linger_close, unless_closed};
use super::unfinished::Share;
use crate::engine::{Connection, Ending, Message, Taken};
use crate::error::Result;
use crate::future::BoxFuture;
use crate::identity::Identity;
use crate::process::ProcessIdentity;
use crate::types::{SessionId, Zxid};

/// Serves one connection, from its first byte to its last.
///
/// The handshake must be done by `deadline`. `identity` is the one that the client has proved with its certificate, or
/// that of its user over a Unix socket.
pub(super) async fn serve<S>(
    mut stream: S,
    guard: ConnectionGuard,
    shared: Arc<Shared>,
    deadline: Instant,
    identity: Option<Identity>,
) where
    S: Transport,
{
    // A client with a verified certificate, or of a known user, needs no further proof, so its session is part of the
    // store from the start.
    let is_proven = identity.as_ref().is_some_and(Identity::is_proof);
    let outcome = handshake(&mut stream, &guard, &shared, is_proven);
    // The deadline is the listener's, so the TLS handshake before this one and this one share it: a client cannot hold
    // a half-open connection for longer by speaking TLS.
    let outcome = tokio::time::timeout_at(deadline, outcome);
    // A half-open connection is the first to go when others arrive, in its handshake, too.
    let Some(outcome) = unless_closed(guard.close_requested(), outcome).await else {
        return;
    };
    match outcome {
        Err(_) => {
            shared.table.count(Count::HandshakeTimedOut);
            tracing::debug!(address = %guard.address(), "handshake timed out");
        }
        Ok(Err(error)) => {
            shared.table.count(Count::HandshakeFailed);
            log_handshake_error(error, guard.address(), &shared);
        }
        Ok(Ok(HandshakeOutcome::Word(word))) => {
            let answered = shared.admin.serve_word(word, &mut stream, &guard);
            let answered = tokio::time::timeout(shared.limits.handshake, answered);
            // A client that does not read the answer is cut off after the same time.
            unless_closed(guard.close_requested(), answered).await;
        }
        Ok(Ok(HandshakeOutcome::Session(connection, agreed, stated))) => {
            let session = connection.id();
            let process = watch_process(&stream, &shared, guard.address(), session, stated);
            let client = Client {
                connection,
                agreed,
                identity,
                process,
            };
            let reason = run_session(&mut stream, &shared, &guard, client).await;
            log_close(reason, &guard, session, &shared);
            // A server that is dropped closes at once, and lingers for no client.
            if guard.close_request() != Some(CloseRequest::Now) {
                linger_close(&mut stream).await;
            }
        }
    }
}

/// Watches the process that a client states, if it is the one at the other end of its socket.
fn watch_process(
    stream: &impl Transport,
    shared: &Shared,
    address: PeerAddress,
    session: SessionId,
    stated: Option<Box<ProcessIdentity>>,
) -> Option<ProcessWatch> {
    let (socket, stated) = (stream.unix_socket()?, stated?);
    let permits = shared.process_watches.as_ref()?;
    let watch = ProcessWatch::new(socket, address, &stated, permits);
    let log = |reason: &NotWatched| {
        tracing::debug!(%address, %session, %reason, "process not watched: the timeout counts");
    };
    watch.inspect_err(log).ok()
}

/// The client of a connection, after its handshake.
pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) agreed: Agreed,
    /// Identity proved by the connection, beside its address.
    pub(super) identity: Option<Identity>,
    pub(super) process: Option<ProcessWatch>,
}

/// Serves a session over its connection, until the connection ends.
pub(super) async fn run_session<S>(
    stream: S,
    shared: &Shared,
    guard: &ConnectionGuard,
    client: Client,
) -> CloseReason
where
    S: Transport,
{
    let Client {
        connection,
        agreed,
        identity,
        process,
    } = client;
    let mut admission = Admission::new(shared.policy.clone());
    let by_address = match guard.address() {
        PeerAddress::Tcp(address) => Some(Identity::ip(address.ip())),
        PeerAddress::Unix(_) => None,
    };
    for identity in by_address.into_iter().chain(identity) {
        // Cannot fail: two identities are within every limit, and the TLS handshake has refused names that are too
        // long.
        let _ = admission.add(&identity);
        connection.identify(identity);
    }
    // From here on the connection is safe from eviction. One that still owes a proof stays half open.
    if admission.is_admitted() {
        guard.admit();
    }
    let protocol = ProtocolState::new(
        shared.limits,
        admission,
        agreed,
        guard.table().requests.clone(),
    );
    let mut task = ConnectionTask::new(stream, shared, guard, connection, protocol);
    task.process = process;
    task.await
}

/// Size of a read, in bytes. The buffer is on the stack, so an idle connection holds none: there may be thousands.
const READ_BYTES: usize = 16 << 10;

/// Reason for which a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The client has disconnected, or has closed its session.
    Client,
    /// The client has sent bytes that are not of the protocol.
    ProtocolViolation(ProtocolViolation),
    /// The session has ended or moved to another connection, or its client does not read.
    Session(Ending),
    /// The server shuts down.
    Shutdown,
    /// The server needs the memory that an incomplete request of this connection takes.
    Unfinished,
    /// The client has not proved an identity in time, or has been evicted by newer connections before it did.
    Unproven,
}

/// Task of a connection that has a session. Completes with the reason for which the connection is to be closed.
pub(super) struct ConnectionTask<'a, S> {
    stream: S,
    shared: &'a Shared,
    guard: &'a ConnectionGuard,
    connection: Connection,
    protocol: ProtocolState,
    /// Messages taken from the outbox, to be encoded next.
    messages: VecDeque<Message>,
    /// Durability that the next message in the outbox waits for: the zxid that it reveals, and the future that
    /// completes when the log has it.
    blocked: Option<(Zxid, BoxFuture<Result<()>>)>,
    needs_flush: bool,
    /// True while the answers to requests that have fired events wait for the connections that send those events.
    yields_to_events: bool,
    /// True once the server shuts down: nothing more is read, and the connection ends when all requests are answered.
    is_draining: bool,
    /// True once the client sends no more, or the connection has broken.
    is_read_closed: bool,
    /// True once nothing can be written any more. Requests that the client sent before are executed all the same: a
    /// process that exits has released its locks with them (invariant 7).
    has_write_failed: bool,
    /// Bytes of this connection that the outbox was last told to count beside its own; `None` once messages have been
    /// taken out since, which it counts until it is told the new number.
    held_bytes: Option<usize>,
    unfinished: Share<'a>,
    /// Delay before the answer to a failed proof of identity.
    penalty: Option<BoxFuture<()>>,
    /// The client's process, until it has exited.
    process: Option<ProcessWatch>,
    /// True once the client's process has exited: what it had sent is carried out, and then its session ends.
    has_process_exited: bool,
    /// Time limit for the client to prove an identity; `None` once it has, or where none is required.
    proof_deadline: Option<Pin<Box<Sleep>>>,
}

impl<'a, S: Transport> ConnectionTask<'a, S> {
    pub(super) fn new(
        stream: S,
        shared: &'a Shared,
        guard: &'a ConnectionGuard,
        connection: Connection,
        protocol: ProtocolState,
    ) -> Self {
        Self {
            stream,
            shared,
            guard,
            connection,
            messages: VecDeque::new(),
            blocked: None,
            needs_flush: false,
            yields_to_events: false,
            is_draining: false,
            is_read_closed: false,
            has_write_failed: false,
            held_bytes: Some(0),
            unfinished: shared.unfinished.share(guard),
            penalty: None,
            process: None,
            has_process_exited: false,
            proof_deadline: (!protocol.is_admitted())
                .then(|| Box::pin(sleep(shared.limits.handshake))),
            protocol,
        }
    }

    /// Returns true if the client's time to prove an identity has passed. Admits the connection once it has proved one.
    fn poll_proof_deadline(&mut self, context: &mut Context<'_>) -> bool {
        if self.protocol.is_admitted() && self.proof_deadline.take().is_some() {
            self.guard.admit();
        }
        let deadline = self.proof_deadline.as_mut();
        deadline.is_some_and(|deadline| deadline.as_mut().poll(context).is_ready())
    }

    /// Reads once, if the protocol has room for more. Ready when bytes have arrived, or the end of the stream.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // No waker is registered here. The protocol has room again once a request is submitted, answered or sent, and
        // those steps have registered wakers of their own.
        if self.is_draining || self.is_read_closed || !self.protocol.has_room() {
            return Poll::Pending;
        }
        let mut buffer = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
        // A reset is treated as an end of the stream: requests before it are executed either way.
        self.is_read_closed = read.is_err() || buffer.filled().is_empty();
        self.protocol.receive(buffer.filled());
        self.shared.busy_poll.arrived();
        Poll::Ready(())
    }

    /// Parses the requests that have arrived, and has the store execute them. Returns their number.
    fn submit_requests(
        &mut self,
        context: &mut Context<'_>,
        turn: &mut Turn,
    ) -> Result<usize, CloseReason> {
        let clock = self.shared.clock();
        // Parsed requests that the store has not taken yet go first: requests are executed in the order of their
        // arrival (rule 25), and only a turn's worth of them is in memory.
        if self.protocol.asks().is_empty() {
            let parsed = self.protocol.parse_requests(clock.now(), turn);
            parsed.map_err(CloseReason::ProtocolViolation)?;
            let is_new = !self.protocol.asks().is_empty();
            self.unfinished
                .set(self.protocol.unfinished_bytes(), is_new);
            if self.protocol.has_failed_proof() {
                self.begin_penalty();
            }
        }
        // A failed proof is the last request that is parsed. It is not even submitted before its delay has passed, so
        // its answer cannot leave earlier by any path.
        if self.penalty.is_some() {
            return Ok(0);
        }
        let asks = self.protocol.asks();
        if asks.is_empty() {
            return Ok(0);
        }
        let mut count = 0;
        // While the log has no room, requests stay here and nothing more is read: the client waits, and gets no error.
        // The loop goes round once more when `submit` has found no room, so that `poll_room` registers the task's
        // waker.
        while self.connection.poll_room(context).is_ready() {
            count += self.connection.submit(asks);
            if !self.connection.waits_for_room() {
                break;
            }
        }
        self.yields_to_events = self.connection.take_woken();
        Ok(count)
    }

    /// Begins to hold back the pending answers, the last of which is that to a failed proof of identity. The delay
    /// makes guessing slow, and holds this connection alone.
    fn begin_penalty(&mut self) {
        let (address, now) = (self.guard.address(), self.shared.clock().now());
        if let Some(suppressed) = self.shared.table.log_throttle.failed_proof.allow(now) {
            tracing::warn!(%address, suppressed, "authentication failed");
        }
        self.penalty = Some(Box::pin(self.shared.penalty(address)));
    }

    /// Waits while answers are held back. Discards the client's further bytes, since nothing may follow a failed proof,
    /// and notices when it disconnects: otherwise closed connections would be kept for the delay.
    fn poll_penalty(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        let Some(penalty) = &mut self.penalty else {
            return Poll::Ready(Ok(()));
        };
        if penalty.as_mut().poll(context).is_ready() {
            self.penalty = None;
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut bytes = [0; 512];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Err(CloseReason::Client));
            }
        }
    }

    /// Ends the connection in both directions when the client's process has exited. The bytes that it had sent are still
    /// read. A child that has inherited the socket can neither send more nor keep the session.
    fn poll_process(&mut self, context: &mut Context<'_>) {
        let watch = self.process.as_ref();
        if !watch.is_some_and(|watch| watch.poll_exit(context).is_ready()) {
            return;
        }
        self.process = None;
        self.has_process_exited = true;
        if let Some(socket) = self.stream.unix_socket() {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }

    /// Leaves the session behind, or ends it if its process has exited. A process that exits later ends it then.
    fn leave_session(&mut self) {
        if self.has_process_exited {
            self.connection.end_exited();
        } else if let Some(watch) = self.process.take()
            && let Some(session) = self.connection.follow()
        {
            tokio::spawn(watch.follow(session));
        }
    }

    /// Encodes the messages that may go out now. Ready if there were any.
    fn poll_encode(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, CloseReason>> {
        // Before the first look into the outbox: a message that is put in between would wake no task.
        self.connection.outbox().register(context.waker());
        // A session that has moved or expired answers nothing more over this connection (rules 11 and 12).
        if let Some(ending) = self.connection.outbox().is_cut() {
            return Poll::Ready(Err(CloseReason::Session(ending)));
        }
        let mut has_encoded = false;
        // As much as fits the output buffer; the rest stays in the outbox, where it counts against the client's limit.
        while self.protocol.room() > 0 {
            let (room, connection) = (self.protocol.room(), &self.connection);
            let taken = connection.outbox().take(
                room,
                |bound| connection.may_leave(bound),
                &mut self.messages,
            );
            if !self.messages.is_empty() {
                has_encoded = true;
                self.held_bytes = None;
                let now = self.shared.clock().now();
                for message in self.messages.drain(..) {
                    self.protocol.encode(message, now);
                }
            }
            match taken {
                Taken::Some => {}
                Taken::Nothing => break,
                Taken::Held(bound) => {
                    // Everything behind this message waits as well, although some of it could leave: one session sees
                    // one order (invariant 13).
                    if poll_durable(&mut self.blocked, &self.connection, bound, context)? {
                        continue;
                    }
                    break;
                }
                // The answer to closeSession is still to be written.
                Taken::End(Ending::Closed) if !self.protocol.is_idle() => break,
                Taken::End(ending) => return Poll::Ready(Err(CloseReason::Session(ending))),
            }
        }
        match has_encoded {
            true => Poll::Ready(Ok(true)),
            false => Poll::Pending,
        }
    }

    /// Writes encoded bytes, or flushes. Ready if either got further.
    fn poll_write(&mut self, context: &mut Context<'_>, turn: &mut Turn) -> Poll<()> {
        let bytes = self.protocol.outgoing();
        if !bytes.is_empty() && !self.has_write_failed {
            match ready!(Pin::new(&mut self.stream).poll_write(context, bytes)) {
                Ok(0) | Err(_) => self.has_write_failed = true,
                Ok(count) => {
                    self.protocol.advance(count);
                    turn.spend_bytes(count);
                    self.needs_flush = true;
                }
            }
            return Poll::Ready(());
        }
        if self.needs_flush && !self.has_write_failed {
            let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
            self.has_write_failed = flushed.is_err();
            self.needs_flush = false;
            return Poll::Ready(());
        }
        // Dropped, so that the protocol has room for the answers to the requests that are still executed.
        if self.has_write_failed && !self.protocol.outgoing().is_empty() {
            self.protocol.drop_outgoing();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Checks if the server asks for the connection to be closed. Returns the reason if it is to be closed at once.
    fn poll_close_request(&mut self, context: &mut Context<'_>) -> Option<CloseReason> {
        let asked = pin!(self.guard.close_requested());
        match asked.poll(context) {
            Poll::Ready(CloseRequest::Now) => return Some(CloseReason::Shutdown),
            Poll::Ready(CloseRequest::Unfinished) => return Some(CloseReason::Unfinished),
            Poll::Ready(CloseRequest::Shutdown) => self.is_draining = true,
            Poll::Ready(CloseRequest::Evicted) if !self.protocol.is_admitted() => {
                return Some(CloseReason::Unproven);
            }
            // Admitted between the request and now: the connection is no longer one of those that are evicted.
            Poll::Ready(CloseRequest::Evicted) | Poll::Pending => {}
        }
        None
    }

    /// Takes each of the four steps once. Returns true if any of them made progress, or more can be done at once.
    ///
    /// In this order: the answers to requests that have just arrived leave in the same turn, together in one write. Only
    /// where they have fired events, the turn ends before it answers: the next holder of a lock waits for the event, and
    /// the former one, who has released it, for nothing.
    fn advance(&mut self, context: &mut Context<'_>, turn: &mut Turn) -> Result<bool, CloseReason> {
        let (mut is_drained, mut has_read, mut count) = (false, false, 0);
        // The turn after that begins with the answers: a client whose every request fires an event gets them, too.
        let answers_only = std::mem::take(&mut self.yields_to_events);
        if !answers_only {
            let has_room = self.protocol.has_room();
            has_read = self.poll_read(context).is_ready();
            is_drained = has_room && !has_read;
            count = self.submit_requests(context, turn)?;
            if self.yields_to_events {
                return Ok(true);
            }
        }
        let has_encoded = matches!(self.poll_encode(context)?, Poll::Ready(true));
        let has_sent = self.poll_write(context, turn).is_ready();
        let is_done = self.protocol.is_done() && !self.needs_flush;
        if is_done || self.is_client_gone(is_drained) {
            return Err(CloseReason::Client);
        }
        let has_more = self.protocol.has_more();
        // A shutdown answers every request that had arrived: the client would not know whether they were executed.
        if self.is_draining
            && !has_more
            && self.protocol.asks().is_empty()
            && self.protocol.is_idle()
        {
            return Err(CloseReason::Shutdown);
        }
        // Once more after answers alone, even if they wait for the log: nothing has registered for the client's bytes yet.
        Ok(answers_only || has_read || count > 0 || has_encoded || has_sent || has_more)
    }

    /// Returns true if the client has disconnected, and all requests that it sent before have been executed.
    /// `is_drained`: a read just now found nothing.
    fn is_client_gone(&self, is_drained: bool) -> bool {
        // A broken connection is read to its end as well: the last requests of a process that exits may be there, among
        // them the deletes of its locks.
        let is_over = match self.has_write_failed {
            true => is_drained,
            false => self.is_read_closed && self.protocol.is_idle(),
        };
        is_over && self.protocol.is_caught_up()
    }

    /// Advances until nothing can be done now, or the turn is over. Returns the reason if the connection is to be
    /// closed.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Option<CloseReason> {
        let mut turn = Turn::new(self.protocol.asks().len());
        loop {
            match self.poll_penalty(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(close)) => return Some(close),
                Poll::Pending => return None,
            }
            match self.advance(context, &mut turn) {
                Ok(true) if self.yields_to_events => {
                    // Not `yield_turn`: this task is queued behind those that it has woken, not behind all sockets.
                    context.waker().wake_by_ref();
                    return None;
                }
                Ok(true) => {}
                // A penalty that has just begun must be polled once, or nothing would wake the task at its end.
                Ok(false) if self.penalty.is_some() => {}
                Ok(false) => {
                    self.report_silence();
                    return None;
                }
                Err(close) => return Some(close),
            }
            // Requests are left over if their answers have no room, or if they are too much work for one turn. In both
            // cases the other connections go first: no client can stall the rest (invariant 15).
            if turn.is_over() || !self.protocol.asks().is_empty() {
                yield_turn(context);
                return None;
            }
        }
    }

    /// Confirms to the store, if it asks before it expires the session, that the client is silent: none of its bytes
    /// are unread. A session must not expire while its client's requests wait in the server's socket (rule 14): the
    /// server may be late, and the client prompt.
    ///
    /// Called only after a turn without progress, so requests that were read have touched the session already.
    fn report_silence(&self) {
        if !self.connection.outbox().is_asked_for_signs() {
            return;
        }
        let is_unread = match self.protocol.has_room() {
            true => self.stream.is_readable(),
            // The connection does not read. If its answers wait for the log, the server is late. If the client does not
            // read them, it counts as silent. Requests that wait for room in the log have touched the session already.
            false => self.blocked.is_some(),
        };
        if !is_unread {
            self.connection.end_silent();
        }
    }

    /// Brings the connection's statistics and its count of held bytes up to date.
    fn update_statistics(&mut self) {
        if let Some(bytes) = self.protocol.too_large() {
            let (address, limit) = (self.guard.address(), self.shared.limits.outgoing_bytes);
            let now = self.shared.clock().now();
            if let Some(suppressed) = self.shared.table.log_throttle.reply_too_large.allow(now) {
                tracing::warn!(%address, bytes, limit, suppressed, "reply too large");
            }
        }
        // The outbox counts messages that were taken out until it is told here how many of their bytes are unsent: so
        // the sum over all clients misses none, and a poll that changed nothing does not take its lock.
        let blocked = self.protocol.held_bytes();
        if self.held_bytes.replace(blocked) != Some(blocked) {
            self.connection.outbox().set_beside(blocked);
        }
        self.guard.record_traffic(&self.protocol.traffic());
        self.guard.set_reading(self.protocol.has_room());
    }
}

/// Schedules the task behind all others that are ready, and after the runtime has polled its sockets.
///
/// A plain `wake_by_ref` would not do: tokio polls a task that wakes itself some sixty times before it looks at its
/// sockets again, while other clients' requests wait in the kernel.
fn yield_turn(context: &mut Context<'_>) {
    // The first poll hands the waker to the runtime, which wakes the task at that point. The future is not needed
    // after it.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

/// Returns true if a message that reveals `bound` may go out now. If not, the task is woken when it may.
fn poll_durable(
    blocked: &mut Option<(Zxid, BoxFuture<Result<()>>)>,
    connection: &Connection,
    bound: Zxid,
    context: &mut Context<'_>,
) -> Result<bool, CloseReason> {
    // The future is kept from poll to poll: a new one each time would queue behind all others at the barrier.
    let is_new = blocked.as_ref().is_none_or(|(to, _)| *to != bound);
    if is_new {
        *blocked = Some((bound, connection.passage(bound)));
    }
    let Some((_, passage)) = blocked else {
        return Ok(true);
    };
    match passage.as_mut().poll(context) {
        Poll::Pending => Ok(false),
        Poll::Ready(passed) => {
            *blocked = None;
            // The log has failed: the message must never leave (invariant 12).
            passed.map_err(|_| CloseReason::Session(Ending::Stopped))?;
            Ok(true)
        }
    }
}

impl<S: Transport> Future for ConnectionTask<'_, S> {
    type Output = CloseReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CloseReason> {
        let this = &mut *self;
        this.poll_process(context);
        let close = match this.poll_close_request(context) {
            None => this.poll_turn(context),
            close => close,
        };
        // After the turn: a proof that had arrived in time counts, even if this task was polled late.
        let close = match close {
            None if this.poll_proof_deadline(context) => Some(CloseReason::Unproven),
            close => close,
        };
        // Once for each poll, before the outcome: figures of the last turn are not lost with the connection.
        this.update_statistics();
        match close {
            None => Poll::Pending,
            Some(close) => {
                if close == CloseReason::Session(Ending::Overflow) {
                    this.guard.table().count(Count::NotRead);
                }
                this.leave_session();
                Poll::Ready(close)
            }
        }
    }
}

/// Logs a handshake that was refused.
fn log_handshake_error(error: HandshakeError, address: PeerAddress, shared: &Shared) {
    let now = shared.clock().now();
    match error {
        HandshakeError::Disconnected => {}
        HandshakeError::Http => {
            if let Some(suppressed) = shared.table.log_throttle.http.allow(now) {
                let hint = "this port speaks ZooKeeper's protocol; ask for the server's state with a four-letter word";
                tracing::info!(%address, suppressed, hint, "HTTP request refused");
            }
        }
        _ => {
            if let Some(suppressed) = shared.table.log_throttle.handshake_refused.allow(now) {
                tracing::info!(%address, reason = ?error, suppressed, "handshake refused");
            }
        }
    }
}

/// Logs the end of a connection that had a session.
fn log_close(reason: CloseReason, guard: &ConnectionGuard, session: SessionId, shared: &Shared) {
    let (address, now) = (guard.address(), shared.clock().now());
    let throttle = &shared.table.log_throttle;
    match reason {
        CloseReason::Session(Ending::Overflow) => {
            if let Some(suppressed) = throttle.client_not_reading.allow(now) {
                let reason = "the client does not read its replies";
                tracing::warn!(%address, %session, reason, suppressed, "connection closed");
            }
        }
        CloseReason::ProtocolViolation(ProtocolViolation::Length) => {
            guard.table().count(Count::FrameTooLong);
            if let Some(suppressed) = throttle.frame_too_long.allow(now) {
                let reason = "a frame's length is negative or above the limit";
                tracing::warn!(%address, %session, reason, suppressed, "connection closed");
            }
        }
        CloseReason::Unfinished => {
            if let Some(suppressed) = throttle.unfinished_request.allow(now) {
                let reason = "the memory of its incomplete request is needed by others";
                tracing::warn!(%address, %session, reason, suppressed, "connection closed");
            }
        }
        reason => tracing::debug!(%address, %session, ?reason, "connection closed"),
    }
}
