//! Sessions of other processes: they outlive their connections and, on disk, the store's process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

#[cfg(feature = "file")]
use super::durable::DurabilityBarrier;
use super::outbox::{Ending, Outbox};
#[cfg(not(feature = "file"))]
use super::unkept::DurabilityBarrier;
use super::{Engine, State, Store, Wakeups, put_at};
use crate::core::{
    CoreReply, Found, Now, ReattachError, SessionRef, SetWatches, UNIT_BYTES, WatchFilter,
};
use crate::error::{Error, Result};
use crate::fork;
use crate::future::BoxFuture;
use crate::identity::Identity;
use crate::path::ZnodePath;
use crate::protocol::{Reply, Request};
use crate::random::random;
use crate::size::Scale;
use crate::types::{SessionId, Zxid};

/// The way in for sessions of other processes.
#[derive(Clone)]
pub(crate) struct Remote {
    engine: Arc<Engine>,
    requires_proof: bool,
}

/// A session of another process, over one of its connections. Dropping it leaves the session alone, but
/// for its watches: it may be taken up again, until its timeout has passed. Where proof is required, a session
/// for which nobody has ever proved an identity ends with it.
pub(crate) struct Connection {
    engine: Arc<Engine>,
    session: SessionRef,
    timeout: Duration,
    password: [u8; 16],
    outbox: Arc<Outbox>,
    gate: Option<Arc<DurabilityBarrier>>,
    /// Nothing goes out before the log has this transaction, in any class of durability: with it, the log has the
    /// timeout of a session that was proved over this connection.
    proved_at: AtomicI64,
    /// Ends when the log has room for the next request, while it is too busy for it.
    room: Mutex<Option<BoxFuture<()>>>,
}

/// What a connection asks of its session.
#[derive(Debug)]
pub(crate) enum Ask {
    Request(Request),
    /// A sign of life; it may be no more than a frame that could not be read. Answered by [`Reply::Done`].
    Ping,
    /// The client has proved this. Answered by [`Reply::Done`].
    Identify(Identity),
    /// Answered by [`Reply::Done`], after the events that it fires.
    SetWatches(SetWatches),
    /// A search for the session's ephemeral znodes that an earlier turn has begun. Answered by [`Reply::Paths`].
    Search {
        prefix: ZnodePath,
        found: Found,
    },
    /// Answered by [`Reply::Count`]: 0 where there is none.
    CheckWatches(ZnodePath, WatchFilter),
    /// As `CheckWatches`, and they are taken back.
    RemoveWatches(ZnodePath, WatchFilter),
}

/// How many bytes of answers wait before no more requests are carried out: they are taken up again when
/// the client has read.
const ENOUGH_BYTES: usize = 256 << 10;

/// Units of work after which a turn ends: others have the lock before what is left is carried out. A unit takes some
/// 10 to 100 ns, so about a millisecond. A turn goes beyond it by at most one request, whose work is bounded by its own
/// bytes and those of its answer.
const TURN_WORK: u64 = 16_384;

/// Units of work after which a request that can be cut is cut: the rest of it has a turn of its own.
const PIECE: usize = 8_192;

/// Units of work that any request takes: parsing, answering, sending.
const REQUEST_WORK: u64 = 8;

impl Ask {
    /// Units of work that this takes before the core has looked at it.
    fn work(&self) -> u64 {
        let bytes_of = |path: &ZnodePath| path.as_str().len();
        let bytes: usize = match self {
            Self::Request(request) => Scale { prefix: 0 }.request(request),
            Self::SetWatches(asked) if asked.done > 0 => 0,
            Self::SetWatches(asked) => asked.lists().into_iter().flatten().map(bytes_of).sum(),
            Self::CheckWatches(path, _) | Self::RemoveWatches(path, _) => bytes_of(path),
            // Each piece of what was cut is counted by the core.
            Self::Ping | Self::Identify(_) | Self::Search { .. } => 0,
        };
        REQUEST_WORK + (bytes / UNIT_BYTES) as u64
    }
}

impl Store {
    /// Lets sessions of other processes in. From now on everything is logged: also the sessions of this
    /// process, which others may see.
    ///
    /// # Errors
    /// [`Error::StoreFailed`], [`Error::DiskFull`], [`Error::Forked`].
    pub(crate) fn attach(&self) -> Result<Remote> {
        fork::check()?;
        self.0.keep_all()?;
        self.0.measure_stalls();
        Ok(Remote {
            engine: self.0.clone(),
            requires_proof: false,
        })
    }
}

impl Remote {
    /// Has the sessions that it opens be no part of the store until somebody proves an identity for them: they are not
    /// logged, take no place, and end with their connection.
    pub(crate) fn requiring_proof(self, requires_proof: bool) -> Self {
        Self {
            requires_proof,
            ..self
        }
    }

    /// Limits the bytes that may wait for all clients together to read them. Beyond it slow readers go.
    pub(crate) fn limiting_unread(self, limit: usize) -> Self {
        let mut state = self.engine.state.lock();
        state.unread.set_limit(limit);
        // They are there twice while they are handed out.
        state.core.limit_events(limit / 2);
        drop(state);
        self
    }

    /// The bytes that wait for all clients together to read them.
    #[cfg(test)]
    pub(crate) fn unread_bytes(&self) -> usize {
        self.engine.state.lock().unread.bytes()
    }

    /// Opens a session, of whose outbox at most `limit` bytes may be filled. Waits until the store accepts
    /// sessions, and until the log has what it must have before the client may rely on its session.
    ///
    /// # Errors
    /// As of any request that the log must keep, and [`Error::LimitReached`] when there are too many
    /// sessions.
    pub(crate) async fn open(&self, timeout: Duration, limit: usize) -> Result<Connection> {
        while let Some(pause) = self.engine.pause() {
            pause.await;
        }
        // A log that is busy, not full, lets nobody in vain.
        while let Some(room) = self.room() {
            room.await;
        }
        let (connection, kept) = self.enter(timeout, limit)?;
        kept.await?;
        Ok(connection)
    }

    fn room(&self) -> Option<BoxFuture<()>> {
        self.engine.state.lock().session_room()
    }

    /// A new session, and when its client may be told of it.
    fn enter(
        &self,
        timeout: Duration,
        limit: usize,
    ) -> Result<(Connection, BoxFuture<Result<()>>)> {
        let engine = &self.engine;
        let id = SessionId(i64::from_ne_bytes(random()) & i64::MAX | 1);
        let (now, password) = (engine.now(true, true), random());
        let mut state = engine.state.lock();
        state.check_session()?;
        let before = state.core.last_kept();
        if self.requires_proof {
            let (session, timeout) = state.core.open_unproven(id, password, timeout, now)?;
            let connection = self.connection(&mut state, session, timeout, password, limit);
            state.seat_unproven(session.slot);
            engine.settle(state);
            return Ok((connection, Box::pin(std::future::ready(Ok(())))));
        }
        let opened = state
            .core
            .open_session(id, password, Some(timeout), false, now);
        let (session, granted) = opened?;
        let timeout = granted.unwrap_or(timeout);
        let connection = self.connection(&mut state, session, timeout, password, limit);
        let passage = state.seat_remote(session.slot, timeout, before);
        engine.settle(state);
        if let Some(passage) = passage {
            return Ok((connection, Box::pin(passage)));
        }
        Ok((connection, Box::pin(std::future::ready(Ok(())))))
    }

    /// Takes a session up again over another connection: the one before is closed. The timeout is agreed anew, and
    /// is never longer than the one that the session was opened with, which the log has.
    ///
    /// The inner result is what becomes of it: a wrong password leaves the connection before alone.
    ///
    /// # Errors
    /// [`Error::StoreFailed`].
    pub(crate) async fn reattach(
        &self,
        id: SessionId,
        password: [u8; 16],
        timeout: Duration,
        limit: usize,
    ) -> Result<Result<Connection, ReattachError>> {
        while let Some(pause) = self.engine.pause() {
            pause.await;
        }
        self.take_up(id, &password, timeout, limit)
    }

    fn take_up(
        &self,
        id: SessionId,
        password: &[u8; 16],
        timeout: Duration,
        limit: usize,
    ) -> Result<Result<Connection, ReattachError>> {
        let engine = &self.engine;
        let now = engine.now(true, true);
        let mut state = engine.state.lock();
        // It takes no room: on a full disk, too, clients come back to what they hold.
        state.check_log()?;
        // The former connection may have a million watches: they go in pieces, and others have the lock in between.
        while state.core.displace(id, password) {
            MutexGuard::bump(&mut state);
        }
        let state_now = &mut *state;
        let before = state_now.core.last_kept();
        let effects = &mut state_now.effects;
        let found = state_now.core.reattach(id, password, timeout, now, effects);
        state_now.keep(before);
        // Only now: ids are no secret, and the owner's connection is closed by the password alone.
        let former = found
            .as_ref()
            .ok()
            .and_then(|(session, _)| state_now.outboxes.get_mut(session.slot as usize)?.take());
        let connection = found.map(|(session, timeout)| {
            self.connection(state_now, session, timeout, *password, limit)
        });
        engine.settle(state);
        if let Some(former) = former
            && former.end(Ending::Moved)
        {
            former.wake();
        }
        Ok(connection)
    }

    fn connection(
        &self,
        state: &mut State,
        session: SessionRef,
        timeout: Duration,
        password: [u8; 16],
        limit: usize,
    ) -> Connection {
        let outbox = Arc::new(Outbox::new(limit, state.unread.clone()));
        state.core.limit_answers(session, limit);
        put_at(&mut state.outboxes, session.slot, outbox.clone());
        Connection {
            engine: self.engine.clone(),
            session,
            timeout,
            password,
            outbox,
            gate: state.gate(),
            proved_at: AtomicI64::new(0),
            room: Mutex::default(),
        }
    }

    /// Whose digest makes a superuser.
    pub(crate) fn superuser(&self) -> Option<Identity> {
        self.engine.state.lock().core.superuser().cloned()
    }

    /// The last zxid that was given out: a client that has seen a later one was at another store.
    pub(crate) fn last_zxid(&self) -> Zxid {
        self.engine.state.lock().core.last_zxid()
    }
}

impl Connection {
    pub(crate) fn id(&self) -> SessionId {
        self.session.id
    }

    /// As it was agreed on.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What the client proves with that the session is its own.
    pub(crate) fn password(&self) -> [u8; 16] {
        self.password
    }

    /// The client has this identity, whoever it is: by where it comes from, or by its certificate.
    pub(crate) fn identify(&self, identity: Identity) {
        let now = self.engine.now(true, true);
        let mut state = self.engine.state.lock();
        // There are not too many yet; a session that cannot be kept has ended, as its client will hear.
        let _ = self.identify_in(identity, now, &mut state);
        self.engine.settle(state);
    }

    /// Adds an identity, and hands the session to the log if that makes it a part of the store.
    fn identify_in(&self, identity: Identity, now: Now, state: &mut State) -> Result<()> {
        let room = state.check_session();
        let before = state.core.last_kept();
        let effects = &mut state.effects;
        let identified = state
            .core
            .identify(self.session, identity, room, now, effects);
        if let Ok(Some(timeout)) = identified {
            let proved_at = state.keep_proved(self.session.slot, timeout, before);
            self.proved_at.store(proved_at.0, Ordering::Release);
        }
        identified.map(|_| ())
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Returns true if the log is too busy for the next request.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.room.lock().is_some()
    }

    /// Waits while the log is too busy for the next request. Ready at once where that is not so.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut room = self.room.lock();
        if let Some(waiting) = &mut *room {
            ready!(waiting.as_mut().poll(context));
        }
        *room = None;
        Poll::Ready(())
    }

    /// Carries out what is asked, in order, as far as there is room for the answers, which go to the outbox in the same
    /// order, and in the log ([`poll_room`](Self::poll_room) tells when there will be), and until the work of a turn is
    /// done. Answers how many were: a piece of a request is one, too.
    pub(crate) fn submit(&self, asks: &mut VecDeque<Ask>) -> usize {
        let mut waiting = self.outbox.waiting_bytes();
        if waiting > ENOUGH_BYTES {
            return 0;
        }
        let now = self.engine.now(true, true);
        let mut guard = self.engine.state.lock();
        let state = &mut *guard;
        let mut wakeups = Wakeups::default();
        let (mut count, mut work) = (0, 0);
        let before = state.core.work();
        while waiting <= ENOUGH_BYTES
            && work + (state.core.work() - before) < TURN_WORK
            && let Some(ask) = asks.pop_front()
        {
            if let Some(room) = self.room_for(&ask, state) {
                *self.room.lock() = Some(room);
                asks.push_front(ask);
                // Its client has done its part.
                let _ = self.ask_core(Ask::Ping, Zxid(0), now, state);
                state.collect(&mut wakeups);
                break;
            }
            count += 1;
            work += ask.work();
            match self.carry_out(ask, now, state, &mut wakeups) {
                Outcome::Answered(bytes) => waiting = bytes,
                Outcome::Cut(rest) => {
                    asks.push_front(rest);
                    break;
                }
                Outcome::Over => break,
            }
        }
        wakeups.alarm = state.next_alarm(&self.engine.clock);
        drop(guard);
        wakeups.carry_out(&self.engine);
        count
    }

    /// Waits while the log is too busy for this; `None` if it is not.
    fn room_for(&self, ask: &Ask, state: &State) -> Option<BoxFuture<()>> {
        match ask {
            Ask::Request(request) => state.request_room(self.session, request),
            Ask::Identify(_) => state.session_room(),
            _ => None,
        }
    }

    /// Does one thing, or a piece of it.
    fn carry_out(&self, ask: Ask, now: Now, state: &mut State, wakeups: &mut Wakeups) -> Outcome {
        let admitted = match &ask {
            Ask::Request(request) => state.admit(self.session, request),
            // What they tell shows how things stand, whatever made them so.
            Ask::SetWatches(_) | Ask::Search { .. } => Ok(state.core.last_kept()),
            _ => Ok(Zxid(0)),
        };
        let (answer, shown) = match admitted {
            Ok(shown) => match self.ask_core(ask, shown, now, state) {
                Step::Done(answer, shown) => (answer, shown),
                Step::Cut(rest) => {
                    // Its events, so far, leave with whatever they show.
                    state.bind(self.session.slot, shown);
                    state.collect(wakeups);
                    return Outcome::Cut(rest);
                }
            },
            Err(error) => (Err(error), Zxid(0)),
        };
        if let Err(error @ (Error::SessionMoved { .. } | Error::SessionExpired { .. })) = &answer {
            let moved = matches!(error, Error::SessionMoved { .. });
            state.collect(wakeups);
            self.outbox.end(if moved {
                Ending::Moved
            } else {
                Ending::Expired
            });
            return Outcome::Over;
        }
        let zxid = state.core.last_zxid();
        // Of what goes to this session next, its own events are the first.
        let bound = state.bind(self.session.slot, shown);
        state.collect(wakeups);
        let waiting = self.outbox.put_answer(bound, zxid, answer);
        if state.unread.is_over() {
            state.cut_slow_readers(wakeups);
        }
        Outcome::Answered(waiting)
    }

    /// Has the core do one thing, or a piece of it.
    fn ask_core(&self, ask: Ask, mut shown: Zxid, now: Now, state: &mut State) -> Step {
        let (core, effects, session) = (&mut state.core, &mut state.effects, self.session);
        let before = core.last_kept();
        let answer = match ask {
            Ask::Request(Request::GetEphemerals { prefix }) => {
                let found = core.begin_search(session);
                return self.ask_core(Ask::Search { prefix, found }, shown, now, state);
            }
            Ask::Search { prefix, mut found } => {
                match core.search_some(session, &prefix, PIECE, &mut found, now, effects) {
                    Ok(true) => {
                        state.keep(before);
                        return Step::Cut(Ask::Search { prefix, found });
                    }
                    searched => searched.map(|_| Reply::Paths(found.paths)),
                }
            }
            Ask::Request(Request::Close) if core.shed_before_close(session) => {
                state.keep(before);
                return Step::Cut(Ask::Request(Request::Close));
            }
            Ask::Request(request) => core.submit(session, request, now, effects),
            Ask::Ping => core.ping(session, now, effects).map(|()| Reply::Done),
            Ask::Identify(identity) => core
                .ping(session, now, effects)
                .and_then(|()| self.identify_in(identity, now, state))
                .map(|()| Reply::Done),
            Ask::SetWatches(mut asked) => {
                match core.set_some_watches(session, &mut asked, PIECE, now, effects) {
                    Ok(true) => {
                        state.keep(before);
                        return Step::Cut(Ask::SetWatches(asked));
                    }
                    set => set.map(|_| Reply::Done),
                }
            }
            Ask::CheckWatches(path, which) => core
                .has_watch(session, &path, which, now, effects)
                .map(|has| Reply::Count(has.into())),
            Ask::RemoveWatches(path, which) => core
                .remove_watches(session, &path, which, now, effects)
                .map(|had| Reply::Count(had.into())),
        };
        state.keep(before);
        if answer.is_err() {
            // It says what is not, or what is otherwise: whatever made it so.
            shown = state.core.last_kept();
        }
        Step::Done(answer, shown)
    }

    /// Whether what shows this transaction may leave.
    pub(crate) fn may_leave(&self, bound: Zxid) -> bool {
        let proved_at = Zxid(self.proved_at.load(Ordering::Acquire));
        let gate = self.gate.as_ref();
        gate.is_none_or(|gate| gate.is_open_to(bound) && gate.has_written(proved_at))
    }

    /// Waits until what shows this transaction may leave.
    ///
    /// # Errors
    /// [`Error::StoreFailed`]: it never will.
    pub(crate) fn passage(&self, bound: Zxid) -> BoxFuture<Result<()>> {
        let proved_at = Zxid(self.proved_at.load(Ordering::Acquire));
        match &self.gate {
            Some(gate) if gate.has_written(proved_at) => Box::pin(gate.passage(bound)),
            Some(gate) => Box::pin(gate.written(proved_at)),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }
}

impl Connection {
    /// Says that all is read that the client has sent. If it was asked for signs of life, and there was none among it,
    /// that ends the session. What the log does not take now ends by a tick.
    pub(crate) fn end_silent(&self) {
        if !self.outbox.take_question() {
            return;
        }
        let now = self.engine.now(true, true);
        let mut state = self.engine.state.lock();
        let state_now = &mut *state;
        if !state_now.may_tick() {
            return;
        }
        let before = state_now.core.last_kept();
        let effects = &mut state_now.effects;
        state_now.core.end_silent(self.session, now, effects);
        state_now.keep(before);
        self.engine.settle(state);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let now = self.engine.now(true, true);
        let mut state = self.engine.state.lock();
        loop {
            let state_now = &mut *state;
            let has_more = state_now
                .core
                .detach(self.session, now, &mut state_now.effects);
            if !has_more {
                break;
            }
            // There may be a million watches: others have the lock in between.
            MutexGuard::bump(&mut state);
        }
        let state_now = &mut *state;
        let outbox = state_now.outboxes.get_mut(self.session.slot as usize);
        if let Some(outbox) = outbox
            && outbox
                .as_ref()
                .is_some_and(|outbox| Arc::ptr_eq(outbox, &self.outbox))
        {
            *outbox = None;
        }
        self.engine.settle(state);
    }
}

/// A step of the core's with one thing that was asked.
enum Step {
    /// The answer, and the last transaction that it shows.
    Done(Result<CoreReply>, Zxid),
    /// A piece is done, and this is the rest.
    Cut(Ask),
}

/// The fate of one thing that was asked.
enum Outcome {
    /// It is answered; about so many bytes wait to go out now.
    Answered(usize),
    /// A piece of it is done, and this is the rest.
    Cut(Ask),
    /// The session is another connection's, or over.
    Over,
}
