//! [`Sessions`]: the table of sessions, and the buckets in which they expire.

use std::collections::BTreeSet;
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use slab::Slab;

use super::budget::SESSION_BYTES;
use super::links::List;
use crate::clock::Moment;
use crate::identity::Identities;
use crate::types::SessionId;

/// Why a session is not taken up again.
#[cfg(any(test, feature = "server"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unattached {
    /// It is over, or there never was one.
    Over,
    WrongPassword,
}

/// A session as its connection knows it: refused once the session is over or has moved on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionRef {
    pub(crate) id: SessionId,
    pub(crate) slot: u32,
    /// Which of the session's connections this is.
    pub(crate) connection: u32,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) password: [u8; 16],
    /// As its connection was told.
    pub(super) timeout_ms: u64,
    /// The timeout that it was opened with, and that a log has of it: no later connection is told a longer one, so
    /// that a restart waits for every timeout that was told.
    pub(super) granted_ms: u64,
    /// Whether it dies with the store's process. If not, all its watches are one watcher's, as over a
    /// wire: one event for all of them.
    pub(super) is_local: bool,
    /// The end of the bucket in which it expires.
    deadline: Option<Moment>,
    pub(super) connection: u32,
    /// Who its connection has proved to be.
    pub(super) identities: Identities,
    /// True once any connection of the session has proved an identity, also one before this. What comes from a log or
    /// a snapshot counts as proved.
    pub(super) is_proven: bool,
    /// The number of the last event that it was told.
    pub(super) last_event: u64,
    /// In order of creation.
    pub(super) ephemerals: List,
    pub(super) watches: List,
    pub(super) watch_count: usize,
    /// The bytes that it makes the store keep, its identities left out; 0 for a session of this process.
    pub(super) bytes: usize,
    /// The most bytes of an answer.
    pub(super) answer_bytes: usize,
    pub(super) told: Told,
}

/// The events that a session has since they were last taken out of [`Effects`](super::Effects).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) round: u64,
    pub(super) bytes: usize,
    /// True if there were too many.
    pub(super) is_over: bool,
}

impl Session {
    pub(super) fn new(id: SessionId, password: [u8; 16], timeout_ms: u64, is_local: bool) -> Self {
        Self {
            id,
            password,
            timeout_ms,
            granted_ms: timeout_ms,
            is_local,
            deadline: None,
            connection: 0,
            identities: Identities::default(),
            is_proven: true,
            last_event: 0,
            ephemerals: List::EMPTY,
            watches: List::EMPTY,
            watch_count: 0,
            bytes: if is_local { 0 } else { SESSION_BYTES },
            answer_bytes: usize::MAX,
            told: Told::default(),
        }
    }

    pub(super) fn first_ephemeral(&self) -> Option<u32> {
        (!self.ephemerals.is_empty()).then_some(self.ephemerals.first)
    }
}

#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) slots: Slab<Session>,
    by_id: HashMap<SessionId, u32, FixedState>,
    /// Deadline and slot of each session that can expire.
    expiry: BTreeSet<(Moment, u32)>,
    tick: Duration,
    /// How many ephemeral znodes all of them have.
    pub(super) ephemerals: usize,
    /// Number of those of other processes.
    pub(super) remote: usize,
    /// The bytes that those count for, their watches, ephemeral znodes and identities left out.
    pub(super) bytes: usize,
    /// The bytes that the identities of those count for.
    pub(super) identity_bytes: usize,
}

impl Sessions {
    pub(super) fn new(tick: Duration, hash_seed: u64) -> Self {
        Self {
            slots: Slab::new(),
            by_id: HashMap::with_hasher(FixedState::with_seed(hash_seed)),
            expiry: BTreeSet::new(),
            tick,
            ephemerals: 0,
            remote: 0,
            bytes: 0,
            identity_bytes: 0,
        }
    }

    pub(super) fn insert(&mut self, session: Session) -> u32 {
        let id = session.id;
        self.remote += usize::from(!session.is_local);
        self.bytes += session.bytes;
        let slot = self.slots.insert(session) as u32;
        self.by_id.insert(id, slot);
        slot
    }

    /// Removes a session that has no watch and no ephemeral znode any more.
    pub(super) fn remove(&mut self, slot: u32) {
        self.forget_identities(slot);
        let session = self.slots.remove(slot as usize);
        self.remote -= usize::from(!session.is_local);
        self.bytes -= session.bytes;
        self.by_id.remove(&session.id);
        if let Some(deadline) = session.deadline {
            self.expiry.remove(&(deadline, slot));
        }
    }

    /// Forgets what a session's connection has proved.
    pub(super) fn forget_identities(&mut self, slot: u32) {
        let session = self.get_mut(slot);
        let (is_local, identities) = (session.is_local, std::mem::take(&mut session.identities));
        if !is_local {
            self.identity_bytes -= identities.bytes();
        }
    }

    /// Counts the bytes that one thing of a session's takes now instead of before. Nothing is counted of sessions of
    /// this process, nor where the slot is of none.
    #[inline]
    pub(super) fn recharge(&mut self, slot: u32, before: usize, after: usize) {
        if let Some(session) = self.slots.get_mut(slot as usize)
            && !session.is_local
        {
            session.bytes = session.bytes - before + after;
        }
    }

    pub(super) fn find(&self, id: SessionId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> &Session {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Session {
        &mut self.slots[slot as usize]
    }

    /// Whether the session is past its deadline, though the tick that ends it has not come yet.
    pub(super) fn is_overdue(&self, slot: u32, now: Moment) -> bool {
        self.get(slot)
            .deadline
            .is_some_and(|deadline| deadline <= now)
    }

    /// Moves the deadline to a full timeout from now, rounded up to the end of its bucket. Never back: `now` may have
    /// been read before another request's, and a client that was not told of a shorter timeout believes the longer.
    pub(super) fn touch(&mut self, slot: u32, now: Moment) {
        let tick_ns = self.tick.as_nanos() as u64;
        let session = &mut self.slots[slot as usize];
        let expires = now
            .after(Duration::from_millis(session.timeout_ms))
            .as_nanos();
        let bucket = Moment::from_nanos((expires / tick_ns + 1).saturating_mul(tick_ns));
        if session.timeout_ms == 0 || session.deadline.is_some_and(|deadline| deadline >= bucket) {
            return;
        }
        if let Some(deadline) = session.deadline.replace(bucket) {
            self.expiry.remove(&(deadline, slot));
        }
        self.expiry.insert((bucket, slot));
    }

    pub(super) fn touch_all(&mut self, now: Moment) {
        let slots: Vec<u32> = self.slots.iter().map(|(slot, _)| slot as u32).collect();
        for slot in slots {
            self.touch(slot, now);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.expiry.first().map(|(deadline, _)| *deadline)
    }

    /// Those that can expire, in the order of their deadlines.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn expiring(
        &self,
        from: std::ops::Bound<(Moment, u32)>,
    ) -> impl Iterator<Item = &(Moment, u32)> {
        self.expiry.range((from, std::ops::Bound::Unbounded))
    }

    /// A session whose deadline has come.
    pub(super) fn first_due(&self, now: Moment) -> Option<u32> {
        let (deadline, slot) = self.expiry.first()?;
        (*deadline <= now).then_some(*slot)
    }
}
