//! [`ConnectionTask`]: the four steps of a connection that has a session. `connection.rs` describes them.

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

/// Size of a read, in bytes. The buffer is on the stack, so thousands of idle connections need none.
const READ_BYTES: usize = 16 << 10;

/// Serves a connection that has a session. Completes with the reason for closing it.
pub(super) struct ConnectionTask<'a, S> {
    stream: S,
    shared: &'a Shared,
    guard: &'a ConnectionGuard,
    connection: Connection,
    protocol: ProtocolState,
    messages: VecDeque<Message>,
    /// Set while the next message waits for the log: the zxid that it reveals, and the future that completes when the
    /// log has it.
    blocked: Option<(Zxid, BoxFuture<Result<()>>)>,
    needs_flush: bool,
    next_turn: NextTurn,
    /// True while answers to requests that fired events wait for the connections that send those events.
    yields_to_events: bool,
    /// True once the server shuts down. We then read no more, and end when all requests are answered.
    is_draining: bool,
    /// True once the client sends no more, or the connection has broken.
    is_read_closed: bool,
    /// True once writing has failed. Earlier requests are still executed. They may be how an exiting process releases
    /// its locks (invariant 7).
    has_write_failed: bool,
    /// Unsent bytes that we last reported to the outbox. `None` if messages have been taken out since, which it counts
    /// until the next report.
    held_bytes: Option<usize>,
    unfinished: Share<'a>,
    penalty: Option<BoxFuture<()>>,
    pub(super) process: Option<Box<ProcessWatch>>,
    /// True once the client's process has exited. What it sent is executed, and then its session ends.
    has_process_exited: bool,
    /// Time limit for proving an identity. `None` once one is proved, or if none is required.
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

    /// Returns true if the time to prove an identity is over. Admits the connection once one is proved.
    fn poll_proof_deadline(&mut self, context: &mut Context<'_>) -> bool {
        if self.protocol.is_admitted() && self.proof_deadline.take().is_some() {
            self.guard.admit();
        }
        let deadline = self.proof_deadline.as_mut();
        deadline.is_some_and(|deadline| deadline.as_mut().poll(context).is_ready())
    }

    /// Reads once, if the protocol has room for more. Ready when bytes or the end of the stream have arrived.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // No waker is needed here. The steps that make room again have registered their own.
        if self.is_draining || self.is_read_closed || !self.protocol.has_room() {
            return Poll::Pending;
        }
        let mut buffer = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
        // Treat a reset as an end of the stream. The requests before it are executed either way.
        self.is_read_closed = read.is_err() || buffer.filled().is_empty();
        self.protocol.receive(buffer.filled());
        self.shared.busy_poll.arrived();
        Poll::Ready(())
    }

    /// Parses the requests that have arrived, and submits them to the store. Returns their number.
    fn submit_requests(
        &mut self,
        context: &mut Context<'_>,
        turn: &mut Turn,
    ) -> Result<usize, CloseReason> {
        let clock = self.shared.clock();
        // Submit leftover requests first, because requests are executed in order of arrival (rule 25). Only a turn's
        // worth is in memory.
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
        // A failed proof is the last request that is parsed. Do not submit it before its delay is over, so that its
        // answer cannot leave earlier by any path.
        if self.penalty.is_some() {
            return Ok(0);
        }
        let asks = self.protocol.asks();
        if asks.is_empty() {
            return Ok(0);
        }
        let mut count = 0;
        // While the log has no room, we read no more, so the client waits instead of getting an error. If `submit`
        // finds no room, loop once more so that `poll_room` registers the waker.
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

    /// Holds back the pending answers, including the one to a failed proof. This makes guessing slow, and affects only
    /// this connection.
    fn begin_penalty(&mut self) {
        let (address, now) = (self.guard.address(), self.shared.clock().now());
        if let Some(suppressed) = self.shared.table.log_throttle.failed_proof.allow(now) {
            tracing::warn!(%address, suppressed, "authentication failed");
        }
        self.penalty = Some(Box::pin(self.shared.penalty(address)));
    }

    /// Waits while answers are held back. Discards further bytes, because nothing may follow a failed proof, and ends
    /// when the client disconnects.
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

    /// Shuts down both directions when the client's process has exited. Bytes that it sent are still read. A child that
    /// inherited the socket can neither send more nor keep the session.
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

    /// Leaves the session behind, or ends it if its process has exited.
    fn leave_session(&mut self) {
        if self.has_process_exited {
            self.connection.end_exited();
        } else if let Some(watch) = self.process.take()
            && let Some(session) = self.connection.follow()
        {
            tokio::spawn(watch.follow(session));
        }
    }

    /// Encodes the messages that may be sent now. Ready if there were any.
    fn poll_encode(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, CloseReason>> {
        // Register first, or a message that arrives in between would wake no task.
        self.connection.outbox().register(context.waker());
        // A session that has moved or expired answers nothing more over this connection (rules 11 and 12).
        if let Some(ending) = self.connection.outbox().is_cut() {
            return Poll::Ready(Err(CloseReason::Session(ending)));
        }
        let mut has_encoded = false;
        // The rest stays in the outbox, where it counts against the client's limit.
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
                    // All later messages wait as well, because a session sees one order (invariant 13).
                    if poll_durable(&mut self.blocked, &self.connection, bound, context)? {
                        continue;
                    }
                    break;
                }
                // The answer to closeSession has yet to be written.
                Taken::End(Ending::Closed) if !self.protocol.is_idle() => break,
                Taken::End(ending) => return Poll::Ready(Err(CloseReason::Session(ending))),
            }
        }
        match has_encoded {
            true => Poll::Ready(Ok(true)),
            false => Poll::Pending,
        }
    }

    /// Writes encoded bytes, or flushes. Ready if either made progress.
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
        // Make room for the answers to requests that are still executed.
        if self.has_write_failed && !self.protocol.outgoing().is_empty() {
            self.protocol.drop_outgoing();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Checks whether the server wants the connection closed. Returns the reason if it must close immediately.
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
            // Admitted since the request, so it may no longer be evicted.
            Poll::Ready(CloseRequest::Evicted) | Poll::Pending => {}
        }
        None
    }

    /// Takes each of the four steps once. Returns true if any of them made progress, or more can be done immediately.
    ///
    /// Reading comes first, so that new requests are answered in the same turn and in one write. If they fired events,
    /// the turn ends before it answers, because the next holder of a lock waits for its event. The former holder waits
    /// for nothing.
    fn advance(&mut self, context: &mut Context<'_>, turn: &mut Turn) -> Result<bool, CloseReason> {
        // A removed user's requests must not be executed.
        if !self.protocol.renew(&self.shared.access) {
            self.record_removed_identity();
            return Err(CloseReason::IdentityRemoved);
        }
        let (mut is_drained, mut has_read, mut count) = (false, false, 0);
        // Start the turn after that with the answers. A client whose every request fires an event must get them, too.
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
        // Answer every request that had arrived, or the client would not know whether it was executed.
        if self.is_draining
            && !has_more
            && self.protocol.asks().is_empty()
            && self.protocol.is_idle()
        {
            return Err(CloseReason::Shutdown);
        }
        // Run again after an answers-only turn, because no step has registered for reading yet.
        Ok(answers_only || has_read || count > 0 || has_encoded || has_sent || has_more)
    }

    /// Returns true if the client has disconnected and all its requests have been executed. `is_drained` is true if a
    /// read just now found nothing.
    fn is_client_gone(&self, is_drained: bool) -> bool {
        // Read a broken connection to its end, too. The last requests of a process that exits may delete its locks.
        let is_over = match self.has_write_failed {
            true => is_drained,
            false => self.is_read_closed && self.protocol.is_idle(),
        };
        is_over && self.protocol.is_caught_up()
    }

    /// Advances until nothing more can be done or the turn is over. Returns the reason if the connection must close.
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
                    // Not `yield_turn`. This task only has to run after the woken ones.
                    context.waker().wake_by_ref();
                    return None;
                }
                Ok(true) => {}
                // Poll a new penalty once, or nothing would wake the task when it ends.
                Ok(false) if self.penalty.is_some() => {}
                Ok(false) => {
                    self.shared.turn_length.served_all(&turn);
                    self.report_silence();
                    return None;
                }
                Err(close) => return Some(close),
            }
            // Requests are left over if their answers have no room or they are too much work for one turn. Let the
            // others run first, so that no client can stall them (invariant 15).
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

    /// Waits for the next turn. Ready with the permit, if this is a further turn.
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

    /// If the store asks before it expires the session, confirms that none of the client's bytes are unread. A session
    /// must not expire while its client's requests wait in the server's socket (rule 14).
    ///
    /// Called only after a turn without progress, so requests that were read have touched the session already.
    fn report_silence(&self) {
        if !self.connection.outbox().is_asked_for_signs() {
            return;
        }
        let is_unread = match self.protocol.has_room() {
            true => self.stream.is_readable(),
            // We do not read. If answers wait for the log, the server is late. Otherwise the client is silent. Requests
            // that wait for room in the log have touched the session already.
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
        // Until this report, the outbox counts messages that were taken out, so the sum over all clients misses none. A
        // poll that changed nothing does not take its lock.
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
    /// The last turn ended early. The next one waits for a permit, in the order in which turns ended.
    Queued(BoxFuture<OwnedSemaphorePermit>),
    /// It starts after the other ready tasks have run.
    Permitted(OwnedSemaphorePermit),
}

/// Schedules the task behind all ready tasks, and after the runtime has polled its sockets.
///
/// `wake_by_ref` is not enough, because tokio polls a task that wakes itself about sixty times before it looks at its
/// sockets.
fn yield_turn(context: &mut Context<'_>) {
    // The first poll hands the waker to the runtime, so the future is not needed after it.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

/// Returns true if a message that reveals `bound` may be sent now. If not, the task is woken when it may.
fn poll_durable(
    blocked: &mut Option<(Zxid, BoxFuture<Result<()>>)>,
    connection: &Connection,
    bound: Zxid,
    context: &mut Context<'_>,
) -> Result<bool, CloseReason> {
    // Keep the future between polls. A new one each time would queue behind all others at the barrier.
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
            // The log has failed, so the message must never leave (invariant 12).
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
        // Check after the turn, so that a proof that arrived in time counts even if this task was polled late.
        let close = match close {
            None if this.poll_proof_deadline(context) => Some(CloseReason::Unproven),
            close => close,
        };
        // Report before the outcome, so that the last turn's figures are not lost.
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
