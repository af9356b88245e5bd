//! Sessions of other processes: they outlive their connections and, on disk, the store's process.

#![cfg_attr(
    not(test),
    expect(dead_code, reason = "the way in for served connections")
)]

use std::sync::Arc;
use std::time::Duration;

use super::embedded::Embedded;
use super::{Engine, Store, put_at, random};
use crate::backend::{Backend, BoxFuture, SessionStatus};
use crate::clock::{Moment, Sleep};
use crate::core::SessionRef;
use crate::error::Result;
use crate::types::{SessionId, SessionState};

/// The way in for sessions of other processes.
#[derive(Clone)]
pub(crate) struct Remote(Arc<Engine>);

/// A session of another process, over one of its connections. Dropping it leaves the session alone: it
/// may be taken up again, until its timeout has passed.
pub(crate) struct Connection {
    pub(crate) backend: Arc<dyn Backend>,
    /// What the client proves with that the session is its own.
    pub(crate) password: [u8; 16],
}

impl Store {
    /// Lets sessions of other processes in. From now on everything is logged: also the sessions of this
    /// process, which others may see.
    ///
    /// # Errors
    /// [`Error::StoreFailed`](crate::Error::StoreFailed), [`Error::DiskFull`](crate::Error::DiskFull).
    pub(crate) fn attach(&self) -> Result<Remote> {
        #[cfg(feature = "file")]
        self.0.keep_all()?;
        Ok(Remote(self.0.clone()))
    }
}

impl Remote {
    /// Opens a session. Waits until the store accepts sessions, and until the log has what it must have
    /// before the client may rely on its session.
    ///
    /// # Errors
    /// As of any request that the log must keep, and
    /// [`Error::LimitReached`](crate::Error::LimitReached) when there are too many sessions.
    pub(crate) async fn open(&self, timeout: Duration) -> Result<Connection> {
        if let Some(pause) = self.0.pause() {
            pause.await;
        }
        let (connection, kept) = self.enter(timeout)?;
        kept.await?;
        Ok(connection)
    }

    /// A new session, and when its client may be told of it.
    fn enter(&self, timeout: Duration) -> Result<(Connection, BoxFuture<Result<()>>)> {
        let engine = &self.0;
        let (sent, id) = (engine.clock.now(), new_id());
        let (now, password) = (engine.now(true, true), random());
        let mut state = engine.state.lock();
        #[cfg(feature = "file")]
        state.check_session()?;
        #[cfg(feature = "file")]
        let before = state.core.last_kept();
        let opened = state
            .core
            .open_session(id, password, Some(timeout), false, now);
        let (session, timeout) = opened?;
        let status = SessionStatus::new(id, engine.clock.clone(), timeout, false, sent);
        let status = Arc::new(status);
        put_at(&mut state.statuses, session.slot, status.clone());
        #[cfg(feature = "file")]
        let passage = state.seat_remote(session.slot, timeout, before);
        engine.settle(state);
        let connection = self.connection(session, status, password);
        #[cfg(feature = "file")]
        if let Some(passage) = passage {
            return Ok((connection, Box::pin(passage)));
        }
        Ok((connection, Box::pin(std::future::ready(Ok(())))))
    }

    /// Takes a session up again over another connection: the one before is refused from now on.
    /// `one_watcher` says that all its watches are one watcher's, as over a wire.
    ///
    /// `None` for a session that is over and for a wrong password.
    ///
    /// # Errors
    /// [`Error::StoreFailed`](crate::Error::StoreFailed).
    pub(crate) async fn reattach(
        &self,
        id: SessionId,
        password: [u8; 16],
        one_watcher: bool,
    ) -> Result<Option<Connection>> {
        if let Some(pause) = self.0.pause() {
            pause.await;
        }
        self.take_up(id, &password, one_watcher)
    }

    fn take_up(
        &self,
        id: SessionId,
        password: &[u8; 16],
        one_watcher: bool,
    ) -> Result<Option<Connection>> {
        let engine = &self.0;
        let now = engine.now(true, true);
        let mut state = engine.state.lock();
        #[cfg(feature = "file")]
        state.check_log()?;
        let state_now = &mut *state;
        #[cfg(feature = "file")]
        let before = state_now.core.last_kept();
        let effects = &mut state_now.effects;
        let found = state_now
            .core
            .reattach(id, password, one_watcher, now, effects);
        #[cfg(feature = "file")]
        state_now.keep(before);
        let connection = found.map(|(session, timeout)| {
            let status = SessionStatus::new(id, engine.clock.clone(), timeout, false, now.moment);
            let status = Arc::new(status);
            let slot = session.slot as usize;
            let former = state_now.statuses.get_mut(slot).and_then(Option::take);
            put_at(&mut state_now.statuses, session.slot, status.clone());
            (self.connection(session, status, *password), former)
        });
        engine.settle(state);
        Ok(connection.map(|(connection, former)| {
            if let Some(former) = former {
                former.set_state(SessionState::Closed);
            }
            connection
        }))
    }

    fn connection(
        &self,
        session: SessionRef,
        status: Arc<SessionStatus>,
        password: [u8; 16],
    ) -> Connection {
        Connection {
            backend: Arc::new(Embedded::new(&self.0, session, status, false)),
            password,
        }
    }
}

fn new_id() -> SessionId {
    SessionId(i64::from_ne_bytes(random()) & i64::MAX | 1)
}

impl Engine {
    /// The time until sessions are accepted, if it is not over.
    pub(super) fn pause(&self) -> Option<Sleep> {
        let until = self.pause_until()?;
        (self.clock.now() < until).then(|| self.clock.sleep_until(until))
    }

    #[cfg(feature = "file")]
    fn pause_until(&self) -> Option<Moment> {
        let state = self.state.lock();
        state.durable.as_ref()?.timeouts.pause_until
    }

    #[cfg(not(feature = "file"))]
    fn pause_until(&self) -> Option<Moment> {
        None
    }
}

#[cfg(feature = "file")]
mod kept {
    use std::time::Duration;

    use super::super::{Engine, State};
    use crate::error::Result;
    use crate::log::Passage;
    use crate::types::Zxid;

    impl Engine {
        /// Has everything logged from now on.
        pub(super) fn keep_all(&self) -> Result<()> {
            let now = self.now(true, true);
            let mut state = self.state.lock();
            if state.durable.is_some() {
                state.check_session()?;
                let before = state.core.last_kept();
                state.core.keep_all(now);
                state.keep(before);
            }
            Ok(())
        }
    }

    impl State {
        /// Whether the log takes another session.
        pub(super) fn check_session(&self) -> Result<()> {
            self.check_log()?;
            let durable = self.durable.as_ref();
            durable.map_or(Ok(()), |durable| durable.check_session())
        }

        /// Hands a new session to the log; what its client is to wait for.
        pub(super) fn seat_remote(
            &mut self,
            slot: u32,
            timeout: Option<Duration>,
            before: Zxid,
        ) -> Option<Passage> {
            let durable = self.durable.as_mut()?;
            durable.seat(slot);
            // Written before the session itself: whoever finds that finds this, too.
            let is_longer =
                durable.note_timeout(timeout.map_or(0, |timeout| timeout.as_millis() as u64));
            self.keep(before);
            let last = self.core.last_zxid();
            let durable = self.durable.as_mut()?;
            let shown = if is_longer { last } else { durable.shown() };
            Some(durable.hold_session(slot, shown))
        }
    }
}
