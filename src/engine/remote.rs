//! [`Remote`]: the entry point for sessions of other processes. These sessions outlive their connections. With a store
//! on disk, they also outlive the store's process.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::connection::Connection;
use super::durable::{DurabilityWait, Durable};
use super::outbox::Ending;
use super::sessions::Peer;
use super::state::State;
use super::{Engine, Store};
use crate::core::{Core, Kicked, ReattachError};
use crate::model::error::{Error, Result};
use crate::model::identity::Identity;
use crate::model::types::{SessionId, Zxid};
use crate::runtime::future::BoxFuture;
use crate::runtime::platform::random;

#[derive(Clone)]
pub(crate) struct Remote {
    pub(super) engine: Arc<Engine>,
    requires_proof: bool,
}

impl Store {
    /// Admits sessions of other processes. From now on we log everything, even changes made by sessions of this
    /// process, because other processes may see them.
    ///
    /// # Errors
    /// [`StoreFailed`](crate::Error::StoreFailed), [`DiskFull`](crate::Error::DiskFull),
    /// [`Forked`](crate::Error::Forked).
    pub(crate) fn attach(&self) -> Result<Remote> {
        Error::if_forked()?;
        self.0.log_everything()?;
        self.0.measure_stalls();
        self.recall_processes();
        Ok(Remote {
            engine: self.0.clone(),
            requires_proof: false,
        })
    }
}

impl Engine {
    fn log_everything(&self) -> Result<()> {
        let now = self.now(true, true);
        let mut state = self.state.lock();
        if state.durable.is_some() {
            state.check_session()?;
            state.apply(|core, _| core.keep_all(now));
            let allowed = state.core.longest_timeout().as_millis() as u64;
            if let Some(durable) = &mut state.durable {
                durable.allow(allowed);
            }
        }
        Ok(())
    }
}

impl State {
    pub(super) fn check_session(&self) -> Result<()> {
        self.durable.as_ref().map_or(Ok(()), Durable::check_session)
    }

    pub(super) fn session_room(&self) -> Option<BoxFuture<()>> {
        self.durable.as_ref()?.session_room()
    }

    /// Holds back all messages to a new session ([`Durable::hold_session`]). Returns the future that the client must
    /// wait for, or `None` if the store has no log.
    pub(super) fn hold_session(&mut self, slot: u32) -> Option<DurabilityWait> {
        let durable = self.durable.as_ref()?;
        Some(durable.hold_session(self.sessions.min_durable_zxid(slot)))
    }
}

/// Notes the timeout of a session that has just become part of the store. The log must have the timeout before it has
/// the session, because a restart that finds the session may have to pause for this timeout.
pub(super) fn note_timeout(durable: Option<&mut Durable>, timeout: Duration, core: &Core) {
    if let Some(durable) = durable {
        durable.note_timeout(timeout.as_millis() as u64, core.last_zxid());
    }
}

impl Remote {
    /// If `requires_proof` is true, keeps sessions out of the store until their clients prove an identity. Until then,
    /// a session is not logged, does not count towards the limit of sessions, and ends with its connection (invariant
    /// 14).
    pub(crate) fn requiring_proof(self, requires_proof: bool) -> Self {
        Self {
            requires_proof,
            ..self
        }
    }

    /// Limits the total number of bytes that may wait for clients. While more bytes wait, the connections of the
    /// slowest readers are closed.
    pub(crate) fn limiting_unread(self, limit: usize) -> Self {
        let mut state = self.engine.state.lock();
        state.sessions.unread().set_limit(limit);
        // During delivery, events are in memory twice: in the core's effects and in the outboxes. So the core gets half
        // of the limit.
        state.core.limit_events(limit / 2);
        drop(state);
        self
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn unread_bytes(&self) -> usize {
        self.engine.state.lock().sessions.unread().bytes()
    }

    /// Opens a session with an outbox of at most `limit` bytes. Waits until any pause is over and until the log has the
    /// timeout that the client may rely on.
    ///
    /// # Errors
    /// The errors of any logged request, and [`LimitReached`](crate::Error::LimitReached) if there are too many
    /// sessions.
    pub(crate) async fn open(&self, timeout: Duration, limit: usize) -> Result<Connection> {
        while let Some(pause) = self.engine.pause() {
            pause.await;
        }
        // Wait while the log is busy. A new session is refused only if the disk is full.
        while let Some(room) = self.room() {
            room.await;
        }
        let (connection, passage) = self.enter(timeout, limit)?;
        if let Some(passage) = passage {
            passage.await?;
        }
        Ok(connection)
    }

    fn room(&self) -> Option<BoxFuture<()>> {
        self.engine.state.lock().session_room()
    }

    fn enter(
        &self,
        timeout: Duration,
        limit: usize,
    ) -> Result<(Connection, Option<DurabilityWait>)> {
        let engine = &self.engine;
        let id = SessionId(i64::from_ne_bytes(random()) & i64::MAX | 1);
        let (now, password) = (engine.now(true, true), random());
        let requires_proof = self.requires_proof;
        let mut state = engine.state.lock();
        state.check_session()?;
        let (session, timeout) = match requires_proof {
            true => state.core.open_unproven(id, password, timeout, now)?,
            false => state.apply_logged(|core, _, durable| -> Result<_> {
                let (session, granted) =
                    core.open_session(id, password, Some(timeout), false, now)?;
                let timeout = granted.unwrap_or(timeout);
                note_timeout(durable, timeout, core);
                Ok((session, timeout))
            })?,
        };
        let connection = Connection::new(engine, &mut state, session, timeout, password, limit);
        let peer = Peer::Remote(connection.outbox.clone());
        state.sessions.insert(session.slot, peer);
        // A session without a proved identity is not logged yet, so it waits for nothing.
        let passage = match requires_proof {
            true => None,
            false => state.hold_session(session.slot),
        };
        engine.settle(state);
        Ok((connection, passage))
    }

    /// Reattaches a session over another connection, and closes the session's former connection. The timeout is
    /// negotiated again, but cannot become longer than the timeout that the session was opened with.
    ///
    /// The inner error is the reason for refusing the client. An attempt with a wrong password does not affect the
    /// former connection.
    ///
    /// # Errors
    /// [`StoreFailed`](crate::Error::StoreFailed).
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
        // Check only that the log has not failed, not that it has room. A reconnection is not a transaction, and
        // clients must regain access to their locks even if the disk is full.
        state.check_log()?;
        // Remove the session's watches in pieces, so that other tasks can take the lock in between.
        while state.core.displace(id, password) {
            MutexGuard::bump(&mut state);
        }
        let state_now = &mut *state;
        let found =
            state_now.apply(|core, effects| core.reattach(id, password, timeout, now, effects));
        let connection = found.map(|(session, timeout)| {
            Connection::new(engine, state_now, session, timeout, *password, limit)
        });
        // Close the former connection only if the password was right. Session ids are not secret, so otherwise any
        // client could close the connections of others.
        let former = connection.as_ref().ok().and_then(|connection| {
            let (slot, outbox) = (connection.session.slot, connection.outbox.clone());
            state_now.sessions.attach(slot, outbox)
        });
        engine.settle(state);
        if let Some(former) = former
            && former.end(Ending::Moved)
        {
            former.wake();
        }
        Ok(connection)
    }

    /// Ends a session of another process. Returns once the log has the end of the session, so that no restart brings
    /// the session back.
    ///
    /// # Errors
    /// [`StoreFailed`](crate::Error::StoreFailed).
    pub(crate) async fn kick(&self, id: SessionId) -> Result<Kicked> {
        let engine = &self.engine;
        let (kicked, passage) = {
            let now = engine.now(true, true);
            let mut state = engine.state.lock();
            state.check_log()?;
            let may_log = state.may_tick();
            let slot = state.core.slot_of(id);
            let kicked = state.apply(|core, effects| core.kick(id, may_log, now, effects));
            // If the core ends the session only later, close its connection now, so that the client stops using the
            // session.
            if kicked == Kicked::Ending
                && let Some(outbox) = slot.and_then(|slot| state.sessions.outbox(slot).cloned())
                && outbox.end(Ending::Expired)
            {
                outbox.wake();
            }
            let ended = state.core.last_kept();
            let passage = state
                .durable
                .as_ref()
                .and_then(|durable| durable.passage(ended));
            engine.settle(state);
            (kicked, passage)
        };
        if let Some(passage) = passage {
            passage.await?;
        }
        Ok(kicked)
    }

    pub(crate) fn set_superuser(&self, digest: Option<Identity>) {
        self.engine.state.lock().core.set_superuser(digest);
    }

    pub(crate) fn superuser(&self) -> Option<Identity> {
        self.engine.state.lock().core.superuser().cloned()
    }

    pub(crate) fn last_zxid(&self) -> Zxid {
        self.engine.state.lock().core.last_zxid()
    }
}
