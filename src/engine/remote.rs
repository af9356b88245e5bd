//! Sessions of other processes: they outlive their connections and, on disk, the store's process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "file")]
use super::durable::Gate;
use super::outbox::{Ending, Outbox};
#[cfg(not(feature = "file"))]
use super::unkept::Gate;
use super::{Aftermath, Engine, State, Store, put_at, random};
use crate::backend::{BoxFuture, Reply, Request};
use crate::core::{Answer, Now, SessionRef, SetWatches, Unattached, Which};
use crate::error::{Error, Result};
use crate::fork;
use crate::identity::Identity;
use crate::path::ZnodePath;
use crate::types::{SessionId, Zxid};

/// The way in for sessions of other processes.
#[derive(Clone)]
pub(crate) struct Remote {
    engine: Arc<Engine>,
    requires_proof: bool,
}

/// A session of another process, over one of its connections. Dropping it leaves the session alone, but
/// for its watches: it may be taken up again, until its timeout has passed. Where proof is required, a session
/// for which nobody has ever proved an identity is closed.
pub(crate) struct Connection {
    engine: Arc<Engine>,
    session: SessionRef,
    timeout: Duration,
    password: [u8; 16],
    outbox: Arc<Outbox>,
    gate: Option<Arc<Gate>>,
    requires_proof: bool,
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
    /// Answered by [`Reply::Count`]: 0 where there is none.
    CheckWatches(ZnodePath, Which),
    /// As `CheckWatches`, and they are taken back.
    RemoveWatches(ZnodePath, Which),
}

/// How many bytes of answers wait before no more requests are carried out: they are taken up again when
/// the client has read.
const ENOUGH_BYTES: usize = 256 << 10;

impl Store {
    /// Lets sessions of other processes in. From now on everything is logged: also the sessions of this
    /// process, which others may see.
    ///
    /// # Errors
    /// [`Error::StoreFailed`], [`Error::DiskFull`], [`Error::Forked`].
    pub(crate) fn attach(&self) -> Result<Remote> {
        fork::check()?;
        self.0.keep_all()?;
        Ok(Remote {
            engine: self.0.clone(),
            requires_proof: false,
        })
    }
}

impl Remote {
    /// Has a session end with its connection as long as nobody has proved an identity for it.
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
        let (connection, kept) = self.enter(timeout, limit)?;
        kept.await?;
        Ok(connection)
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
    ) -> Result<Result<Connection, Unattached>> {
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
    ) -> Result<Result<Connection, Unattached>> {
        let engine = &self.engine;
        let now = engine.now(true, true);
        let mut state = engine.state.lock();
        state.check_session()?;
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
            requires_proof: self.requires_proof,
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
        let mut state = self.engine.state.lock();
        // There are not too many yet.
        let _ = state.core.add_identity(self.session, identity);
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Carries out what is asked, in order, as far as there is room for the answers, which go to the
    /// outbox in the same order; answers how many were.
    pub(crate) fn submit(&self, asks: &mut VecDeque<Ask>) -> usize {
        let mut waiting = self.outbox.waiting_bytes();
        if waiting > ENOUGH_BYTES {
            return 0;
        }
        let now = self.engine.now(true, true);
        let mut guard = self.engine.state.lock();
        let state = &mut *guard;
        let mut aftermath = Aftermath::default();
        let mut count = 0;
        while waiting <= ENOUGH_BYTES
            && let Some(ask) = asks.pop_front()
        {
            count += 1;
            match self.carry_out(ask, now, state, &mut aftermath) {
                Some(bytes) => waiting = bytes,
                None => break,
            }
        }
        aftermath.alarm = state.next_alarm(&self.engine.clock);
        drop(guard);
        aftermath.carry_out(&self.engine);
        count
    }

    /// Does one thing; about how many bytes wait to go out now. `None` when the session is another
    /// connection's, or over.
    fn carry_out(
        &self,
        ask: Ask,
        now: Now,
        state: &mut State,
        aftermath: &mut Aftermath,
    ) -> Option<usize> {
        let admitted = match &ask {
            Ask::Request(request) => state.admit(self.session, request),
            // What it fires shows how things stand, whatever made them so.
            Ask::SetWatches(_) => Ok(state.core.last_kept()),
            _ => Ok(Zxid(0)),
        };
        let (answer, shown) = match admitted {
            Ok(shown) => self.ask_core(ask, shown, now, state),
            Err(error) => (Err(error), Zxid(0)),
        };
        if let Err(error @ (Error::SessionMoved { .. } | Error::SessionExpired { .. })) = &answer {
            let moved = matches!(error, Error::SessionMoved { .. });
            state.collect(aftermath);
            self.outbox.end(if moved {
                Ending::Moved
            } else {
                Ending::Expired
            });
            return None;
        }
        let zxid = state.core.last_zxid();
        // Of what goes to this session next, its own events are the first.
        let bound = state.bind(self.session.slot, shown);
        state.collect(aftermath);
        let waiting = self.outbox.put_answer(bound, zxid, answer);
        if state.unread.is_over() {
            state.cut_slow_readers(aftermath);
        }
        Some(waiting)
    }

    fn ask_core(
        &self,
        ask: Ask,
        mut shown: Zxid,
        now: Now,
        state: &mut State,
    ) -> (Result<Reply>, Zxid) {
        let (core, effects, session) = (&mut state.core, &mut state.effects, self.session);
        let before = core.last_kept();
        let answer = match ask {
            Ask::Request(request) => core.submit(session, request, now, effects).map(reply),
            Ask::Ping => core.ping(session, now, effects).map(|()| Reply::Done),
            Ask::Identify(identity) => core
                .ping(session, now, effects)
                .and_then(|()| core.add_identity(session, identity))
                .map(|()| Reply::Done),
            Ask::SetWatches(asked) => core
                .set_watches(session, &asked, now, effects)
                .map(|()| Reply::Done),
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
        (answer, shown)
    }

    /// Whether what shows this transaction may leave.
    pub(crate) fn may_leave(&self, bound: Zxid) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.is_open_to(bound))
    }

    /// Waits until what shows this transaction may leave.
    ///
    /// # Errors
    /// [`Error::StoreFailed`]: it never will.
    pub(crate) fn passage(&self, bound: Zxid) -> BoxFuture<Result<()>> {
        match &self.gate {
            Some(gate) => Box::pin(gate.passage(bound)),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }
}

impl Connection {
    /// Closes the session if nobody has ever proved an identity for it, and it is this connection's still. What the
    /// log does not take now ends by its timeout.
    fn close_unproven(&self) {
        let now = self.engine.now(true, true);
        let mut state = self.engine.state.lock();
        let state_now = &mut *state;
        if state_now.admit(self.session, &Request::Close).is_err() {
            return;
        }
        let before = state_now.core.last_kept();
        let effects = &mut state_now.effects;
        state_now.core.close_unproven(self.session, now, effects);
        state_now.keep(before);
        self.engine.settle(state);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.requires_proof {
            self.close_unproven();
        }
        let mut state = self.engine.state.lock();
        state.core.detach(self.session);
        let outbox = state.outboxes.get_mut(self.session.slot as usize);
        if let Some(outbox) = outbox
            && outbox
                .as_ref()
                .is_some_and(|outbox| Arc::ptr_eq(outbox, &self.outbox))
        {
            *outbox = None;
        }
    }
}

/// An answer as it goes over a wire, without watchers: events go the same way.
fn reply(answer: Answer) -> Reply {
    let watcher = None;
    match answer {
        Answer::Created { path, stat } => Reply::Created { path, stat },
        Answer::Done | Answer::Watching(_) => Reply::Done,
        Answer::Exists { stat, .. } => Reply::Exists { stat, watcher },
        Answer::Data { data, stat, .. } => Reply::Data {
            data,
            stat,
            watcher,
        },
        Answer::Stat(stat) => Reply::Stat(stat),
        Answer::Acl { acl, stat } => Reply::Acl { acl, stat },
        Answer::Children { names, stat, .. } => Reply::Children {
            names,
            stat,
            watcher,
        },
        Answer::Multi(replies) => Reply::Multi(replies),
        Answer::MultiRead(replies) => Reply::MultiRead(replies),
        Answer::Paths(paths) => Reply::Paths(paths),
        Answer::Count(count) => Reply::Count(count),
        Answer::Enqueued { .. } | Answer::Standing(_) | Answer::Queue(_) => {
            unreachable!("queues are asked for by sessions of this process only")
        }
    }
}
