//! Queues of locks: joining one, looking for the entry ahead, and waiting for it to leave.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::malformed;
use crate::client::etcd::channel::Connection;
use crate::client::etcd::messages::{
    KeyValue, Operation, Range, RangeResponse, Txn, created_at, operation, put, range, ranges,
    revision,
};
use crate::client::etcd::session::Shared;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{
    Blockers, Enqueue, GetPredecessor, Predecessor, Reply, SEMAPHORE_CHILDREN, SHARED_MARKER,
    sequence_of,
};
use crate::model::types::Zxid;
use crate::model::watch::{DeleteReason, PredecessorGone};

impl Shared {
    pub(super) async fn children(
        &self,
        connection: &Connection,
        parent: &ZnodePath,
    ) -> Result<Children> {
        let read = vec![self.keys_below(parent)];
        let (answers, at) = self.read(connection, read, parent.as_str()).await?;
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
        let path = enqueue.parent.join(&enqueue.name)?;
        let key = self.keys.exact(&path);
        let queue = operation(Operation::Range(self.keys_below(&enqueue.parent)));
        let own = operation(Operation::Range(range(key.clone())));
        let txn = Txn {
            compare: vec![created_at(&key, 0)],
            success: vec![
                put(key, enqueue.data.clone(), self.lease),
                own.clone(),
                queue.clone(),
            ],
            // The entry already exists if an earlier attempt has created it and only the answer was lost.
            failure: vec![own, queue],
        };
        let answer = self.txn(connection, txn, path.as_str()).await?;
        let at = revision(answer.header.clone());
        let mut ranges = ranges(answer).into_iter();
        let own = ranges.next().and_then(|mut range| range.kvs.pop());
        let own = own.ok_or_else(|| malformed("enqueue"))?;
        if own.lease != self.lease {
            return Err(Error::NodeExists {
                path: path.as_str().to_owned(),
            });
        }
        let queue = ranges.next().ok_or_else(|| malformed("enqueue"))?;
        let path = self.record(&own)?;
        let children = self.children_of(&enqueue.parent, &queue, at);
        let ahead = self.predecessor(
            &enqueue.parent,
            path.name(),
            children,
            enqueue.blockers,
            enqueue.count,
        );
        Ok(Reply::Enqueued {
            czxid: Zxid(own.create_revision),
            ahead: ahead.await?,
            path,
        })
    }

    pub(super) async fn get_predecessor(
        self: &Arc<Self>,
        connection: &Connection,
        look: GetPredecessor,
    ) -> Result<Reply> {
        let parent = look.entry.parent().unwrap_or_else(ZnodePath::root);
        let children = self.children(connection, &parent).await?;
        let (entry, blockers) = (look.entry.name(), look.blockers);
        let ahead = self.predecessor(&parent, entry, children, blockers, look.count);
        Ok(Reply::Predecessor(ahead.await?))
    }

    pub(super) async fn predecessor(
        self: &Arc<Self>,
        parent: &ZnodePath,
        entry: &str,
        children: Children,
        blockers: Blockers,
        count: bool,
    ) -> Result<Predecessor> {
        if children.queue().is_none() {
            return Ok(Predecessor::Listed(children.names.into_iter().collect()));
        }
        let mut entries = children.entries.iter();
        let Some(position) = entries.position(|(name, kv)| name == entry && kv.lease == self.lease)
        else {
            return Ok(Predecessor::Gone);
        };
        let Some((name, kv)) = children.blocker(position, blockers) else {
            return Ok(Predecessor::Clear);
        };
        let by = parent.join(name)?;
        let waiter = Waiter {
            shared: self.clone(),
            parent: parent.clone(),
            entry: entry.to_owned(),
            blockers,
        };
        let watcher = self.watches.departure(waiter, by.clone(), kv);
        Ok(Predecessor::Blocked {
            by,
            watcher,
            count: count.then_some(position),
        })
    }
}

/// Values that a session's key has after the session has deleted an entry.
pub(super) const RELEASED: &[u8] = b"released";
pub(super) const WITHDRAWN: &[u8] = b"withdrawn";

/// An entry that waits for another entry to leave.
pub(in crate::client::etcd) struct Waiter {
    pub(in crate::client::etcd) shared: Arc<Shared>,
    parent: ZnodePath,
    entry: String,
    blockers: Blockers,
}

impl Waiter {
    /// Returns whether this entry is next, and why the entry ahead has left. The entry ahead had this lease, and was
    /// deleted at revision `at`.
    pub(in crate::client::etcd) async fn consequence(
        &self,
        lease: i64,
        at: i64,
    ) -> Result<PredecessorGone> {
        let shared = &self.shared;
        let connection = shared.connected().await?;
        // Read the session key of the entry's owner at the revision of the deletion. The key is missing if the owner's
        // session has ended. A release puts the key in the transaction that deletes the entry.
        let session = Range {
            revision: at,
            ..range(shared.keys.session(lease))
        };
        let reads = vec![shared.keys_below(&self.parent), session];
        let (ranges, now) = shared
            .read(&connection, reads, self.parent.as_str())
            .await?;
        let mut ranges = ranges.into_iter();
        let queue = ranges.next().unwrap_or_default();
        let children = shared.children_of(&self.parent, &queue, now);
        let is_own =
            |(name, kv): &(String, KeyValue)| *name == self.entry && kv.lease == shared.lease;
        let position = children.entries.iter().position(is_own);
        let clear = position.is_some_and(|at| children.blocker(at, self.blockers).is_none());
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
}

impl Children {
    /// Returns the nearest entry that blocks the entry at a position of the queue.
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
