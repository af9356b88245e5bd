//! One connection, from its first byte to its last: this file is how a request is served.
//!
//! A connection is one task on the server's runtime, [`serve`]:
//!
//! 1. The client's first bytes are a four-letter word, which [`Admin`](super::admin::Admin) answers, or a handshake, which opens or
//!    takes up a session ([`handshake`]).
//! 2. [`run_session`] gives the session the identities that the connection itself proves (address, certificate), and runs
//!    a [`ConnectionTask`] until the connection ends.
//! 3. The task's *turn* ([`ConnectionTask::poll_turn`]) repeats four steps ([`ConnectionTask::advance`]) until none of them
//!    gets any further, or the turn's share of work is used up, when the other connections get theirs:
//!     - `poll_read` reads what has arrived, unless the protocol is still busy with earlier bytes (backpressure: what is not
//!       read stays in the client's socket);
//!     - `submit_requests` has [`ProtocolState`] parse whole frames into requests, and the store carry out all of them under
//!       one taking of its lock;
//!     - `poll_encode` takes answers and events from the session's outbox, in the store's order, each only once the log has
//!       what it shows (invariants 2 and 13), and encodes them;
//!     - `poll_write` writes and flushes them.
//! 4. [`CloseReason`] says why the task has ended. It is logged, and the connection closed so that the last bytes arrive
//!    ([`linger_close`]). The session stays in the store, for its client to come back to.

use std::collections::VecDeque;
use std::future::Future;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
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
use super::protocol::{ProtocolState, ProtocolViolation, Turn};
use super::transport::{Transport, linger_close, unless_closed};
use super::unfinished::Share;
use crate::engine::{Connection, Ending, Message, Taken};
use crate::error::Result;
use crate::future::BoxFuture;
use crate::identity::Identity;
use crate::types::{SessionId, Zxid};
use crate::wire::Frames;

/// Serves one connection, from its first byte to its last.
///
/// The handshake must be done by `deadline`. `identity` is the one that the client has proved with its certificate.
pub(super) async fn serve<S>(
    mut stream: S,
    guard: ConnectionGuard,
    shared: Arc<Shared>,
    deadline: Instant,
    identity: Option<Identity>,
) where
    S: Transport,
{
    let is_proven = identity.as_ref().is_some_and(Identity::is_proof);
    let outcome = handshake(&mut stream, &guard, &shared, is_proven);
    let outcome = tokio::time::timeout_at(deadline, outcome);
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
            // A client that does not read the answer is cut off as well.
            unless_closed(guard.close_requested(), answered).await;
        }
        Ok(Ok(HandshakeOutcome::Session(connection, frames))) => {
            let session = connection.id();
            let reason =
                run_session(&mut stream, &shared, &guard, connection, frames, identity).await;
            log_close(reason, &guard, session, &shared);
            if guard.close_request() != Some(CloseRequest::Now) {
                linger_close(&mut stream).await;
            }
        }
    }
}

/// Serves a session over its connection, until the connection ends. `frames` has what the client sent behind its
/// handshake.
pub(super) async fn run_session<S>(
    stream: S,
    shared: &Shared,
    guard: &ConnectionGuard,
    connection: Connection,
    frames: Frames,
    identity: Option<Identity>,
) -> CloseReason
where
    S: Transport,
{
    let mut admission = Admission::new(shared.policy.clone(), guard.address().ip());
    let by_address = [Identity::ip(guard.address().ip())];
    for identity in by_address.into_iter().chain(identity) {
        // Cannot fail: two identities are within every limit, and the TLS handshake has refused a name that is too
        // long.
        let _ = admission.add(&identity);
        connection.identify(identity);
    }
    if admission.is_admitted() {
        guard.admit();
    }
    let protocol = ProtocolState::new(shared.limits, admission, frames);
    ConnectionTask::new(stream, shared, guard, connection, protocol).await
}

/// Size of a read, in bytes. The buffer is on the stack, so that an idle connection has none.
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
    /// Durability that the next message in the outbox waits for: the zxid that it shows, and the log's word of it.
    blocked: Option<(Zxid, BoxFuture<Result<()>>)>,
    needs_flush: bool,
    is_draining: bool,
    /// True once the client sends no more, or the connection has broken.
    is_read_closed: bool,
    /// True once nothing can be written any more. What the client sent before is carried out all the same: a process
    /// that exits releases its locks that way (invariant 7).
    has_write_failed: bool,
    /// Bytes that the outbox was last told to count beside its own; `None` once messages have been taken out since.
    held_bytes: Option<usize>,
    unfinished: Share<'a>,
    /// Delay before the answer to a failed proof of identity.
    penalty: Option<BoxFuture<()>>,
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
            is_draining: false,
            is_read_closed: false,
            has_write_failed: false,
            held_bytes: Some(0),
            unfinished: shared.unfinished.share(guard),
            penalty: None,
            proof_deadline: (!protocol.is_admitted())
                .then(|| Box::pin(sleep(shared.limits.handshake))),
            protocol,
        }
    }

    /// Returns true if the client's time to prove an identity has passed.
    fn poll_proof_deadline(&mut self, context: &mut Context<'_>) -> bool {
        if self.protocol.is_admitted() && self.proof_deadline.take().is_some() {
            self.guard.admit();
        }
        let deadline = self.proof_deadline.as_mut();
        deadline.is_some_and(|deadline| deadline.as_mut().poll(context).is_ready())
    }

    /// Reads once, if the protocol has room for more. Ready when bytes have arrived, or the end of the stream.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_draining || self.is_read_closed || !self.protocol.has_room() {
            return Poll::Pending;
        }
        let mut buffer = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
        self.is_read_closed = read.is_err() || buffer.filled().is_empty();
        self.protocol.receive(buffer.filled());
        Poll::Ready(())
    }

    /// Parses the requests that have arrived, and has the store carry them out. Returns their number.
    fn submit_requests(
        &mut self,
        context: &mut Context<'_>,
        turn: &mut Turn,
    ) -> Result<usize, CloseReason> {
        let clock = self.shared.clock();
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
        if self.penalty.is_some() {
            return Ok(0);
        }
        let asks = self.protocol.asks();
        if asks.is_empty() {
            return Ok(0);
        }
        let mut count = 0;
        // While the log has no room, requests stay here and nothing more is read: the client waits.
        while self.connection.poll_room(context).is_ready() {
            count += self.connection.submit(asks);
            if !self.connection.waits_for_room() {
                break;
            }
        }
        Ok(count)
    }

    /// Begins to hold back the pending answers, the last of which is that to a failed proof of identity.
    fn begin_penalty(&mut self) {
        let (address, now) = (self.guard.address(), self.shared.clock().now());
        if let Some(suppressed) = self.shared.table.log_throttle.failed_proof.allow(now) {
            tracing::warn!(%address, suppressed, "authentication failed: the answer is delayed");
        }
        self.penalty = Some(Box::pin(self.shared.penalty(address)));
    }

    /// Waits while answers are held back. Discards what the client still sends, since nothing may follow a failed
    /// proof, and notices when it disconnects.
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

    /// Encodes the messages that may go out now. Ready if there were any.
    fn poll_encode(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, CloseReason>> {
        self.connection.outbox().register(context.waker());
        if let Some(ending) = self.connection.outbox().is_cut() {
            return Poll::Ready(Err(CloseReason::Session(ending)));
        }
        let mut has_encoded = false;
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
                    if poll_durable(&mut self.blocked, &self.connection, bound, context)? {
                        continue;
                    }
                    break;
                }
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
        if self.has_write_failed && !self.protocol.outgoing().is_empty() {
            self.protocol.drop_outgoing();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Looks whether the server asks for the connection to be closed. Returns the reason if it is to be closed at once.
    fn poll_close_request(&mut self, context: &mut Context<'_>) -> Option<CloseReason> {
        let asked = pin!(self.guard.close_requested());
        match asked.poll(context) {
            Poll::Ready(CloseRequest::Now) => return Some(CloseReason::Shutdown),
            Poll::Ready(CloseRequest::Unfinished) => return Some(CloseReason::Unfinished),
            Poll::Ready(CloseRequest::Shutdown) => self.is_draining = true,
            Poll::Ready(CloseRequest::PushedOut) if !self.protocol.is_admitted() => {
                return Some(CloseReason::Unproven);
            }
            // Admitted between the request and now: the connection is no longer one of those that are evicted.
            Poll::Ready(CloseRequest::PushedOut) | Poll::Pending => {}
        }
        None
    }

    /// Takes each of the four steps once. Returns true if any of them got further, or more is left to be done at once.
    fn advance(&mut self, context: &mut Context<'_>, turn: &mut Turn) -> Result<bool, CloseReason> {
        let has_room = self.protocol.has_room();
        let has_read = self.poll_read(context).is_ready();
        let is_drained = has_room && !has_read;
        let count = self.submit_requests(context, turn)?;
        let has_encoded = matches!(self.poll_encode(context)?, Poll::Ready(true));
        let has_sent = self.poll_write(context, turn).is_ready();
        let is_done = self.protocol.is_done() && !self.needs_flush;
        if is_done || self.is_client_gone(is_drained) {
            return Err(CloseReason::Client);
        }
        let has_more = self.protocol.has_more();
        if self.is_draining
            && !has_more
            && self.protocol.asks().is_empty()
            && self.protocol.is_idle()
        {
            return Err(CloseReason::Shutdown);
        }
        Ok(has_read || count > 0 || has_encoded || has_sent || has_more)
    }

    /// Returns true if the client has disconnected, and all that it sent before has been carried out. `is_drained`: a
    /// read just now found nothing.
    fn is_client_gone(&self, is_drained: bool) -> bool {
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
                Ok(true) => {}
                // A penalty that has just begun has to be polled once, to be woken by it.
                Ok(false) if self.penalty.is_some() => {}
                Ok(false) => {
                    self.report_silence();
                    return None;
                }
                Err(close) => return Some(close),
            }
            // Requests are left when their answers have no room, or when they are too much work for one turn.
            if turn.is_over() || !self.protocol.asks().is_empty() {
                yield_turn(context);
                return None;
            }
        }
    }

    /// Confirms to the store, where it asks before it expires a session, that the client is silent: nothing that it has
    /// sent is unread. A session must not expire while its client's bytes wait here (rule 14).
    fn report_silence(&self) {
        if !self.connection.outbox().is_asked_for_signs() {
            return;
        }
        let is_unread = match self.protocol.has_room() {
            true => self.stream.is_readable(),
            // Not read because answers wait for the log: that is no fault of the client's.
            false => self.blocked.is_some(),
        };
        if !is_unread {
            self.connection.end_silent();
        }
    }

    /// Brings the connection's statistics and its count of held bytes up to date.
    fn record(&mut self) {
        if let Some(bytes) = self.protocol.too_large() {
            let (address, limit) = (self.guard.address(), self.shared.limits.outgoing_bytes);
            let now = self.shared.clock().now();
            if let Some(suppressed) = self.shared.table.log_throttle.reply_too_large.allow(now) {
                tracing::warn!(%address, bytes, limit, suppressed, "reply too large: the request is refused");
            }
        }
        let blocked = self.protocol.held_bytes();
        if self.held_bytes.replace(blocked) != Some(blocked) {
            self.connection.outbox().set_beside(blocked);
        }
        self.guard.note(&self.protocol.traffic());
        self.guard.set_reading(self.protocol.has_room());
    }
}

/// Has the task polled again after all others that are ready, and after the runtime has polled its sockets.
///
/// A task that wakes itself is polled again before that, some sixty times, while other clients' requests wait in the
/// kernel.
fn yield_turn(context: &mut Context<'_>) {
    // The first poll hands the waker to the runtime, which wakes the task at that point; the future is not needed after
    // it.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

/// Returns true if a message that shows `bound` may go out now; if not, the task is woken when it may.
fn poll_durable(
    blocked: &mut Option<(Zxid, BoxFuture<Result<()>>)>,
    connection: &Connection,
    bound: Zxid,
    context: &mut Context<'_>,
) -> Result<bool, CloseReason> {
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
            passed.map_err(|_| CloseReason::Session(Ending::Stopped))?;
            Ok(true)
        }
    }
}

impl<S: Transport> Future for ConnectionTask<'_, S> {
    type Output = CloseReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CloseReason> {
        let this = &mut *self;
        let close = match this.poll_close_request(context) {
            None => this.poll_turn(context),
            close => close,
        };
        let close = match close {
            None if this.poll_proof_deadline(context) => Some(CloseReason::Unproven),
            close => close,
        };
        this.record();
        match close {
            None => Poll::Pending,
            Some(close) => {
                if close == CloseReason::Session(Ending::Overflow) {
                    this.guard.table().count(Count::NotRead);
                }
                Poll::Ready(close)
            }
        }
    }
}

/// Logs a handshake that was refused.
fn log_handshake_error(error: HandshakeError, address: SocketAddr, shared: &Shared) {
    let now = shared.clock().now();
    match error {
        HandshakeError::Gone => {}
        HandshakeError::Http => {
            if let Some(suppressed) = shared.table.log_throttle.http.allow(now) {
                tracing::info!(%address, suppressed, "HTTP request refused: this port speaks ZooKeeper's protocol; the four-letter words, such as ruok, tell the server's state");
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
                tracing::warn!(%address, %session, suppressed, "connection closed: the client does not read its replies");
            }
        }
        CloseReason::ProtocolViolation(ProtocolViolation::Length) => {
            guard.table().count(Count::FrameTooLong);
            if let Some(suppressed) = throttle.frame_too_long.allow(now) {
                tracing::warn!(%address, %session, suppressed, "connection closed: a frame's length is negative or above the limit");
            }
        }
        CloseReason::Unfinished => {
            if let Some(suppressed) = throttle.unfinished_request.allow(now) {
                tracing::warn!(%address, %session, suppressed, "connection closed: its incomplete request takes memory that others need");
            }
        }
        reason => tracing::debug!(%address, %session, ?reason, "connection closed"),
    }
}
