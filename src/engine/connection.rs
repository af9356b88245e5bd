//! [`Connection`]: a session of another process over one of its connections.
//!
//! A turn carries out as many requests as there is room for under one acquisition of the store's lock. It puts the
//! answers in the session's [`Outbox`] under that lock, in the order in which everything happened (invariant 13).

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
/// Dropping it keeps the session alive without its watches until the timeout. Where proof is required, a session
/// without a proved identity ends with its connection.
pub(crate) struct Connection {
    pub(super) engine: Arc<Engine>,
    pub(super) session: SessionRef,
    timeout: Duration,
    password: [u8; 16],
    pub(super) outbox: Arc<Outbox>,
    barrier: Option<Arc<DurabilityBarrier>>,
    /// The transaction that logs the timeout of a session proved over this connection. Nothing is sent before the log
    /// has it, in any durability class.
    proved_at: AtomicI64,
    /// Ready when a busy log has room for the next request. `None` while none waits.
    room: Mutex<Option<BoxFuture<()>>>,
    /// Changes since [`take_changes`](Self::take_changes). `None` without an audit log.
    changes: Option<Box<Mutex<Vec<AuditedChange>>>>,
    /// True if requests have woken connections, possibly this one.
    has_woken: AtomicBool,
}

/// A change that was made or refused.
#[derive(Debug)]
pub(crate) struct AuditedChange {
    pub(crate) change: Change,
    /// The session's identities at the time, as they may be shown.
    pub(crate) identities: Vec<String>,
    /// `None` if the session had no right to it.
    pub(crate) zxid: Option<Zxid>,
}

/// A request of a connection to its session.
#[derive(Debug)]
pub(crate) enum SessionRequest {
    Request(Request),
    /// A sign of life, possibly only a frame that could not be read. Answered by [`Reply::Done`].
    Ping,
    /// An identity that the client has proved. Answered by [`Reply::Done`].
    Identify(Identity),
    /// Answered by [`Reply::Done`], after the events that it fires.
    SetWatches(SetWatches),
    /// Continues a search for the session's ephemeral znodes from an earlier turn. Answered by [`Reply::Paths`].
    Search {
        prefix: ZnodePath,
        found: Found,
    },
    /// Answered by [`Reply::Count`], which is 0 if there is none.
    CheckWatches(ZnodePath, WatchFilter),
    /// As `CheckWatches`, but also removes the watches.
    RemoveWatches(ZnodePath, WatchFilter),
    /// Removes the predecessor watch with this number. Answered by [`Reply::Count`], which is 0 if it has fired.
    ForgetWatch(u64),
}

/// With more bytes of waiting answers we carry out and read no more requests, so that the client's own socket fills up.
const MAX_WAITING_BYTES: usize = 256 << 10;

/// A turn ends after this many units of work, and other connections get the lock. A unit takes about 10 to 100 ns, so a
/// turn takes about a millisecond. One request can exceed this, but its work is bounded by its bytes and those of its
/// answer.
const TURN_WORK: u64 = 16_384;

/// A divisible request is cut after this many units of work.
const PIECE: usize = 8_192;

/// Units of work for parsing, answering and sending any request.
const REQUEST_WORK: u64 = 8;

impl SessionRequest {
    /// Returns the units of work outside the core.
    fn work(&self) -> u64 {
        let bytes_of = |path: &ZnodePath| path.as_str().len();
        let bytes: usize = match self {
            Self::Request(request) => Scale { prefix: 0 }.request(request),
            Self::SetWatches(asked) if asked.done > 0 => 0,
            Self::SetWatches(asked) => asked.lists().into_iter().flatten().map(bytes_of).sum(),
            Self::CheckWatches(path, _) | Self::RemoveWatches(path, _) => bytes_of(path),
            // The core counts their work itself.
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
        // The first identities are within the limits. A session that cannot become part of the store has ended, and the
        // answer to its first request says so.
        let _ = self.identify_in(identity, now, &mut state);
        self.engine.settle(state);
    }

    /// Adds an identity, and logs the session if that makes it part of the store.
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
            // Only for the bound. The answer to the proof waits behind `proved_at`.
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

    /// Waits while the log is too busy for the next request. Ready immediately if no request waits.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut room = self.room.lock();
        if let Some(waiting) = &mut *room {
            ready!(waiting.as_mut().poll(context));
        }
        *room = None;
        Poll::Ready(())
    }

    /// Carries out requests in order, and puts the answers in the outbox in the same order.
    ///
    /// Stops before a request for which the log has no room ([`poll_room`](Self::poll_room) waits for it), when enough
    /// answers wait, and at the end of the turn. Returns the number of requests carried out, including pieces.
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
                // Put it back, because requests of a session are carried out in order (rule 25).
                asks.push_front(ask);
                // A request that waits for our own log still counts as a sign of life (rule 14).
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
        // Once for the whole turn, and not under the lock, because wakers are user code.
        drop(guard);
        if !wakeups.outboxes.is_empty() {
            self.has_woken.store(true, Ordering::Relaxed);
        }
        wakeups.carry_out(&self.engine);
        count
    }

    /// Returns true if [`submit`](Self::submit) has woken connections since the last call.
    pub(crate) fn take_woken(&self) -> bool {
        // Relaxed, because the same task submits and asks.
        self.has_woken.swap(false, Ordering::Relaxed)
    }

    /// Returns a future that waits until a busy log has room. `None` if it need not wait.
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
            // Their answers show the whole store.
            SessionRequest::SetWatches(_) | SessionRequest::Search { .. } => {
                Ok(state.core.last_kept())
            }
            _ => Ok(Zxid(0)),
        };
        let (answer, shown) = match admitted {
            Ok(shown) => match self.ask_core(ask, shown, now, state) {
                Step::Done(answer, shown) => (answer, shown),
                Step::Cut(rest) => {
                    // The events of this piece show the same state.
                    state.bind(self.session.slot, shown);
                    state.collect(wakeups);
                    return Outcome::Cut(rest);
                }
            },
            Err(error) => (Err(error), Zxid(0)),
        };
        if let Err(error @ (Error::SessionMoved { .. } | Error::SessionExpired { .. })) = &answer {
            // No answer, because the end of the connection informs the client.
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
        // First the events of this request, then its answer, under the same bound (invariants 3 and 13).
        let bound = state.bind(self.session.slot, shown);
        state.collect(wakeups);
        let waiting = self.outbox.put_answer(bound, zxid, answer);
        // The answer may have taken the unread bytes of all clients over their limit.
        state.cut_slow_readers(wakeups);
        Outcome::Answered(waiting)
    }

    fn ask_core(&self, ask: SessionRequest, mut shown: Zxid, now: Now, state: &mut State) -> Step {
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
                    Ok(true) => return Step::Cut(SessionRequest::Search { prefix, found }),
                    searched => searched.map(|_| Reply::Paths(found.paths)),
                }
            }
            SessionRequest::Request(Request::Close)
                if state.apply(|core, _| core.shed_before_close(session)) =>
            {
                return Step::Cut(SessionRequest::Request(Request::Close));
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
                    Ok(true) => return Step::Cut(SessionRequest::SetWatches(asked)),
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
            // Any transaction may have led to the error, so the log must have all.
            shown = state.core.last_kept();
        }
        Step::Done(answer, shown)
    }

    pub(crate) fn audited(mut self) -> Self {
        self.changes = Some(Box::default());
        self
    }

    /// Notes the changes of a request that was carried out, or refused for lack of a right. Other failures change
    /// nothing.
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

    /// Returns the changes since the last call.
    pub(crate) fn take_changes(&self) -> Vec<AuditedChange> {
        let changes = self.changes.as_ref();
        changes.map_or_else(Vec::new, |noted| std::mem::take(&mut *noted.lock()))
    }

    /// Ends the session if its client still owes a sign of life. Call it when everything that it has sent is carried
    /// out.
    pub(crate) fn end_silent(&self) {
        // Signs that arrived after the question have renewed the deadline in the core.
        if !self.outbox.take_question() {
            return;
        }
        let now = self.engine.now(true, true);
        let mut state = self.engine.state.lock();
        // Without room in the log, a later tick ends the session.
        if !state.may_tick() {
            return;
        }
        state.apply(|core, effects| core.end_silent(self.session, now, effects));
        self.engine.settle(state);
    }

    /// Ends the session because its client's process has exited. Call it when everything that it has sent is carried
    /// out.
    pub(crate) fn end_exited(&self) {
        end_session(&self.engine, self.session);
    }

    /// Returns a handle to the session that outlives the connection. `None` if the session has ended or moved.
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

    /// Waits until a message with this bound may leave.
    ///
    /// # Errors
    /// [`Error::StoreFailed`] if it never will.
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
        // The core refuses this if the session, and so its slot, belongs to another connection.
        loop {
            if !state.apply(|core, effects| core.detach(self.session, now, effects)) {
                break;
            }
            // There may be a million watches. They are removed in pieces, so that others get the lock in between.
            MutexGuard::bump(&mut state);
        }
        state.sessions.detach(self.session.slot, &self.outbox);
        self.engine.settle(state);
    }
}

/// A session without a connection, until it ends or is reattached.
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

    /// Ends the session as if it had expired, unless it was reattached.
    pub(crate) fn end(self) {
        if let Some(engine) = self.engine.upgrade() {
            end_session(&engine, self.session);
        }
    }
}

/// Returns true if the session had no right to the request or to a part of its multi.
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
    // Without room in the log, the first tick that has room ends it.
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

enum Step {
    /// The answer, and the last transaction that it shows.
    Done(Result<CoreReply>, Zxid),
    /// The rest of a request.
    Cut(SessionRequest),
}

enum Outcome {
    /// Answered. About this many bytes wait to be sent.
    Answered(usize),
    Cut(SessionRequest),
    /// The session is over, or belongs to another connection.
    Over,
}
