//! Writes: the rules for create, delete and setData, and the functions that apply them.
//!
//! A write is resolved before anything changes, so a refusal has nothing to undo. The `apply_…` functions cannot fail.
//! A replay calls only these functions, so it makes no decision (invariant 1).

use std::time::Duration;

use bytes::Bytes;

use super::budget::bytes_of;
use super::intrusive_list::NIL;
use super::journal::{LogMode, NodeKind, TxnOp, create_bytes, delete_bytes, set_data_bytes};
use super::names::{NodeName, push_number};
use super::sessions::SessionRef;
use super::tree::{NewChild, NodeView, ROOT, is_system_path};
use super::watches::Change;
use super::{Core, CoreOptions, CoreReply, Effects, Now, Stamp, no_node};
use crate::model::error::{Error, QUOTAS, Result};
use crate::model::path::{ZnodePath, parent_of};
use crate::model::protocol::{Create, OpReply, Reply, sequence_of};
use crate::model::types::{AclEntry, CreateMode, SessionId};
use crate::model::watch::{DeleteReason, EventKind, WatchUpdate};

impl Core {
    pub(super) fn create(
        &mut self,
        session: SessionRef,
        mut create: Create,
        now: Now,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        check_no_quota(&create.path)?;
        let kind = kind_of(create.mode, &self.options)?;
        let acl = std::mem::take(&mut create.acl);
        let acl = self.listed(session, acl, &create.path)?;
        let parent_path = parent_for(&create);
        let parent = self
            .tree
            .find(parent_path)
            .ok_or_else(|| no_node(parent_path))?;
        let asked = || create.path.to_string();
        self.allow(session, parent, AclEntry::CREATE, asked)?;
        let creates = self.tree.node(parent).creates();
        if create.mode.is_sequential() {
            self.check_number(session, parent, creates)?;
        }
        let (name, sequence) = final_name(&create, creates);
        let new = NewChild {
            name,
            data: create.data,
            acl,
            kind,
            sequence,
            creates: creates + 1,
        };
        self.check_new(session, parent, &new, || create.path.to_string())?;
        let node = self.add(session, parent, new, now, effects);
        Ok(Reply::Created {
            path: self.tree.path(node),
            stat: self.tree.node(node).stat(),
        })
    }

    /// Checks the rules and limits for a new znode. After this check the create cannot fail.
    #[inline]
    pub(super) fn check_new(
        &self,
        session: SessionRef,
        parent: u32,
        new: &NewChild,
        asked: impl FnOnce() -> String,
    ) -> Result<()> {
        let exists = self.tree.has_child(parent, new);
        check_create(self.tree.view(parent), exists, asked)?;
        let path_bytes = self.tree.path_bytes_below(parent, new.name.len());
        let bytes = bytes_of(path_bytes, new.data.len(), &new.acl);
        self.check_room(session, bytes, new.kind == NodeKind::Ephemeral)?;
        self.check_txn(create_bytes(path_bytes, new.data.len(), &new.acl))
    }

    /// Refuses numbers of more than ten digits to remote sessions, because other clients misread such numbers.
    #[inline]
    pub(super) fn check_number(&self, session: SessionRef, parent: u32, number: i64) -> Result<()> {
        if number <= LAST_OF_TEN_DIGITS || self.sessions.get(session.slot).is_local {
            return Ok(());
        }
        Err(used_up(self.tree.path(parent).as_str()))
    }

    #[inline(always)] // avoids copies of the new node
    pub(super) fn add(
        &mut self,
        session: SessionRef,
        parent: u32,
        new: NewChild,
        now: Now,
        effects: &mut Effects,
    ) -> u32 {
        let at = self.stamp(now, self.log_mode_of_create(session.slot, new.kind));
        let owner = (session.id, session.slot);
        let creates = new.creates;
        let node = self.apply_create(owner, parent, new, at, effects);
        if self.watches.has_unsettled() {
            self.resolve_waiters(now, effects);
        }
        if at.log_mode != LogMode::None {
            let new = self.as_new(node, creates);
            self.log(session.id, at, || TxnOp::Create(new));
        }
        node
    }

    pub(super) fn delete(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        version: Option<i32>,
        of_its_own: DeleteReason,
        now: Now,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        let node = self.tree.find(path.as_str());
        self.may_delete(session, node, path)?;
        check_delete(node.map(|node| self.tree.view(node)), path, version)?;
        let node = node.ok_or_else(|| no_node(path.as_str()))?;
        self.check_txn(delete_bytes(path.as_str().len()))?;
        self.delete_node(session, node, of_its_own, now, effects);
        Ok(Reply::Done)
    }

    #[inline]
    pub(super) fn delete_node(
        &mut self,
        session: SessionRef,
        node: u32,
        of_its_own: DeleteReason,
        now: Now,
        effects: &mut Effects,
    ) {
        let at = self.stamp(now, self.log_mode_of(self.tree.node(node).owner_slot));
        // Determine the reason and the path first, because the delete removes the node.
        let reason = self.reason(node, session.id, of_its_own);
        let path = (at.log_mode != LogMode::None).then(|| self.tree.path(node));
        self.apply_delete(node, reason, at, effects);
        // Complete the waiters' events after the delete, when the predecessor is no longer in the index.
        self.resolve_waiters(now, effects);
        if let Some(path) = path {
            self.log(session.id, at, || TxnOp::Delete { path });
        }
    }

    /// Checks the right to delete a znode. As in ZooKeeper, this check precedes all checks of the znode itself.
    #[inline]
    fn may_delete(&self, session: SessionRef, node: Option<u32>, path: &ZnodePath) -> Result<()> {
        let parent = match node {
            Some(ROOT) => None,
            Some(node) => Some(self.tree.node(node).parent),
            None => parent_of(path.as_str()).and_then(|parent| self.tree.find(parent)),
        };
        parent.map_or(Ok(()), |parent| {
            self.allow_delete(session, parent, || path.to_string())
        })
    }

    #[inline]
    pub(super) fn allow_delete(
        &self,
        session: SessionRef,
        parent: u32,
        asked: impl FnOnce() -> String,
    ) -> Result<()> {
        self.allow(session, parent, AclEntry::DELETE, asked)
    }

    pub(super) fn set_data(
        &mut self,
        session: SessionRef,
        path: ZnodePath,
        data: Bytes,
        version: Option<i32>,
        now: Now,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        check_no_quota(&path)?;
        let node = self
            .tree
            .find(path.as_str())
            .ok_or_else(|| no_node(path.as_str()))?;
        self.allow(session, node, AclEntry::WRITE, || path.to_string())?;
        let current = self.tree.node(node).version;
        check_version(current, &path, version)?;
        self.check_growth(session, node, self.tree.node(node).data.len(), data.len())?;
        self.check_txn(set_data_bytes(&path, data.len()))?;
        let version = next_version(current);
        let at = self.stamp(now, self.log_mode_of(self.tree.node(node).owner_slot));
        self.log(session.id, at, || TxnOp::SetData {
            path,
            data: data.clone(),
            version,
        });
        self.apply_set(node, data, version, at, effects);
        self.resolve_waiters(now, effects);
        Ok(Reply::Stat(self.tree.node(node).stat()))
    }

    pub(super) fn apply(
        &mut self,
        session: SessionId,
        op: TxnOp,
        at: Stamp,
        effects: &mut Effects,
    ) -> OpReply {
        // The operation has passed all checks, so a missing znode would be a bug in the core.
        let known = "a resolved operation names znodes that are there";
        match op {
            TxnOp::Create(new) => {
                let parent = parent_of(new.path.as_str()).and_then(|path| self.tree.find(path));
                let owner = (session, self.sessions.find(session).unwrap_or(NIL));
                let path = new.path.clone();
                let new = new.into();
                let node = self.apply_create(owner, parent.expect(known), new, at, effects);
                OpReply::Created {
                    path,
                    stat: Some(self.tree.node(node).stat()),
                }
            }
            TxnOp::Delete { path } => {
                let node = self.tree.find(path.as_str()).expect(known);
                let reason = self.reason(node, session, DeleteReason::Released);
                self.apply_delete(node, reason, at, effects);
                OpReply::Deleted
            }
            TxnOp::SetData {
                path,
                data,
                version,
            } => {
                let node = self.tree.find(path.as_str()).expect(known);
                self.apply_set(node, data, version, at, effects);
                OpReply::Set(self.tree.node(node).stat())
            }
            TxnOp::SetAcl {
                path,
                acl,
                aversion,
            } => {
                let node = self.tree.find(path.as_str()).expect(known);
                self.apply_set_acl(node, acl, aversion, at);
                OpReply::Checked
            }
            TxnOp::Multi(ops) => {
                for op in ops {
                    self.apply(session, op, at, effects);
                }
                OpReply::Checked
            }
            TxnOp::Check | TxnOp::OpenSession { .. } | TxnOp::CloseSession(_) => OpReply::Checked,
        }
    }

    #[inline]
    pub(super) fn apply_create(
        &mut self,
        session: (SessionId, u32),
        parent: u32,
        new: NewChild,
        at: Stamp,
        effects: &mut Effects,
    ) -> u32 {
        let kind = new.kind;
        let is_ephemeral = kind == NodeKind::Ephemeral;
        let owner = if is_ephemeral {
            session
        } else {
            (SessionId(0), NIL)
        };
        let node = self.tree.insert(parent, new, owner, at);
        if at.log_mode == LogMode::Sync {
            // A read of the parent also shows the create, so it also waits for the create's log record.
            self.tree.node_mut(node).kept = at.zxid.0;
            self.tree.node_mut(parent).kept = at.zxid.0;
        }
        if is_ephemeral {
            let owned = &mut self.sessions.get_mut(owner.1).ephemerals;
            owned.push_back(&mut self.tree.nodes, |node| &mut node.ephemerals, node);
            self.sessions.ephemerals += 1;
            let bytes = self.tree.node(node).bytes();
            self.sessions.recharge(owner.1, 0, bytes);
        }
        if matches!(kind, NodeKind::Container | NodeKind::Ttl { .. }) {
            self.reaper.consider(&mut self.tree, node);
        }
        // Move the watches on the missing znode to the new znode first, so that the create fires them.
        self.watches.attach(&mut self.tree, node);
        self.fire(node, EventKind::NodeCreated, at, effects);
        self.fire(parent, EventKind::NodeChildrenChanged, at, effects);
        node
    }

    fn reason(&self, node: u32, session: SessionId, of_its_own: DeleteReason) -> DeleteReason {
        if self.tree.node(node).owner == session {
            of_its_own
        } else {
            DeleteReason::Removed
        }
    }

    #[inline]
    pub(super) fn apply_delete(
        &mut self,
        node: u32,
        reason: DeleteReason,
        at: Stamp,
        effects: &mut Effects,
    ) {
        // Fire the watches before removing the node, because the node has the list of its watches.
        self.tell(node, EventKind::NodeDeleted, reason, at, effects);
        let slot = self.tree.node(node).owner_slot;
        if slot != NIL {
            let session = self.sessions.get_mut(slot);
            // A search of the session's ephemerals must not continue at a removed node.
            if session.search == node {
                session.search = self.tree.node(node).ephemerals.next;
            }
            let owned = &mut session.ephemerals;
            owned.unlink(&mut self.tree.nodes, |node| &mut node.ephemerals, node);
            self.sessions.ephemerals -= 1;
            let bytes = self.tree.node(node).bytes();
            self.sessions.recharge(slot, bytes, 0);
        }
        // Persistent watches survive the znode and wait until a znode is created at its path again.
        self.watches.detach(&self.tree, node);
        let parent = self.tree.node(node).parent;
        self.tree.remove(node, at);
        if at.log_mode == LogMode::Sync {
            self.tree.node_mut(parent).kept = at.zxid.0;
        }
        self.reaper.consider(&mut self.tree, parent);
        self.fire(parent, EventKind::NodeChildrenChanged, at, effects);
    }

    pub(super) fn apply_set(
        &mut self,
        index: u32,
        data: Bytes,
        version: i32,
        at: Stamp,
        effects: &mut Effects,
    ) {
        let before = self.tree.node(index).data.len();
        self.sessions
            .recharge(self.tree.node(index).owner_slot, before, data.len());
        self.tree.set_data(index, data);
        let node = self.tree.node_mut(index);
        node.version = version;
        node.mzxid = at.zxid;
        node.mtime = at.unix_ms;
        if at.log_mode == LogMode::Sync {
            node.kept = at.zxid.0;
        }
        self.fire(index, EventKind::NodeDataChanged, at, effects);
    }

    fn fire(&mut self, node: u32, kind: EventKind, at: Stamp, effects: &mut Effects) {
        self.tell(node, kind, DeleteReason::Unknown, at, effects);
    }

    fn tell(
        &mut self,
        node: u32,
        kind: EventKind,
        reason: DeleteReason,
        at: Stamp,
        effects: &mut Effects,
    ) {
        let what = Change {
            node,
            kind,
            zxid: at.zxid,
            reason,
        };
        self.watches
            .fire(&mut self.tree, &mut self.sessions, what, effects);
    }

    /// Completes the events that this transaction sends to waiters. Each event says whether the waiter's entry is still
    /// blocked (invariant 8). Must be called at the end of a transaction, because a later operation of a multi can
    /// block the entry again.
    pub(super) fn resolve_waiters(&mut self, now: Now, effects: &mut Effects) {
        if self.watches.has_unsettled() {
            let zxid = self.last_zxid();
            self.watches
                .settle(&mut self.tree, &mut self.sessions, zxid, effects);
        }
        self.tree.work.add(effects.waiters.len());
        for (event, waiter) in effects.waiters.drain(..) {
            if let WatchUpdate::Departure { gone, .. } = &mut effects.fired[event].news {
                let clear = self.tree.clear(waiter);
                gone.clear = clear.is_some();
                if let Some(entry) = clear {
                    self.tree.grant(entry, now.unix_ms);
                }
            }
        }
    }
}

/// The greatest sequence number that every client can read.
pub(super) const LAST_OF_TEN_DIGITS: i64 = 9_999_999_999;

#[cold]
pub(super) fn used_up(parent: &str) -> Error {
    Error::SequenceExhausted {
        path: parent.to_owned(),
    }
}

/// Returns the parent's path. In a sequential create, `/` means an empty name under the root.
pub(super) fn parent_for(create: &Create) -> &str {
    parent_of(create.path.as_str()).unwrap_or("/")
}

fn final_name(create: &Create, creates: i64) -> (NodeName, Option<i64>) {
    let name = create.path.name();
    match create.mode.is_sequential() {
        true => (NodeName::numbered(name, creates), Some(creates)),
        // A name that already contains a sequence number also counts as a queue entry, so that a converted reader or
        // writer keeps its position.
        false => (NodeName::text(name), sequence_of(name)),
    }
}

pub(super) fn final_path(create: &Create, creates: i64) -> (ZnodePath, Option<i64>) {
    if !create.mode.is_sequential() {
        return (create.path.clone(), sequence_of(create.path.name()));
    }
    let mut path = String::with_capacity(create.path.as_str().len() + 20);
    path.push_str(create.path.as_str());
    push_number(&mut path, creates);
    (ZnodePath::trusted(path), Some(creates))
}

/// The greatest time to live that ZooKeeper can represent.
const MAX_TTL: Duration = Duration::from_millis((1 << 40) - 1);

pub(super) fn kind_of(mode: CreateMode, options: &CoreOptions) -> Result<NodeKind> {
    Ok(match mode {
        CreateMode::Persistent | CreateMode::PersistentSequential => NodeKind::Persistent,
        CreateMode::Ephemeral | CreateMode::EphemeralSequential => NodeKind::Ephemeral,
        CreateMode::Container => NodeKind::Container,
        CreateMode::PersistentTtl(ttl) | CreateMode::PersistentSequentialTtl(ttl) => {
            if !options.allow_ttl {
                return Err(Error::Unimplemented {
                    what: "TTL znodes, which its options rule out",
                });
            }
            if ttl < Duration::from_millis(1) || ttl > MAX_TTL {
                return Err(Error::BadArguments(format!(
                    "a time to live of {} ms: expected 1 ms to {} ms",
                    ttl.as_millis(),
                    MAX_TTL.as_millis()
                )));
            }
            NodeKind::Ttl {
                ms: ttl.as_millis() as u64,
            }
        }
    })
}

/// Refuses to create or change quota znodes, because clients would rely on quotas that nothing enforces.
pub(super) fn check_no_quota(path: &ZnodePath) -> Result<()> {
    match path.as_str().starts_with("/zookeeper/quota/") {
        true => Err(Error::Unimplemented { what: QUOTAS }),
        false => Ok(()),
    }
}

#[inline]
pub(super) fn check_no_quota_in(parent: &str) -> Result<()> {
    match parent.strip_prefix("/zookeeper/quota") {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            Err(Error::Unimplemented { what: QUOTAS })
        }
        _ => Ok(()),
    }
}

/// Checks that a path is free and its parent can have children.
#[inline]
pub(super) fn check_create(
    parent: NodeView,
    exists: bool,
    asked: impl FnOnce() -> String,
) -> Result<()> {
    if exists {
        return Err(Error::NodeExists { path: asked() });
    }
    if parent.is_ephemeral {
        return Err(Error::NoChildrenForEphemerals { path: asked() });
    }
    Ok(())
}

#[inline]
pub(super) fn check_delete(
    node: Option<NodeView>,
    path: &ZnodePath,
    version: Option<i32>,
) -> Result<()> {
    if is_system_path(path.as_str()) {
        return Err(Error::BadArguments(format!(
            "the znode {path} cannot be deleted"
        )));
    }
    let node = node.ok_or_else(|| no_node(path.as_str()))?;
    check_version(node.version, path, version)?;
    if node.children > 0 {
        return Err(Error::NotEmpty {
            path: path.to_string(),
        });
    }
    Ok(())
}

/// Checks an expected version. As over the wire, -1 accepts any version.
pub(super) fn check_version(current: i32, path: &ZnodePath, expected: Option<i32>) -> Result<()> {
    match expected {
        Some(expected) if expected != -1 && expected != current => Err(Error::BadVersion {
            path: path.to_string(),
            expected,
        }),
        _ => Ok(()),
    }
}

/// Returns the next version. Skips -1, because it means any version.
pub(super) fn next_version(version: i32) -> i32 {
    match version.wrapping_add(1) {
        -1 => 0,
        next => next,
    }
}
