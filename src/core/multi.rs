//! Multi: every operation is resolved against the tree as those before it will leave it; only
//! when all can be done is any applied.

use std::collections::BTreeMap;

use super::links::NIL;
use super::sessions::SessionRef;
use super::tree::{Facts, Tree};
use super::txn::{Kind, NewNode, TxnOp};
use super::write::{
    check_acl, check_create, check_delete, check_version, final_path, kind_of, next_version,
    parent_for,
};
use super::{Answer, Core, CoreOptions, Effects, Keep, Now, no_node};
use crate::backend::{Create, Op};
use crate::error::{Error, Result};
use crate::path::{ZnodePath, parent_of};

impl Core {
    pub(super) fn multi(
        &mut self,
        session: SessionRef,
        ops: Vec<Op>,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Answer> {
        let mut resolved = Vec::with_capacity(ops.len());
        // The part that a log keeps.
        let mut kept = Vec::new();
        let mut how = Keep::Not;
        let mut overlay = Overlay {
            tree: &self.tree,
            options: &self.options,
            changed: BTreeMap::new(),
            session: session.slot,
        };
        for (index, op) in ops.into_iter().enumerate() {
            let (op, owner) = overlay.resolve(op).map_err(|source| Error::MultiFailed {
                index,
                source: source.into(),
            })?;
            let keep = match &op {
                TxnOp::Check => Keep::Not,
                TxnOp::Create(new) => self.keep_create(session.slot, new.kind),
                _ => self.keep(owner),
            };
            if keep != Keep::Not {
                kept.push(op.clone());
            }
            how = how.max(keep);
            resolved.push(op);
        }
        let at = self.stamp(now, how);
        self.log(session.id, at, || TxnOp::Multi(kept));
        let replies = resolved
            .into_iter()
            .map(|op| self.apply(session.id, op, at, effects))
            .collect();
        self.judge(effects);
        Ok(Answer::Multi(replies))
    }
}

/// The tree, and what the operations so far will change in it.
struct Overlay<'a> {
    tree: &'a Tree,
    options: &'a CoreOptions,
    /// `None` for a znode that will be gone.
    changed: BTreeMap<String, Option<Facts>>,
    /// The slot of who asks.
    session: u32,
}

impl Overlay<'_> {
    fn facts(&self, path: &str) -> Option<Facts> {
        match self.changed.get(path) {
            Some(changed) => *changed,
            None => self
                .tree
                .find(path)
                .map(|node| self.tree.node(node).facts()),
        }
    }

    fn set(&mut self, path: &str, facts: Option<Facts>) {
        self.changed.insert(path.to_owned(), facts);
    }

    /// What it comes to, and the slot of the session that owns the znode, or `NIL`.
    fn resolve(&mut self, op: Op) -> Result<(TxnOp, u32)> {
        match op {
            Op::Create(create) => self.create(create).map(|op| (op, NIL)),
            Op::Delete { path, version } => self.delete(path, version),
            Op::SetData {
                path,
                data,
                version,
            } => {
                let mut node = self.expect(&path)?;
                check_version(node.version, &path, version)?;
                node.version = next_version(node.version);
                self.set(path.as_str(), Some(node));
                let set = TxnOp::SetData {
                    path,
                    data,
                    version: node.version,
                };
                Ok((set, node.owner_slot))
            }
            Op::Check { path, version } => {
                check_version(self.expect(&path)?.version, &path, version)?;
                Ok((TxnOp::Check, NIL))
            }
        }
    }

    fn expect(&self, path: &ZnodePath) -> Result<Facts> {
        self.facts(path.as_str())
            .ok_or_else(|| no_node(path.as_str()))
    }

    fn create(&mut self, create: Create) -> Result<TxnOp> {
        let kind = kind_of(create.mode, self.options)?;
        check_acl(&create.acl, &create.path)?;
        let parent_path = parent_for(&create);
        let mut parent = self
            .facts(parent_path)
            .ok_or_else(|| no_node(parent_path))?;
        let (path, sequence) = final_path(&create, parent.creates);
        let exists = self.facts(path.as_str()).is_some();
        check_create(parent, exists, || create.path.to_string())?;
        self.check_room()?;
        parent.creates += 1;
        parent.children += 1;
        self.set(parent_path, Some(parent));
        let is_ephemeral = kind == Kind::Ephemeral;
        let facts = Facts {
            is_ephemeral,
            owner_slot: if is_ephemeral { self.session } else { NIL },
            version: 0,
            children: 0,
            creates: 0,
        };
        self.set(path.as_str(), Some(facts));
        Ok(TxnOp::Create(NewNode {
            path,
            data: create.data,
            acl: create.acl,
            kind,
            sequence,
            creates: parent.creates,
        }))
    }

    /// Generous by the number of operations, which a request's size bounds.
    fn check_room(&self) -> Result<()> {
        let limit = self.options.limits.znodes;
        if self.tree.nodes.len() + self.changed.len() < limit {
            return Ok(());
        }
        Err(Error::LimitReached {
            what: "znodes",
            limit,
        })
    }

    fn delete(&mut self, path: ZnodePath, version: Option<i32>) -> Result<(TxnOp, u32)> {
        let facts = self.facts(path.as_str());
        check_delete(facts, &path, version)?;
        let owner = facts.map_or(NIL, |facts| facts.owner_slot);
        if let Some(parent_path) = parent_of(path.as_str())
            && let Some(mut parent) = self.facts(parent_path)
        {
            parent.children -= 1;
            self.set(parent_path, Some(parent));
        }
        self.set(path.as_str(), None);
        Ok((TxnOp::Delete { path }, owner))
    }
}
