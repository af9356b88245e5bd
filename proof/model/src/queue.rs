//! [`Queue`]: the part of a store that one queue occupies, with its entries and the release marker on its parent.

/// A session: its client, and the number of earlier sessions of that client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId {
    pub(crate) client: u8,
    pub(crate) generation: u8,
}

/// The unique id in the name of an entry, chosen for one wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EntryId {
    pub(crate) client: u8,
    pub(crate) wait: u8,
}

/// The full name of an entry: the id chosen by its client, and the number appended by the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) number: u8,
    pub(crate) id: EntryId,
}

/// The ephemeral znode of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    /// The transaction that created it, which is the fencing token. Only creates are counted, which preserves the
    /// order.
    pub(crate) czxid: u8,
    /// `None` for a stranger, who has taken the name over.
    pub(crate) owner: Option<SessionId>,
}

/// "Released up to this number", valid only below one parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReleaseMarker {
    pub(crate) parent: u8,
    pub(crate) released: u8,
}

/// A queue in the store, or as a lagging follower still has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    /// Ordered by number.
    pub(crate) entries: Vec<Entry>,
    /// The parent's czxid, because numbers restart below another parent.
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

    pub(crate) fn get(&self, name: Name) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    pub(crate) fn is_owned(&self, name: Name, owner: SessionId) -> bool {
        self.get(name)
            .is_some_and(|entry| entry.owner == Some(owner))
    }

    pub(crate) fn nearest_ahead(&self, number: u8) -> Option<Name> {
        let ahead = self.entries.iter().rev();
        ahead
            .map(|entry| entry.name)
            .find(|name| name.number < number)
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        self.entries.iter().map(|entry| entry.name).collect()
    }
}
