//! Reads, and the watches that they arm. The bytes of a reply to a remote session are limited while the reply is built.

use super::intrusive_list::NIL;
use super::sessions::SessionRef;
use super::tree::Node;
use super::watches::{WatchKey, WatchKind};
use super::{Core, CoreReply, no_node};
#[cfg(any(test, feature = "server"))]
use super::{Effects, Now};
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{ReadOp, ReadReply, Reply};
use crate::model::types::AclEntry;

impl Core {
    pub(super) fn exists(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        watch: bool,
    ) -> Result<CoreReply> {
        let node = self.tree.find(path.as_str());
        if let Some(node) = node {
            self.allow(session, node, AclEntry::READ, || path.to_string())?;
        }
        // Unlike getData and getChildren, exists also arms a watch on a missing znode.
        let watch = self.watch_if(watch, session, WatchKind::Data, path, node)?;
        let stat = node.map(|node| self.tree.node(node).stat());
        Ok(Reply::Exists {
            stat,
            watcher: watch,
        })
    }

    pub(super) fn get_data(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        watch: bool,
    ) -> Result<CoreReply> {
        let index = self.readable(session, path)?;
        let watch = self.watch_if(watch, session, WatchKind::Data, path, Some(index))?;
        let node = self.tree.node(index);
        Ok(Reply::Data {
            data: node.data.clone(),
            stat: node.stat(),
            watcher: watch,
        })
    }

    pub(super) fn get_children(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        watch: bool,
    ) -> Result<CoreReply> {
        let index = self.readable(session, path)?;
        // List the names before arming the watch, so that a refusal leaves nothing behind.
        let names = self.names_within(index, &mut self.answer_room(session))?;
        let watch = self.watch_if(watch, session, WatchKind::Child, path, Some(index))?;
        let stat = self.tree.node(index).stat();
        Ok(Reply::Children {
            names,
            stat,
            watcher: watch,
        })
    }

    pub(super) fn multi_read(&self, session: SessionRef, ops: &[ReadOp]) -> Result<CoreReply> {
        self.tree.work.add(ops.len());
        let mut room = self.answer_room(session);
        let parts = ops.iter().map(|op| self.read(session, op, &mut room));
        parts.collect::<Result<_>>().map(Reply::MultiRead)
    }

    /// Executes one read of a multi-read. If the read fails, its error becomes a part of the reply.
    fn read(&self, session: SessionRef, op: &ReadOp, room: &mut AnswerRoom) -> Result<ReadReply> {
        let index = match self.readable(session, op.path()) {
            Ok(index) => index,
            Err(error) => return Ok(ReadReply::Failed(error)),
        };
        Ok(match op {
            ReadOp::GetData(_) => {
                let node = self.tree.node(index);
                room.take(node.data.len())?;
                ReadReply::Data {
                    data: node.data.clone(),
                    stat: node.stat(),
                }
            }
            ReadOp::GetEntry(_) => {
                let node = self.tree.node(index);
                room.take(node.data.len())?;
                ReadReply::Entry {
                    data: node.data.clone(),
                    stat: node.stat(),
                    granted_at_ms: node.granted_at_ms(),
                }
            }
            ReadOp::GetChildren(_) => ReadReply::Children(self.names_within(index, room)?),
        })
    }

    /// Lists the session's ephemeral znodes whose paths start with a prefix. As in ZooKeeper, `/ab` starts with `/a`.
    pub(super) fn get_ephemerals(
        &self,
        session: SessionRef,
        prefix: &ZnodePath,
    ) -> Result<CoreReply> {
        let owned = self.sessions.get(session.slot).ephemerals;
        let mut found = self.new_search(session);
        self.search(owned.first, prefix, usize::MAX, &mut found)?;
        Ok(Reply::Paths(found.paths))
    }

    fn new_search(&self, session: SessionRef) -> Found {
        Found {
            paths: Vec::new(),
            room: self.answer_room(session),
        }
    }

    /// Checks up to `most` znodes. Returns the znode where the search continues, or `NIL` at the end.
    fn search(
        &self,
        mut from: u32,
        prefix: &ZnodePath,
        most: usize,
        found: &mut Found,
    ) -> Result<u32> {
        let mut looked_at = 0;
        while from != NIL && looked_at < most {
            let node = self.tree.node(from);
            let path = self.tree.path(from);
            if path.as_str().starts_with(prefix.as_str()) {
                found.room.take_text(path.as_str())?;
                found.paths.push(path);
            }
            from = node.ephemerals.next;
            looked_at += 1;
        }
        self.tree.work.add(looked_at);
        Ok(from)
    }

    /// Starts a search for a session's ephemeral znodes, which [`search_some`](Self::search_some) continues. A session
    /// has at most one search at a time.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn begin_search(&mut self, of: SessionRef) -> Found {
        match self.sessions.slots.get_mut(of.slot as usize) {
            Some(session) if session.is_of(of) => {
                session.search = session.ephemerals.first;
                self.new_search(of)
            }
            // The session has ended or moved. `search_some` refuses it.
            _ => Found::default(),
        }
    }

    /// Continues a search. The caller must repeat the call while it returns true. The result may contain znodes that
    /// were deleted in the meantime.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn search_some(
        &mut self,
        session: SessionRef,
        prefix: &ZnodePath,
        most: usize,
        found: &mut Found,
        now: Now,
        effects: &mut Effects,
    ) -> Result<bool> {
        self.admit(session, now, effects)?;
        let from = self.sessions.get(session.slot).search;
        let next = self.search(from, prefix, most, found)?;
        self.sessions.get_mut(session.slot).search = next;
        Ok(next != NIL)
    }

    pub(super) fn get_all_children_number(
        &self,
        session: SessionRef,
        path: &ZnodePath,
    ) -> Result<CoreReply> {
        let top = self.readable(session, path)?;
        Ok(Reply::Count(self.tree.count_below(top)))
    }

    pub(super) fn existing(&self, path: &ZnodePath) -> Result<u32> {
        self.tree
            .find(path.as_str())
            .ok_or_else(|| no_node(path.as_str()))
    }

    pub(super) fn readable(&self, session: SessionRef, path: &ZnodePath) -> Result<u32> {
        let index = self.existing(path)?;
        self.allow(session, index, AclEntry::READ, || path.to_string())?;
        Ok(index)
    }

    pub(super) fn names_within(&self, index: u32, room: &mut AnswerRoom) -> Result<Vec<String>> {
        let children = self.tree.children(index);
        self.names_of(children.map(|(_, child)| child), room)
    }

    pub(super) fn names_of<'a>(
        &self,
        nodes: impl Iterator<Item = &'a Node>,
        room: &mut AnswerRoom,
    ) -> Result<Vec<String>> {
        let mut looked_at = 0;
        let names = nodes.map(|node| {
            looked_at += 1;
            room.take(LENGTH_BYTES + node.name.len())?;
            Ok(node.name.to_string())
        });
        let names = names.collect();
        self.tree.work.add(looked_at);
        names
    }

    pub(super) fn answer_room(&self, session: SessionRef) -> AnswerRoom {
        AnswerRoom {
            limit: self.sessions.get(session.slot).answer_bytes,
            taken: 0,
        }
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

/// Limit of an answer's bytes. Checked while the answer is built, because a request of one megabyte can ask for
/// thousands of lists (invariant 10).
#[derive(Debug, Default)]
pub(super) struct AnswerRoom {
    limit: usize,
    taken: usize,
}

const LENGTH_BYTES: usize = 4;

impl AnswerRoom {
    fn take_text(&mut self, text: &str) -> Result<()> {
        self.take(LENGTH_BYTES + text.len())
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken <= self.limit {
            return Ok(());
        }
        Err(Error::LimitReached {
            what: ANSWER_BYTES,
            limit: self.limit,
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) paths: Vec<ZnodePath>,
    room: AnswerRoom,
}

pub(crate) const ANSWER_BYTES: &str = "bytes of an answer";
