//! [`Client`]: the state of one client, with its session's lease and the recipe.

use crate::connection::Connection;
use crate::queue::{EntryId, Name, SessionId};

/// The recipe's current step in a client, as in `recipes/src/queue/wait.rs` and `claim.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Between two waits.
    Idle,
    /// The create is in flight.
    Entering,
    /// The reply to the create was lost. The client searches for its entry by the unique name.
    Searching,
    /// The search has found this name, and asks for its owner.
    CheckingOwner(Name),
    /// The list after the create is in flight.
    Listing,
    /// A later list is in flight, or the one after a recovered create.
    Relisting,
    /// The index is asked for the predecessor.
    Rechecking,
    /// The watch on this entry is in flight.
    Arming(Name),
    /// The waiter sleeps until this entry is deleted.
    Asleep(Name),
    /// Its own entry and the release marker are read.
    Confirming,
    /// The entries ahead that the marker does not cover are read, then its own entry.
    ReadingStanding,
    /// Its turn has come, or a list does not contain its entry. A committed write settles both.
    Proving,
    /// The client believes that it holds the lock.
    Holding,
    /// The delete of the entry is in flight, or waits for a connection.
    Leaving,
}

impl Phase {
    /// Returns the entry that this step concerns.
    pub(crate) fn name(&mut self) -> Option<&mut Name> {
        match self {
            Self::CheckingOwner(name) | Self::Arming(name) | Self::Asleep(name) => Some(name),
            _ => None,
        }
    }
}

/// Knowledge that a waiter has of its entry. This is not part of the protocol. It separates removals that the waiter
/// could know of from those after its confirmation, which a guard notices later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Evidence {
    /// Nothing since the last wake-up or reconnection.
    Unconfirmed,
    /// The store has confirmed the entry since then.
    Confirmed,
    /// The store has confirmed the entry, which was then removed by force.
    RemovedSince,
}

/// The client's own entry, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OwnEntry {
    pub(crate) name: Name,
    pub(crate) czxid: u8,
}

/// A client: its session, connection and lease, and a wait or a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) connection: Connection,
    pub(crate) session: SessionId,
    /// False once the store has expired the session. The client learns of it when it reconnects.
    pub(crate) is_session_alive: bool,
    /// The client's own belief in its session (invariant 6).
    pub(crate) is_lease_valid: bool,
    /// The store has heard from the session since the lease ended, so it may not expire it yet.
    pub(crate) is_touched: bool,
    pub(crate) phase: Phase,
    /// The wait was cancelled, and its create must still be cleaned up.
    pub(crate) is_abandoned: bool,
    pub(crate) waits_left: u8,
    pub(crate) own: Option<OwnEntry>,
    /// Entries ahead, by the last list and later knowledge.
    pub(crate) ahead: Vec<Name>,
    /// The parent whose release marker the client has read and may replace.
    pub(crate) marked_parent: Option<u8>,
    /// Position in the order of arrival: the transaction that first created an entry for this wait. Not part of the
    /// protocol.
    pub(crate) arrival: Option<u8>,
    pub(crate) evidence: Evidence,
}

impl Client {
    pub(crate) fn new(client: u8, waits: u8) -> Self {
        Self {
            connection: Connection::new(),
            session: SessionId {
                client,
                generation: 0,
            },
            is_session_alive: true,
            is_lease_valid: true,
            is_touched: false,
            phase: Phase::Idle,
            is_abandoned: false,
            waits_left: waits,
            own: None,
            ahead: Vec::new(),
            marked_parent: None,
            arrival: None,
            evidence: Evidence::Unconfirmed,
        }
    }

    /// Returns the unique id of the current wait's entry.
    pub(crate) fn id(&self) -> EntryId {
        EntryId {
            client: self.session.client,
            wait: self.waits_left,
        }
    }

    /// Returns `true` from the create until the grant, unless the wait was cancelled.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.is_abandoned && !matches!(self.phase, Phase::Idle | Phase::Holding | Phase::Leaving)
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Idle && self.waits_left == 0
    }

    /// Ends the wait or hold, of which nothing is left in the store.
    pub(crate) fn finish(&mut self) {
        self.phase = Phase::Idle;
        self.is_abandoned = false;
        self.own = None;
        self.ahead.clear();
        self.marked_parent = None;
        self.arrival = None;
        self.evidence = Evidence::Unconfirmed;
    }

    /// Continues in a new session after the old one has expired, and drops everything in flight.
    pub(crate) fn open_session(&mut self) {
        self.session.generation += 1;
        self.is_session_alive = true;
        self.is_lease_valid = true;
        self.is_touched = false;
        self.connection = Connection::new();
        self.finish();
    }
}
