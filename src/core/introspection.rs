//! The store's content for operators: counts, sessions with their deadlines, ephemeral znodes and watches, and the
//! changes that an audit log records.
//!
//! Lists are read in pieces of a few slots, so that no client waits long. A list may miss changes that happen between
//! two pieces.

use std::ops::{Bound, Range};
use std::time::Duration;

use super::budget::ZNODE_BYTES;
use super::journal::NodeKind;
use super::sessions::SessionEnds;
use super::watches::Watched;
use super::{Core, SessionRef};
use crate::model::acl::Acl;
use crate::model::identity::Identity;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Op, Request};
use crate::model::types::{SessionId, Zxid};
use crate::runtime::clock::BootInstant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Includes the root and the system's znodes, as in ZooKeeper.
    pub(crate) znodes: usize,
    pub(crate) ephemerals: usize,
    pub(crate) watches: usize,
    pub(crate) sessions: usize,
    pub(crate) remote_sessions: usize,
    pub(crate) data_bytes: usize,
    /// Bytes of all znodes, as charged to the limit.
    pub(crate) znode_bytes: usize,
    pub(crate) watch_bytes: usize,
    pub(crate) session_bytes: usize,
    pub(crate) max_bytes: usize,
    pub(crate) last_zxid: Zxid,
    pub(crate) ended: SessionEnds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) tick: Duration,
    pub(crate) shortest_timeout: Duration,
    pub(crate) longest_timeout: Duration,
}

type Expiry = (BootInstant, u32);

impl Core {
    /// Returns the audited changes that a request would make. Must be called before the request is executed, because
    /// the owner of a deleted znode decides whether the delete is audited.
    pub(crate) fn changes_of(&self, session: SessionRef, request: &Request) -> Vec<Change> {
        match request {
            Request::Delete { path, .. } | Request::Withdraw { entry: path } => {
                self.delete_of(session, path).into_iter().collect()
            }
            Request::SetAcl { path, acl, .. } => vec![Change {
                path: path.clone(),
                kind: ChangeKind::SetAcl(acl.clone()),
            }],
            Request::Multi(ops) => {
                let deletes = ops.iter().filter_map(|op| match op {
                    Op::Delete { path, .. } => self.delete_of(session, path),
                    _ => None,
                });
                deletes.collect()
            }
            _ => Vec::new(),
        }
    }

    fn delete_of(&self, session: SessionRef, path: &ZnodePath) -> Option<Change> {
        let node = self.tree.find(path.as_str());
        let node = node.map(|index| &self.tree.nodes[index as usize]);
        let owner = node.filter(|node| node.kind == NodeKind::Ephemeral);
        let owner = owner.map(|node| node.owner);
        // A session releases a lock by deleting its own ephemeral znode. Do not audit such deletes, because every
        // hand-over would add a record.
        (owner != Some(session.id)).then(|| Change {
            path: path.clone(),
            kind: ChangeKind::Delete { owner },
        })
    }

    pub(crate) fn counts(&self) -> Counts {
        let (znodes, znode_bytes) = (self.tree.nodes.len(), self.tree.bytes);
        Counts {
            znodes,
            ephemerals: self.sessions.ephemerals,
            watches: self.watches.len(),
            sessions: self.sessions.counted(),
            remote_sessions: self.sessions.remote,
            data_bytes: znode_bytes.saturating_sub(znodes * ZNODE_BYTES + self.tree.list_bytes),
            znode_bytes,
            watch_bytes: self.watches.bytes,
            session_bytes: self.sessions.bytes + self.sessions.identity_bytes,
            max_bytes: self.options.limits.bytes,
            last_zxid: self.last_zxid(),
            ended: self.sessions.ends,
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            tick: self.options.tick,
            shortest_timeout: self.options.shortest_timeout,
            longest_timeout: self.options.longest_timeout,
        }
    }

    pub(crate) fn expiring(&self, after: Option<Expiry>, most: usize) -> Vec<(Expiry, SessionId)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let expiring = self.sessions.expiring(from).take(most);
        expiring
            .map(|expiry| (*expiry, self.sessions.get(expiry.1).id))
            .collect()
    }

    pub(crate) fn session_slots(&self) -> usize {
        self.sessions.slots.capacity()
    }

    pub(crate) fn sessions_in(&self, slots: Range<usize>, see: &mut dyn FnMut(SessionFacts<'_>)) {
        for session in slots.filter_map(|slot| self.sessions.slots.get(slot)) {
            see(SessionFacts {
                id: session.id,
                timeout: (session.timeout_ms > 0)
                    .then(|| Duration::from_millis(session.timeout_ms)),
                is_local: session.is_local,
                identities: &session.identities,
                watches: session.watch_count,
            });
        }
    }

    pub(crate) fn znode_slots(&self) -> usize {
        self.tree.nodes.capacity()
    }

    pub(crate) fn ephemerals_in(
        &self,
        slots: Range<usize>,
        see: &mut dyn FnMut(SessionId, &ZnodePath),
    ) {
        for slot in slots {
            let node = self.tree.nodes.get(slot);
            if let Some(node) = node.filter(|node| node.kind == NodeKind::Ephemeral) {
                see(node.owner, &self.tree.path(slot as u32));
            }
        }
    }

    pub(crate) fn watch_slots(&self) -> usize {
        self.watches.slots()
    }

    pub(crate) fn watched_absences(&self) -> usize {
        self.watches.absences()
    }

    /// Visits the watches that ZooKeeper lists, which exclude watches on children.
    pub(crate) fn watches_in(&self, slots: Range<usize>, see: &mut dyn FnMut(WatchInfo<'_>)) {
        self.watches.each_listed(slots, &mut |slot, at| {
            let (path, node) = match at {
                Watched::Node(node) => (&self.tree.path(node), Some(node)),
                Watched::Absent(path) => (path, None),
            };
            see(WatchInfo {
                session: self.sessions.get(slot).id,
                session_slot: slot,
                path,
                node,
            });
        });
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionFacts<'a> {
    pub(crate) id: SessionId,
    /// `None` if the session never expires.
    pub(crate) timeout: Option<Duration>,
    pub(crate) is_local: bool,
    pub(crate) identities: &'a [Identity],
    pub(crate) watches: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchInfo<'a> {
    pub(crate) session: SessionId,
    pub(crate) session_slot: u32,
    pub(crate) path: &'a ZnodePath,
    pub(crate) node: Option<u32>,
}

/// A change that an audit log records: a delete or a new access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) path: ZnodePath,
    pub(crate) kind: ChangeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Delete { owner: Option<SessionId> },
    SetAcl(Acl),
}
