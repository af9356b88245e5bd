//! [`Sessions`]: the session table, and its expiry buckets. A local session belongs to this process, and a remote
//! session to another process.
//!
//! Each deadline is rounded up to the end of a bucket, and a sign of life never moves it to an earlier time. So a
//! client stops relying on its session before the store ends the session (invariant 6).

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

#[cfg(any(test, feature = "server"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReattachError {
    Over,
    WrongPassword,
}

/// A connection's reference to its session. Valid until the session ends or moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionRef {
    pub(crate) id: SessionId,
    pub(crate) slot: u32,
    pub(crate) connection: u32,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) password: [u8; 16],
    pub(super) timeout_ms: u64,
    /// Timeout granted when the session was opened. The log contains only this timeout. Later connections never get a
    /// longer timeout.
    pub(super) granted_ms: u64,
    pub(super) is_local: bool,
    /// End of the session's expiry bucket, or a later time after a stall or a probe. `None` if the session has no
    /// timeout.
    deadline: Option<BootInstant>,
    grace: Grace,
    /// True once the session must end even after a sign of life, for example because it has already lost some watches.
    is_doomed: bool,
    pub(super) has_exited: bool,
    pub(super) is_kicked: bool,
    pub(super) is_attached: bool,
    pub(super) connection: u32,
    pub(super) identities: Identities,
    /// True if the session must still prove an identity. No transaction opens or ends such a session, no snapshot
    /// contains it, and no limit counts it.
    pub(super) is_unproven: bool,
    /// Number of the last event that was sent to the session. A remote session receives one event for all of its
    /// watches that a change affects.
    pub(super) last_event: u64,
    pub(super) ephemerals: List,
    /// Ephemeral znode where the session's search continues, or `NIL`.
    pub(super) search: u32,
    pub(super) watches: List,
    pub(super) watch_count: usize,
    /// Bytes charged to the session, without identities. 0 for a local session.
    pub(super) bytes: usize,
    pub(super) answer_bytes: usize,
    pub(super) pending_events: PendingEvents,
}

/// Bytes of the session's events that have not yet been taken out of [`Effects`](super::Effects).
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
    /// Number of unproven sessions, which no other count here includes.
    unproven: usize,
    /// Number of remote sessions.
    pub(super) remote: usize,
    /// Bytes of remote sessions, without watches, ephemeral znodes and identities.
    pub(super) bytes: usize,
    /// Bytes of the identities of remote sessions.
    pub(super) identity_bytes: usize,
    pub(super) ends: SessionEnds,
}

/// Sessions that have ended since the store was opened, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionEnds {
    pub(crate) closed: u64,
    /// Includes sessions that the store ended at its start because acknowledged transactions may have been lost.
    pub(crate) expired: u64,
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

    /// Replaces `before` with `after` in the bytes charged to a remote session.
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

    /// Returns true for a doomed session, and for a local session that is past its deadline. Only a tick ends an
    /// overdue remote session, because a sign of life may still be unread.
    pub(super) fn is_overdue(&self, slot: u32, now: BootInstant) -> bool {
        let session = self.get(slot);
        let is_late = session.deadline.is_some_and(|deadline| deadline <= now);
        session.is_doomed || session.is_local && is_late
    }

    /// Marks a session so that one of the next ticks ends it, even after a sign of life.
    pub(super) fn doom(&mut self, slot: u32, now: BootInstant) {
        self.get_mut(slot).is_doomed = true;
        self.set_deadline(slot, now);
    }

    /// Moves the deadline to a full timeout after `now`, but never to an earlier time, because the client may not know
    /// that its timeout has become shorter. `now` may be older than in the last call, because callers read the clock
    /// before they take the store's lock.
    pub(super) fn touch(&mut self, slot: u32, now: BootInstant) {
        let tick_ns = self.tick.as_nanos() as u64;
        let session = &mut self.slots[slot as usize];
        // Renew the grace even if the deadline stays the same, because a sign of life also answers a probe.
        session.grace = Grace::renewed(self.stalled);
        let expires = now
            .after(Duration::from_millis(session.timeout_ms))
            .as_nanos();
        // Use the end of the bucket, so that the session never expires early and expires at most a tick late.
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

    /// Adds a stall. A deadline moves only when it is reached, so this function need not visit all sessions.
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
