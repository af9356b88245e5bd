//! Replay of a log's transactions into a core, and restore of a snapshot's images into a core.
//!
//! Neither makes a decision (invariant 1). Content that no core can have written is reported as [`Damage`], and the
//! store is not opened. We never repair content by guessing.

use bytes::Bytes;

use super::intrusive_list::NIL;
use super::journal::{LogMode, NewNode, NodeKind, Txn, TxnOp};
use super::sessions::{Session, SessionEnds};
use super::tree::{Node, QueueKey, ROOT, is_system_path};
use super::{Core, Effects, End, Journal, Now, Stamp};
use crate::model::acl::Acl;
use crate::model::path::{ZnodePath, parent_of};
use crate::model::types::{SessionId, Zxid};
use crate::model::watch::DeleteReason;
use crate::runtime::clock::BootInstant;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damage(pub(crate) String);

/// Greatest accepted value of a zxid or a count of creates. No real store reaches this value, and later transactions
/// still have room above it.
pub(crate) const HIGHEST: i64 = 1 << 62;

impl Core {
    /// Applies a logged transaction. Sets no deadlines, because [`restart_timeouts`](Self::restart_timeouts) later
    /// gives every session its full timeout.
    pub(crate) fn replay(&mut self, txn: Txn) -> Result<(), Damage> {
        // No watches exist before the store is open, so the effects are dropped.
        self.follow(txn, &mut Effects::default())
    }

    /// Applies a transaction like [`replay`](Self::replay), but to an open store, so watches fire.
    pub(crate) fn follow(&mut self, txn: Txn, effects: &mut Effects) -> Result<(), Damage> {
        // Gaps between zxids are not damage, because some transactions are not logged.
        if txn.zxid.0 <= self.zxid || txn.zxid.0 > HIGHEST {
            return Err(Damage(format!(
                "transaction {} after {}",
                txn.zxid,
                Zxid(self.zxid)
            )));
        }
        self.zxid = txn.zxid.0;
        let at = Stamp {
            zxid: txn.zxid,
            unix_ms: txn.unix_ms,
            log_mode: LogMode::None,
        };
        self.replay_op(txn.session, txn.op, at, effects)
    }

    fn replay_op(
        &mut self,
        session: SessionId,
        op: TxnOp,
        at: Stamp,
        effects: &mut Effects,
    ) -> Result<(), Damage> {
        match op {
            TxnOp::OpenSession {
                timeout_ms,
                password,
                is_local,
            } => self.replay_session(Session::new(session, password, timeout_ms, is_local))?,
            TxnOp::CloseSession(end) => {
                let slot = self.sessions.find(session);
                let slot = slot.ok_or_else(|| {
                    Damage(format!("the end of session {session}, which is not there"))
                })?;
                self.remove_session(slot, end, at, effects);
            }
            TxnOp::Multi(ops) => {
                for op in ops {
                    self.replay_op(session, op, at, effects)?;
                }
            }
            TxnOp::Create(new) => self.replay_create(session, new, at, effects)?,
            TxnOp::Delete { path } => {
                let node = self.known(&path)?;
                // The core refuses to delete a system znode or a znode with children, so no log contains such a delete.
                if is_system_path(path.as_str()) || self.tree.node(node).children() > 0 {
                    return Err(Damage(format!(
                        "a delete of {path}, which cannot be deleted"
                    )));
                }
                self.apply_delete(node, DeleteReason::Unknown, at, effects);
            }
            TxnOp::SetData {
                path,
                data,
                version,
            } => {
                let node = self.known(&path)?;
                self.apply_set(node, data, version, at, effects);
            }
            TxnOp::SetAcl {
                path,
                acl,
                aversion,
            } => {
                let node = self.known(&path)?;
                self.apply_set_acl(node, acl, aversion, at);
            }
            TxnOp::Check => {}
        }
        Ok(())
    }

    pub(super) fn replay_session(&mut self, session: Session) -> Result<(), Damage> {
        if self.sessions.find(session.id).is_some() {
            return Err(Damage(format!("a second session {}", session.id)));
        }
        self.sessions.insert(session);
        Ok(())
    }

    fn replay_create(
        &mut self,
        session: SessionId,
        new: NewNode,
        at: Stamp,
        effects: &mut Effects,
    ) -> Result<(), Damage> {
        let parent = self.check_kept(session, &new)?;
        let slot = match new.kind {
            NodeKind::Ephemeral => self.sessions.find(session).unwrap_or(NIL),
            _ => NIL,
        };
        self.apply_create((session, slot), parent, new.into(), at, effects);
        Ok(())
    }

    fn check_kept(&self, session: SessionId, new: &NewNode) -> Result<u32, Damage> {
        let path = &new.path;
        let parent = self.check_place(path)?;
        // The count of creates only grows. If it does not grow here, transactions are out of order or missing.
        let creates = self.tree.node(parent).creates();
        if new.creates <= creates || new.creates > HIGHEST {
            return Err(Damage(format!(
                "{path} as child {} after child {creates}",
                new.creates
            )));
        }
        if new.kind == NodeKind::Ephemeral && self.sessions.find(session).is_none() {
            return Err(Damage(format!(
                "{path} of session {session}, which is not there"
            )));
        }
        Ok(parent)
    }

    /// Checks that a path is free and its parent can have children.
    fn check_place(&self, path: &ZnodePath) -> Result<u32, Damage> {
        let parent = parent_of(path.as_str()).and_then(|parent| self.tree.find(parent));
        let Some(parent) = parent else {
            return Err(Damage(format!("{path}, whose parent is not there")));
        };
        if self.tree.node(parent).kind == NodeKind::Ephemeral {
            return Err(Damage(format!("{path}, whose parent is ephemeral")));
        }
        if self.tree.child(parent, path.name()).is_some() {
            return Err(Damage(format!("a second {path}")));
        }
        Ok(parent)
    }

    fn known(&self, path: &ZnodePath) -> Result<u32, Damage> {
        let node = self.tree.find(path.as_str());
        node.ok_or_else(|| Damage(format!("a change of {path}, which is not there")))
    }

    pub(crate) fn restart_timeouts(&mut self, now: BootInstant) {
        self.sessions.touch_all(now);
    }

    /// Continues after a restart with zxids above `last`. Ends the sessions of the previous process.
    pub(crate) fn leave_behind(&mut self, last: Zxid, unix_ms: i64) {
        self.zxid = last.0;
        self.set_journal(Journal::All);
        self.end_sessions(|session| session.is_local, End::Closed, unix_ms);
        // Do not count these ends, because they happened in the previous process.
        self.sessions.ends = SessionEnds::default();
    }

    /// Ends the remote sessions, because transactions that were acknowledged to them may be lost.
    pub(crate) fn end_remote_sessions(&mut self, unix_ms: i64) -> usize {
        self.end_sessions(|session| !session.is_local, End::Expired, unix_ms)
    }

    fn end_sessions(&mut self, which: fn(&Session) -> bool, end: End, unix_ms: i64) -> usize {
        let sessions = self.sessions.slots.iter();
        let ended: Vec<u32> = sessions
            .filter(|(_, session)| which(session))
            .map(|(slot, _)| slot as u32)
            .collect();
        let now = Now {
            unix_ms,
            ..Now::default()
        };
        for slot in &ended {
            self.end_session(*slot, end, now, &mut Effects::default());
        }
        ended.len()
    }

    pub(crate) fn longest_remote_timeout_ms(&self) -> u64 {
        let sessions = self.sessions.slots.iter();
        let remote = sessions.filter(|(_, session)| !session.is_local);
        remote
            .map(|(_, session)| session.granted_ms)
            .max()
            .unwrap_or(0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeImage {
    pub(crate) path: ZnodePath,
    pub(crate) data: Bytes,
    pub(crate) acl: Acl,
    pub(crate) kind: NodeKind,
    pub(crate) owner: SessionId,
    pub(crate) czxid: Zxid,
    pub(crate) mzxid: Zxid,
    pub(crate) pzxid: Zxid,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    pub(crate) aversion: i32,
    pub(crate) creates: i64,
    /// For a queue entry, its number and the parent's `creates` when the entry was created.
    pub(crate) queue_key: Option<QueueKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionImage {
    pub(crate) id: SessionId,
    pub(crate) password: [u8; 16],
    pub(crate) timeout_ms: u64,
    pub(crate) is_local: bool,
}

impl Core {
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

    /// Returns the znodes, parents before children, and children in order of creation.
    pub(crate) fn node_images(&self) -> impl Iterator<Item = NodeImage> {
        let mut next = Some(ROOT);
        std::iter::from_fn(move || {
            let index = next?;
            next = self.tree.after(index);
            Some(image(self.tree.path(index), self.tree.node(index)))
        })
    }

    pub(crate) fn node_count(&self) -> usize {
        self.tree.nodes.len()
    }

    /// Reserves memory for this many znodes, so that a restore does not repeatedly move the growing table.
    pub(crate) fn reserve(&mut self, znodes: usize) {
        self.tree.reserve(znodes.min(self.options.limits.znodes));
    }

    pub(crate) fn restore_session(&mut self, session: SessionImage) -> Result<(), Damage> {
        let SessionImage {
            id,
            password,
            timeout_ms,
            is_local,
        } = session;
        self.replay_session(Session::new(id, password, timeout_ms, is_local))
    }

    /// Restores a znode. Must be called after the sessions are restored, and in the order of
    /// [`node_images`](Self::node_images).
    pub(crate) fn restore_node(&mut self, image: NodeImage) -> Result<(), Damage> {
        let parent = self.check_image(&image)?;
        let owner = match image.kind {
            NodeKind::Ephemeral => self.sessions.find(image.owner).ok_or_else(|| {
                Damage(format!(
                    "{} of session {}, which is not there",
                    image.path, image.owner
                ))
            })?,
            _ => NIL,
        };
        self.tree.restore(parent, owner, image);
        Ok(())
    }

    /// Returns the parent, or `NIL` for a system znode.
    fn check_image(&self, image: &NodeImage) -> Result<u32, Damage> {
        let path = &image.path;
        if is_system_path(path.as_str()) {
            return Ok(NIL);
        }
        let parent = self.check_place(path)?;
        if image
            .queue_key
            .is_some_and(|queue_key| self.tree.is_taken(parent, queue_key))
        {
            return Err(Damage(format!("{path} in the place of another")));
        }
        Ok(parent)
    }

    pub(crate) fn finish_restore(&mut self, last_zxid: Zxid) {
        self.zxid = last_zxid.0;
        // Sort the ephemerals, because a session lists them in order of creation, which the slab does not keep.
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
            // All znodes are restored by now, so a container without children is a candidate of the reaper.
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

fn image(path: ZnodePath, node: &Node) -> NodeImage {
    NodeImage {
        path,
        data: node.data.clone(),
        acl: node.acl.clone(),
        kind: node.kind,
        owner: node.owner,
        czxid: node.czxid,
        mzxid: node.mzxid,
        pzxid: node.pzxid(),
        ctime: node.ctime,
        mtime: node.mtime,
        version: node.version,
        aversion: node.aversion,
        creates: node.creates(),
        queue_key: node.queue_key,
    }
}
