//! [`Grant`]: the result of a wait, from which a guard is created.

use std::sync::{Arc, OnceLock};

use lockkeeper_store::{EntryKey, EntryName, Lease, ZnodeHandle, ZnodePath};

use super::order::CurrentMarker;
use crate::token::FencingToken;

#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) node: GrantNode,
    pub(crate) token: FencingToken,
    /// The lease at the time of the grant. Once this lease has lapsed, the guard is lost for good (invariant 6).
    pub(crate) lease: Lease,
    pub(crate) marker: Option<CurrentMarker>,
}

impl Grant {
    pub(crate) fn new(node: GrantNode, token: FencingToken, lease: Lease) -> Self {
        Self {
            node,
            token,
            lease,
            marker: None,
        }
    }
}

/// The znode of a grant. In an embedded store it is a reference whose path is built on demand.
#[derive(Clone)]
pub(crate) struct GrantNode {
    entry: Option<GrantEntry>,
    path: OnceLock<ZnodePath>,
}

#[derive(Clone)]
pub(crate) struct GrantEntry {
    pub(crate) queue: Arc<ZnodeHandle>,
    pub(crate) name: EntryName,
    pub(crate) key: EntryKey,
}

impl GrantNode {
    pub(crate) fn entry(entry: GrantEntry) -> Self {
        Self {
            entry: Some(entry),
            path: OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn key(&self) -> Option<EntryKey> {
        Some(self.held()?.key)
    }

    #[inline]
    pub(super) fn held(&self) -> Option<&GrantEntry> {
        self.entry.as_ref()
    }

    pub(crate) fn path(&self) -> &ZnodePath {
        self.path.get_or_init(|| {
            let entry = self.entry.as_ref().expect("without a path it is an entry");
            entry.path()
        })
    }
}

impl GrantEntry {
    pub(crate) fn path(&self) -> ZnodePath {
        self.key.path(&self.queue, self.name)
    }
}

impl From<ZnodePath> for GrantNode {
    fn from(path: ZnodePath) -> Self {
        Self {
            entry: None,
            path: path.into(),
        }
    }
}
