//! [`Grant`]: the outcome of a wait, from which a guard is created.

use std::sync::{Arc, OnceLock};

use lockkeeper_store::{EntryKey, EntryName, Lease, ZnodeHandle, ZnodePath};

use super::order::CurrentMarker;
use crate::token::FencingToken;

/// A znode that holds a lock.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) node: HeldNode,
    pub(crate) token: FencingToken,
    /// The session's lease at the time of the grant. Once it has lapsed the guard is lost for good, even if the session
    /// recovers (invariant 6).
    pub(crate) lease: Lease,
    /// The queue's release marker, to be moved on at the release. `None` unless the holder has waited behind a list and
    /// read it there.
    pub(crate) marker: Option<CurrentMarker>,
}

impl Grant {
    /// Creates the grant of a contender that has read no release marker.
    pub(crate) fn new(node: HeldNode, token: FencingToken, lease: Lease) -> Self {
        Self {
            node,
            token,
            lease,
            marker: None,
        }
    }
}

/// A held znode. That of an entry in a store of this process is known by reference, and its path is written out when
/// somebody asks for it.
#[derive(Clone)]
pub(crate) struct HeldNode {
    entry: Option<HeldEntry>,
    path: OnceLock<ZnodePath>,
}

/// An entry by reference.
#[derive(Clone)]
pub(crate) struct HeldEntry {
    pub(crate) queue: Arc<ZnodeHandle>,
    pub(crate) name: EntryName,
    pub(crate) key: EntryKey,
}

impl HeldNode {
    pub(crate) fn entry(entry: HeldEntry) -> Self {
        Self {
            entry: Some(entry),
            path: OnceLock::new(),
        }
    }

    /// Returns the entry's reference, if it was created by reference.
    #[inline]
    pub(crate) fn key(&self) -> Option<EntryKey> {
        Some(self.held()?.key)
    }

    #[inline]
    pub(super) fn held(&self) -> Option<&HeldEntry> {
        self.entry.as_ref()
    }

    pub(crate) fn path(&self) -> &ZnodePath {
        self.path.get_or_init(|| {
            let entry = self.entry.as_ref().expect("without a path it is an entry");
            entry.path()
        })
    }
}

impl HeldEntry {
    pub(crate) fn path(&self) -> ZnodePath {
        self.key.path(&self.queue, self.name)
    }
}

impl From<ZnodePath> for HeldNode {
    fn from(path: ZnodePath) -> Self {
        Self {
            entry: None,
            path: path.into(),
        }
    }
}
