//! [`Change`]: a change that an audit log records. These are deletes and new access control lists.

use super::journal::NodeKind;
use super::{Core, SessionRef};
use crate::model::acl::Acl;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Op, Request};
use crate::model::types::SessionId;

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

impl Core {
    /// Returns the audited changes that a request would make. Must be called before the request is executed, because a
    /// deleted znode no longer has an owner.
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
        // A session releases a lock by deleting its own ephemeral znode. If the audit log recorded such deletes, every
        // hand-over would add a record.
        (owner != Some(session.id)).then(|| Change {
            path: path.clone(),
            kind: ChangeKind::Delete { owner },
        })
    }
}
