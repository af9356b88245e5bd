//! [`Embedded`]: a session in the store's own process. Its requests are carried out in the thread
//! that submits them.

use std::fmt;
use std::sync::Arc;

use super::{Engine, State, UnwatchHandle};
use crate::backend::{Backend, Predecessor, Reply, Request, Response, SessionStatus};
use crate::core::{Answer, SessionRef, Standing, WatchKey};
use crate::error::Error;
use crate::fork;
use crate::watch::{PersistentWatcher, Unwatch, WatchCell, Watcher};

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
            // What a free lock is answered, field by field: the rest is copied as a whole.
            Ok(Answer::Enqueued {
                path,
                czxid,
                standing: Standing::Clear,
            }) => Ok(Reply::Enqueued {
                path,
                czxid,
                ahead: Predecessor::Clear,
            }),
            Ok(Answer::Done) => Ok(Reply::Done),
            Ok(answer) => Ok(self.reply(answer, state)),
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

    fn reply(&self, answer: Answer, state: &mut State) -> Reply {
        match answer {
            Answer::Created { path, stat } => Reply::Created { path, stat },
            Answer::Done => Reply::Done,
            Answer::Exists { stat, watch } => {
                let watcher = watch.map(|watch| self.watcher(watch, state));
                Reply::Exists { stat, watcher }
            }
            Answer::Data { data, stat, watch } => {
                let watcher = watch.map(|watch| self.watcher(watch, state));
                Reply::Data {
                    data,
                    stat,
                    watcher,
                }
            }
            Answer::Stat(stat) => Reply::Stat(stat),
            Answer::Acl { acl, stat } => Reply::Acl { acl, stat },
            Answer::Children { names, stat, watch } => {
                let watcher = watch.map(|watch| self.watcher(watch, state));
                Reply::Children {
                    names,
                    stat,
                    watcher,
                }
            }
            Answer::Multi(replies) => Reply::Multi(replies),
            Answer::MultiRead(replies) => Reply::MultiRead(replies),
            Answer::Paths(paths) => Reply::Paths(paths),
            Answer::Count(count) => Reply::Count(count),
            Answer::Watching(watch) => {
                Reply::Watching(PersistentWatcher::of_cell(self.cell(watch, state)))
            }
            Answer::Enqueued {
                path,
                czxid,
                standing,
            } => {
                let ahead = self.ahead(standing, state);
                Reply::Enqueued { path, czxid, ahead }
            }
            Answer::Standing(standing) => Reply::Predecessor(self.ahead(standing, state)),
            Answer::Queue(names) => Reply::Queue {
                names,
                sorted: true,
            },
        }
    }

    fn ahead(&self, standing: Standing, state: &mut State) -> Predecessor {
        match standing {
            Standing::Clear => Predecessor::Clear,
            Standing::Gone => Predecessor::Gone,
            Standing::Listed(names) => Predecessor::Listed(names),
            Standing::Unknown => Predecessor::Unknown,
            Standing::Blocked { by, watch, count } => {
                let watcher = self.watcher(watch, state);
                Predecessor::Blocked { by, watcher, count }
            }
        }
    }

    fn watcher(&self, watch: WatchKey, state: &mut State) -> Watcher {
        Watcher::of_cell(self.cell(watch, state))
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
