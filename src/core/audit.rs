//! [`Change`]: the part of a request that an audit log keeps: deletes, and new access control lists.
//!
//! The end of a session's own ephemeral znode is none of them: that is how locks are released.

use super::journal::NodeKind;
use super::{Core, SessionRef};
use crate::model::acl::Acl;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Op, Request};
use crate::model::types::SessionId;

/// A change that a request asks for, as the tree looks before it.
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
    /// Returns the changes that a request of this session asks for. To be called before the request: a znode that is
    /// gone has no owner.
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
        // A session deletes its own ephemeral znode to release a lock: a record for each would be one for each hand-over.
        (owner != Some(session.id)).then(|| Change {
            path: path.clone(),
            kind: ChangeKind::Delete { owner },
        })
    }
}
