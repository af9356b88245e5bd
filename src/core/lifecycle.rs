//! Lifecycle of a session: opened, proved, taken over by another connection, detached from one, and ended by its
//! client or by time.
//!
//! A client without news must be able to rely on its session until its timeout has passed. And a session with a million
//! watches must not occupy the store's lock: its watches are dropped in pieces, and it is refused from the first piece
//! on.

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

/// Limit of a session's watches that are dropped in one piece: about a millisecond of work.
const MAX_DROPPED: usize = 1_024;

/// The way in which a session ended.
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

/// Outcome of a wish to end a session.
#[cfg(any(test, feature = "server"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kicked {
    Ended,
    /// One of the next ticks ends it.
    Ending,
    NoSession,
    /// It is one of the store's own process, which ends it itself.
    Local,
}

impl Core {
    /// Opens a session under an unused id. `timeout` is clamped to the store's bounds; without one the session never
    /// expires. A local session dies with the process.
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

    /// Opens a session of another process that is no part of the store until its client proves an identity
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
        // Unproven sessions are checked, too, though not counted: a full store refuses them before they cost anything.
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

    /// Logs the opening of a session.
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

    /// Adds an identity that the client has proved. The first one makes an unproven session a part of the store: then
    /// its opening is logged, if `room` says that the log has room for it, and the timeout that it was opened with is
    /// returned.
    ///
    /// # Errors
    /// As [`add_identity`](Self::add_identity), of `room`, and by the limit of sessions. A session that cannot become a
    /// part of the store ends: its client is admitted by then, and its writes could not be logged.
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

    /// Moves a session to another connection (rule 12), with a timeout that is negotiated anew, but never longer than
    /// the one it was opened with. The former connection is refused from now on, and its watches are gone.
    ///
    /// # Errors
    /// The reason for which no session is taken over. To the client both reasons must look the same (rule 13).
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
        // Before anything of the session is touched: ids are no secret, and a wrong password must not disturb its
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
        // Requests of the former connection are refused by this number, also those that its task has read already.
        session.connection += 1;
        session.is_attached = true;
        session.timeout_ms = timeout.as_millis() as u64;
        let connection = session.connection;
        // Identities belong to a connection: each proves its own.
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

    /// Returns the longest timeout that a session can be granted.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn longest_timeout(&self) -> Duration {
        self.options.longest_timeout
    }

    /// Returns the slot of a session.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn slot_of(&self, id: SessionId) -> Option<u32> {
        self.sessions.find(id)
    }

    /// Returns a session as its present connection knows it.
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

    /// Prepares a session with many watches to be moved to another connection. To be repeated while it returns true:
    /// each call drops some watches, so that [`reattach`](Self::reattach) finds few. The former connection is refused
    /// from the first call on.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn displace(&mut self, id: SessionId, password: &[u8; 16]) -> bool {
        let Some(slot) = self.sessions.find(id) else {
            return false;
        };
        let is_displaced = self.sessions.get(slot).password == *password && self.shed(slot);
        self.sessions.get_mut(slot).connection += u32::from(is_displaced);
        is_displaced
    }

    /// Detaches a closed connection from its session, and drops its identities and watches; the session goes on, unless
    /// it is unproven. To be repeated while it returns true: at most [`MAX_DROPPED`] watches are dropped in one call.
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

    /// Prepares a session with many watches to be closed by its connection. To be repeated while it returns true.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn shed_before_close(&mut self, of: SessionRef) -> bool {
        let known = self.sessions.slots.get(of.slot as usize);
        known.is_some_and(|known| known.is_of(of)) && self.shed(of.slot)
    }

    /// Drops some watches of a session of another process that has many; false if there are few.
    fn shed(&mut self, slot: u32) -> bool {
        let session = self.sessions.get(slot);
        let has_many = !session.is_local && session.watch_count > MAX_DROPPED;
        if has_many {
            self.drop_silently(slot, MAX_DROPPED);
        }
        has_many
    }

    /// Drops watches of a session of another process. No watcher waits for them: their client has gone, or ends the
    /// session.
    fn drop_silently(&mut self, slot: u32, most: usize) {
        let count = most.min(self.sessions.get(slot).watch_count);
        let (tree, sessions) = (&mut self.tree, &mut self.sessions);
        self.watches
            .drop_some(tree, sessions, slot, count, &mut |_| {});
        self.tree.work.add(count);
    }

    /// Counts a sign of life without a request.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn ping(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> Result<()> {
        self.admit(of, now, effects)
    }

    /// Admits a request if its session lives and has not moved to another connection, and counts it as a sign of life.
    #[inline]
    pub(super) fn admit(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> Result<()> {
        let known = self.sessions.slots.get(of.slot as usize);
        // The slot may be another session's by now.
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

    /// Counts a stall: a time for which the store was kept from its work. It is judged when deadlines come
    /// ([`expiry`](super::expiry)).
    pub(crate) fn count_stall(&mut self, stall: Duration) {
        self.sessions.count_stall(stall);
    }

    /// Ends the session of this connection, which has read everything that arrived, if the session was probed and has
    /// given no sign of life since.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn end_silent(&mut self, of: SessionRef, now: Now, effects: &mut Effects) {
        let known = self.sessions.slots.get(of.slot as usize);
        if known.is_some_and(|known| known.is_of(of)) && self.sessions.is_probed(of.slot) {
            self.expire(of.slot, now, effects);
        }
    }

    /// Ends the session of this connection, as if it had expired: the process of its client has exited. Returns true if
    /// it did.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn end_exited(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> bool {
        let is_current = self.is_current(of);
        if is_current {
            self.sessions.slots[of.slot as usize].has_exited = true;
            self.expire(of.slot, now, effects);
        }
        is_current
    }

    /// Has the next tick end the session of this connection, as [`end_exited`](Self::end_exited) would.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn doom_exited(&mut self, of: SessionRef, now: Now) {
        if self.is_current(of) {
            self.sessions.slots[of.slot as usize].has_exited = true;
            self.sessions.doom(of.slot, now.moment);
        }
    }

    /// Ends a session of another process at the wish of an operator, as if it had expired; by one of the next ticks if
    /// `may_log` is false, since the log has no room for its end, or if it has many watches. It is refused from now on.
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
        // Its connection is refused from here on, also where a later tick ends it: a client that works on would rely
        // on a session whose end was promised.
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

    /// Returns true if the session lives and has not moved to another connection.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn is_current(&self, of: SessionRef) -> bool {
        let known = self.sessions.slots.get(of.slot as usize);
        known.is_some_and(|known| known.is_of(of))
    }

    /// Ends an overdue session. One with many watches loses some of them, and ends by a later tick. Until then it is
    /// refused: its client would never get the events of those.
    pub(super) fn expire(&mut self, slot: u32, now: Now, effects: &mut Effects) {
        match self.shed(slot) {
            true => self.sessions.doom(slot, now.moment),
            false => self.end_session(slot, End::Expired, now, effects),
        }
    }

    /// Ends a session from the store's side, if it is not over yet.
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
            // No transaction has opened it, and none ends it.
            true => Stamp::restored(self.last_zxid()),
            false => self.stamp(now, self.log_mode_of(slot)),
        };
        self.remove_session(slot, end, at, effects);
        // When all its entries are gone: two of them may stand in one queue, before the same waiter.
        self.resolve_waiters(now, effects);
        // One transaction for the session and its ephemeral znodes (rule 11): a replay finds these by their owner.
        self.log(id, at, || TxnOp::CloseSession(end));
    }

    /// Removes a session with its ephemeral znodes. Its watches go first: its watchers are told that it has ended, not
    /// of the deletes that follow. But a client that closes its session over a wire gets the events of these before the
    /// reply, as ZooKeeper's does.
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
                // Over a wire no watcher waits for a single watch: the client gets the end of its session once.
                if is_local {
                    effects.dropped.push((key, id, end));
                }
            });
    }
}
