//! One connection, as one task: it reads what has arrived, has the store carry it out at one go, and
//! sends what may go out.

use std::collections::VecDeque;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;
use tokio::time::{Sleep, sleep};

use super::connection_entry::CloseRequest;
use super::connection_table::{ConnectionGuard, Count};
use super::listener::Shared;
use super::protocol::{ProtocolState, ProtocolViolation, Turn};
use super::transport::Transport;
use super::unfinished::Share;
use crate::engine::{Connection, Ending, Message, Taken};
use crate::error::Result;
use crate::future::BoxFuture;
use crate::types::Zxid;

/// So much is read at once. It stands on the stack while it is: idle connections have no buffer.
const READ_BYTES: usize = 16 << 10;

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    /// The client has gone, or has closed its session.
    Client,
    ProtocolViolation(ProtocolViolation),
    /// The session is over, or has gone elsewhere, or its client does not read.
    Session(Ending),
    Shutdown,
    /// Its request has been coming for too long.
    Unfinished,
    /// The client has not proved who it is, in time or before others came.
    Unproven,
}

/// The talk over one connection, until it ends.
pub(super) struct Conversation<'a, S> {
    stream: S,
    shared: &'a Shared,
    seat: &'a ConnectionGuard,
    connection: Connection,
    talk: ProtocolState,
    /// What was taken from the outbox and is written down next.
    said: VecDeque<Message>,
    /// What the next thing in the outbox waits for.
    held: Option<(Zxid, BoxFuture<Result<()>>)>,
    needs_flush: bool,
    is_leaving: bool,
    /// True once the client has said that it sends no more, or the connection has broken.
    has_ended: bool,
    /// True once the client has taken its last answer. What it sent before is carried out all the same: a process that
    /// ends releases its locks so.
    is_deaf: bool,
    /// The bytes that the connection was last said to hold; `None` when it has taken out more since.
    held_bytes: Option<usize>,
    unfinished: Share<'a>,
    /// Holds back the answer to a proof of identity that failed.
    penalty: Option<BoxFuture<()>>,
    /// Until when the client must have proved who it is, where that is asked for.
    proof: Option<Pin<Box<Sleep>>>,
}

impl<'a, S: Transport> Conversation<'a, S> {
    pub(super) fn new(
        stream: S,
        shared: &'a Shared,
        seat: &'a ConnectionGuard,
        connection: Connection,
        talk: ProtocolState,
    ) -> Self {
        Self {
            stream,
            shared,
            seat,
            connection,
            said: VecDeque::new(),
            held: None,
            needs_flush: false,
            is_leaving: false,
            has_ended: false,
            is_deaf: false,
            held_bytes: Some(0),
            unfinished: shared.unfinished.share(seat),
            penalty: None,
            proof: (!talk.lets_in()).then(|| Box::pin(sleep(shared.limits.handshake))),
            talk,
        }
    }

    /// Whether the client has had its time to prove who it is.
    fn is_unproven(&mut self, context: &mut Context<'_>) -> bool {
        if self.talk.lets_in() && self.proof.take().is_some() {
            self.seat.let_in();
        }
        let proof = self.proof.as_mut();
        proof.is_some_and(|proof| proof.as_mut().poll(context).is_ready())
    }

    /// Reads, if there is room for what may come. Ready when anything has come, or the end.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_leaving || self.has_ended || !self.talk.has_room() {
            return Poll::Pending;
        }
        let mut buffer = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
        self.has_ended = read.is_err() || buffer.filled().is_empty();
        self.talk.receive(buffer.filled());
        Poll::Ready(())
    }

    /// Has the store carry out what has arrived; how many requests that were.
    fn ask(&mut self, context: &mut Context<'_>, turn: &mut Turn) -> Result<usize, Close> {
        let clock = self.shared.clock();
        if self.talk.asks().is_empty() {
            let taken = self.talk.take_up(clock.now(), turn);
            if let Err(broken) = taken {
                return Err(Close::ProtocolViolation(broken));
            }
            let is_new = !self.talk.asks().is_empty();
            self.unfinished.set(self.talk.unfinished_bytes(), is_new);
            if self.talk.has_failed_proof() {
                self.penalize();
            }
        }
        if self.penalty.is_some() {
            return Ok(0);
        }
        let asks = self.talk.asks();
        if asks.is_empty() {
            return Ok(0);
        }
        let mut count = 0;
        // A busy log lets the client wait: nothing more is read from it meanwhile.
        while self.connection.poll_room(context).is_ready() {
            count += self.connection.submit(asks);
            if !self.connection.waits_for_room() {
                break;
            }
        }
        Ok(count)
    }

    /// Holds back the answers that are due: a proof of identity is the last of what they answer, and has failed.
    fn penalize(&mut self) {
        let (address, now) = (self.seat.address(), self.shared.clock().now());
        if let Some(untold) = self.shared.table.told.failed_proof.tell(now) {
            tracing::warn!(%address, untold, "a client has failed to prove who it is: its answer is held back");
        }
        self.penalty = Some(Box::pin(self.shared.penalty(address)));
    }

    /// Waits while answers are held back. What the client still sends is dropped, since nothing may follow a failed
    /// proof; that it goes is heard.
    fn poll_penalty(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Close>> {
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
                return Poll::Ready(Err(Close::Client));
            }
        }
    }

    /// Writes down what may go out. Whether anything was.
    fn poll_say(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Close>> {
        self.connection.outbox().register(context.waker());
        if let Some(ending) = self.connection.outbox().is_cut() {
            return Poll::Ready(Err(Close::Session(ending)));
        }
        let mut has_said = false;
        while self.talk.room() > 0 {
            let (room, connection) = (self.talk.room(), &self.connection);
            let taken =
                connection
                    .outbox()
                    .take(room, |bound| connection.may_leave(bound), &mut self.said);
            if !self.said.is_empty() {
                has_said = true;
                self.held_bytes = None;
                let now = self.shared.clock().now();
                for what in self.said.drain(..) {
                    self.talk.say(what, now);
                }
            }
            match taken {
                Taken::Some => {}
                Taken::Nothing => break,
                Taken::Held(bound) => {
                    if ready_to_leave(&mut self.held, &self.connection, bound, context)? {
                        continue;
                    }
                    break;
                }
                Taken::End(Ending::Closed) if !self.talk.is_idle() => break,
                Taken::End(ending) => return Poll::Ready(Err(Close::Session(ending))),
            }
        }
        match has_said {
            true => Poll::Ready(Ok(true)),
            false => Poll::Pending,
        }
    }

    /// Sends what was written down. Ready when anything was.
    fn poll_write(&mut self, context: &mut Context<'_>, turn: &mut Turn) -> Poll<()> {
        let bytes = self.talk.outgoing();
        if !bytes.is_empty() && !self.is_deaf {
            match ready!(Pin::new(&mut self.stream).poll_write(context, bytes)) {
                Ok(0) | Err(_) => self.is_deaf = true,
                Ok(count) => {
                    self.talk.advance(count);
                    turn.take_bytes(count);
                    self.needs_flush = true;
                }
            }
            return Poll::Ready(());
        }
        if self.needs_flush && !self.is_deaf {
            let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
            self.is_deaf = flushed.is_err();
            self.needs_flush = false;
            return Poll::Ready(());
        }
        if self.is_deaf && !self.talk.outgoing().is_empty() {
            self.talk.drop_outgoing();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Hears whether the server wants the connection to end. Why, if that is at once.
    fn poll_leave(&mut self, context: &mut Context<'_>) -> Option<Close> {
        let asked = pin!(self.seat.asked_to_leave());
        match asked.poll(context) {
            Poll::Ready(CloseRequest::Now) => return Some(Close::Shutdown),
            Poll::Ready(CloseRequest::Unfinished) => return Some(Close::Unfinished),
            Poll::Ready(CloseRequest::Shutdown) => self.is_leaving = true,
            Poll::Ready(CloseRequest::PushedOut) if !self.talk.lets_in() => {
                return Some(Close::Unproven);
            }
            // One that is let in by now was not quite too late.
            Poll::Ready(CloseRequest::PushedOut) | Poll::Pending => {}
        }
        None
    }

    /// Does all that can be done now. Whether that was anything.
    fn advance(&mut self, context: &mut Context<'_>, turn: &mut Turn) -> Result<bool, Close> {
        let has_room = self.talk.has_room();
        let has_read = self.poll_read(context).is_ready();
        let is_read = has_room && !has_read;
        let count = self.ask(context, turn)?;
        let has_said = matches!(self.poll_say(context)?, Poll::Ready(true));
        let has_sent = self.poll_write(context, turn).is_ready();
        let is_done = self.talk.is_done() && !self.needs_flush;
        if is_done || self.has_gone(is_read) {
            return Err(Close::Client);
        }
        let has_more = self.talk.has_more();
        if self.is_leaving && !has_more && self.talk.asks().is_empty() && self.talk.is_idle() {
            return Err(Close::Shutdown);
        }
        Ok(has_read || count > 0 || has_said || has_sent || has_more)
    }

    /// Returns true if the client has gone, and all that it sent before is carried out. `is_read`: nothing was there to
    /// be read.
    fn has_gone(&self, is_read: bool) -> bool {
        let is_over = match self.is_deaf {
            true => is_read,
            false => self.has_ended && self.talk.is_idle(),
        };
        is_over && self.talk.is_taken_up()
    }

    /// Goes on until nothing can be done now, or others have their turn. Why the talk is over, if it is.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Option<Close> {
        let mut turn = Turn::new(self.talk.asks().len());
        loop {
            match self.poll_penalty(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(close)) => return Some(close),
                Poll::Pending => return None,
            }
            match self.advance(context, &mut turn) {
                Ok(true) => {}
                // A penalty that has just begun is polled first.
                Ok(false) if self.penalty.is_some() => {}
                Ok(false) => {
                    self.note_silence();
                    return None;
                }
                Err(close) => return Some(close),
            }
            // What is left of a turn's requests had no room for its answers, or was too much work for one turn.
            if turn.is_over() || !self.talk.asks().is_empty() {
                give_way(context);
                return None;
            }
        }
    }

    /// Tells the store, where it asks, that the client has sent no sign of life: nothing is left to be read.
    fn note_silence(&self) {
        if !self.connection.outbox().is_asked_for_signs() {
            return;
        }
        let is_unread = match self.talk.has_room() {
            true => self.stream.is_readable(),
            // What waits for the log, and not for the client to read, was sent in time.
            false => self.held.is_some(),
        };
        if !is_unread {
            self.connection.end_silent();
        }
    }

    fn note(&mut self) {
        if let Some(bytes) = self.talk.too_large() {
            let (address, limit) = (self.seat.address(), self.shared.limits.outgoing_bytes);
            let now = self.shared.clock().now();
            if let Some(untold) = self.shared.table.told.too_large.tell(now) {
                tracing::warn!(%address, bytes, limit, untold, "a reply is too large to be sent: it is refused");
            }
        }
        let held = self.talk.held_bytes();
        if self.held_bytes.replace(held) != Some(held) {
            self.connection.outbox().set_beside(held);
        }
        self.seat.note(&self.talk.traffic());
        self.seat.set_reading(self.talk.has_room());
    }
}

/// Has the task polled again after all others that are ready, and after the runtime has looked at its sockets. A task that
/// wakes itself comes again before that, some sixty times, while requests of others wait in the kernel.
fn give_way(context: &mut Context<'_>) {
    // The first poll leaves the waker with the runtime, which calls it then: nothing else is left to do.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

/// Whether what shows this may leave now; if not, the task is woken when it may.
fn ready_to_leave(
    held: &mut Option<(Zxid, BoxFuture<Result<()>>)>,
    connection: &Connection,
    bound: Zxid,
    context: &mut Context<'_>,
) -> Result<bool, Close> {
    let is_new = held.as_ref().is_none_or(|(to, _)| *to != bound);
    if is_new {
        *held = Some((bound, connection.passage(bound)));
    }
    let Some((_, passage)) = held else {
        return Ok(true);
    };
    match passage.as_mut().poll(context) {
        Poll::Pending => Ok(false),
        Poll::Ready(passed) => {
            *held = None;
            passed.map_err(|_| Close::Session(Ending::Stopped))?;
            Ok(true)
        }
    }
}

impl<S: Transport> Future for Conversation<'_, S> {
    type Output = Close;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Close> {
        let this = &mut *self;
        let close = match this.poll_leave(context) {
            None => this.poll_turn(context),
            close => close,
        };
        let close = match close {
            None if this.is_unproven(context) => Some(Close::Unproven),
            close => close,
        };
        this.note();
        match close {
            None => Poll::Pending,
            Some(close) => {
                if close == Close::Session(Ending::Overflow) {
                    this.seat.table().count(Count::NotRead);
                }
                Poll::Ready(close)
            }
        }
    }
}
