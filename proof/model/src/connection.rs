//! [`Connection`]: requests and replies in flight between one client and the store, in order in each direction
//! (invariant 3).

use crate::queue::{EntryId, Name, Queue, ReleaseMarker};

/// A request of the recipe to the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    /// Creates an entry, and returns and watches its predecessor, in a store with an index.
    Enqueue(EntryId),
    /// Creates an entry in a store without an index. Followed by a list.
    Create(EntryId),
    List,
    /// Asks the index for the predecessor, and watches it.
    GetPredecessor(Name),
    /// Watches an entry, for a waiter with the entry `own`.
    Watch {
        own: Name,
        on: Name,
    },
    /// Atomically reads its own entry and the release marker.
    Confirm(Name),
    /// Reads which of the entries ahead exist, then its own entry.
    ReadStanding {
        own: Name,
        ahead: Vec<Name>,
    },
    /// Makes the store commit that its own entry exists.
    Check(Name),
    /// A refused write that passes through the log. Absence observed after it is proof.
    Barrier,
    /// Reads the owner of an entry.
    GetOwner(Name),
    Delete(Name),
    /// Deletes its own entry and advances the release marker to it, in one transaction.
    Release(Name, ReleaseMarker),
}

impl Request {
    /// Returns `true` for a request that passes through the log.
    pub(crate) fn is_write(&self) -> bool {
        use Request::{Barrier, Check, Create, Delete, Enqueue, Release};
        matches!(
            self,
            Enqueue(_) | Create(_) | Check(_) | Barrier | Delete(_) | Release(..)
        )
    }

    /// Returns `true` for a write that changes the queue.
    fn is_change(&self) -> bool {
        self.is_write() && !matches!(self, Self::Check(_) | Self::Barrier)
    }
}

/// The index's answer: the nearest entry ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Predecessor {
    Clear,
    Blocked(Name),
    /// The own entry is missing or belongs to another session.
    Gone,
}

/// A reply or event in flight to a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Enqueued(Name, u8, Predecessor),
    Created(Name, u8),
    Listed(Vec<Name>),
    Predecessor(Predecessor),
    /// True if the entry exists and its watch is armed.
    Watching(bool),
    /// `None` if the own entry is missing or belongs to another session, otherwise the parent's czxid and its marker.
    Confirmed(Option<(u8, Option<ReleaseMarker>)>),
    /// `None` if the own entry is missing or belongs to another session.
    Standing(Option<Vec<bool>>),
    Checked(bool),
    Refused,
    /// The czxid of an entry of this session. `None` if it is missing or belongs to another session.
    Owner(Option<u8>),
    Deleted,
    /// The watched entry is gone. `clear` means that the own entry exists and nothing is ahead of it.
    Gone {
        on: Name,
        clear: bool,
    },
}

/// A message. It proves the session alive only if the lease has not ended since the request was sent (invariant 6).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Message<T> {
    pub(crate) body: T,
    pub(crate) proves: bool,
}

/// A one-shot watch in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    pub(crate) own: Name,
    pub(crate) on: Name,
}

/// One client's connection, with the state that the store keeps for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    pub(crate) is_up: bool,
    pub(crate) requests: Vec<Message<Request>>,
    pub(crate) replies: Vec<Message<Reply>>,
    /// Changes that were sent over earlier connections and may still be executed.
    pub(crate) strays: Vec<Request>,
    pub(crate) watch: Option<Watch>,
    /// The queue as seen by the client's follower, while that lags.
    pub(crate) view: Option<Box<Queue>>,
}

impl Connection {
    pub(crate) fn new() -> Self {
        Self {
            is_up: true,
            requests: Vec::new(),
            replies: Vec::new(),
            strays: Vec::new(),
            watch: None,
            view: None,
        }
    }

    pub(crate) fn send(&mut self, body: Request) {
        self.requests.push(Message { body, proves: true });
    }

    /// Breaks the connection. Replies are lost, so the client does not know what was executed. Changes that were not
    /// executed yet may still be, until a later connection commits a write.
    pub(crate) fn break_off(&mut self) {
        self.is_up = false;
        self.replies.clear();
        self.watch = None;
        let requests = self.requests.drain(..).map(|message| message.body);
        self.strays.extend(requests.filter(Request::is_change));
    }

    /// Records that the lease has ended. Nothing sent before proves the session alive any more.
    pub(crate) fn outdate_proofs(&mut self) {
        self.requests.iter_mut().for_each(|one| one.proves = false);
        self.replies.iter_mut().for_each(|one| one.proves = false);
    }
}
