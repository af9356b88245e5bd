//! [`Embedded`]: a session in the store's own process. Its requests are carried out in the thread
//! that submits them.

use std::fmt;
use std::sync::Arc;

use super::{Engine, State, UnwatchHandle};
use crate::backend::{Backend, SessionStatus};
use crate::core::{SessionRef, WatchKey};
use crate::error::Error;
use crate::fork;
use crate::protocol::{Request, Response};
use crate::watch::{Unwatch, WatchCell};

pub(super) struct Embedded {
    pub(super) engine: Arc<Engine>,
    pub(super) session: SessionRef,
    status: Arc<SessionStatus>,
    has_timeout: bool,
    /// Whether the session ends when this goes; else it is a connection of one that stays.
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
        #[cfg(feature = "file")]
        let mut shown = match state.admit(self.session, &request) {
            Ok(shown) => shown,
            Err(error) => return self.refuse(error, guard),
        };
        #[cfg(feature = "file")]
        let before = state.core.last_kept();
        let answer = state
            .core
            .submit(self.session, request, now, &mut state.effects);
        #[cfg(feature = "file")]
        {
            state.keep(before);
            if answer.is_err() {
                // It says what is not, or what is otherwise: whatever made it so.
                shown = state.core.last_kept();
            }
        }
        // First what it fired: its own watch may have got the index of one that is used up.
        let wakeups = state.gather(&self.engine.clock);
        let response = Response::ready(match answer {
            Ok(reply) => Ok(reply.with_watchers(|watch| self.cell(watch, state))),
            Err(error) => Err(self.explain(error)),
        });
        #[cfg(feature = "file")]
        let passage = state.passage(self.session.slot, shown);
        drop(guard);
        if let Some(wakeups) = wakeups {
            wakeups.carry_out(&self.engine);
        }
        #[cfg(feature = "file")]
        if let Some(passage) = passage {
            return super::durable::held(response, passage);
        }
        response
    }

    /// The core has forgotten how a session ended that is gone.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::SessionExpired { .. } => self.status.end().unwrap_or(error),
            error => error,
        }
    }

    fn cell(&self, watch: WatchKey, state: &mut State) -> Arc<WatchCell> {
        let cell = Arc::new(WatchCell::new(self.unwatch_handle.clone(), watch.to_u64()));
        state.keep_cell(watch, cell.clone());
        cell
    }
}

/// Whether what a request does shows its date, in a [`Stat`](crate::Stat).
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
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if self.is_local && !fork::is_forked() {
            self.engine.close(self.session);
        }
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedded({}, {})", self.session.id, self.engine.target)
    }
}
