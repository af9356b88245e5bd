//! Reads, and the watches that they arm.

use super::sessions::SessionRef;
use super::watches::{WatchKey, WatchKind};
use super::{Answer, Core, no_node};
use crate::backend::{ReadOp, ReadReply};
use crate::error::Result;
use crate::path::ZnodePath;
use crate::types::AclEntry;

impl Core {
    /// A missing znode can be watched, too.
    pub(super) fn exists(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        watch: bool,
    ) -> Result<Answer> {
        let node = self.tree.find(path.as_str());
        if let Some(node) = node {
            self.allow(session, node, AclEntry::READ, || path.to_string())?;
        }
        let watch = self.watch_if(watch, session, WatchKind::Data, path, node)?;
        let stat = node.map(|node| self.tree.node(node).stat());
        Ok(Answer::Exists { stat, watch })
    }

    pub(super) fn get_data(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        watch: bool,
    ) -> Result<Answer> {
        let index = self.readable(session, path)?;
        let watch = self.watch_if(watch, session, WatchKind::Data, path, Some(index))?;
        let node = self.tree.node(index);
        Ok(Answer::Data {
            data: node.data.clone(),
            stat: node.stat(),
            watch,
        })
    }

    pub(super) fn get_children(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        watch: bool,
    ) -> Result<Answer> {
        let index = self.readable(session, path)?;
        let watch = self.watch_if(watch, session, WatchKind::Child, path, Some(index))?;
        let stat = self.tree.node(index).stat();
        Ok(Answer::Children {
            names: self.names(index),
            stat,
            watch,
        })
    }

    pub(super) fn multi_read(&self, session: SessionRef, ops: &[ReadOp]) -> Answer {
        Answer::MultiRead(
            ops.iter()
                .map(|op| self.read(session, op).unwrap_or_else(ReadReply::Failed))
                .collect(),
        )
    }

    fn read(&self, session: SessionRef, op: &ReadOp) -> Result<ReadReply> {
        Ok(match op {
            ReadOp::GetData(path) => {
                let node = self.tree.node(self.readable(session, path)?);
                ReadReply::Data {
                    data: node.data.clone(),
                    stat: node.stat(),
                }
            }
            ReadOp::GetChildren(path) => {
                ReadReply::Children(self.names(self.readable(session, path)?))
            }
        })
    }

    /// As in ZooKeeper the prefix is one of text: `/a` is one of `/ab`, too.
    pub(super) fn get_ephemerals(&self, session: SessionRef, prefix: &ZnodePath) -> Answer {
        let owned = self.sessions.get(session.slot).ephemerals;
        let paths = owned
            .iter(&self.tree.nodes, |node| &node.ephemerals)
            .map(|(_, node)| &node.path);
        Answer::Paths(
            paths
                .filter(|path| path.as_str().starts_with(prefix.as_str()))
                .cloned()
                .collect(),
        )
    }

    pub(super) fn get_all_children_number(
        &self,
        session: SessionRef,
        path: &ZnodePath,
    ) -> Result<Answer> {
        let top = self.readable(session, path)?;
        Ok(Answer::Count(self.tree.count_below(top)))
    }

    pub(super) fn existing(&self, path: &ZnodePath) -> Result<u32> {
        self.tree
            .find(path.as_str())
            .ok_or_else(|| no_node(path.as_str()))
    }

    /// A znode that is there, and that the session may read.
    pub(super) fn readable(&self, session: SessionRef, path: &ZnodePath) -> Result<u32> {
        let index = self.existing(path)?;
        self.allow(session, index, AclEntry::READ, || path.to_string())?;
        Ok(index)
    }

    pub(super) fn names(&self, index: u32) -> Vec<String> {
        self.tree
            .children(index)
            .map(|(_, child)| child.path.name().to_owned())
            .collect()
    }

    fn watch_if(
        &mut self,
        watch: bool,
        session: SessionRef,
        kind: WatchKind,
        path: &ZnodePath,
        node: Option<u32>,
    ) -> Result<Option<WatchKey>> {
        if !watch {
            return Ok(None);
        }
        self.check_watch_limit(session, path)?;
        Ok(Some(self.arm(session, kind, path, node)))
    }
}
