//! Lock queues: joining a queue, finding the entry ahead, and waiting until that entry leaves.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{check_list, malformed};
use crate::client::etcd::channel::Connection;
use crate::client::etcd::messages::{
    BY_CREATE_REVISION, DESCENDING, KeyValue, Operation, Range, RangeResponse, Txn, created_at,
    operation, put, range, ranges, revision,
};
use crate::client::etcd::session::Shared;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{
    Blockers, Enqueue, EntryRole, GetPredecessor, Predecessor, Reply, SEMAPHORE_CHILDREN,
    SHARED_MARKER, sequence_of,
};
use crate::model::types::Zxid;
use crate::model::watch::{DeleteReason, PredecessorGone};

impl Shared {
    pub(super) async fn children(
        &self,
        connection: &Connection,
        parent: &ZnodePath,
    ) -> Result<Children> {
        let all = self.keys_below(parent);
        self.read_children(connection, parent, all).await
    }

    async fn read_children(
        &self,
        connection: &Connection,
        parent: &ZnodePath,
        read: Range,
    ) -> Result<Children> {
        let (answers, at) = self.read(connection, vec![read], parent.as_str()).await?;
        let queue = answers.into_iter().next().unwrap_or_default();
        Ok(self.children_of(parent, &queue, at))
    }

    pub(super) fn children_of(
        &self,
        parent: &ZnodePath,
        answer: &RangeResponse,
        at: i64,
    ) -> Children {
        let mut children = Children {
            at,
            ..Children::default()
        };
        if answer.more {
            let created = answer.kvs.iter().map(|kv| kv.create_revision);
            children.since = created.min().unwrap_or(i64::MAX);
        }
        for kv in &answer.kvs {
            if let Some((name, is_whole)) = self.keys.child(parent, kv) {
                if is_whole && kv.lease != 0 && sequence_of(&name).is_some() {
                    children.entries.push((name.clone(), kv.clone()));
                }
                children.names.insert(name);
            }
        }
        children.entries.sort_by_key(|(name, _)| sequence_of(name));
        children
    }

    pub(super) async fn enqueue(
        self: &Arc<Self>,
        connection: &Connection,
        enqueue: Enqueue,
    ) -> Result<Reply> {
        check_list(&enqueue.acl)?;
        let path = enqueue.parent.join(&enqueue.name)?;
        let key = self.keys.exact(&path);
        let queue = self.contenders(&enqueue.parent, enqueue.count, 0);
        let queue = operation(Operation::Range(queue));
        let own = operation(Operation::Range(range(key.clone())));
        let put = put(key.clone(), enqueue.data.clone(), self.lease);
        let txn = Txn {
            compare: vec![created_at(&key, 0)],
            success: vec![put, queue.clone()],
            // The entry already exists if an earlier attempt has created it and the answer was lost.
            failure: vec![own, queue],
        };
        let answer = self.txn(connection, txn, path.as_str()).await?;
        let (created, at) = (answer.succeeded, revision(answer.header.clone()));
        let mut ranges = ranges(answer).into_iter();
        let own = match created {
            true => Some(self.own(key, enqueue.data, at)),
            false => ranges.next().and_then(|mut range| range.kvs.pop()),
        };
        let own = own.ok_or_else(|| malformed("enqueue"))?;
        if own.lease != self.lease {
            return Err(Error::NodeExists {
                path: path.as_str().to_owned(),
            });
        }
        let queue = ranges.next().ok_or_else(|| malformed("enqueue"))?;
        let path = self.record(&own)?;
        let children = self.children_of(&enqueue.parent, &queue, at);
        let look = GetPredecessor {
            entry: path.clone(),
            blockers: enqueue.blockers,
            conditions: enqueue.conditions,
            count: enqueue.count,
        };
        Ok(Reply::Enqueued {
            czxid: Zxid(own.create_revision),
            ahead: self.predecessor(connection, look, children).await?,
            path,
        })
    }

    /// Returns the read with which an entry finds the entry ahead. It reads the whole queue if the entries are counted,
    /// and otherwise only the nearest entries. `newest` is the highest create revision to read, or 0 for no limit.
    fn contenders(&self, parent: &ZnodePath, count: bool, newest: i64) -> Range {
        let all = self.keys_below(parent);
        match count {
            true => all,
            false => Range {
                limit: NEAREST,
                order: DESCENDING,
                order_by: BY_CREATE_REVISION,
                max_created: newest,
                ..all
            },
        }
    }

    pub(super) async fn get_predecessor(
        self: &Arc<Self>,
        connection: &Connection,
        look: GetPredecessor,
    ) -> Result<Reply> {
        let parent = look.entry.parent().unwrap_or_else(ZnodePath::root);
        let newest = place_of(look.entry.name());
        let read = self.contenders(&parent, look.count || newest.is_none(), newest.unwrap_or(0));
        let children = self.read_children(connection, &parent, read).await?;
        let ahead = self.predecessor(connection, look, children);
        Ok(Reply::Predecessor(ahead.await?))
    }

    /// Finds the entry ahead of another entry among the children. Reads all children if these do not suffice.
    async fn predecessor(
        self: &Arc<Self>,
        connection: &Connection,
        look: GetPredecessor,
        mut children: Children,
    ) -> Result<Predecessor> {
        let parent = look.entry.parent().unwrap_or_else(ZnodePath::root);
        let (entry, blockers) = (look.entry.name(), look.blockers);
        if !children.suffice(entry, self.lease, blockers) {
            children = self.children(connection, &parent).await?;
        }
        if children.queue().is_none() {
            return Ok(Predecessor::Listed(children.names.into_iter().collect()));
        }
        let Some(position) = children.position(entry, self.lease) else {
            return Ok(Predecessor::Gone);
        };
        let Some((name, kv)) = children.blocker(position, blockers) else {
            return Ok(Predecessor::Clear);
        };
        let by = parent.join(name)?;
        let waiter = Waiter {
            shared: self.clone(),
            entry: look.entry,
            blockers,
        };
        let is_soon = children.since == 0 && children.entries.len() as i64 <= NEAREST;
        let watcher = self.watches.departure(waiter, by.clone(), kv, is_soon);
        Ok(Predecessor::Blocked {
            by,
            watcher,
            count: look.count.then_some(position),
        })
    }
}

/// Number of nearest entries that a contender reads at first. It usually waits for one of them.
const NEAREST: i64 = 8;

/// Returns an entry's create revision if every entry ahead has a lower one. Returns `None` for an entry of a read-write
/// lock, because a downgrade creates a new entry, with a new revision, at the place of the old one.
fn place_of(entry: &str) -> Option<i64> {
    let keeps_order = [EntryRole::Lock, EntryRole::Latch];
    let keeps_order = keeps_order.iter().any(|role| entry.contains(role.suffix()));
    sequence_of(entry).filter(|_| keeps_order)
}

/// Possible values of a session's key after the session has deleted an entry.
pub(super) const RELEASED: &[u8] = b"released";
pub(super) const WITHDRAWN: &[u8] = b"withdrawn";

/// An entry that waits for another entry to leave.
pub(in crate::client::etcd) struct Waiter {
    pub(in crate::client::etcd) shared: Arc<Shared>,
    entry: ZnodePath,
    blockers: Blockers,
}

impl Waiter {
    /// Returns whether this entry is next, and why the entry ahead has left. The entry ahead belonged to `lease` and
    /// was deleted at revision `at`.
    pub(in crate::client::etcd) async fn consequence(
        &self,
        lease: i64,
        at: i64,
    ) -> Result<PredecessorGone> {
        let shared = &self.shared;
        let connection = shared.connected().await?;
        // Read the session key of the deleted entry's owner, as it was at the deletion. The key is missing if the
        // owner's session has ended. A release puts this key in the transaction that deletes the entry.
        let session = Range {
            revision: at,
            ..range(shared.keys.session(lease))
        };
        let parent = self.entry.parent().unwrap_or_else(ZnodePath::root);
        let place = place_of(self.entry.name());
        let queue = match place {
            Some(place) => Range {
                limit: 1,
                max_created: place,
                ..shared.keys_below(&parent)
            },
            None => shared.keys_below(&parent),
        };
        let reads = vec![queue, session];
        let mut ranges = shared.read_local(&connection, reads, at).await?.into_iter();
        let queue = ranges.next().unwrap_or_default();
        let children = shared.children_of(&parent, &queue, at);
        let position = children.position(self.entry.name(), shared.lease);
        let is_next = |position| children.blocker(position, self.blockers).is_none();
        let clear = children.since == 0 && position.is_some_and(is_next);
        let reason = match ranges.next().unwrap_or_default().kvs.pop() {
            None => DeleteReason::Died,
            Some(kv) if kv.mod_revision != at => DeleteReason::Removed,
            Some(kv) if kv.value == RELEASED => DeleteReason::Released,
            Some(_) => DeleteReason::Unknown,
        };
        Ok(PredecessorGone::new(clear, reason))
    }
}

/// Children of a znode at a revision.
#[derive(Default)]
pub(super) struct Children {
    pub(super) names: BTreeSet<String>,
    /// Entries of a queue, in order.
    entries: Vec<(String, KeyValue)>,
    pub(super) at: i64,
    /// Only children with at least this create revision were read. 0 if none was left out.
    since: i64,
}

impl Children {
    fn position(&self, entry: &str, lease: i64) -> Option<usize> {
        let mut entries = self.entries.iter();
        entries.position(|(name, kv)| name == entry && kv.lease == lease)
    }

    /// Returns true if the children that were left out cannot change what is ahead of an entry. No entry has a place
    /// after its create revision, so those left out have places before `since`.
    fn suffice(&self, entry: &str, lease: i64, blockers: Blockers) -> bool {
        let blocker = self.position(entry, lease);
        let blocker = blocker.and_then(|position| self.blocker(position, blockers));
        let place = blocker.and_then(|(name, _)| sequence_of(name));
        let are_entries = self.names.len() == self.entries.len();
        self.since == 0 || are_entries && place.is_some_and(|place| place >= self.since)
    }

    /// Returns the nearest entry that blocks the entry at `position`.
    fn blocker(&self, position: usize, blockers: Blockers) -> Option<&(String, KeyValue)> {
        let blocks = |name: &str| match blockers {
            Blockers::All => true,
            Blockers::Exclusive => !name.contains(SHARED_MARKER),
        };
        let mut ahead = self.entries[..position].iter().rev();
        ahead.find(|(name, _)| blocks(name))
    }

    /// Returns the names of the queue's entries. `None` if this is not a queue.
    pub(super) fn queue(&self) -> Option<Vec<String>> {
        let is_semaphore = SEMAPHORE_CHILDREN
            .iter()
            .any(|name| self.names.contains(*name));
        let names = || self.entries.iter().map(|(name, _)| name.clone()).collect();
        (!is_semaphore).then(names)
    }
}
