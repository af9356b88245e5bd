//! The store's heart, pure: no clock, no IO, no randomness. It is driven by calls, which say what
//! time it is, and answers with replies and [`Effects`]. The same calls give the same answers.
//!
//! A write is checked and resolved first (`write`, `multi`, `queue`), then applied ([`Core::apply`]
//! and what it is made of), and what was applied is a [`Txn`], which a log can keep.

#![cfg_attr(
    not(any(test, feature = "file")),
    allow(dead_code, unused_imports, reason = "the ways in for a durable log")
)]

mod acl;
mod budget;
mod entries;
#[cfg(any(test, feature = "server"))]
mod facts;
mod image;
mod intrusive_list;
mod journal;
mod multi;
mod queue;
mod quota;
mod read;
mod reaper;
mod replay;
mod sessions;
#[cfg(any(test, feature = "server"))]
mod set_watches;
#[cfg(test)]
mod tests;
mod tree;
mod txn;
mod watches;
mod work;
mod write;

use std::time::Duration;

#[cfg(any(test, feature = "server"))]
pub(crate) use self::facts::{Counts, Settings};
pub(crate) use self::image::{NodeImage, SessionImage};
pub(crate) use self::journal::Journal;
pub(crate) use self::quota::bytes_of_acl;
#[cfg(any(test, feature = "server"))]
pub(crate) use self::read::{ANSWER_BYTES, Found};
pub(crate) use self::replay::Damage;
#[cfg(any(test, feature = "server"))]
pub(crate) use self::sessions::ReattachError;
pub(crate) use self::sessions::SessionRef;
#[cfg(any(test, feature = "server"))]
pub(crate) use self::set_watches::{SetWatches, WatchFilter};
pub(crate) use self::txn::{Kind, NewNode, Txn, TxnOp};
pub(crate) use self::watches::{Fired, WatchKey};
#[cfg(any(test, feature = "server"))]
pub(crate) use self::work::UNIT_BYTES;

use self::budget::WATCH_BYTES;
use self::journal::{Keep, Kept};
use self::reaper::Reaper;
use self::sessions::{Due, Session, Sessions, Told};
use self::tree::Tree;
use self::watches::{WatchKind, Watches};
use crate::clock::BootInstant;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::path::ZnodePath;
use crate::protocol::{Reply, Request};
use crate::size::MAX_TXN_BYTES;
use crate::types::{SessionId, Zxid};
use crate::watch::{DeleteReason, WatchMode};

/// Units of work after which a tick leaves the sessions that are still due to the next: others have the store in
/// between. It goes beyond that by at most one session's znodes.
const TICK_WORK: u64 = 16_384;

/// The most watches of a connection that has gone that are dropped at once: about a millisecond.
const MOST_DROPPED: usize = 1_024;

/// What the core is told once.
#[derive(Clone, Debug)]
pub(crate) struct CoreOptions {
    /// The first zxid is the one after this.
    pub(crate) last_zxid: i64,
    /// The width of an expiry bucket.
    pub(crate) tick: Duration,
    pub(crate) shortest_timeout: Duration,
    pub(crate) longest_timeout: Duration,
    pub(crate) allow_ttl: bool,
    /// How often container and TTL znodes are looked at.
    pub(crate) reaper_interval: Duration,
    /// How long a container may go without a first child.
    pub(crate) unused_container: Duration,
    pub(crate) limits: Limits,
    /// Something that nobody outside knows, so that nobody can make paths collide.
    pub(crate) hash_seed: u64,
    /// Who proves this may do everything.
    pub(crate) super_digest: Option<Identity>,
}

/// How many of each there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) znodes: usize,
    /// Of all that clients make the store keep (`budget`).
    pub(crate) bytes: usize,
    pub(crate) sessions: usize,
    pub(crate) watches_per_session: usize,
    /// The most that one transaction may take in a log. It holds where there is no log, too: so
    /// whatever a store has can be kept from any moment on.
    pub(crate) txn_bytes: usize,
}

impl Default for CoreOptions {
    /// The defaults of a store: ticks of 2 s, sessions of 2 to 20 ticks, and a reaper that looks every minute.
    fn default() -> Self {
        let tick = Duration::from_secs(2);
        Self {
            last_zxid: 0,
            tick,
            shortest_timeout: 2 * tick,
            longest_timeout: 20 * tick,
            allow_ttl: true,
            reaper_interval: Duration::from_secs(60),
            unused_container: Duration::from_secs(5 * 60),
            limits: Limits::default(),
            hash_seed: 0,
            super_digest: None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            znodes: 1 << 28,
            bytes: usize::try_from(64_u64 << 30).unwrap_or(usize::MAX),
            sessions: 1 << 20,
            watches_per_session: 1 << 20,
            txn_bytes: MAX_TXN_BYTES,
        }
    }
}

/// What time it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Now {
    /// For the times in a [`Stat`] and for a log; need not be right where nobody sees either.
    pub(crate) unix_ms: i64,
    /// For deadlines; need not be right where the session has none.
    pub(crate) moment: BootInstant,
}

/// The number and date of a transaction, and whether a log keeps it.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    zxid: Zxid,
    unix_ms: i64,
    keep: Keep,
}

impl Stamp {
    /// Of what is put where it was.
    fn restored(zxid: Zxid) -> Self {
        Self {
            zxid,
            unix_ms: 0,
            keep: Keep::Not,
        }
    }
}

/// What a call did beside its answer, in order. The caller empties it.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Events for watchers; they precede the answer.
    pub(crate) fired: Vec<Fired>,
    /// Sessions that are over.
    pub(crate) ended: Vec<Ended>,
    /// Their watches.
    pub(crate) dropped: Vec<(WatchKey, SessionId, End)>,
    /// The slots of sessions past their deadlines, whose connections are to read what is there.
    pub(crate) asked: Vec<u32>,
    /// The slots of sessions of other processes for which there were more events than may wait for their clients:
    /// they are not told all of them.
    pub(crate) overflowed: Vec<u32>,
    /// The bytes of the events for sessions of other processes.
    told_bytes: usize,
    /// Grows each time that the events were taken out.
    round: u64,
}

impl Effects {
    pub(crate) fn is_empty(&self) -> bool {
        let has_told = !self.fired.is_empty() || !self.overflowed.is_empty();
        let has_ended = !self.ended.is_empty() || !self.dropped.is_empty();
        !has_told && !has_ended && self.asked.is_empty()
    }

    /// Counts an event for a session of another process. `all_bytes` is what may wait for all of them, so many.
    /// Returns false if it is one too many: then the session has to go, and is told no more.
    fn count(
        &mut self,
        session: &mut Session,
        slot: u32,
        bytes: usize,
        (all_bytes, sessions): (usize, usize),
    ) -> bool {
        if self.fired.is_empty() && self.overflowed.is_empty() {
            self.round += 1;
            self.told_bytes = 0;
        }
        let told = &mut session.told;
        if told.round != self.round {
            *told = Told {
                round: self.round,
                ..Told::default()
            };
        }
        if told.is_over {
            return false;
        }
        told.bytes += bytes;
        self.told_bytes += bytes;
        // Whoever is told little is not to blame.
        let own = all_bytes / 2 / sessions.max(1);
        told.is_over =
            told.bytes > session.answer_bytes || self.told_bytes > all_bytes && told.bytes > own;
        if told.is_over {
            self.overflowed.push(slot);
        }
        !told.is_over
    }
}

/// A session that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: SessionId,
    pub(crate) slot: u32,
    pub(crate) end: End,
}

/// How a session ended.
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

/// A reply in which keys stand for the watches that it arms.
pub(crate) type CoreReply = Reply<WatchKey, WatchKey>;

#[derive(Debug)]
pub(crate) struct Core {
    options: CoreOptions,
    tree: Tree,
    watches: Watches,
    sessions: Sessions,
    reaper: Reaper,
    /// The last that was given out.
    zxid: i64,
    /// Where a new path is put together.
    path: String,
    kept: Kept,
}

impl Core {
    pub(crate) fn new(options: CoreOptions) -> Self {
        Self {
            tree: Tree::new(options.hash_seed),
            watches: Watches::new(options.hash_seed),
            sessions: Sessions::new(options.tick, options.hash_seed),
            reaper: Reaper::default(),
            zxid: options.last_zxid,
            path: String::new(),
            kept: Kept::NONE,
            options,
        }
    }

    /// Units of work that requests have taken since the store was opened ([`Work`](work::Work)).
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn work(&self) -> u64 {
        self.tree.work.total()
    }

    /// The last zxid that was given out.
    pub(crate) fn last_zxid(&self) -> Zxid {
        Zxid(self.zxid)
    }

    /// Opens a session under an id that no other has. `timeout` is brought within the store's
    /// bounds; without one the session never expires. A local one dies with the process.
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

    #[cfg(any(test, feature = "server"))]
    /// Opens a session of another process that is no part of the store until somebody proves an identity for it
    /// ([`identify`](Self::identify)).
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

    /// Hands the log the opening of a session.
    fn log_session(&mut self, slot: u32, now: Now) {
        let session = self.sessions.get(slot);
        let (id, password, is_local) = (session.id, session.password, session.is_local);
        let timeout_ms = session.granted_ms;
        let at = self.stamp(now, self.keep(slot));
        self.log(id, at, || TxnOp::OpenSession {
            timeout_ms,
            password,
            is_local,
        });
    }

    #[cfg(any(test, feature = "server"))]
    /// Adds an identity that the client has proved. The first one makes an unproven session a part of the store: then
    /// its opening is logged, if `room` says that the log has room for it, and the timeout that it was opened with is
    /// returned.
    ///
    /// # Errors
    /// As [`add_identity`](Self::add_identity), of `room`, and by the limit of sessions. A session that cannot become a
    /// part of the store ends: its client is let in by now, and what it would do could not be logged.
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

    #[cfg(any(test, feature = "server"))]
    /// Takes a session over to another connection, with a timeout that is agreed anew, but never longer than the one
    /// it was opened with: the former connection is refused from now on, and its watches are gone.
    ///
    /// # Errors
    /// Why there is none to take over. To the client both reasons must look the same.
    pub(crate) fn reattach(
        &mut self,
        id: SessionId,
        password: &[u8; 16],
        timeout: Duration,
        now: Now,
        effects: &mut Effects,
    ) -> Result<(SessionRef, Duration), ReattachError> {
        let slot = self.sessions.find(id).ok_or(ReattachError::Over)?;
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

    /// The longest timeout that a session can be granted.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn longest_timeout(&self) -> Duration {
        self.options.longest_timeout
    }

    fn within_bounds(&self, timeout: Duration) -> Duration {
        timeout.clamp(self.options.shortest_timeout, self.options.longest_timeout)
    }

    #[cfg(test)]
    /// Where a session is kept.
    pub(crate) fn slot_of(&self, id: SessionId) -> Option<u32> {
        self.sessions.find(id)
    }

    /// Limits the bytes of an answer to a session, and of the events that one transaction has for it.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn limit_answers(&mut self, of: SessionRef, limit: usize) {
        self.sessions.get_mut(of.slot).answer_bytes = limit;
    }

    /// Limits the bytes of the events that one transaction has for all sessions of other processes.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn limit_events(&mut self, limit: usize) {
        self.watches.event_bytes = limit;
    }

    #[cfg(any(test, feature = "server"))]
    /// A connection has gone: what it has proved and its watches go with it, at most [`MOST_DROPPED`] of these at once. Its
    /// session does not, unless it is unproven. Returns true if there are more watches, for another call.
    pub(crate) fn detach(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> bool {
        if self.is_unproven(of) {
            self.end_session(of.slot, End::Closed, now, effects);
        }
        let known = self.sessions.slots.get(of.slot as usize);
        known.is_some_and(|known| known.is_of(of)) && {
            self.sessions.get_mut(of.slot).is_attached = false;
            self.sessions.forget_identities(of.slot);
            self.drop_silently(of.slot, MOST_DROPPED);
            self.sessions.get(of.slot).watch_count > 0
        }
    }

    #[cfg(any(test, feature = "server"))]
    /// Prepares a session with many watches to be taken over by another connection, for as many calls as return true:
    /// its former connection is refused from now on, and its watches go, so many at once. Then
    /// [`reattach`](Self::reattach) finds few.
    pub(crate) fn displace(&mut self, id: SessionId, password: &[u8; 16]) -> bool {
        let Some(slot) = self.sessions.find(id) else {
            return false;
        };
        let is_displaced = self.sessions.get(slot).password == *password && self.shed(slot);
        self.sessions.get_mut(slot).connection += u32::from(is_displaced);
        is_displaced
    }

    #[cfg(any(test, feature = "server"))]
    /// Prepares a session with many watches to be closed by its connection, for as many calls as return true.
    pub(crate) fn shed_before_close(&mut self, of: SessionRef) -> bool {
        let known = self.sessions.slots.get(of.slot as usize);
        known.is_some_and(|known| known.is_of(of)) && self.shed(of.slot)
    }

    /// Drops some watches of a session of another process that has many; false if there are few.
    fn shed(&mut self, slot: u32) -> bool {
        let session = self.sessions.get(slot);
        let has_many = !session.is_local && session.watch_count > MOST_DROPPED;
        if has_many {
            self.drop_silently(slot, MOST_DROPPED);
        }
        has_many
    }

    /// Drops watches of a session of another process, which has no watchers that would wait for more.
    fn drop_silently(&mut self, slot: u32, most: usize) {
        let count = most.min(self.sessions.get(slot).watch_count);
        let (tree, sessions) = (&mut self.tree, &mut self.sessions);
        self.watches
            .drop_some(tree, sessions, slot, count, &mut |_| {});
        self.tree.work.add(count);
    }

    /// Ends a session whose time has passed. One with many watches loses some of them, and ends by a later tick: until
    /// then it is refused, since its client would never hear of what it watched.
    fn expire(&mut self, slot: u32, now: Now, effects: &mut Effects) {
        match self.shed(slot) {
            true => self.sessions.doom(slot, now.moment),
            false => self.end_session(slot, End::Expired, now, effects),
        }
    }

    #[cfg(any(test, feature = "server"))]
    /// Ends the session of this connection if it is past its deadline and was asked for signs of life: the connection has
    /// read all that has come, and there is none.
    pub(crate) fn end_silent(&mut self, of: SessionRef, now: Now, effects: &mut Effects) {
        let known = self.sessions.slots.get(of.slot as usize);
        if known.is_some_and(|known| known.is_of(of)) && self.sessions.is_asked(of.slot) {
            self.expire(of.slot, now, effects);
        }
    }

    #[cfg(any(test, feature = "server"))]
    /// Counts a stall: a time in which the store did not do what was due. Deadlines of sessions of other processes that
    /// were touched before come later by as much, within limits.
    pub(crate) fn count_stall(&mut self, stall: Duration) {
        self.sessions.count_stall(stall);
    }

    #[cfg(any(test, feature = "server"))]
    /// A sign of life, and no more.
    pub(crate) fn ping(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> Result<()> {
        self.admit(of, now, effects)
    }

    /// Ends a session from the store's side, if it is not over yet.
    #[cfg(feature = "test-util")]
    pub(crate) fn expire_session(&mut self, id: SessionId, now: Now, effects: &mut Effects) {
        if let Some(slot) = self.sessions.find(id) {
            self.end_session(slot, End::Expired, now, effects);
        }
    }

    /// Carries out a request.
    #[inline(always)] // so that the request is not copied on its way
    pub(crate) fn submit(
        &mut self,
        session: SessionRef,
        request: Request,
        now: Now,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        self.admit(session, now, effects)?;
        match request {
            Request::Create(create) => self.create(session, create, now, effects),
            Request::Delete { path, version } => self.delete(
                session,
                &path,
                version,
                DeleteReason::Released,
                now,
                effects,
            ),
            Request::Withdraw { entry } => {
                self.delete(session, &entry, None, DeleteReason::Unknown, now, effects)
            }
            Request::SetData {
                path,
                data,
                version,
            } => self.set_data(session, path, data, version, now, effects),
            Request::Exists { path, watch } => self.exists(session, &path, watch),
            Request::GetData { path, watch } => self.get_data(session, &path, watch),
            Request::GetChildren { path, watch } => self.get_children(session, &path, watch),
            Request::Multi(ops) => self.multi(session, ops, now, effects),
            Request::MultiRead(ops) => self.multi_read(session, &ops),
            Request::Sync { .. } => Ok(Reply::Done),
            Request::GetEphemerals { prefix } => self.get_ephemerals(session, &prefix),
            Request::GetAllChildrenNumber { path } => self.get_all_children_number(session, &path),
            Request::AddWatch { path, mode } => self.add_watch(session, &path, mode),
            Request::Enqueue(enqueue) => self.enqueue(session, enqueue, now, effects),
            Request::GetPredecessor(look) => self.get_predecessor(session, &look),
            Request::GetQueue { parent, limit } => self.get_queue(session, &parent, limit),
            Request::GetAcl { path } => self.get_acl(session, &path),
            Request::SetAcl { path, acl, version } => {
                self.set_acl(session, path, acl, version, now)
            }
            Request::AddAuth { scheme, secret } => {
                self.add_auth(session, &scheme, secret.as_bytes(), now, effects)
            }
            Request::Close => {
                self.end_session(session.slot, End::Closed, now, effects);
                Ok(Reply::Done)
            }
        }
    }

    /// Takes a watch back; it may have fired already.
    pub(crate) fn unwatch(&mut self, watch: WatchKey) -> bool {
        self.watches
            .disarm(&mut self.tree, &mut self.sessions, watch)
    }

    /// Does what is due: ends sessions, reaps znodes.
    pub(crate) fn tick(&mut self, now: Now, effects: &mut Effects) {
        let before = self.tree.work.total();
        while let Some(slot) = self.sessions.first_due(now.moment) {
            if self.tree.work.total().wrapping_sub(before) >= TICK_WORK {
                // The deadlines of the others are past: the next tick is due at once.
                return;
            }
            match self.sessions.judge_due(slot, now.moment) {
                Due::Over => self.expire(slot, now, effects),
                Due::Later => {}
                Due::Asked => effects.asked.push(slot),
            }
        }
        self.reap(now, effects);
    }

    /// When [`tick`](Self::tick) is due next. `now` is asked for only when a timer starts.
    pub(crate) fn next_deadline(
        &mut self,
        now: impl FnOnce() -> BootInstant,
    ) -> Option<BootInstant> {
        let sweep = self.reaper.next_sweep(self.options.reaper_interval, now);
        match (self.sessions.next_deadline(), sweep) {
            (Some(expiry), Some(sweep)) => Some(expiry.min(sweep)),
            (expiry, sweep) => expiry.or(sweep),
        }
    }

    /// Lets a request in if its session lives and has not moved on, and counts it as a sign of life.
    fn admit(&mut self, of: SessionRef, now: Now, effects: &mut Effects) -> Result<()> {
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

    fn end_session(&mut self, slot: u32, end: End, now: Now, effects: &mut Effects) {
        let session = self.sessions.get(slot);
        let id = session.id;
        let at = match session.is_unproven {
            // No transaction has opened it, and none ends it.
            true => Stamp::restored(self.last_zxid()),
            false => self.stamp(now, self.keep(slot)),
        };
        self.remove_session(slot, end, at, effects);
        self.resolve_waiters(effects);
        self.log(id, at, || TxnOp::CloseSession(end));
    }

    /// Its own watches go first: it is told of its end, not of what its end does. But who closes a session
    /// over a wire is still told, before the answer.
    fn remove_session(&mut self, slot: u32, end: End, at: Stamp, effects: &mut Effects) {
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
                // Those of a connection have no watcher who would wait for more.
                if is_local {
                    effects.dropped.push((key, id, end));
                }
            });
    }

    fn add_watch(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        mode: WatchMode,
    ) -> Result<CoreReply> {
        let kind = match mode {
            WatchMode::Persistent => WatchKind::Persistent,
            WatchMode::PersistentRecursive => WatchKind::Recursive,
        };
        let node = self.tree.find(path.as_str());
        self.check_watch_limit(session, path)?;
        Ok(Reply::Watching(self.arm(session, kind, path, node)))
    }

    /// Asked before anything is armed or changed.
    fn check_watch_limit(&self, session: SessionRef, path: &ZnodePath) -> Result<()> {
        self.check_watch_room(session, 1, path.as_str().len())
    }

    /// `path_bytes` are those of all paths to be watched.
    fn check_watch_room(&self, session: SessionRef, count: usize, path_bytes: usize) -> Result<()> {
        let limit = self.options.limits.watches_per_session;
        if count <= limit.saturating_sub(self.sessions.get(session.slot).watch_count) {
            let bytes = count * WATCH_BYTES + path_bytes;
            return self.budget().check(bytes, || self.payer(session, true));
        }
        Err(Error::LimitReached {
            what: "watches of a session",
            limit,
        })
    }

    fn arm(
        &mut self,
        session: SessionRef,
        kind: WatchKind,
        path: &ZnodePath,
        node: Option<u32>,
    ) -> WatchKey {
        self.watches.arm(
            &mut self.tree,
            &mut self.sessions,
            session.slot,
            kind,
            path,
            node,
        )
    }
}

fn no_node(path: &str) -> Error {
    Error::NoNode {
        path: path.to_owned(),
    }
}
