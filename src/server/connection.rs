//! One connection, as one task: it reads what has arrived, has the store carry it out at one go, and
//! sends what may go out.

use std::collections::VecDeque;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::listener::Shared;
use super::seat::Leave;
use super::table::{Count, Seated};
use super::talk::{Broken, MOST_AT_ONCE, Talk};
use super::unfinished::Share;
use crate::backend::BoxFuture;
use crate::engine::{Connection, Ending, Taken, What};
use crate::error::Result;
use crate::types::Zxid;

/// So much is read at once. It stands on the stack while it is: idle connections have no buffer.
const READ_BYTES: usize = 16 << 10;

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    /// The client has gone, or has closed its session.
    Client,
    Broken(Broken),
    /// The session is over, or has gone elsewhere, or its client does not read.
    Session(Ending),
    Shutdown,
    /// Its request has been coming for too long.
    Unfinished,
    /// The client has not proved in time who it is.
    Unproven,
}

/// The talk over one connection, until it ends.
pub(super) struct Conversation<'a, S> {
    stream: S,
    shared: &'a Shared,
    seat: &'a Seated,
    connection: Connection,
    talk: Talk,
    /// What was taken from the outbox and is written down next.
    said: VecDeque<What>,
    /// What the next thing in the outbox waits for.
    held: Option<(Zxid, BoxFuture<Result<()>>)>,
    needs_flush: bool,
    is_leaving: bool,
    /// The bytes that the connection was last said to hold; `None` when it has taken out more since.
    held_bytes: Option<usize>,
    unfinished: Share<'a>,
    /// Until when the client must have proved who it is, where that is asked for.
    proof: Option<Pin<Box<Sleep>>>,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Conversation<'a, S> {
    pub(super) fn new(
        stream: S,
        shared: &'a Shared,
        seat: &'a Seated,
        connection: Connection,
        talk: Talk,
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
            held_bytes: Some(0),
            unfinished: shared.unfinished.share(seat),
            proof: (!talk.lets_in()).then(|| Box::pin(sleep(shared.limits.handshake))),
            talk,
        }
    }

    /// Whether the client has had its time to prove who it is.
    fn is_unproven(&mut self, context: &mut Context<'_>) -> bool {
        if self.talk.lets_in() {
            self.proof = None;
        }
        let proof = self.proof.as_mut();
        proof.is_some_and(|proof| proof.as_mut().poll(context).is_ready())
    }

    /// Reads, if there is room for what may come. Whether anything has.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Close>> {
        if self.is_leaving || !self.talk.has_room() {
            return Poll::Pending;
        }
        let mut buffer = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
        if read.is_err() || buffer.filled().is_empty() {
            return Poll::Ready(Err(Close::Client));
        }
        self.talk.receive(buffer.filled());
        Poll::Ready(Ok(true))
    }

    /// Has the store carry out what has arrived; how many requests that were.
    fn ask(&mut self) -> Result<usize, Close> {
        let clock = self.shared.clock();
        if self.talk.asks().is_empty() {
            let taken = self.talk.take_up(clock.now());
            if let Err(broken) = taken {
                return Err(Close::Broken(broken));
            }
            let is_new = !self.talk.asks().is_empty();
            self.unfinished.set(self.talk.unfinished_bytes(), is_new);
        }
        let asks = self.talk.asks();
        if asks.is_empty() {
            return Ok(0);
        }
        Ok(self.connection.submit(asks))
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

    /// Sends what was written down. Whether anything was.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Close>> {
        let bytes = self.talk.outgoing();
        if !bytes.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
            return Poll::Ready(match written {
                Ok(0) | Err(_) => Err(Close::Client),
                Ok(count) => {
                    self.talk.advance(count);
                    self.needs_flush = true;
                    Ok(true)
                }
            });
        }
        if self.needs_flush {
            let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
            self.needs_flush = false;
            return Poll::Ready(flushed.map(|()| true).map_err(|_| Close::Client));
        }
        Poll::Pending
    }

    /// Hears whether the server wants the connection to end. Why, if that is at once.
    fn poll_leave(&mut self, context: &mut Context<'_>) -> Option<Close> {
        let asked = std::pin::pin!(self.seat.asked_to_leave());
        match asked.poll(context) {
            Poll::Ready(Leave::Now) => return Some(Close::Shutdown),
            Poll::Ready(Leave::Unfinished) => return Some(Close::Unfinished),
            Poll::Ready(Leave::Shutdown) => self.is_leaving = true,
            // One that has a session by now was not quite too late.
            Poll::Ready(Leave::PushedOut) | Poll::Pending => {}
        }
        None
    }

    /// Does all that can be done now. Whether that was anything.
    fn advance(&mut self, context: &mut Context<'_>) -> Result<Option<usize>, Close> {
        let has_read = matches!(self.poll_read(context)?, Poll::Ready(true));
        let count = self.ask()?;
        let has_said = matches!(self.poll_say(context)?, Poll::Ready(true));
        let has_sent = matches!(self.poll_write(context)?, Poll::Ready(true));
        if self.talk.is_done() && !self.needs_flush {
            return Err(Close::Client);
        }
        let has_more = self.talk.has_more();
        if self.is_leaving && !has_more && self.talk.asks().is_empty() && self.talk.is_idle() {
            return Err(Close::Shutdown);
        }
        let moved = has_read || count > 0 || has_said || has_sent || has_more;
        Ok(moved.then_some(count))
    }

    /// Goes on until nothing can be done now, or others have their turn. Why the talk is over, if it is.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Option<Close> {
        let mut done = 0;
        loop {
            match self.advance(context) {
                Ok(Some(count)) => done += count,
                Ok(None) => return None,
                Err(close) => return Some(close),
            }
            if done >= MOST_AT_ONCE {
                context.waker().wake_by_ref();
                return None;
            }
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

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Conversation<'_, S> {
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
