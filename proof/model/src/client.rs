//! [`Client`]: the state of one client, its session's lease and the recipe.

use crate::connection::Connection;
use crate::queue::{EntryId, Name, SessionId};

/// Step of the recipe in which a client is, as in `recipes/src/queue/wait.rs` and `claim.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Between two waits.
    Idle,
    /// The create is under way.
    Entering,
    /// The reply to the create was lost; its entry is searched for by its unique name.
    Searching,
    /// The search has found this name, and asks for the owner.
    CheckingOwner(Name),
    /// The list behind the create is under way.
    Listing,
    /// A later list is under way, or the one behind a create that was found again.
    Relisting,
    /// The index is asked for the predecessor.
    Rechecking,
    /// The watch on this entry is under way.
    Arming(Name),
    /// The waiter sleeps until this entry goes.
    Asleep(Name),
    /// The own entry and the release marker are read.
    Confirming,
    /// The entries ahead that the marker does not cover are read, and the own entry.
    ReadingStanding,
    /// The turn has come, or a list does not show the own entry: a committed write settles both.
    Proving,
    /// The client believes that it holds the lock.
    Holding,
    /// The delete of the own entry is under way, or waits for a connection.
    Leaving,
}

impl Phase {
    /// Returns the entry that this step is about.
    pub(crate) fn name(&mut self) -> Option<&mut Name> {
        match self {
            Self::CheckingOwner(name) | Self::Arming(name) | Self::Asleep(name) => Some(name),
            _ => None,
        }
    }
}

/// State of the proof that a waiter has of its own entry. No part of the protocol: it tells a removal that the waiter
/// could know of from one that came after its confirmation, of which a guard learns later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Evidence {
    /// Nothing since the last wake or reconnection.
    Unconfirmed,
    /// The store has confirmed the entry since.
    Confirmed,
    /// It has, and the entry was taken away by force after that.
    RemovedSince,
}

/// The own entry, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OwnEntry {
    pub(crate) name: Name,
    pub(crate) czxid: u8,
}

/// One client: a session and its connection, a lease, and a wait or a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) connection: Connection,
    pub(crate) session: SessionId,
    /// False once the store has let the session expire; the client learns of it at its next connection.
    pub(crate) is_session_alive: bool,
    /// The client's own belief in its session (invariant 6).
    pub(crate) is_lease_valid: bool,
    /// The store has heard from the session since the lease ended: it will not let it expire yet.
    pub(crate) is_touched: bool,
    pub(crate) phase: Phase,
    /// The wait was cancelled, and its create is still to be cleaned up.
    pub(crate) is_abandoned: bool,
    pub(crate) waits_left: u8,
    pub(crate) own: Option<OwnEntry>,
    /// Entries ahead, by the last list and the knowledge gained since.
    pub(crate) ahead: Vec<Name>,
    /// Parent for which the client has read the release marker, and may replace it.
    pub(crate) marked_parent: Option<u8>,
    /// Place in the order of arrival: the transaction that first created an entry for this wait. No part of the protocol.
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

    /// Returns true from the create until the turn, unless the wait was cancelled.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.is_abandoned && !matches!(self.phase, Phase::Idle | Phase::Holding | Phase::Leaving)
    }

    /// Returns true if the client has done all that it will do.
    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Idle && self.waits_left == 0
    }

    /// Ends the wait or the hold: nothing of it is at the store any more.
    pub(crate) fn finish(&mut self) {
        self.phase = Phase::Idle;
        self.is_abandoned = false;
        self.own = None;
        self.ahead.clear();
        self.marked_parent = None;
        self.arrival = None;
        self.evidence = Evidence::Unconfirmed;
    }

    /// Goes on in a new session, after the former has expired. What was under way ends with it.
    pub(crate) fn open_session(&mut self) {
        self.session.generation += 1;
        self.is_session_alive = true;
        self.is_lease_valid = true;
        self.is_touched = false;
        self.connection = Connection::new();
        self.finish();
    }
}
