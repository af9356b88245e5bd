//! [`Queue`]: the part of a store that one queue occupies, its entries and the release marker on its parent.

/// Identity of a session: a client, and the number of sessions that it has had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId {
    pub(crate) client: u8,
    pub(crate) generation: u8,
}

/// Unique id in the name of an entry, drawn for one wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EntryId {
    pub(crate) client: u8,
    pub(crate) wait: u8,
}

/// Full name of an entry: the id that its client chose, and the number that the store appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) number: u8,
    pub(crate) id: EntryId,
}

/// An entry's ephemeral znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    /// The transaction that created it: the fencing token. Only creates are counted, which keeps the order.
    pub(crate) czxid: u8,
    /// `None`: a stranger's session, which has taken the name over.
    pub(crate) owner: Option<SessionId>,
}

/// "Released up to this number", valid below one parent only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReleaseMarker {
    pub(crate) parent: u8,
    pub(crate) released: u8,
}

/// A queue as the store has it, or as a follower that lags still has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    /// In the order of their numbers.
    pub(crate) entries: Vec<Entry>,
    /// The parent's czxid: below another parent numbers begin again.
    pub(crate) parent: u8,
    pub(crate) next_number: u8,
    pub(crate) next_czxid: u8,
    pub(crate) marker: Option<ReleaseMarker>,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            parent: 0,
            next_number: 0,
            next_czxid: 1,
            marker: None,
        }
    }

    /// Appends an entry.
    pub(crate) fn create(&mut self, id: EntryId, owner: SessionId) -> Entry {
        let name = Name {
            number: self.next_number,
            id,
        };
        let entry = Entry {
            name,
            czxid: self.next_czxid,
            owner: Some(owner),
        };
        self.next_number += 1;
        self.next_czxid += 1;
        self.entries.push(entry);
        entry
    }

    /// Returns the entry of this name.
    pub(crate) fn get(&self, name: Name) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Returns true if an entry of this name exists and belongs to this session.
    pub(crate) fn is_owned(&self, name: Name, owner: SessionId) -> bool {
        self.get(name)
            .is_some_and(|entry| entry.owner == Some(owner))
    }

    /// Returns the nearest entry ahead of a number.
    pub(crate) fn nearest_ahead(&self, number: u8) -> Option<Name> {
        let ahead = self.entries.iter().rev();
        ahead
            .map(|entry| entry.name)
            .find(|name| name.number < number)
    }

    /// Returns the names of all entries.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.entries.iter().map(|entry| entry.name).collect()
    }
}
