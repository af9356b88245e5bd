//! [`ConnectionTask`]: runs the four steps that `connection.rs` describes.

use std::collections::VecDeque;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};

use super::close::CloseReason;
use crate::engine::{Connection, Ending, Message, Taken};
use crate::model::error::Result;
use crate::model::types::Zxid;
use crate::runtime::future::BoxFuture;
use crate::server::connection_entry::CloseRequest;
use crate::server::connection_table::{ConnectionGuard, Count};
use crate::server::process_watch::ProcessWatch;
use crate::server::protocol::{ProofAttempt, ProtocolState};
use crate::server::transport::Transport;
use crate::server::turn::Turn;
use crate::server::unfinished::Share;
use crate::server::{AuditEvent, Shared};

/// Size of a read, in bytes. The buffer is on the stack, so idle connections need no read buffers.
const READ_BYTES: usize = 16 << 10;

pub(super) struct ConnectionTask<'a, S> {
    stream: S,
    shared: &'a Shared,
    guard: &'a ConnectionGuard,
    connection: Connection,
    protocol: ProtocolState,
    messages: VecDeque<Message>,
    /// Set while the next message waits for the log: the zxid that the message reveals, and a future that completes
    /// when the log contains this zxid.
    blocked: Option<(Zxid, BoxFuture<Result<()>>)>,
    needs_flush: bool,
    next_turn: NextTurn,
    /// True while we hold back the answers to requests that fired events, so that other connections can send the events
    /// first.
    yields_to_events: bool,
    /// True once the server shuts down. We then read no more bytes, and close the connection when all requests are
    /// answered.
    is_draining: bool,
    is_read_closed: bool,
    /// True once a write has failed. We still execute the requests that have arrived, because an exiting process may
    /// release its locks with them (invariant 7).
    has_write_failed: bool,
    /// Number of unsent bytes in our last report to the outbox. `None` if we have taken messages out of the outbox
    /// since that report.
    held_bytes: Option<usize>,
    unfinished: Share<'a>,
    penalty: Option<BoxFuture<()>>,
    pub(super) process: Option<Box<ProcessWatch>>,
    has_process_exited: bool,
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
            next_turn: NextTurn::Free,
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

    /// Admits the connection if the client has proved an identity. Returns true if the deadline for this proof has
    /// passed.
    fn poll_proof_deadline(&mut self, context: &mut Context<'_>) -> bool {
        if self.protocol.is_admitted() && self.proof_deadline.take().is_some() {
            self.guard.admit();
        }
        let deadline = self.proof_deadline.as_mut();
        deadline.is_some_and(|deadline| deadline.as_mut().poll(context).is_ready())
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // No waker is needed here, because the steps that make room have registered one.
        if self.is_draining || self.is_read_closed || !self.protocol.has_room() {
            return Poll::Pending;
        }
        let mut buffer = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
        // Treat a reset like the end of the stream. In both cases we execute the requests that arrived before it.
        self.is_read_closed = read.is_err() || buffer.filled().is_empty();
        self.protocol.receive(buffer.filled());
        self.shared.busy_poll.arrived();
        Poll::Ready(())
    }

    fn submit_requests(
        &mut self,
        context: &mut Context<'_>,
        turn: &mut Turn,
    ) -> Result<usize, CloseReason> {
        let clock = self.shared.clock();
        // Requests are executed in order of arrival, so parse no further requests while parsed ones wait for
        // submission. This also limits the memory of parsed requests to one turn's requests.
        if self.protocol.asks().is_empty() {
            let parsed = self.protocol.parse_requests(clock.now(), turn);
            parsed.map_err(CloseReason::ProtocolViolation)?;
            let is_new = !self.protocol.asks().is_empty();
            self.unfinished
                .set(self.protocol.unfinished_bytes(), is_new);
            self.record_proofs();
            if self.protocol.has_failed_proof() {
                self.begin_penalty();
            }
        }
        // The parser stops at a failed proof. Submit nothing until the penalty is over, so that no step sends the
        // answer to the proof earlier.
        if self.penalty.is_some() {
            return Ok(0);
        }
        let asks = self.protocol.asks();
        if asks.is_empty() {
            return Ok(0);
        }
        let mut count = 0;
        // While the log has no room, we submit no requests and read no bytes, so the client waits instead of getting an
        // error. If `submit` finds no room, we call `poll_room` once more to register the waker.
        while self.connection.poll_room(context).is_ready() {
            count += self.connection.submit(asks);
            if !self.connection.waits_for_room() {
                break;
            }
        }
        self.yields_to_events = self.connection.take_woken();
        self.record_changes();
        Ok(count)
    }

    fn record_changes(&self) {
        let changes = self.connection.take_changes();
        if !changes.is_empty() {
            let (session, peer) = (self.connection.id(), self.guard.address());
            self.shared.audit.changes(changes, session, peer);
        }
    }

    fn record_removed_identity(&self) {
        let audit = &self.shared.audit;
        audit.success(AuditEvent::RemoveIdentity, |record| {
            record.session = Some(self.connection.id());
            record.identities = self.protocol.identities();
            record.peer = Some(self.guard.address().to_string());
        });
    }

    fn record_proofs(&mut self) {
        let (audit, peer) = (&self.shared.audit, self.guard.address());
        for proof in self.protocol.take_proofs() {
            let session = Some(self.connection.id());
            match proof {
                ProofAttempt::Accepted => audit.success(AuditEvent::Authenticate, |record| {
                    record.session = session;
                    record.identities = self.protocol.identities();
                    record.peer = Some(peer.to_string());
                }),
                ProofAttempt::Refused(user) => {
                    audit.failure(AuditEvent::Authenticate, peer, |record| {
                        record.session = session;
                        record.user = user;
                    });
                }
            }
        }
    }

    /// Holds back all pending answers, including the answer to a failed proof. The delay makes guessing slow.
    fn begin_penalty(&mut self) {
        let (address, now) = (self.guard.address(), self.shared.clock().now());
        if let Some(suppressed) = self.shared.table.log_throttle.failed_proof.allow(now) {
            tracing::warn!(%address, suppressed, "authentication failed");
        }
        self.penalty = Some(Box::pin(self.shared.penalty(address)));
    }

    /// Ready when the penalty is over. Until then, discards the bytes that arrive, because no request may follow a
    /// failed proof.
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

    /// Shuts down both directions of the socket when the client's process has exited, so that a child process that
    /// inherited the socket cannot keep the session alive. We still read the bytes that have arrived.
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

    fn leave_session(&mut self) {
        if self.has_process_exited {
            self.connection.end_exited();
        } else if let Some(watch) = self.process.take()
            && let Some(session) = self.connection.follow()
        {
            tokio::spawn(watch.follow(session));
        }
    }

    fn poll_encode(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, CloseReason>> {
        // Register the waker before looking into the outbox, so that a message that arrives in between wakes this task.
        self.connection.outbox().register(context.waker());
        // After its session has expired or moved to another connection, this connection must send no more answers.
        if let Some(ending) = self.connection.outbox().is_cut() {
            return Poll::Ready(Err(CloseReason::Session(ending)));
        }
        let mut has_encoded = false;
        // Messages that do not fit stay in the outbox, where they count towards the client's limit of unread bytes.
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
                    // All later messages wait behind this message, because a session sees changes in one order
                    // (invariant 13).
                    if poll_durable(&mut self.blocked, &self.connection, bound, context)? {
                        continue;
                    }
                    break;
                }
                // The answer to closeSession is not written yet, so do not close the connection.
                Taken::End(Ending::Closed) if !self.protocol.is_idle() => break,
                Taken::End(ending) => return Poll::Ready(Err(CloseReason::Session(ending))),
            }
        }
        match has_encoded {
            true => Poll::Ready(Ok(true)),
            false => Poll::Pending,
        }
    }

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
        // The client receives no more answers. Discard them to make room, because we still execute the remaining
        // requests.
        if self.has_write_failed && !self.protocol.outgoing().is_empty() {
            self.protocol.drop_outgoing();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn poll_close_request(&mut self, context: &mut Context<'_>) -> Option<CloseReason> {
        let asked = pin!(self.guard.close_requested());
        match asked.poll(context) {
            Poll::Ready(CloseRequest::Now) => return Some(CloseReason::Shutdown),
            Poll::Ready(CloseRequest::Unfinished) => return Some(CloseReason::Unfinished),
            Poll::Ready(CloseRequest::Disconnected) => return Some(CloseReason::Disconnected),
            Poll::Ready(CloseRequest::Shutdown) => self.is_draining = true,
            Poll::Ready(CloseRequest::Evicted) if !self.protocol.is_admitted() => {
                return Some(CloseReason::Unproven);
            }
            // The connection was admitted after the request to evict it, so ignore the request.
            Poll::Ready(CloseRequest::Evicted) | Poll::Pending => {}
        }
        None
    }

    /// Runs each step (read, submit, encode, write) once. Returns true if the caller must call this again.
    ///
    /// We read first, so that requests that have just arrived are answered in the same turn and in one write. If these
    /// requests fire events, the turn ends before we answer them. The next holder of a lock waits for its event, while
    /// the former holder is not in a hurry.
    fn advance(&mut self, context: &mut Context<'_>, turn: &mut Turn) -> Result<bool, CloseReason> {
        if !self.protocol.renew(&self.shared.access) {
            self.record_removed_identity();
            return Err(CloseReason::IdentityRemoved);
        }
        let (mut is_drained, mut has_read, mut count) = (false, false, 0);
        // If the last turn ended early to let events go first, send its answers before reading again. Otherwise a
        // client whose every request fires an event would never get an answer.
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
        // During a shutdown, answer every request that has arrived. Otherwise the client would not know whether its
        // request was executed.
        if self.is_draining
            && !has_more
            && self.protocol.asks().is_empty()
            && self.protocol.is_idle()
        {
            return Err(CloseReason::Shutdown);
        }
        // If this call only sent answers, `poll_read` has not registered a waker, so the caller must call again.
        Ok(answers_only || has_read || count > 0 || has_encoded || has_sent || has_more)
    }

    /// `is_drained` is true if the last read found no bytes.
    fn is_client_gone(&self, is_drained: bool) -> bool {
        // Even if writing has failed, read until no bytes are left. The last requests of an exiting process may delete
        // its locks.
        let is_over = match self.has_write_failed {
            true => is_drained,
            false => self.is_read_closed && self.protocol.is_idle(),
        };
        is_over && self.protocol.is_caught_up()
    }

    fn poll_turn(&mut self, context: &mut Context<'_>) -> Option<CloseReason> {
        let permit = match self.poll_next_turn(context) {
            Poll::Ready(permit) => permit,
            Poll::Pending => return None,
        };
        let mut turn = self.shared.turn_length.start(self.protocol.asks().len());
        loop {
            match self.poll_penalty(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(close)) => return Some(close),
                Poll::Pending => return None,
            }
            match self.advance(context, &mut turn) {
                Ok(true) if self.yields_to_events => {
                    // `yield_turn` is not needed, because only the tasks that the events have woken must run before
                    // this task.
                    context.waker().wake_by_ref();
                    return None;
                }
                Ok(true) => {}
                // A penalty has just started. The next iteration polls the penalty, which registers the task's waker.
                Ok(false) if self.penalty.is_some() => {}
                Ok(false) => {
                    self.shared.turn_length.served_all(&turn);
                    self.report_silence();
                    return None;
                }
                Err(close) => return Some(close),
            }
            // Requests remain if they exceed one turn's work or if there is no room for their answers. Let other
            // connections run first, so that no client can stall them (invariant 15).
            if turn.is_over() || !self.protocol.asks().is_empty() {
                drop(permit);
                self.shared.turn_length.spend();
                let permit = self.shared.further_turns.clone().acquire_owned();
                let permit = async { permit.await.expect("the semaphore is never closed") };
                self.next_turn = NextTurn::Queued(Box::pin(permit));
                let queued = self.poll_next_turn(context);
                debug_assert!(queued.is_pending());
                return None;
            }
        }
    }

    fn poll_next_turn(&mut self, context: &mut Context<'_>) -> Poll<Option<OwnedSemaphorePermit>> {
        match std::mem::replace(&mut self.next_turn, NextTurn::Free) {
            NextTurn::Free => Poll::Ready(None),
            NextTurn::Queued(mut permit) => {
                self.next_turn = match permit.as_mut().poll(context) {
                    Poll::Ready(permit) => {
                        yield_turn(context);
                        NextTurn::Permitted(permit)
                    }
                    Poll::Pending => NextTurn::Queued(permit),
                };
                Poll::Pending
            }
            NextTurn::Permitted(permit) => Poll::Ready(Some(permit)),
        }
    }

    /// Ends the session if the store has asked for signs of life and the client has sent none. Requests that wait
    /// unread in the server's socket count as a sign of life.
    ///
    /// Call this only after a turn without progress. All requests that were read have then touched the session.
    fn report_silence(&self) {
        if !self.connection.outbox().is_asked_for_signs() {
            return;
        }
        let is_unread = match self.protocol.has_room() {
            true => self.stream.is_readable(),
            // We are not reading. If answers wait for the log, the server causes the delay, so the session must not
            // expire. Otherwise the client does not read its answers and counts as silent. Requests that wait for room
            // in the log have already touched the session.
            false => self.blocked.is_some(),
        };
        if !is_unread {
            self.connection.end_silent();
        }
    }

    fn update_statistics(&mut self) {
        if let Some(bytes) = self.protocol.too_large() {
            let (address, limit) = (self.guard.address(), self.shared.limits.outgoing_bytes);
            let now = self.shared.clock().now();
            if let Some(suppressed) = self.shared.table.log_throttle.reply_too_large.allow(now) {
                tracing::warn!(%address, bytes, limit, suppressed, "reply too large");
            }
        }
        // Report the bytes that we hold, so that the sum over all clients includes them. Skip an unchanged number,
        // because reporting takes the outbox's lock.
        let blocked = self.protocol.held_bytes();
        if self.held_bytes.replace(blocked) != Some(blocked) {
            self.connection.outbox().set_beside(blocked);
        }
        self.guard.record_traffic(&self.protocol.traffic());
        self.guard.set_reading(self.protocol.has_room());
    }
}

enum NextTurn {
    Free,
    /// The next turn waits for a permit, because requests remain from the last turn. Permits are granted in order.
    Queued(BoxFuture<OwnedSemaphorePermit>),
    Permitted(OwnedSemaphorePermit),
}

/// Schedules the current task behind all ready tasks and after the runtime's next poll of its sockets.
///
/// `wake_by_ref` is not enough, because tokio polls a task that wakes itself about sixty times before it polls the
/// sockets.
fn yield_turn(context: &mut Context<'_>) {
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

fn poll_durable(
    blocked: &mut Option<(Zxid, BoxFuture<Result<()>>)>,
    connection: &Connection,
    bound: Zxid,
    context: &mut Context<'_>,
) -> Result<bool, CloseReason> {
    // Keep the future between polls, because a new one would start at the end of the log's queue.
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
            // The log has failed, so the message must never be sent (invariant 12).
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
        // Check the deadline after the turn, so that a proof that arrived in time counts even if this task runs late.
        let close = match close {
            None if this.poll_proof_deadline(context) => Some(CloseReason::Unproven),
            close => close,
        };
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
