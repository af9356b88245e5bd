//! [`Embedded`]: a session in the store's own process. The thread that submits a request carries it out.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::MutexGuard;

use super::durable::DurabilityWait;
use super::sessions::Peer;
use super::state::State;
use super::{Engine, Store};
use crate::backend::{Backend, ConnectOptions, Connector, LocalQueues, SessionStatus};
use crate::core::{Core, Effects, Now, SessionRef, WatchKey};
use crate::model::entry::{Enqueued, EntryKey, NewEntry, PredecessorWatch};
use crate::model::error::{Error, Result};
use crate::model::identity::{Identities, Identity};
use crate::model::protocol::{Request, Response};
use crate::model::types::{SessionId, Zxid};
use crate::model::watch::{ArmedWatch, DeleteReason, Unwatch, WatchCell};
use crate::runtime::clock::Clock;
use crate::runtime::future::BoxFuture;
use crate::runtime::platform::random;
use crate::runtime::process::is_forked;

impl Connector for Store {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let timeout = options.session_timeout;
        let proofs = options.auth.iter();
        let proved = proofs.map(|(scheme, secret)| Identity::proved(scheme, secret));
        let identities = match proved.collect::<Result<Vec<_>>>() {
            Ok(identities) => identities,
            Err(refused) => return Box::pin(std::future::ready(Err(refused))),
        };
        let open = move |engine: &Arc<Engine>| {
            let opened = engine.open(timeout, identities);
            opened.map(|session| Arc::new(session) as Arc<dyn Backend>)
        };
        let Some(pause) = self.0.pause() else {
            return Box::pin(std::future::ready(open(&self.0)));
        };
        let engine = self.0.clone();
        Box::pin(async move {
            pause.await;
            while let Some(pause) = engine.pause() {
                pause.await;
            }
            open(&engine)
        })
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    #[cfg(feature = "test-util")]
    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        self.0.expire(backend.status().id());
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Engine {
    pub(super) fn open(
        self: &Arc<Self>,
        timeout: Option<Duration>,
        identities: Vec<Identity>,
    ) -> Result<Embedded> {
        // Check the identities before the session exists, so that a refusal leaves no session behind.
        let identities = Identities::new(identities)?;
        // Read the clock before the core sets the session's deadline, because the session's first lease must end before
        // this deadline (invariant 6).
        let sent = self.clock.now();
        let id = SessionId(i64::from_ne_bytes(random()) & i64::MAX | 1);
        let mut state = self.state.lock();
        state.check_log()?;
        // `apply` is not needed, because no answer waits for the transaction that opens the session. The next change
        // hands this transaction to the log.
        let (session, timeout) =
            state
                .core
                .open_session(id, random(), timeout, true, self.now(true, true))?;
        for identity in identities.iter() {
            state.core.add_identity(session, identity.clone())?;
        }
        let status = Arc::new(SessionStatus::new(
            id,
            self.clock.clone(),
            timeout,
            false,
            sent,
        ));
        state
            .sessions
            .insert(session.slot, Peer::Local(status.clone()));
        self.settle(state);
        Ok(Embedded::new(self, session, status, true))
    }

    fn close(self: &Arc<Self>, session: SessionRef) {
        // The session may have ended already.
        let _ = self.apply(|core, effects, now| core.submit(session, Request::Close, now, effects));
    }

    #[cfg(feature = "test-util")]
    fn expire(self: &Arc<Self>, id: SessionId) {
        self.apply(|core, effects, now| core.expire_session(id, now, effects));
    }
}

pub(super) struct Embedded {
    pub(super) engine: Arc<Engine>,
    pub(super) session: SessionRef,
    status: Arc<SessionStatus>,
    has_timeout: bool,
    /// False if the session outlives this connection.
    is_local: bool,
    unwatch_handle: Arc<dyn Unwatch>,
}

impl Embedded {
    pub(super) fn new(
        engine: &Arc<Engine>,
        session: SessionRef,
        status: Arc<SessionStatus>,
        is_local: bool,
    ) -> Self {
        Self {
            engine: engine.clone(),
            session,
            has_timeout: status.timeout().is_some(),
            is_local,
            status,
            unwatch_handle: Arc::new(UnwatchHandle(Arc::downgrade(engine))),
        }
    }

    fn carry_out(&self, request: Request) -> Response {
        let now = self.engine.now(self.has_timeout, is_dated(&request));
        let mut guard = self.engine.state.lock();
        let state = &mut *guard;
        let mut shown = match state.admit(self.session, &request) {
            Ok(shown) => shown,
            Err(error) => return self.refuse(error, guard),
        };
        let session = self.session;
        let answer = state.apply(|core, effects| core.submit(session, request, now, effects));
        if answer.is_err() {
            // The error may depend on any transaction so far, so the answer must wait until the log has all of them.
            shown = state.core.last_kept();
        }
        // Deliver the events before the reply (invariant 9). The core may also reuse the index of a fired watch for the
        // request's new watch. So we must remove the fired watch's cell before `armed` stores the new cell.
        let wakeups = state.gather(&self.engine.clock);
        let response = Response::ready(match answer {
            Ok(reply) => Ok(reply.with_watchers(|watch| self.armed(watch, state))),
            Err(error) => Err(self.explain(error)),
        });
        // Compute the wait under the lock, so that it does not include later transactions.
        let passage = state.passage(self.session.slot, shown);
        drop(guard);
        if let Some(wakeups) = wakeups {
            wakeups.carry_out(&self.engine);
        }
        match passage {
            None => response,
            Some(passage) => held(response, passage),
        }
    }

    /// Makes a change without a request. Returns `None` without side effects if the answer would have to wait. `shown`
    /// returns the last transaction by another session that the answer reflects.
    #[inline]
    fn change<T, R>(
        &self,
        now: Now,
        shown: impl FnOnce(&Core) -> Zxid,
        change: impl FnOnce(&mut Core, &mut Effects, Now) -> T,
        finish: impl FnOnce(&mut State, T) -> R,
    ) -> Option<R> {
        // A session with a timeout must use requests, because each answer renews its lease.
        if self.has_timeout {
            return None;
        }
        let mut guard = self.engine.state.lock();
        if !guard.answers_at_once(self.session.slot, shown) {
            return None;
        }
        let changed = guard.apply(|core, effects| change(core, effects, now));
        // Deliver the events before we return and before a new watch reuses an index, as in `carry_out`.
        let wakeups = guard.gather(&self.engine.clock);
        let outcome = finish(&mut guard, changed);
        drop(guard);
        if let Some(wakeups) = wakeups {
            wakeups.carry_out(&self.engine);
        }
        Some(outcome)
    }

    /// Refuses a request. The refusal waits until the answers to earlier requests may leave.
    #[cold]
    fn refuse(&self, error: Error, mut guard: MutexGuard<'_, State>) -> Response {
        let refused = Response::ready(Err(error));
        match guard.passage(self.session.slot, Zxid(0)) {
            None => refused,
            Some(passage) => held(refused, passage),
        }
    }

    /// Returns the reason why the session ended. The core does not remember the reason, and reports every ended session
    /// as expired.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::SessionExpired { .. } => self.status.end().unwrap_or(error),
            error => error,
        }
    }

    fn armed(&self, watch: WatchKey, state: &mut State) -> ArmedWatch {
        let cell = Arc::<WatchCell>::default();
        state.keep_cell(watch, cell.clone());
        ArmedWatch::new(cell, self.unwatch_handle.clone(), watch.to_u64())
    }
}

fn held(response: Response, passage: DurabilityWait) -> Response {
    Response::pending(async move {
        passage.await?;
        response.await
    })
}

/// Handle that disarms watches without keeping the store alive.
struct UnwatchHandle(Weak<Engine>);

impl Unwatch for UnwatchHandle {
    fn unwatch(&self, watch: u64) {
        let Some(engine) = self.0.upgrade().filter(|_| !is_forked()) else {
            return;
        };
        let watch = WatchKey::from_u64(watch);
        let mut state = engine.state.lock();
        if state.core.unwatch(watch) {
            state.cells[watch.index as usize] = None;
        }
    }
}

/// Returns true if the request sets a date that a [`Stat`](crate::Stat) can show later.
fn is_dated(request: &Request) -> bool {
    let only_deletes = matches!(
        request,
        Request::Delete { .. } | Request::Withdraw { .. } | Request::Close
    );
    request.is_write() && !only_deletes
}

impl Backend for Embedded {
    fn submit(&self, request: Request) -> Response {
        self.carry_out(request)
    }

    fn status(&self) -> &Arc<SessionStatus> {
        &self.status
    }

    fn store_id(&self) -> Option<&str> {
        Some(&self.engine.id)
    }

    fn local(&self) -> Option<&dyn LocalQueues> {
        Some(self)
    }
}

impl LocalQueues for Embedded {
    fn enter(&self, entry: NewEntry<'_>) -> Option<Enqueued> {
        let (session, mode) = (self.session, entry.mode);
        let entered = self.change(
            Now {
                unix_ms: entry.unix_ms,
                ..Now::default()
            },
            |core| core.shown_by_place(mode),
            |core, effects, now| core.enter(session, entry, now, effects),
            |state, entered| {
                let (entry, ahead) = entered?;
                let turn = ahead.map(|ahead| state.turn_behind(ahead));
                Some(Enqueued { entry, turn })
            },
        );
        entered?
    }

    fn cancel_watch(&self, turn: &PredecessorWatch) {
        self.unwatch_handle.unwatch(turn.watch);
    }

    fn leave(&self, entry: EntryKey, reason: DeleteReason) -> bool {
        let session = self.session;
        let left = self.change(
            Now::default(),
            |_| Zxid(0),
            |core, effects, now| core.leave(session, entry, reason, now, effects),
            |_, left| left,
        );
        left == Some(true)
    }

    fn has_entry(&self, entry: EntryKey) -> bool {
        let state = self.engine.state.lock();
        state.core.entry_of(self.session, entry).is_some()
    }

    fn count_ahead(&self, entry: EntryKey) -> Option<usize> {
        let state = self.engine.state.lock();
        state.core.count_ahead(self.session, entry)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if self.is_local && !is_forked() {
            self.engine.close(self.session);
        }
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedded({}, {})", self.session.id, self.engine.target)
    }
}
