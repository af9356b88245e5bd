//! The lifecycle of a session: how it opens, proves an identity, moves to another connection, detaches and ends.
//!
//! Dropping a million watches in one step would hold the store's lock for too long, so a session loses its watches in
//! pieces. From the first piece on, the store refuses the session's requests, because the client would miss events.

use std::time::Duration;

use super::effects::{Effects, Ended};
use super::journal::TxnOp;
#[cfg(any(test, feature = "server"))]
use super::sessions::ReattachError;
use super::sessions::{Session, SessionRef};
use super::{Core, Now, Stamp};
use crate::model::error::{Error, Result};
#[cfg(any(test, feature = "server"))]
use crate::model::identity::Identity;
use crate::model::types::SessionId;
use crate::model::watch::DeleteReason;

/// Number of watches in one piece. Dropping a piece takes about a millisecond.
const MAX_DROPPED: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Expired,
    Closed,
}

impl End {
    pub(crate) fn error(self, session: SessionId) -> Error {
        match self {
            Self::Expired => Error::SessionExpired { session },
            Self::Closed => Error::SessionClosed { session },
        }
    }
}

#[cfg(any(test, feature = "server"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kicked {
    Ended,
    /// The store refuses the session's requests from now on, and one of the next ticks ends the session.
    Ending,
    NoSession,
    Local,
}

impl Core {
    pub(crate) fn open_session(
        &mut self,
        id: SessionId,
        password: [u8; 16],
        timeout: Option<Duration>,
        is_local: bool,
        now: Now,
    ) -> Result<(SessionRef, Option<Duration>)> {
        let timeout = timeout.map(|timeout| self.within_bounds(timeout));
        let timeout_ms = timeout.map_or(0, |timeout| timeout.as_millis() as u64);
        let session = Session::new(id, password, timeout_ms, is_local);
        let session = self.insert_session(session, now)?;
        self.log_session(session.slot, now);
        Ok((session, timeout))
    }

    /// Opens an unproven session, which becomes part of the store when its client proves an identity
    /// ([`identify`](Self::identify)).
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn open_unproven(
        &mut self,
        id: SessionId,
        password: [u8; 16],
        timeout: Duration,
        now: Now,
    ) -> Result<(SessionRef, Duration)> {
        let timeout = self.within_bounds(timeout);
        let mut session = Session::new(id, password, timeout.as_millis() as u64, false);
        session.is_unproven = true;
        Ok((self.insert_session(session, now)?, timeout))
    }

    fn insert_session(&mut self, mut session: Session, now: Now) -> Result<SessionRef> {
        // An unproven session does not count towards the limit, but it cannot be opened once the limit is reached.
        self.check_session_limit(session.is_local)?;
        let id = session.id;
        session.is_attached = !session.is_local;
        let slot = self.sessions.insert(session);
        self.sessions.touch(slot, now.moment);
        Ok(SessionRef {
            id,
            slot,
            connection: 0,
        })
    }

    fn check_session_limit(&self, is_local: bool) -> Result<()> {
        let limit = self.options.limits.sessions;
        if self.sessions.counted() >= limit {
            let what = "sessions";
            return Err(Error::LimitReached { what, limit });
        }
        match is_local {
            true => Ok(()),
            false => self.check_session_room(),
        }
    }

    pub(super) fn log_session(&mut self, slot: u32, now: Now) {
        let session = self.sessions.get(slot);
        let (id, password, is_local) = (session.id, session.password, session.is_local);
        let timeout_ms = session.granted_ms;
        let at = self.stamp(now, self.log_mode_of(slot));
        self.log(id, at, || TxnOp::OpenSession {
            timeout_ms,
            password,
            is_local,
        });
    }

    /// Adds a proved identity to a session. The first proof makes an unproven session part of the store, so this
    /// function logs that the session opens, and returns the timeout. `room` is an error if the log has no room.
    ///
    /// # Errors
    /// If a limit is reached or the log has no room. If this was the first proof, the session then ends.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn identify(
        &mut self,
        of: SessionRef,
        identity: Identity,
        room: Result<()>,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Option<Duration>> {
        let is_first = identity.is_proof() && self.is_unproven(of);
        let added = self.add_identity(of, identity);
        if !is_first {
            return added.map(|()| None);
        }
        let admitted = added
            .and(room)
            .and_then(|()| self.check_session_limit(false));
        if let Err(error) = admitted {
            self.end_session(of.slot, End::Expired, now, effects);
            return Err(error);
        }
        self.sessions.set_proven(of.slot);
        self.log_session(of.slot, now);
        let granted_ms = self.sessions.get(of.slot).granted_ms;
        Ok(Some(Duration::from_millis(granted_ms)))
    }

    #[cfg(any(test, feature = "server"))]
    fn is_unproven(&self, of: SessionRef) -> bool {
        let known = self.sessions.slots.get(of.slot as usize);
        known.is_some_and(|known| known.is_of(of) && known.is_unproven)
    }

    /// Moves a session to another connection. The new timeout never exceeds the session's first timeout. The old
    /// connection loses its watches, and the store refuses its requests.
    ///
    /// # Errors
    /// Returns the reason why the session cannot be moved. The server must send the same answer for every reason, so
    /// that the client does not learn whether the session exists.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn reattach(
        &mut self,
        id: SessionId,
        password: &[u8; 16],
        timeout: Duration,
        now: Now,
        effects: &mut Effects,
    ) -> Result<(SessionRef, Duration), ReattachError> {
        let slot = self.sessions.find(id).ok_or(ReattachError::Over)?;
        // Check the password before changing anything. A client with a wrong password must not disturb the session's
        // owner.
        if self.sessions.get(slot).password != *password {
            return Err(ReattachError::WrongPassword);
        }
        if self.sessions.is_overdue(slot, now.moment) {
            self.expire(slot, now, effects);
            return Err(ReattachError::Over);
        }
        self.drop_silently(slot, usize::MAX);
        let mut timeout = self.within_bounds(timeout);
        let session = self.sessions.get_mut(slot);
        if session.granted_ms > 0 {
            timeout = timeout.min(Duration::from_millis(session.granted_ms));
        }
        // From here on, requests of the old connection are refused, even if its task has already read them.
        session.connection += 1;
        session.is_attached = true;
        session.timeout_ms = timeout.as_millis() as u64;
        let connection = session.connection;
        self.sessions.forget_identities(slot);
        self.sessions.touch(slot, now.moment);
        Ok((
            SessionRef {
                id,
                slot,
                connection,
            },
            timeout,
        ))
    }

    fn within_bounds(&self, timeout: Duration) -> Duration {
        timeout.clamp(self.options.shortest_timeout, self.options.longest_timeout)
    }

    #[cfg(any(test, feature = "server"))]
    pub(crate) fn longest_timeout(&self) -> Duration {
        self.options.longest_timeout
    }

    #[cfg(any(test, feature = "server"))]
    pub(crate) fn slot_of(&self, id: SessionId) -> Option<u32> {
        self.sessions.find(id)
    }

    #[cfg(any(test, feature = "server"))]
    pub(crate) fn session_ref(&self, id: SessionId) -> Option<SessionRef> {
        let slot = self.sessions.find(id)?;
        let connection = self.sessions.get(slot).connection;
        Some(SessionRef {
            id,
            slot,
            connection,
        })
    }

    /// Drops some of a session's watches before the session is moved, so that [`reattach`](Self::reattach) has few left
    /// to drop. The caller must repeat the call while it returns true. In the meantime, the store refuses the old
    /// connection.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn displace(&mut self, id: SessionId, password: &[u8; 16]) -> bool {
        let Some(slot) = self.sessions.find(id) else {
            return false;
        };
        let is_displaced = self.sessions.get(slot).password == *password && self.shed(slot);
        self.sessions.get_mut(slot).connection += u32::from(is_displaced);
        is_displaced
    }

    /// Detaches a session from its closed connection, and drops the connection's identities and watches. An unproven
    /// session ends. The caller must repeat the call while it returns true.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn detach(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> bool {
        if self.is_unproven(of) {
            self.end_session(of.slot, End::Closed, now, effects);
        }
        let known = self.sessions.slots.get(of.slot as usize);
        known.is_some_and(|known| known.is_of(of)) && {
            self.sessions.get_mut(of.slot).is_attached = false;
            self.sessions.forget_identities(of.slot);
            self.drop_silently(of.slot, MAX_DROPPED);
            self.sessions.get(of.slot).watch_count > 0
        }
    }

    /// Drops some of a session's watches before the session is closed. The caller must repeat the call while it returns
    /// true.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn shed_before_close(&mut self, of: SessionRef) -> bool {
        let known = self.sessions.slots.get(of.slot as usize);
        known.is_some_and(|known| known.is_of(of)) && self.shed(of.slot)
    }

    /// Drops [`MAX_DROPPED`] watches of a remote session. If the session has no more watches than that, drops none and
    /// returns false.
    fn shed(&mut self, slot: u32) -> bool {
        let session = self.sessions.get(slot);
        let has_many = !session.is_local && session.watch_count > MAX_DROPPED;
        if has_many {
            self.drop_silently(slot, MAX_DROPPED);
        }
        has_many
    }

    fn drop_silently(&mut self, slot: u32, most: usize) {
        let count = most.min(self.sessions.get(slot).watch_count);
        let (tree, sessions) = (&mut self.tree, &mut self.sessions);
        self.watches
            .drop_some(tree, sessions, slot, count, &mut |_| {});
        self.tree.work.add(count);
    }

    #[cfg(any(test, feature = "server"))]
    pub(crate) fn ping(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> Result<()> {
        self.admit(of, now, effects)
    }

    /// Records a sign of life. Fails if the session has ended or has moved to another connection.
    #[inline]
    pub(super) fn admit(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> Result<()> {
        let known = self.sessions.slots.get(of.slot as usize);
        let Some(session) = known.filter(|session| session.id == of.id) else {
            return Err(Error::SessionExpired { session: of.id });
        };
        if session.connection != of.connection {
            return Err(Error::SessionMoved { session: of.id });
        }
        if session.timeout_ms == 0 {
            return Ok(());
        }
        if self.sessions.is_overdue(of.slot, now.moment) {
            self.expire(of.slot, now, effects);
            return Err(Error::SessionExpired { session: of.id });
        }
        self.sessions.touch(of.slot, now.moment);
        Ok(())
    }

    /// Records that the store could not work for the time `stall`. No session may expire because of a stall
    /// ([`expiry`](super::expiry)).
    pub(crate) fn count_stall(&mut self, stall: Duration) {
        self.sessions.count_stall(stall);
    }

    /// Ends a session that has given no sign of life since the probe of its connection. The caller must have read
    /// everything that arrived on the connection.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn end_silent(&mut self, of: SessionRef, now: Now, effects: &mut Effects) {
        let known = self.sessions.slots.get(of.slot as usize);
        if known.is_some_and(|known| known.is_of(of)) && self.sessions.is_probed(of.slot) {
            self.expire(of.slot, now, effects);
        }
    }

    /// Ends the session as expired, because its client's process has exited. Returns false if the session has already
    /// ended or moved.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn end_exited(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> bool {
        let is_current = self.is_current(of);
        if is_current {
            self.sessions.slots[of.slot as usize].has_exited = true;
            self.expire(of.slot, now, effects);
        }
        is_current
    }

    /// Makes the next tick end the session as [`end_exited`](Self::end_exited) would.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn doom_exited(&mut self, of: SessionRef, now: Now) {
        if self.is_current(of) {
            self.sessions.slots[of.slot as usize].has_exited = true;
            self.sessions.doom(of.slot, now.moment);
        }
    }

    /// Expires a remote session at an operator's request. If the session has many watches, or if the log has no room
    /// (`may_log` is false), one of the next ticks ends it.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn kick(
        &mut self,
        id: SessionId,
        may_log: bool,
        now: Now,
        effects: &mut Effects,
    ) -> Kicked {
        let Some(slot) = self.sessions.find(id) else {
            return Kicked::NoSession;
        };
        let session = self.sessions.get_mut(slot);
        if session.is_local {
            return Kicked::Local;
        }
        session.is_kicked = true;
        // Refuse the client's requests now, even if only a later tick ends the session, because the operator expects
        // the client to stop.
        session.connection += 1;
        match may_log {
            true => self.expire(slot, now, effects),
            false => self.sessions.doom(slot, now.moment),
        }
        match self.sessions.find(id) {
            None => Kicked::Ended,
            Some(_) => Kicked::Ending,
        }
    }

    #[cfg(any(test, feature = "server"))]
    pub(crate) fn is_current(&self, of: SessionRef) -> bool {
        let known = self.sessions.slots.get(of.slot as usize);
        known.is_some_and(|known| known.is_of(of))
    }

    /// Ends an overdue session. If the session has many watches, drops some of them and lets a later tick end the
    /// session.
    pub(super) fn expire(&mut self, slot: u32, now: Now, effects: &mut Effects) {
        match self.shed(slot) {
            true => self.sessions.doom(slot, now.moment),
            false => self.end_session(slot, End::Expired, now, effects),
        }
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn expire_session(&mut self, id: SessionId, now: Now, effects: &mut Effects) {
        if let Some(slot) = self.sessions.find(id) {
            self.end_session(slot, End::Expired, now, effects);
        }
    }

    pub(super) fn end_session(&mut self, slot: u32, end: End, now: Now, effects: &mut Effects) {
        self.sessions.count_end(slot, end);
        let session = self.sessions.get(slot);
        let id = session.id;
        let at = match session.is_unproven {
            // No transaction opened an unproven session, so no transaction ends it.
            true => Stamp::restored(self.last_zxid()),
            false => self.stamp(now, self.log_mode_of(slot)),
        };
        self.remove_session(slot, end, at, effects);
        // Complete the events of waiters only after all entries of the session are deleted, because several of these
        // entries may block the same waiter.
        self.resolve_waiters(now, effects);
        // One transaction ends the session and deletes all its ephemeral znodes. A replay finds these znodes by their
        // owner.
        self.log(id, at, || TxnOp::CloseSession(end));
    }

    /// Removes a session with its watches and ephemeral znodes. The watches are dropped first, so that the session's
    /// own watchers are notified of its end and not of the deletes. As in ZooKeeper, only a remote client that closes
    /// its session receives the events of the deletes, before the reply.
    pub(super) fn remove_session(&mut self, slot: u32, end: End, at: Stamp, effects: &mut Effects) {
        let session = self.sessions.get(slot);
        let (id, mut touched) = (session.id, session.watch_count);
        if session.is_local || end == End::Expired {
            self.drop_watches(slot, end, effects);
        }
        while let Some(node) = self.sessions.get(slot).first_ephemeral() {
            self.apply_delete(node, DeleteReason::Died, at, effects);
            touched += 1;
        }
        self.tree.work.add(touched);
        self.drop_watches(slot, end, effects);
        self.sessions.remove(slot);
        effects.ended.push(Ended { id, slot, end });
    }

    fn drop_watches(&mut self, slot: u32, end: End, effects: &mut Effects) {
        let session = self.sessions.get(slot);
        let (id, is_local) = (session.id, session.is_local);
        let (tree, sessions) = (&mut self.tree, &mut self.sessions);
        self.watches
            .drop_some(tree, sessions, slot, usize::MAX, &mut |key| {
                // Each local watcher is notified of the session's end. A remote client is notified once for the whole
                // session.
                if is_local {
                    effects.dropped.push((key, id, end));
                }
            });
    }
}
