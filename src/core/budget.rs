//! [`Budget`]: one limit in bytes for everything that clients make the store keep, and each session's share of it. Also
//! limits the events that one transaction sends to clients (invariant 10).
//!
//! Only growth is ever refused. Deletes, ends of sessions, pings and reads are not checked, so a full store can be
//! emptied.

use super::sessions::{PendingEvents, Session};
use super::tree::Node;
use super::{Core, Effects, Limits, SessionRef};
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};

/// Estimated bytes of a znode without its path, data and access control list.
pub(crate) const ZNODE_BYTES: usize = 384;

/// Bytes of an access control entry without its scheme and id.
pub(crate) const ACL_ENTRY_BYTES: usize = 80;

#[inline]
pub(super) fn bytes_of(path_bytes: usize, data_bytes: usize, acl: &Acl) -> usize {
    ZNODE_BYTES + path_bytes + data_bytes + bytes_of_acl(acl)
}

#[inline]
pub(crate) fn bytes_of_acl(acl: &Acl) -> usize {
    let (entries, text_bytes) = acl.size();
    entries * ACL_ENTRY_BYTES + text_bytes
}

impl Node {
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        bytes_of(self.path_bytes as usize, self.data.len(), &self.acl)
    }
}

impl Core {
    #[inline]
    pub(super) fn check_room(&self, session: SessionRef, bytes: usize, is_own: bool) -> Result<()> {
        check_znodes(self.tree.nodes.len(), &self.options.limits)?;
        let payer = || self.payer(session, is_own);
        self.budget().check(bytes, payer)
    }

    #[inline]
    pub(super) fn check_growth(
        &self,
        session: SessionRef,
        node: u32,
        from: usize,
        to: usize,
    ) -> Result<()> {
        if to <= from {
            return Ok(());
        }
        let is_own = self.tree.node(node).owner_slot == session.slot;
        let payer = || self.payer(session, is_own);
        self.budget().check(to - from, payer)
    }
}

/// Growth of the store by a whole multi. Only the sum is checked, because one operation may use the room that another
/// operation frees.
#[derive(Default)]
pub(super) struct Growth {
    znodes: isize,
    bytes: isize,
    last: usize,
    is_lasting: bool,
}

impl Growth {
    pub(super) fn add(&mut self, index: usize, znodes: isize, bytes: isize, is_own: bool) {
        self.znodes += znodes;
        self.bytes = self.bytes.saturating_add(bytes);
        if znodes > 0 || bytes > 0 {
            self.last = index;
            self.is_lasting |= !is_own;
        }
    }

    pub(super) fn check(&self, core: &Core, session: SessionRef) -> Result<(), (usize, Error)> {
        let (tree, limits) = (&core.tree, &core.options.limits);
        let mut checked = Ok(());
        if self.znodes > 0 {
            let before = tree.nodes.len().saturating_add_signed(self.znodes - 1);
            checked = check_znodes(before, limits);
        }
        if self.bytes > 0 && checked.is_ok() {
            let payer = || core.payer(session, !self.is_lasting);
            checked = core.budget().check(self.bytes.unsigned_abs(), payer);
        }
        checked.map_err(|error| (self.last, error))
    }
}

#[inline]
fn check_znodes(before: usize, limits: &Limits) -> Result<()> {
    if before < limits.znodes {
        return Ok(());
    }
    Err(Error::LimitReached {
        what: "znodes",
        limit: limits.znodes,
    })
}

pub(super) const WATCH_BYTES: usize = 256;

/// Bytes charged for a remote session, without its watches and ephemeral znodes.
pub(crate) const SESSION_BYTES: usize = 512;

/// Sessions may always use `1 / SESSIONS_PART` of the limit, even if znodes fill the store, so that a client can
/// connect and delete znodes.
const SESSIONS_PART: usize = 16;

/// Identities may always use `1 / IDENTITIES_PART` of the limit, even if znodes fill the store, so that clients can
/// prove who they are.
const IDENTITIES_PART: usize = 16;

const SHARED_PART: usize = 4;

/// A limit in bytes, and the bytes in use.
///
/// The first three quarters of the limit are available to every client. In the last quarter, a remote session may grow
/// only up to its equal share. No other client can take this share (invariant 15).
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) limit: usize,
    pub(super) used: usize,
    /// Number of remote sessions.
    pub(super) sessions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payer {
    /// The program that embeds the store. It may fill the store.
    Program,
    /// A remote session, and its bytes so far.
    Session { own: usize },
    /// No session pays, because the new content outlives the session that creates it.
    Nobody,
}

impl Budget {
    #[inline]
    pub(super) fn check(self, growth: usize, payer: impl FnOnce() -> Payer) -> Result<()> {
        let after = self.used.saturating_add(growth);
        if after <= self.limit - self.limit / SHARED_PART {
            return Ok(());
        }
        self.check_share(after, growth, payer())
    }

    #[cold]
    fn check_share(self, after: usize, growth: usize, payer: Payer) -> Result<()> {
        let (what, limit) = match payer {
            // Persistent content stays out of the last quarter of the limit, because the end of a session would not
            // free it.
            Payer::Nobody => (
                "bytes in znodes that outlive their session",
                self.limit - self.limit / SHARED_PART,
            ),
            Payer::Session { own } if own.saturating_add(growth) > self.share() => {
                ("bytes for each session of a full store", self.share())
            }
            _ if after <= self.limit => return Ok(()),
            _ => ("bytes in the store", self.limit),
        };
        Err(Error::LimitReached { what, limit })
    }

    fn share(self) -> usize {
        self.limit / SHARED_PART / self.sessions.max(1)
    }
}

impl Core {
    pub(crate) fn bytes(&self) -> usize {
        self.tree.bytes + self.watches.bytes + self.sessions.bytes + self.sessions.identity_bytes
    }

    pub(super) fn budget(&self) -> Budget {
        Budget {
            limit: self.options.limits.bytes,
            used: self.bytes(),
            sessions: self.sessions.remote,
        }
    }

    pub(super) fn payer(&self, session: SessionRef, is_own: bool) -> Payer {
        match self.sessions.get(session.slot) {
            session if session.is_local => Payer::Program,
            session if is_own => Payer::Session { own: session.bytes },
            _ => Payer::Nobody,
        }
    }

    pub(super) fn check_session_room(&self) -> Result<()> {
        let limit = self.options.limits.bytes / SESSIONS_PART;
        if self.sessions.bytes.saturating_add(SESSION_BYTES) <= limit {
            return Ok(());
        }
        let what = "bytes of sessions";
        Err(Error::LimitReached { what, limit })
    }

    pub(super) fn check_identity_room(&self, own: usize, bytes: usize) -> Result<()> {
        let budget = Budget {
            limit: self.options.limits.bytes / IDENTITIES_PART,
            used: self.sessions.identity_bytes,
            sessions: self.sessions.remote,
        };
        budget.check(bytes, || Payer::Session { own })
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn check_bytes(&self) {
        let sums = |of: fn(&super::sessions::Session) -> usize| -> usize {
            let sessions = self.sessions.slots.iter();
            sessions.map(|(_, session)| of(session)).sum()
        };
        let remote = self.sessions.slots.iter();
        let is_counted =
            |session: &super::sessions::Session| !session.is_local && !session.is_unproven;
        let remote = remote.filter(|(_, session)| is_counted(session)).count();
        let nodes: usize = self.tree.nodes.iter().map(|(_, node)| node.bytes()).sum();
        assert_eq!(self.tree.bytes, nodes, "znodes");
        assert_eq!(self.sessions.remote, remote, "sessions");
        assert_eq!(self.sessions.bytes, remote * SESSION_BYTES, "sessions");
        let identities = sums(|session| match session.is_local {
            true => 0,
            false => session.identities.bytes(),
        });
        assert_eq!(self.sessions.identity_bytes, identities, "identities");
        assert_eq!(self.watches.bytes, self.watches.sum(), "watches");
        for (slot, session) in &self.sessions.slots {
            let owned = session
                .ephemerals
                .iter(&self.tree.nodes, |node| &node.ephemerals);
            let owned: usize = owned.map(|(_, node)| node.bytes()).sum();
            let own = SESSION_BYTES + owned + self.watches.sum_of(slot as u32);
            let own = if session.is_local { 0 } else { own };
            assert_eq!(session.bytes, own, "{}", session.id);
        }
    }
}

impl Core {
    /// Limits the bytes of an answer to a session, and of the events that one transaction sends to the session.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn limit_answers(&mut self, of: SessionRef, limit: usize) {
        self.sessions.get_mut(of.slot).answer_bytes = limit;
    }

    /// Limits the bytes of the events that one transaction sends to all remote sessions.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn limit_events(&mut self, limit: usize) {
        self.watches.event_bytes = limit;
    }
}

impl Effects {
    /// Counts an event for a remote session. Returns false if a limit is exceeded. The event is then dropped, and the
    /// session's connection must be closed.
    pub(super) fn count(
        &mut self,
        session: &mut Session,
        slot: u32,
        bytes: usize,
        (all_bytes, sessions): (usize, usize),
    ) -> bool {
        // Empty lists mean that the caller has taken all earlier events. A new round number restarts every session's
        // count at 0 without a walk over the sessions.
        if self.fired.is_empty() && self.overflowed.is_empty() {
            self.round += 1;
            self.event_bytes = 0;
        }
        let pending = &mut session.pending_events;
        if pending.round != self.round {
            *pending = PendingEvents {
                round: self.round,
                ..PendingEvents::default()
            };
        }
        if pending.is_over {
            return false;
        }
        pending.bytes += bytes;
        self.event_bytes += bytes;
        // If all events together exceed the limit, disconnect only a session that exceeds its equal share of half the
        // limit, because the other sessions did not cause the excess.
        let own = all_bytes / 2 / sessions.max(1);
        pending.is_over = pending.bytes > session.answer_bytes
            || self.event_bytes > all_bytes && pending.bytes > own;
        if pending.is_over {
            self.overflowed.push(slot);
        }
        !pending.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(used: usize) -> Budget {
        Budget {
            limit: 1_000,
            used,
            sessions: 5,
        }
    }

    #[test]
    fn the_last_quarter_is_shared() {
        let check = |used, growth, payer| full(used).check(growth, || payer).is_ok();
        for (used, growth, payer, goes) in [
            (0, 750, Payer::Nobody, true),
            (0, 751, Payer::Nobody, false),
            (750, 0, Payer::Nobody, true),
            (750, 250, Payer::Program, true),
            (750, 251, Payer::Program, false),
            (740, 10, Payer::Session { own: 700 }, true),
            (750, 50, Payer::Session { own: 0 }, true),
            (750, 1, Payer::Session { own: 50 }, false),
            (750, 20, Payer::Session { own: 30 }, true),
            (990, 11, Payer::Session { own: 0 }, false),
            (usize::MAX, 1, Payer::Program, false),
        ] {
            assert_eq!(
                check(used, growth, payer),
                goes,
                "{used} {growth} {payer:?}"
            );
        }
    }
}
