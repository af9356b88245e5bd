//! [`Sessions`]: the session table, and its expiry buckets.
//!
//! A deadline is rounded up to the end of a bucket and never moves back, so no client believes in its session for
//! longer than the store does (invariant 6).

use std::collections::BTreeSet;
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use slab::Slab;

use super::budget::SESSION_BYTES;
use super::expiry::{Grace, Overdue, Verdict};
use super::intrusive_list::{List, NIL};
use super::lifecycle::End;
use crate::model::identity::Identities;
use crate::model::types::SessionId;
use crate::runtime::clock::BootInstant;

/// Reason why a session is not moved to another connection.
#[cfg(any(test, feature = "server"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReattachError {
    Over,
    WrongPassword,
}

/// A connection's reference to its session, valid until the session ends or moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionRef {
    pub(crate) id: SessionId,
    pub(crate) slot: u32,
    /// Number of this connection within the session.
    pub(crate) connection: u32,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) password: [u8; 16],
    /// Granted to its connection.
    pub(super) timeout_ms: u64,
    /// Granted when it was opened, and logged. Later timeouts are never longer, so the pause after a restart covers
    /// them.
    pub(super) granted_ms: u64,
    /// True if it dies with the store's process.
    pub(super) is_local: bool,
    /// End of its expiry bucket, or later if the store was late. `None` without a timeout.
    deadline: Option<BootInstant>,
    grace: Grace,
    /// True once it is overdue and has lost some watches. It must not revive, because its client would miss events.
    is_doomed: bool,
    /// True once its client's process has exited.
    pub(super) has_exited: bool,
    /// True once an operator has asked for its end.
    pub(super) is_kicked: bool,
    pub(super) is_attached: bool,
    pub(super) connection: u32,
    pub(super) identities: Identities,
    /// True until a connection has proved an identity, where that is required. Until then no transaction opens or ends
    /// it, no snapshot contains it, and no limit counts it.
    pub(super) is_unproven: bool,
    /// The last event. Over a wire one event serves all watches on a znode.
    pub(super) last_event: u64,
    /// In order of creation.
    pub(super) ephemerals: List,
    /// Where its search continues.
    pub(super) search: u32,
    pub(super) watches: List,
    pub(super) watch_count: usize,
    /// Bytes charged to it, without identities. 0 for a session of this process.
    pub(super) bytes: usize,
    pub(super) answer_bytes: usize,
    pub(super) pending_events: PendingEvents,
}

/// Events since they were last taken out of [`Effects`](super::Effects).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingEvents {
    pub(super) round: u64,
    pub(super) bytes: usize,
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
            grace: Grace::default(),
            is_doomed: false,
            has_exited: false,
            is_kicked: false,
            is_attached: false,
            connection: 0,
            identities: Identities::default(),
            is_unproven: false,
            last_event: 0,
            ephemerals: List::EMPTY,
            search: NIL,
            watches: List::EMPTY,
            watch_count: 0,
            bytes: if is_local { 0 } else { SESSION_BYTES },
            answer_bytes: usize::MAX,
            pending_events: PendingEvents::default(),
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
    expiry: BTreeSet<(BootInstant, u32)>,
    tick: Duration,
    stalled: Duration,
    pub(super) ephemerals: usize,
    /// Unproven sessions, which no other count here includes.
    unproven: usize,
    /// Sessions of other processes.
    pub(super) remote: usize,
    /// Their bytes, without watches, ephemeral znodes and identities.
    pub(super) bytes: usize,
    /// Bytes of their identities.
    pub(super) identity_bytes: usize,
    pub(super) ends: SessionEnds,
}

/// Sessions that have ended since the store was opened, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionEnds {
    /// By the client.
    pub(crate) closed: u64,
    /// By timeout, or by a start after which no client could rely on them.
    pub(crate) expired: u64,
    /// By the exit of the client's process.
    pub(crate) exited: u64,
    pub(crate) kicked: u64,
}

impl Sessions {
    pub(super) fn new(tick: Duration, hash_seed: u64) -> Self {
        Self {
            slots: Slab::new(),
            by_id: HashMap::with_hasher(FixedState::with_seed(hash_seed)),
            expiry: BTreeSet::new(),
            tick,
            stalled: Duration::ZERO,
            ephemerals: 0,
            unproven: 0,
            remote: 0,
            bytes: 0,
            identity_bytes: 0,
            ends: SessionEnds::default(),
        }
    }

    /// Returns the number of sessions that the limit counts.
    pub(super) fn counted(&self) -> usize {
        self.slots.len() - self.unproven
    }

    pub(super) fn insert(&mut self, session: Session) -> u32 {
        let id = session.id;
        match session.is_unproven {
            true => self.unproven += 1,
            false => self.count(session.is_local),
        }
        let slot = self.slots.insert(session) as u32;
        self.by_id.insert(id, slot);
        slot
    }

    /// Removes a session without watches and ephemeral znodes.
    pub(super) fn remove(&mut self, slot: u32) {
        self.forget_identities(slot);
        let session = self.slots.remove(slot as usize);
        self.by_id.remove(&session.id);
        if session.is_unproven {
            self.unproven -= 1;
        } else if !session.is_local {
            self.remote -= 1;
            self.bytes -= SESSION_BYTES;
        }
        // The slot's next session must not inherit the deadline.
        if let Some(deadline) = session.deadline {
            self.expiry.remove(&(deadline, slot));
        }
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn set_proven(&mut self, slot: u32) {
        if std::mem::take(&mut self.slots[slot as usize].is_unproven) {
            self.unproven -= 1;
            self.count(false);
        }
    }

    fn count(&mut self, is_local: bool) {
        if !is_local {
            self.remote += 1;
            self.bytes += SESSION_BYTES;
        }
    }

    pub(super) fn forget_identities(&mut self, slot: u32) {
        let session = self.get_mut(slot);
        let (is_local, identities) = (session.is_local, std::mem::take(&mut session.identities));
        if !is_local {
            self.identity_bytes -= identities.bytes();
        }
    }

    /// Changes a session's bytes. Does nothing for a session of this process or an empty slot.
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

    /// Returns true for a session of this process that is past its deadline. Only ticks end sessions of other
    /// processes, because a sign of life may still be unread.
    pub(super) fn is_overdue(&self, slot: u32, now: BootInstant) -> bool {
        let session = self.get(slot);
        // A doomed session of another process has lost watches and must not revive.
        let is_late = session.deadline.is_some_and(|deadline| deadline <= now);
        session.is_doomed || session.is_local && is_late
    }

    /// Makes one of the next ticks end a session, even after a sign of life.
    pub(super) fn doom(&mut self, slot: u32, now: BootInstant) {
        self.get_mut(slot).is_doomed = true;
        self.set_deadline(slot, now);
    }

    /// Moves the deadline to a full timeout from now, but never back. `now` may be older than an earlier request's,
    /// because it is read before taking the store's lock. And a client may have missed the answer with a shorter
    /// timeout.
    pub(super) fn touch(&mut self, slot: u32, now: BootInstant) {
        let tick_ns = self.tick.as_nanos() as u64;
        let session = &mut self.slots[slot as usize];
        // Even if the deadline stays in its bucket, because a sign of life answers the probe.
        session.grace = Grace::renewed(self.stalled);
        let expires = now
            .after(Duration::from_millis(session.timeout_ms))
            .as_nanos();
        // Always the end of the bucket: never early, and at most a tick late (rule 14).
        let bucket = BootInstant::from_nanos((expires / tick_ns + 1).saturating_mul(tick_ns));
        if session.timeout_ms == 0 || session.deadline.is_some_and(|deadline| deadline >= bucket) {
            return;
        }
        self.set_deadline(slot, bucket);
    }

    fn set_deadline(&mut self, slot: u32, deadline: BootInstant) {
        let session = &mut self.slots[slot as usize];
        if let Some(former) = session.deadline.replace(deadline) {
            self.expiry.remove(&(former, slot));
        }
        self.expiry.insert((deadline, slot));
    }

    pub(super) fn count_end(&mut self, slot: u32, end: End) {
        let session = &self.slots[slot as usize];
        if session.is_unproven {
            return;
        }
        match end {
            End::Closed => self.ends.closed += 1,
            End::Expired if session.is_kicked => self.ends.kicked += 1,
            End::Expired if session.has_exited => self.ends.exited += 1,
            End::Expired => self.ends.expired += 1,
        }
    }

    /// Deadlines move only when they are reached, so a stall costs no walk over all sessions.
    pub(super) fn count_stall(&mut self, stall: Duration) {
        self.stalled += stall;
    }

    pub(super) fn check_deadline(&mut self, slot: u32, now: BootInstant) -> Verdict {
        let session = &mut self.slots[slot as usize];
        let Some(deadline) = session.deadline else {
            return Verdict::Expire;
        };
        let (verdict, grace) = session.grace.decide(Overdue {
            deadline,
            now,
            timeout: Duration::from_millis(session.timeout_ms),
            tick: self.tick,
            stalled: self.stalled,
            is_attached: session.is_attached,
            is_final: session.is_local || session.is_doomed,
        });
        session.grace = grace;
        if let Verdict::Postpone { until } | Verdict::Probe { until } = verdict {
            self.set_deadline(slot, until);
        }
        verdict
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn is_probed(&self, slot: u32) -> bool {
        self.get(slot).grace.is_probed()
    }

    pub(super) fn touch_all(&mut self, now: BootInstant) {
        // Collected first, because a touch changes the table.
        let slots: Vec<u32> = self.slots.iter().map(|(slot, _)| slot as u32).collect();
        for slot in slots {
            self.touch(slot, now);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<BootInstant> {
        self.expiry.first().map(|(deadline, _)| *deadline)
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn expiring(
        &self,
        from: std::ops::Bound<(BootInstant, u32)>,
    ) -> impl Iterator<Item = &(BootInstant, u32)> {
        self.expiry.range((from, std::ops::Bound::Unbounded))
    }

    pub(super) fn first_due(&self, now: BootInstant) -> Option<u32> {
        let (deadline, slot) = self.expiry.first()?;
        (*deadline <= now).then_some(*slot)
    }
}
