//! [`Connection`]: a session of another process, over one of its connections.
//!
//! One turn, a call to `submit`, takes the store's lock once and carries out several requests. Still under that lock,
//! it puts the answers in the session's [`Outbox`], so the outbox holds answers and events in the order in which they
//! occurred (invariant 13).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::Engine;
use super::durable::DurabilityBarrier;
use super::outbox::{Ending, Outbox};
use super::remote::note_timeout;
use super::state::{State, Wakeups};
use crate::core::{
    Change, Core, CoreReply, Found, Now, SessionRef, SetWatches, UNIT_BYTES, WatchFilter, WatchKey,
};
use crate::model::error::{Error, Result};
use crate::model::identity::Identity;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Reply, Request};
use crate::model::size::Scale;
use crate::model::types::{SessionId, Zxid};
use crate::runtime::future::BoxFuture;

/// A session of another process, over one of its connections.
///
/// Dropping the connection removes the session's watches, but keeps the session alive until its timeout. If the server
/// requires a proof of identity, a session without a proved identity ends with its connection.
pub(crate) struct Connection {
    pub(super) engine: Arc<Engine>,
    pub(super) session: SessionRef,
    timeout: Duration,
    password: [u8; 16],
    pub(super) outbox: Arc<Outbox>,
    barrier: Option<Arc<DurabilityBarrier>>,
    /// Transaction that logs the session's timeout. Set when the client proves its identity over this connection. No
    /// message leaves before the log has this transaction, whatever the durability class.
    proved_at: AtomicI64,
    room: Mutex<Option<BoxFuture<()>>>,
    /// Changes since the last [`take_changes`](Self::take_changes). `None` if there is no audit log.
    changes: Option<Box<Mutex<Vec<AuditedChange>>>>,
    has_woken: AtomicBool,
}

/// A change that was made, or that was refused because the session had no right to make it.
#[derive(Debug)]
pub(crate) struct AuditedChange {
    pub(crate) change: Change,
    pub(crate) identities: Vec<String>,
    /// `None` if the change was refused.
    pub(crate) zxid: Option<Zxid>,
}

#[derive(Debug)]
pub(crate) enum SessionRequest {
    Request(Request),
    /// A sign of life, or a frame that we cannot read.
    Ping,
    Identify(Identity),
    /// Restores watches after a reconnection. The events that the watches have missed precede the answer.
    SetWatches(SetWatches),
    /// Continues a search, started in an earlier turn, for the session's ephemeral znodes whose paths start with
    /// `prefix`.
    Search {
        prefix: ZnodePath,
        found: Found,
    },
    /// Checks whether the session has watches on the path that match the filter. The answer is [`Reply::Count`], 1 if
    /// there are any and 0 otherwise.
    CheckWatches(ZnodePath, WatchFilter),
    RemoveWatches(ZnodePath, WatchFilter),
    /// Removes the predecessor watch with this number. The answer is [`Reply::Count`], 1 if the watch was armed and 0
    /// if it had fired.
    ForgetWatch(u64),
}

/// Limit of unsent answers in bytes. Above this limit, we neither read nor carry out requests. The client's socket then
/// fills up and slows the client down.
const MAX_WAITING_BYTES: usize = 256 << 10;

/// A turn ends after this many units of work, so that other connections can take the lock. A unit takes about 10 to 100
/// ns, so a turn takes about a millisecond.
const TURN_WORK: u64 = 16_384;

/// A request that can be divided is interrupted after this many units of work, and continues in the next turn.
const PIECE: usize = 8_192;

/// Units of work for parsing, answering and sending a request of any kind.
const REQUEST_WORK: u64 = 8;

impl SessionRequest {
    /// Returns the units of work that the request causes outside the core.
    fn work(&self) -> u64 {
        let bytes_of = |path: &ZnodePath| path.as_str().len();
        let bytes: usize = match self {
            Self::Request(request) => Scale { prefix: 0 }.request(request),
            Self::SetWatches(asked) if asked.done > 0 => 0,
            Self::SetWatches(asked) => asked.lists().into_iter().flatten().map(bytes_of).sum(),
            Self::CheckWatches(path, _) | Self::RemoveWatches(path, _) => bytes_of(path),
            Self::Ping | Self::Identify(_) | Self::Search { .. } | Self::ForgetWatch(_) => 0,
        };
        REQUEST_WORK + (bytes / UNIT_BYTES) as u64
    }
}

impl Connection {
    pub(super) fn new(
        engine: &Arc<Engine>,
        state: &mut State,
        session: SessionRef,
        timeout: Duration,
        password: [u8; 16],
        limit: usize,
    ) -> Self {
        let outbox = Arc::new(Outbox::new(limit, state.sessions.unread().clone()));
        state.core.limit_answers(session, limit);
        Self {
            engine: engine.clone(),
            session,
            timeout,
            password,
            outbox,
            barrier: state.durable.as_ref().map(|durable| durable.barrier()),
            proved_at: AtomicI64::new(0),
            room: Mutex::default(),
            changes: None,
            has_woken: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> SessionId {
        self.session.id
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn password(&self) -> [u8; 16] {
        self.password
    }

    /// Adds an identity that follows from the client's address or certificate.
    pub(crate) fn identify(&self, identity: Identity) {
        let now = self.engine.now(true, true);
        let mut state = self.engine.state.lock();
        // Ignore the error. A session's first identities always fit the limits. If the store has no room for a newly
        // proved session, the session has ended, and the answer to its first request reports that.
        let _ = self.identify_in(identity, now, &mut state);
        self.engine.settle(state);
    }

    /// Adds an identity. If the session needed this proof to become part of the store, also logs the session.
    fn identify_in(&self, identity: Identity, now: Now, state: &mut State) -> Result<()> {
        let (session, room) = (self.session, state.check_session());
        let proved = state.apply_logged(|core, effects, durable| -> Result<_> {
            let proved = core.identify(session, identity, room, now, effects)?;
            if let Some(timeout) = proved {
                note_timeout(durable, timeout, core);
            }
            Ok(proved.is_some())
        })?;
        if proved {
            // This call only raises the zxid that the session's messages wait for. We drop the returned future, because
            // the answer to the proof waits for `proved_at`.
            let _ = state.hold_session(session.slot);
            let durable = state.durable.as_ref();
            let proved_at = durable.map_or(Zxid(0), |durable| durable.timeout_recorded_at());
            self.proved_at.store(proved_at.0, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(crate) fn waits_for_room(&self) -> bool {
        self.room.lock().is_some()
    }

    /// Waits while the log is too busy for the next request.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut room = self.room.lock();
        if let Some(waiting) = &mut *room {
            ready!(waiting.as_mut().poll(context));
        }
        *room = None;
        Poll::Ready(())
    }

    /// Carries out requests in order, and puts their answers in the outbox in the same order.
    ///
    /// Stops when the log has no room for the next request ([`poll_room`](Self::poll_room) then waits for room), when
    /// too many bytes of answers are unsent, and at the end of the turn. Returns the number of requests carried out.
    /// Each piece of a divided request counts as one.
    pub(crate) fn submit(&self, asks: &mut VecDeque<SessionRequest>) -> usize {
        let mut waiting = self.outbox.waiting_bytes();
        if waiting > MAX_WAITING_BYTES {
            return 0;
        }
        let now = self.engine.now(true, true);
        let mut guard = self.engine.state.lock();
        let state = &mut *guard;
        let mut wakeups = Wakeups::default();
        let (mut count, mut work) = (0, 0);
        let before = state.core.work();
        while waiting <= MAX_WAITING_BYTES
            && work + (state.core.work() - before) < TURN_WORK
            && let Some(ask) = asks.pop_front()
        {
            if let Some(room) = self.room_for(&ask, state) {
                *self.room.lock() = Some(room);
                // Put the request back at the front, because the requests of a session are carried out in order.
                asks.push_front(ask);
                // The waiting request still counts as a sign of life, because a client must not lose its session when
                // only our log is slow.
                let _ = self.ask_core(SessionRequest::Ping, Zxid(0), now, state);
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
        // Wake tasks once for the whole turn, and without the lock, because wakers are user code.
        drop(guard);
        if !wakeups.outboxes.is_empty() {
            self.has_woken.store(true, Ordering::Relaxed);
        }
        wakeups.carry_out(&self.engine);
        count
    }

    /// Returns true if [`submit`](Self::submit) has woken connections since the last call of this method.
    pub(crate) fn take_woken(&self) -> bool {
        // `Relaxed` is enough, because the same task calls this method and `submit`.
        self.has_woken.swap(false, Ordering::Relaxed)
    }

    fn room_for(&self, ask: &SessionRequest, state: &State) -> Option<BoxFuture<()>> {
        match ask {
            SessionRequest::Request(request) => {
                let durable = state.durable.as_ref()?;
                durable.request_room(&state.core, self.session, request)
            }
            SessionRequest::Identify(_) => state.session_room(),
            _ => None,
        }
    }

    fn carry_out(
        &self,
        ask: SessionRequest,
        now: Now,
        state: &mut State,
        wakeups: &mut Wakeups,
    ) -> Outcome {
        let admitted = match &ask {
            SessionRequest::Request(request) => state.admit(self.session, request),
            // The answers to these requests can show any znode, so they wait for every transaction so far.
            SessionRequest::SetWatches(_) | SessionRequest::Search { .. } => {
                Ok(state.core.last_kept())
            }
            _ => Ok(Zxid(0)),
        };
        let (answer, shown) = match admitted {
            Ok(shown) => match self.ask_core(ask, shown, now, state) {
                Progress::Done(answer, shown) => (answer, shown),
                Progress::Cut(rest) => {
                    // A piece of a request may fire events. They show the same state as the request's answer, so they
                    // wait for the same zxid.
                    state.bind(self.session.slot, shown);
                    state.collect(wakeups);
                    return Outcome::Cut(rest);
                }
            },
            Err(error) => (Err(error), Zxid(0)),
        };
        if let Err(error @ (Error::SessionMoved { .. } | Error::SessionExpired { .. })) = &answer {
            // We send no answer, because the client learns about the end of its session when we close the connection.
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
        // Put the request's events in the outbox before its answer. Both wait for the same zxid (invariants 3 and 13).
        let bound = state.bind(self.session.slot, shown);
        state.collect(wakeups);
        let waiting = self.outbox.put_answer(bound, zxid, answer);
        state.cut_slow_readers(wakeups);
        Outcome::Answered(waiting)
    }

    fn ask_core(
        &self,
        ask: SessionRequest,
        mut shown: Zxid,
        now: Now,
        state: &mut State,
    ) -> Progress {
        let session = self.session;
        let answer = match ask {
            SessionRequest::Request(Request::GetEphemerals { prefix }) => {
                let found = state.core.begin_search(session);
                return self.ask_core(SessionRequest::Search { prefix, found }, shown, now, state);
            }
            SessionRequest::Search { prefix, mut found } => {
                match state.apply(|core, effects| {
                    core.search_some(session, &prefix, PIECE, &mut found, now, effects)
                }) {
                    Ok(true) => return Progress::Cut(SessionRequest::Search { prefix, found }),
                    searched => searched.map(|_| Reply::Paths(found.paths)),
                }
            }
            SessionRequest::Request(Request::Close)
                if state.apply(|core, _| core.shed_before_close(session)) =>
            {
                return Progress::Cut(SessionRequest::Request(Request::Close));
            }
            SessionRequest::Request(request) => {
                let changes = match &self.changes {
                    Some(_) => state.core.changes_of(session, &request),
                    None => Vec::new(),
                };
                let answer =
                    state.apply(|core, effects| core.submit(session, request, now, effects));
                if !changes.is_empty() {
                    self.note_changes(changes, &answer, &state.core);
                }
                answer
            }
            SessionRequest::Ping => state
                .apply(|core, effects| core.ping(session, now, effects))
                .map(|()| Reply::Done),
            SessionRequest::Identify(identity) => state
                .apply(|core, effects| core.ping(session, now, effects))
                .and_then(|()| self.identify_in(identity, now, state))
                .map(|()| Reply::Done),
            SessionRequest::SetWatches(mut asked) => {
                match state.apply(|core, effects| {
                    core.set_some_watches(session, &mut asked, PIECE, now, effects)
                }) {
                    Ok(true) => return Progress::Cut(SessionRequest::SetWatches(asked)),
                    set => set.map(|_| Reply::Done),
                }
            }
            SessionRequest::CheckWatches(path, which) => state
                .apply(|core, effects| core.find_watches(session, &path, which, now, effects))
                .map(|found| Reply::Count(usize::from(!found.is_empty()))),
            SessionRequest::RemoveWatches(path, which) => state.apply(|core, effects| {
                let found = core.find_watches(session, &path, which, now, effects)?;
                Ok(Reply::Count(core.remove_watches(&found).into()))
            }),
            SessionRequest::ForgetWatch(number) => state
                .apply(|core, effects| {
                    core.forget_watch(session, WatchKey::from_u64(number), now, effects)
                })
                .map(|was_armed| Reply::Count(was_armed.into())),
        };
        if answer.is_err() {
            // The error may depend on any transaction so far, so the answer must wait until the log has all of them.
            shown = state.core.last_kept();
        }
        Progress::Done(answer, shown)
    }

    pub(crate) fn audited(mut self) -> Self {
        self.changes = Some(Box::default());
        self
    }

    /// Notes the changes of a request that was carried out, or that was refused because the session lacked a right. A
    /// request that fails for another reason changes nothing, so it is not noted.
    fn note_changes(&self, changes: Vec<Change>, answer: &Result<CoreReply>, core: &Core) {
        let zxid = match answer {
            Ok(_) => Some(core.last_zxid()),
            Err(error) if is_denied(error) => None,
            Err(_) => return,
        };
        let Some(noted) = &self.changes else { return };
        let identities = core.identities(self.session).iter();
        let identities: Vec<_> = identities.map(ToString::to_string).collect();
        noted
            .lock()
            .extend(changes.into_iter().map(|change| AuditedChange {
                change,
                identities: identities.clone(),
                zxid,
            }));
    }

    pub(crate) fn take_changes(&self) -> Vec<AuditedChange> {
        let changes = self.changes.as_ref();
        changes.map_or_else(Vec::new, |noted| std::mem::take(&mut *noted.lock()))
    }

    /// Ends the session if the store has asked for a sign of life and none has arrived. Call this only after everything
    /// that the client has sent is carried out.
    pub(crate) fn end_silent(&self) {
        // If the client has sent anything since the store asked, the session's deadline has moved, and the core does
        // not end the session.
        if !self.outbox.take_question() {
            return;
        }
        let now = self.engine.now(true, true);
        let mut state = self.engine.state.lock();
        // If the log has no room for the end of the session, a later tick ends it.
        if !state.may_tick() {
            return;
        }
        state.apply(|core, effects| core.end_silent(self.session, now, effects));
        self.engine.settle(state);
    }

    /// Ends the session because its client's process has exited. Call this only after everything that the client has
    /// sent is carried out.
    pub(crate) fn end_exited(&self) {
        end_session(&self.engine, self.session);
    }

    pub(crate) fn follow(&self) -> Option<Follower> {
        let mut state = self.engine.state.lock();
        let is_current = state.core.is_current(self.session);
        is_current.then(|| Follower::new(&self.engine, self.session, &mut state))
    }

    pub(crate) fn may_leave(&self, bound: Zxid) -> bool {
        let proved_at = Zxid(self.proved_at.load(Ordering::Acquire));
        let barrier = self.barrier.as_ref();
        barrier.is_none_or(|barrier| barrier.is_open_to(bound) && barrier.has_written(proved_at))
    }

    /// Waits for the log on behalf of a message with this bound. Check [`may_leave`](Self::may_leave) again afterwards,
    /// because one call waits for only one of the bound and `proved_at`.
    ///
    /// # Errors
    /// [`Error::StoreFailed`] if the message can never leave.
    pub(crate) fn passage(&self, bound: Zxid) -> BoxFuture<Result<()>> {
        let proved_at = Zxid(self.proved_at.load(Ordering::Acquire));
        match &self.barrier {
            Some(barrier) if barrier.has_written(proved_at) => Box::pin(barrier.passage(bound)),
            Some(barrier) => Box::pin(barrier.written(proved_at)),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let now = self.engine.now(true, true);
        let mut state = self.engine.state.lock();
        // The core does nothing if the session has moved to another connection or its slot belongs to another session.
        loop {
            if !state.apply(|core, effects| core.detach(self.session, now, effects)) {
                break;
            }
            // A session may have a million watches. They are removed in pieces, so that other tasks can take the lock
            // in between.
            MutexGuard::bump(&mut state);
        }
        state.sessions.detach(self.session.slot, &self.outbox);
        self.engine.settle(state);
    }
}

/// Handle to a session without a connection, used until the session ends or is reattached.
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "no process is watched there")
)]
pub(crate) struct Follower {
    engine: Weak<Engine>,
    session: SessionRef,
    over: oneshot::Receiver<()>,
}

#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "no process is watched there")
)]
impl Follower {
    pub(super) fn new(engine: &Arc<Engine>, session: SessionRef, state: &mut State) -> Self {
        Self {
            engine: Arc::downgrade(engine),
            session,
            over: state.sessions.follow(session.slot),
        }
    }

    /// Waits until the session has ended or was reattached, or the store is gone.
    ///
    /// Cancel safe.
    pub(crate) async fn over(&mut self) {
        let _ = (&mut self.over).await;
    }

    pub(crate) fn end(self) {
        if let Some(engine) = self.engine.upgrade() {
            end_session(&engine, self.session);
        }
    }
}

fn is_denied(error: &Error) -> bool {
    match error {
        Error::NoAuth { .. } => true,
        Error::MultiFailed { source, .. } => is_denied(source),
        _ => false,
    }
}

/// Ends a session whose process has exited, unless it was reattached.
fn end_session(engine: &Arc<Engine>, session: SessionRef) {
    let now = engine.now(true, true);
    let mut state = engine.state.lock();
    // If the log has no room for the end of the session, the first tick that finds room ends it.
    if !state.may_tick() {
        state.apply(|core, _| core.doom_exited(session, now));
        engine.settle(state);
        return;
    }
    let has_ended = state.apply(|core, effects| core.end_exited(session, now, effects));
    engine.settle(state);
    if has_ended {
        tracing::info!(session = %session.id, "session ended with its process");
    }
}

enum Progress {
    /// The answer, and the last transaction that the answer shows.
    Done(Result<CoreReply>, Zxid),
    /// The rest of a request that was interrupted at the end of its turn.
    Cut(SessionRequest),
}

enum Outcome {
    /// Contains the approximate number of bytes that now wait to be sent.
    Answered(usize),
    Cut(SessionRequest),
    /// The session is over, or belongs to another connection.
    Over,
}
