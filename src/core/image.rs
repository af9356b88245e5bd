//! Images: the store's content piece by piece, for a snapshot and back.

use bytes::Bytes;

use super::intrusive_list::NIL;
use super::replay::Damage;
use super::sessions::Session;
use super::tree::{Node, ROOT, is_system_path};
use super::txn::Kind;
use super::{Core, tree::QueueKey};
use crate::acl::Acl;
use crate::path::{ZnodePath, parent_of};
use crate::types::{SessionId, Zxid};

/// A znode as a snapshot keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeImage {
    pub(crate) path: ZnodePath,
    pub(crate) data: Bytes,
    pub(crate) acl: Acl,
    pub(crate) kind: Kind,
    /// The session of an ephemeral znode, else 0.
    pub(crate) owner: SessionId,
    pub(crate) czxid: Zxid,
    pub(crate) mzxid: Zxid,
    pub(crate) pzxid: Zxid,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    pub(crate) aversion: i32,
    /// How many children were ever made under it.
    pub(crate) creates: i64,
    /// Its number as an entry of a queue, and its parent's `creates` when it was made.
    pub(crate) place: Option<QueueKey>,
}

/// A session as a snapshot keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionImage {
    pub(crate) id: SessionId,
    pub(crate) password: [u8; 16],
    /// The timeout that it was opened with; 0 for a session that never expires.
    pub(crate) timeout_ms: u64,
    pub(crate) is_local: bool,
}

impl Core {
    /// The sessions.
    pub(crate) fn session_images(&self) -> impl Iterator<Item = SessionImage> {
        let sessions = self.sessions.slots.iter().map(|(_, session)| session);
        let kept = sessions.filter(|session| !session.is_unproven);
        kept.map(|session| SessionImage {
            id: session.id,
            password: session.password,
            timeout_ms: session.granted_ms,
            is_local: session.is_local,
        })
    }

    /// The znodes, parents before children, children in order of creation.
    pub(crate) fn node_images(&self) -> impl Iterator<Item = NodeImage> {
        let mut next = Some(ROOT);
        std::iter::from_fn(move || {
            let index = next?;
            next = self.tree.after(index);
            Some(image(self.tree.node(index)))
        })
    }

    /// How many znodes there are.
    pub(crate) fn node_count(&self) -> usize {
        self.tree.nodes.len()
    }

    /// Makes room for so many znodes at once: growing step by step would move them again and again.
    pub(crate) fn reserve(&mut self, znodes: usize) {
        self.tree.reserve(znodes.min(self.options.limits.znodes));
    }

    /// Puts back a session; all of them come before the znodes.
    pub(crate) fn restore_session(&mut self, session: SessionImage) -> Result<(), Damage> {
        let SessionImage {
            id,
            password,
            timeout_ms,
            is_local,
        } = session;
        self.replay_session(Session::new(id, password, timeout_ms, is_local))
    }

    /// Puts back a znode; in the order of [`node_images`](Self::node_images).
    pub(crate) fn restore_node(&mut self, image: NodeImage) -> Result<(), Damage> {
        let hash = self.tree.hash(image.path.as_str());
        let parent = self.check_image(&image, hash)?;
        let owner = match image.kind {
            Kind::Ephemeral => self.sessions.find(image.owner).ok_or_else(|| {
                Damage(format!(
                    "{} of session {}, which is not there",
                    image.path, image.owner
                ))
            })?,
            _ => NIL,
        };
        self.tree.restore(parent, owner, image, hash);
        Ok(())
    }

    /// The parent; `NIL` for a znode that every store has.
    fn check_image(&self, image: &NodeImage, hash: u64) -> Result<u32, Damage> {
        let path = &image.path;
        if is_system_path(path.as_str()) {
            return Ok(NIL);
        }
        let parent = parent_of(path.as_str()).and_then(|parent| self.tree.find_parent(parent));
        let Some(parent) = parent else {
            return Err(Damage(format!("{path}, whose parent is not there")));
        };
        if self.tree.node(parent).kind == Kind::Ephemeral {
            return Err(Damage(format!("{path}, whose parent is ephemeral")));
        }
        if self.tree.find_hashed(path.as_str(), hash).is_some() {
            return Err(Damage(format!("a second {path}")));
        }
        if image
            .place
            .is_some_and(|place| self.tree.is_taken(parent, place))
        {
            return Err(Damage(format!("{path} in the place of another")));
        }
        Ok(parent)
    }

    /// To be called when all is put back.
    pub(crate) fn finish_restore(&mut self, last_zxid: Zxid) {
        self.zxid = last_zxid.0;
        let mut owned = Vec::new();
        let indices: Vec<u32> = self
            .tree
            .nodes
            .iter()
            .map(|(index, _)| index as u32)
            .collect();
        for index in indices {
            let node = self.tree.node(index);
            if node.owner_slot != NIL {
                owned.push((node.czxid, index));
            }
            self.reaper.consider(&mut self.tree, index);
        }
        owned.sort_unstable();
        self.sessions.ephemerals = owned.len();
        for (_, index) in owned {
            let slot = self.tree.node(index).owner_slot;
            let list = &mut self.sessions.get_mut(slot).ephemerals;
            list.push_back(&mut self.tree.nodes, |node| &mut node.ephemerals, index);
            let bytes = self.tree.node(index).bytes();
            self.sessions.recharge(slot, 0, bytes);
        }
    }
}

fn image(node: &Node) -> NodeImage {
    NodeImage {
        path: node.path.clone(),
        data: node.data.clone(),
        acl: node.acl.clone(),
        kind: node.kind,
        owner: node.owner,
        czxid: node.czxid,
        mzxid: node.mzxid,
        pzxid: node.pzxid,
        ctime: node.ctime,
        mtime: node.mtime,
        version: node.version,
        aversion: node.aversion,
        creates: node.creates(),
        place: node.place,
    }
}
