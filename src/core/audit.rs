//! [`Change`]: what an audit log keeps of a request, which is deletes and new access control lists.
//!
//! The deletion of a session's own ephemeral znode is not kept, because that is how locks are released.

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
    /// With the owner of an ephemeral znode.
    Delete {
        owner: Option<SessionId>,
    },
    SetAcl(Acl),
}

impl Core {
    /// Returns the changes that a request asks for. Call it before the request, because a deleted znode has no owner.
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
        // A session releases a lock by deleting its own ephemeral znode. Every hand-over would add a record.
        (owner != Some(session.id)).then(|| Change {
            path: path.clone(),
            kind: ChangeKind::Delete { owner },
        })
    }
}
