//! Queues: joining one, looking ahead in it, listing it.

use super::quota::bytes_of;
use super::sessions::SessionRef;
use super::tree::{ROOT, is_unusual, push_number};
use super::txn::{Kind, NewNode};
use super::watches::{WatchKey, WatchKind};
use super::{Core, CoreReply, Effects, Now, no_node};
use crate::error::{Error, Result};
use crate::path::{ZnodePath, parent_of};
use crate::protocol::{Enqueue, GetPredecessor, Predecessor, Reply, SEMAPHORE_PARTS, Skip};
use crate::types::AclEntry;

impl Core {
    pub(super) fn enqueue(
        &mut self,
        session: SessionRef,
        enqueue: Enqueue,
        now: Now,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        check_name(&enqueue.parent, &enqueue.name)?;
        let acl = self.listed(session, enqueue.acl, &enqueue.parent)?;
        self.check_watch_limit(session, &enqueue.parent)?;
        let parent_path = enqueue.parent.as_str();
        let parent = self
            .tree
            .find_parent(parent_path)
            .ok_or_else(|| no_node(parent_path))?;
        let asked = || asked_for(&enqueue.parent, &enqueue.name);
        self.allow(session, parent, AclEntry::CREATE, asked)?;
        let creates = self.tree.node(parent).creates();
        self.check_number(session, parent, creates)?;
        let path = self.entry_path(&enqueue.parent, &enqueue.name, creates);
        let hash = self.tree.hash(path.as_str());
        let bytes = bytes_of(&path, enqueue.data.len(), &acl);
        self.check_new(session, parent, &path, hash, (bytes, true), || {
            asked_for(&enqueue.parent, &enqueue.name)
        })?;
        let new = NewNode {
            path,
            data: enqueue.data,
            acl,
            kind: Kind::Ephemeral,
            sequence: Some(creates),
            creates: creates + 1,
        };
        self.check_txn(new.log_bytes())?;
        let entry = self.add(session, parent, new, hash, now, effects);
        let node = self.tree.node(entry);
        let (path, czxid) = (node.path.clone(), node.czxid);
        let ahead = match self.is_queue(parent) {
            true => self.predecessor(session, entry, enqueue.skip, enqueue.count),
            false => Predecessor::Unknown,
        };
        Ok(Reply::Enqueued { path, czxid, ahead })
    }

    fn entry_path(&mut self, parent: &ZnodePath, name: &str, creates: i64) -> ZnodePath {
        self.path.clear();
        self.path.push_str(parent.as_str());
        if !parent.is_root() {
            self.path.push('/');
        }
        self.path.push_str(name);
        push_number(&mut self.path, creates);
        ZnodePath::trusted(self.path.as_str())
    }

    pub(super) fn get_predecessor(
        &mut self,
        session: SessionRef,
        look: &GetPredecessor,
    ) -> Result<CoreReply> {
        let entry = self.tree.find(look.entry.as_str());
        self.check_look(session, entry, &look.entry)?;
        let mine = entry.filter(|entry| self.tree.node(*entry).owner == session.id);
        let Some(entry) = mine else {
            return Ok(Reply::Predecessor(Predecessor::Gone));
        };
        if !self.tree.is_entry(entry) {
            return Err(Error::BadArguments(format!(
                "{} is no entry of a queue: its name does not end with a sequence number",
                look.entry
            )));
        }
        let parent = self.tree.node(entry).parent;
        if !self.is_queue(parent) {
            return Ok(Reply::Predecessor(Predecessor::Listed(self.names(parent))));
        }
        self.check_watch_limit(session, &look.entry)?;
        Ok(Reply::Predecessor(
            self.predecessor(session, entry, look.skip, look.count),
        ))
    }

    /// Returns false where a child tells that the parent of an entry is another recipe's. A queue of
    /// entries alone is known without a look at names.
    #[inline]
    fn is_queue(&mut self, parent: u32) -> bool {
        !self.tree.has_others(parent) || !self.has_semaphore_part(parent)
    }

    fn has_semaphore_part(&mut self, parent: u32) -> bool {
        SEMAPHORE_PARTS.into_iter().any(|part| {
            self.path.clear();
            self.path.push_str(self.tree.node(parent).path.as_str());
            if parent != ROOT {
                self.path.push('/');
            }
            self.path.push_str(part);
            self.tree.find(&self.path).is_some()
        })
    }

    /// Who looks around in a queue must be allowed to.
    fn check_look(&self, session: SessionRef, entry: Option<u32>, path: &ZnodePath) -> Result<()> {
        let parent_path = parent_of(path.as_str()).unwrap_or("/");
        let parent = match entry {
            Some(entry) if entry != ROOT => Some(self.tree.node(entry).parent),
            _ => self.tree.find(parent_path),
        };
        parent.map_or(Ok(()), |parent| {
            self.allow(session, parent, AclEntry::READ, || parent_path.to_owned())
        })
    }

    /// Who blocks an entry; from now on watched.
    #[inline]
    fn predecessor(
        &mut self,
        session: SessionRef,
        entry: u32,
        skip: Skip,
        count: bool,
    ) -> Predecessor<WatchKey> {
        let Some(blocker) = self.tree.ahead_of(entry, skip) else {
            return Predecessor::Clear;
        };
        let by = self.tree.node(blocker).path.clone();
        let count = count.then(|| self.tree.count_ahead_of(entry));
        let turn = WatchKind::Turn(self.tree.waiter(entry, skip));
        let watcher = self.arm(session, turn, &by, Some(blocker));
        Predecessor::Blocked { by, watcher, count }
    }

    pub(super) fn get_queue(
        &self,
        session: SessionRef,
        parent: &ZnodePath,
        limit: usize,
    ) -> Result<CoreReply> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        let queue = self.tree.queue(self.readable(session, parent)?);
        let names = queue.take(limit).map(|node| node.path.name().to_owned());
        Ok(Reply::Queue {
            names: names.collect(),
            sorted: true,
        })
    }
}

/// What errors call an entry: its number is not known where it was asked for.
fn asked_for(parent: &ZnodePath, name: &str) -> String {
    match parent.is_root() {
        true => format!("/{name}"),
        false => format!("{parent}/{name}"),
    }
}

/// The name of an entry, without its number, must be fit for a path; and end without a digit, or
/// nobody could tell where the number starts.
fn check_name(parent: &ZnodePath, name: &str) -> Result<()> {
    if name.as_bytes().last().is_some_and(u8::is_ascii_digit) {
        return Err(Error::BadArguments(format!(
            "the entry name {name:?} ends with a digit, where its number must start"
        )));
    }
    if is_unusual(name) {
        parent.join(&format!("{name}0"))?;
    }
    Ok(())
}
