//! Multi: operations that are applied together or not at all. All operations are resolved before the first one is
//! applied. Each operation is checked against the state that the earlier operations will leave.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::acl::{check_right, resolved};
use super::budget::{Growth, bytes_of};
use super::intrusive_list::NIL;
use super::journal::{LogMode, MULTI_BYTES, NewNode, NodeKind, TxnOp};
use super::sessions::SessionRef;
use super::tree::{Node, NodeView, Tree};
use super::write::{
    LAST_OF_TEN_DIGITS, check_create, check_delete, check_no_quota, check_version, final_path,
    kind_of, next_version, parent_for, used_up,
};
use super::{Core, CoreOptions, CoreReply, Effects, Now, no_node};
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::identity::Identities;
use crate::model::path::{ZnodePath, parent_of};
use crate::model::protocol::{Condition, Create, Op, Reply};
use crate::model::types::AclEntry;

impl Core {
    pub(super) fn multi(
        &mut self,
        session: SessionRef,
        ops: Vec<Op>,
        now: Now,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        // Count the work first, because a refused multi causes work, too.
        self.tree.work.add(ops.len());
        let mut resolved = Vec::with_capacity(ops.len());
        // Operations to log. Excludes operations on znodes that the log does not keep.
        let mut kept = Vec::new();
        let mut how = LogMode::None;
        let mut bytes = MULTI_BYTES;
        let mut overlay = Overlay::new(self, session);
        for (index, op) in ops.into_iter().enumerate() {
            overlay.at = index;
            let (op, owner) = overlay
                .resolve(op, &resolved)
                .map_err(|source| failed(index, source))?;
            // Check the size after each operation, because expanded `auth` entries could use much memory before the
            // last operation.
            bytes += op.log_bytes();
            self.check_txn(bytes)?;
            let keep = match &op {
                TxnOp::Check => LogMode::None,
                TxnOp::Create(new) => self.log_mode_of_create(session.slot, new.kind),
                _ => self.log_mode_of(owner),
            };
            if keep != LogMode::None {
                kept.push(op.clone());
            }
            // All operations share one zxid, so the reply waits for the log if any of them is logged synchronously.
            how = how.max(keep);
            resolved.push(op);
        }
        let growth = overlay.growth;
        growth
            .check(self, session)
            .map_err(|(index, source)| failed(index, source))?;
        let at = self.stamp(now, how);
        self.log(session.id, at, || TxnOp::Multi(kept));
        let replies = resolved
            .into_iter()
            .map(|op| self.apply(session.id, op, at, effects))
            .collect();
        self.resolve_waiters(now, effects);
        Ok(Reply::Multi(replies))
    }

    /// Checks that these creates would succeed one after the other, each in its own transaction.
    pub(super) fn check_creates(&self, session: SessionRef, creates: &[Create]) -> Result<()> {
        let mut overlay = Overlay::new(self, session);
        for create in creates {
            let new = overlay.create(create.clone())?;
            self.check_txn(new.log_bytes())?;
        }
        let checked = overlay.growth.check(self, session);
        checked.map_err(|(_, source)| source)
    }
}

fn failed(index: usize, source: Error) -> Error {
    Error::MultiFailed {
        index,
        source: source.into(),
    }
}

/// View of the tree after the operations resolved so far.
struct Overlay<'a> {
    tree: &'a Tree,
    options: &'a CoreOptions,
    /// Changed znodes by path, with `None` for a deleted znode.
    changed: BTreeMap<String, Option<NodeView>>,
    /// Access control lists of the created znodes.
    made: Vec<Acl>,
    session: u32,
    at: usize,
    growth: Growth,
    is_local: bool,
    identities: &'a Identities,
}

impl<'a> Overlay<'a> {
    fn new(core: &'a Core, session: SessionRef) -> Self {
        let asking = core.sessions.get(session.slot);
        Self {
            tree: &core.tree,
            options: &core.options,
            changed: BTreeMap::new(),
            made: Vec::new(),
            session: session.slot,
            at: 0,
            growth: Growth::default(),
            is_local: asking.is_local,
            identities: &asking.identities,
        }
    }

    fn view(&self, path: &str) -> Option<NodeView> {
        match self.changed.get(path) {
            Some(changed) => *changed,
            None => self.tree.find(path).map(|node| self.tree.view(node)),
        }
    }

    fn set(&mut self, path: &str, view: Option<NodeView>) {
        self.changed.insert(path.to_owned(), view);
    }

    /// Resolves an operation. Returns the change and the slot of the znode's owner, or `NIL` without an owner.
    fn resolve(&mut self, op: Op, resolved: &[TxnOp]) -> Result<(TxnOp, u32)> {
        match op {
            Op::Create(create) => self.create(create).map(|op| (op, NIL)),
            Op::Delete { path, version } => self.delete(path, version),
            Op::SetData {
                path,
                data,
                version,
            } => {
                check_no_quota(&path)?;
                let mut node = self.expect(&path)?;
                self.allow(node, AclEntry::WRITE, &path)?;
                check_version(node.version, &path, version)?;
                node.version = next_version(node.version);
                let grown = data.len() as isize - node.data_bytes as isize;
                let is_own = node.owner_slot == self.session;
                self.growth.add(self.at, 0, grown, is_own);
                node.data_bytes = data.len();
                node.written = self.at as u32;
                node.bytes = node.bytes.saturating_add_signed(grown);
                self.set(path.as_str(), Some(node));
                let set = TxnOp::SetData {
                    path,
                    data,
                    version: node.version,
                };
                Ok((set, node.owner_slot))
            }
            Op::Check { path, version } => {
                let node = self.expect(&path)?;
                self.allow(node, AclEntry::READ, &path)?;
                check_version(node.version, &path, version)?;
                Ok((TxnOp::Check, NIL))
            }
            Op::Require(Condition::Data { znode: path, data }) => {
                let node = self.expect(&path)?;
                self.allow(node, AclEntry::READ, &path)?;
                match self.data(node, resolved) == Some(&data) {
                    true => Ok((TxnOp::Check, NIL)),
                    false => Err(Error::BadVersion {
                        path: path.to_string(),
                        expected: -1,
                    }),
                }
            }
            Op::Require(Condition::Children { znode: path, limit }) => {
                if let Some(node) = self.view(path.as_str()) {
                    self.allow(node, AclEntry::READ, &path)?;
                    if node.children > limit {
                        return Err(Error::NotEmpty {
                            path: path.to_string(),
                        });
                    }
                }
                Ok((TxnOp::Check, NIL))
            }
        }
    }

    fn data<'b>(&'b self, node: NodeView, resolved: &'b [TxnOp]) -> Option<&'b Bytes> {
        match resolved.get(node.written as usize) {
            Some(TxnOp::Create(new)) => Some(&new.data),
            Some(TxnOp::SetData { data, .. }) => Some(data),
            // `written` is `NIL`, because no operation of this multi has written the data.
            _ => self.in_tree(node).map(|node| &node.data),
        }
    }

    fn in_tree(&self, node: NodeView) -> Option<&Node> {
        self.tree.nodes.get(node.node as usize)
    }

    /// Checks a right against the access control list that the earlier operations leave.
    fn allow(&self, node: NodeView, rights: u8, asked: &ZnodePath) -> Result<()> {
        let acl = match self.made.get(node.made as usize) {
            Some(made) => Some(made),
            None => self.in_tree(node).map(|node| &node.acl),
        };
        acl.map_or(Ok(()), |acl| {
            let work = &self.tree.work;
            check_right(acl, rights, self.identities, work, || asked.to_string())
        })
    }

    fn expect(&self, path: &ZnodePath) -> Result<NodeView> {
        self.view(path.as_str())
            .ok_or_else(|| no_node(path.as_str()))
    }

    fn create(&mut self, create: Create) -> Result<TxnOp> {
        check_no_quota(&create.path)?;
        let kind = kind_of(create.mode, self.options)?;
        let acl = resolved(
            create.acl.clone(),
            self.identities,
            &self.tree.work,
            &create.path,
        )?;
        let parent_path = parent_for(&create);
        let mut parent = self.view(parent_path).ok_or_else(|| no_node(parent_path))?;
        self.allow(parent, AclEntry::CREATE, &create.path)?;
        if create.mode.is_sequential() && parent.creates > LAST_OF_TEN_DIGITS && !self.is_local {
            return Err(used_up(parent_path));
        }
        let (path, sequence) = final_path(&create, parent.creates);
        let exists = self.view(path.as_str()).is_some();
        check_create(parent, exists, || create.path.to_string())?;
        let bytes = bytes_of(path.as_str().len(), create.data.len(), &acl);
        let is_own = kind == NodeKind::Ephemeral;
        self.growth.add(self.at, 1, bytes as isize, is_own);
        parent.creates += 1;
        parent.children += 1;
        self.set(parent_path, Some(parent));
        let is_ephemeral = kind == NodeKind::Ephemeral;
        let view = NodeView {
            node: NIL,
            is_ephemeral,
            owner_slot: if is_ephemeral { self.session } else { NIL },
            version: 0,
            children: 0,
            creates: 0,
            data_bytes: create.data.len(),
            bytes,
            made: self.made.len() as u32,
            written: self.at as u32,
        };
        self.made.push(acl.clone());
        self.set(path.as_str(), Some(view));
        Ok(TxnOp::Create(NewNode {
            path,
            data: create.data,
            acl,
            kind,
            sequence,
            creates: parent.creates,
        }))
    }

    fn delete(&mut self, path: ZnodePath, version: Option<i32>) -> Result<(TxnOp, u32)> {
        let parent = parent_of(path.as_str());
        // Check the right first. As in ZooKeeper, a client without the right must not learn whether the znode exists.
        if let Some(parent_path) = parent
            && let Some(parent) = self.view(parent_path)
        {
            self.allow(parent, AclEntry::DELETE, &path)?;
        }
        let view = self.view(path.as_str());
        check_delete(view, &path, version)?;
        let owner = view.map_or(NIL, |view| view.owner_slot);
        let bytes = view.map_or(0, |view| view.bytes);
        self.growth.add(self.at, -1, -(bytes as isize), true);
        if let Some(parent_path) = parent
            && let Some(mut parent) = self.view(parent_path)
        {
            parent.children -= 1;
            self.set(parent_path, Some(parent));
        }
        self.set(path.as_str(), None);
        Ok((TxnOp::Delete { path }, owner))
    }
}
