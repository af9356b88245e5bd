//! Queue requests, answered from the index of a parent's numbered ephemerals ([`Entries`](super::entries::Entries)).
//!
//! A single call finds the nearest blocking entry and arms the waiter's watch on that entry, so the waiter cannot miss
//! the entry's departure (invariant 4).

use bytes::Bytes;

use super::acl::has_right;
use super::journal::NodeKind;
use super::names::{NodeName, is_unusual};
use super::sessions::SessionRef;
use super::tree::{NewChild, ROOT, Tree};
use super::watches::{WatchKey, WatchKind, bytes_of_conditions};
use super::write::check_no_quota_in;
use super::{Core, CoreReply, Effects, Now, no_node};
use crate::model::acl::Acl;
use crate::model::entry::{EnqueueMode, EntryKey, NewEntry};
use crate::model::error::{Error, Result};
use crate::model::identity::Identities;
use crate::model::path::{ZnodePath, parent_of};
use crate::model::protocol::{
    Blockers, Condition, Create, Enqueue, EntryRole, GetPredecessor, Predecessor, Reply,
};
use crate::model::types::{AclEntry, CreateMode};
use crate::model::watch::DeleteReason;

struct Unnumbered<'a, N> {
    queue: &'a ZnodePath,
    name: N,
    data: Bytes,
    acl: Acl,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    pub(crate) watch: WatchKey,
    pub(crate) role: Option<EntryRole>,
    pub(crate) is_own: bool,
}

impl Core {
    pub(super) fn enqueue(
        &mut self,
        session: SessionRef,
        enqueue: Enqueue,
        now: Now,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        check_name(&enqueue.parent, &enqueue.name)?;
        // Check now whether the session may have another watch, in case the entry has to wait. A refusal must leave no
        // entry behind (invariant 7).
        self.check_wait(session, &enqueue.parent, &enqueue.conditions)?;
        let parent = match self.tree.find(enqueue.parent.as_str()) {
            Some(parent) => parent,
            None => self.make_queue(session, &enqueue, now, effects)?,
        };
        let new = Unnumbered {
            queue: &enqueue.parent,
            name: |number| NodeName::numbered(&enqueue.name, number),
            data: enqueue.data,
            acl: enqueue.acl,
        };
        let asked = || asked_for(&enqueue.parent, &enqueue.name);
        let entry = self.join(session, parent, new, asked, now, effects)?;
        let (path, czxid) = (self.tree.path(entry), self.tree.node(entry).czxid);
        let (blockers, conditions) = (enqueue.blockers, enqueue.conditions);
        let may_look = self.check_look(session, parent, &conditions).is_ok();
        let ahead = match may_look && self.is_queue(parent) {
            true => self.predecessor(session, entry, blockers, conditions, enqueue.count),
            // Either the parent is not a queue, so the client must compare the names of the children, or the session
            // may not read the queue. In both cases the client asks again with `get_predecessor`.
            false => Predecessor::Unknown,
        };
        Ok(Reply::Enqueued { path, czxid, ahead })
    }

    /// Adds an entry without a request, with the same result as an [`enqueue`](Self::enqueue) or a multi. Returns the
    /// entry's key and the entry ahead that blocks it.
    ///
    /// Returns `None` and adds no entry if this fast path does not apply, for example because the entry would be
    /// refused. The caller then sends a request.
    #[inline]
    pub(crate) fn enter(
        &mut self,
        session: SessionRef,
        new: NewEntry<'_>,
        now: Now,
        effects: &mut Effects,
    ) -> Option<(EntryKey, Option<Ahead>)> {
        self.admit(session, now, effects).ok()?;
        let parent = match self.tree.find_known(new.queue) {
            Some(parent) => parent,
            None => self.make_known_queue(session, &new, now, effects)?,
        };
        let queue = new.queue.path();
        let (blockers, is_admitted) = match new.mode {
            EnqueueMode::Queued(blockers) => {
                let may_look = self.check_look(session, parent, &[]).is_ok();
                let may_wait = may_look
                    && self.is_queue(parent)
                    && self.check_watch_limit(session, queue).is_ok();
                (Some(blockers), may_wait)
            }
            EnqueueMode::IfFree(blockers) => {
                let may_look = self.check_look(session, parent, &[]).is_ok();
                let is_free =
                    may_look && self.is_queue(parent) && !self.tree.has_blocker(parent, blockers);
                (None, is_free)
            }
            EnqueueMode::When(conditions) => {
                let identities = &self.sessions.get(session.slot).identities;
                let hold = conditions.iter().all(|condition| {
                    let node = self.tree.find_known(condition.znode());
                    holds(&self.tree, identities, condition, node) == Some(true)
                });
                (None, hold)
            }
        };
        if !is_admitted {
            return None;
        }
        let unnumbered = Unnumbered {
            queue,
            name: |number| NodeName::Entry {
                name: new.name,
                number,
            },
            data: new.data,
            acl: new.acl.clone(),
        };
        let entry = self.join(session, parent, unnumbered, String::new, now, effects);
        let entry = entry.ok()?;
        let key = EntryKey {
            node: self.tree.key(entry),
            number: self.tree.node(parent).creates() - 1,
        };
        let ahead = blockers.and_then(|blockers| {
            let blocker = self.tree.ahead_of(entry, blockers)?;
            let watch = self.arm_turn(session, entry, blockers, blocker, queue);
            let node = self.tree.node(blocker);
            Some(Ahead {
                watch,
                role: node.name.role(),
                is_own: node.owner_slot == session.slot,
            })
        });
        Some((key, ahead))
    }

    /// Deletes an entry of this session. Returns false and deletes nothing if the delete would be refused. The caller
    /// then sends a request, whose error states the reason.
    #[inline]
    pub(crate) fn leave(
        &mut self,
        session: SessionRef,
        entry: EntryKey,
        reason: DeleteReason,
        now: Now,
        effects: &mut Effects,
    ) -> bool {
        let Some(node) = self.entry_of(session, entry) else {
            return false;
        };
        let parent = self.tree.node(node).parent;
        let may_leave = self.admit(session, now, effects).is_ok()
            && self.allow_delete(session, parent, String::new).is_ok();
        if may_leave {
            self.delete_node(session, node, reason, now, effects);
        }
        may_leave
    }

    #[inline]
    pub(crate) fn entry_of(&self, session: SessionRef, entry: EntryKey) -> Option<u32> {
        let node = self.tree.at(entry.node)?;
        (self.tree.node(node).owner == session.id).then_some(node)
    }

    pub(crate) fn count_ahead(&self, session: SessionRef, entry: EntryKey) -> Option<usize> {
        let node = self.entry_of(session, entry)?;
        Some(self.tree.count_ahead_of(node))
    }

    #[inline(always)] // avoids copies of the new node
    fn join(
        &mut self,
        session: SessionRef,
        parent: u32,
        new: Unnumbered<'_, impl FnOnce(i64) -> NodeName>,
        asked: impl Fn() -> String,
        now: Now,
        effects: &mut Effects,
    ) -> Result<u32> {
        check_no_quota_in(new.queue.as_str())?;
        let acl = self.listed(session, new.acl, new.queue)?;
        self.allow(session, parent, AclEntry::CREATE, &asked)?;
        let creates = self.tree.node(parent).creates();
        self.check_number(session, parent, creates)?;
        let new = NewChild {
            name: (new.name)(creates),
            data: new.data,
            acl,
            kind: NodeKind::Ephemeral,
            sequence: Some(creates),
            creates: creates + 1,
        };
        self.check_new(session, parent, &new, asked)?;
        Ok(self.add(session, parent, new, now, effects))
    }

    /// Creates a missing queue and its missing ancestors, each in its own transaction. Checks the queue's first entry
    /// before creating anything, because a refused entry must leave no queue behind.
    #[cold]
    fn make_queue(
        &mut self,
        session: SessionRef,
        enqueue: &Enqueue,
        now: Now,
        effects: &mut Effects,
    ) -> Result<u32> {
        let queue = &enqueue.parent;
        let missing = self.missing_queue(enqueue).unwrap_or_default();
        if missing.is_empty() {
            return Err(no_node(queue.as_str()));
        }
        let create = |path, mode, data| Create {
            path,
            data,
            mode,
            acl: enqueue.acl.clone(),
        };
        // Create the missing ancestors as containers, because persistent ancestors of queues that are used only once
        // would accumulate.
        let missing = missing.into_iter().rev().map(|path| {
            let data = match path == *queue {
                true => enqueue.queue_data.clone().unwrap_or_default(),
                false => Bytes::new(),
            };
            create(path, CreateMode::Container, data)
        });
        let mut creates: Vec<_> = missing.collect();
        let queue_creates = creates.len();
        let entry = queue.join(&NodeName::numbered(&enqueue.name, 0).to_string())?;
        creates.push(create(entry, CreateMode::Ephemeral, enqueue.data.clone()));
        self.check_creates(session, &creates)?;
        for create in creates.into_iter().take(queue_creates) {
            self.create(session, create, now, effects)?;
        }
        let made = self.tree.find(queue.as_str());
        made.ok_or_else(|| no_node(queue.as_str()))
    }

    /// Creates a missing queue for [`enter`](Self::enter). Returns `None` if the store has a log, because only the
    /// reply to a request can wait for the log.
    #[cold]
    fn make_known_queue(
        &mut self,
        session: SessionRef,
        new: &NewEntry<'_>,
        now: Now,
        effects: &mut Effects,
    ) -> Option<u32> {
        let (EnqueueMode::Queued(blockers) | EnqueueMode::IfFree(blockers)) = new.mode else {
            return None;
        };
        if self.has_journal() {
            return None;
        }
        let enqueue = Enqueue {
            parent: new.queue.path().clone(),
            name: new.name.to_string(),
            data: new.data.clone(),
            acl: new.acl.clone(),
            blockers,
            conditions: Vec::new(),
            count: false,
            queue_data: Some(new.queue_data.clone()),
        };
        self.check_watch_limit(session, &enqueue.parent).ok()?;
        let made = self.make_queue(session, &enqueue, now, effects).ok()?;
        new.queue.remember(self.tree.key(made));
        Some(made)
    }

    /// Returns the missing znodes above an entry, starting with the queue, or `None` if the request may not create
    /// them.
    pub(super) fn missing_queue(&self, enqueue: &Enqueue) -> Option<Vec<ZnodePath>> {
        enqueue.queue_data.as_ref()?;
        if enqueue.parent.as_str().len() > MAX_MADE_PATH_BYTES {
            return None;
        }
        let mut missing = Vec::new();
        let mut path = Some(enqueue.parent.clone());
        while let Some(absent) = path.take_if(|path| self.tree.find(path.as_str()).is_none()) {
            if missing.len() == MAX_MADE_LEVELS {
                return None;
            }
            path = absent.parent();
            missing.push(absent);
        }
        Some(missing)
    }

    pub(super) fn get_predecessor(
        &mut self,
        session: SessionRef,
        look: GetPredecessor,
        now: Now,
    ) -> Result<CoreReply> {
        let entry = self.tree.find(look.entry.as_str());
        // Check the rights first, so that only a session that may read the queue learns that an entry is missing.
        let parent = match entry {
            Some(entry) if entry != ROOT => Some(self.tree.node(entry).parent),
            _ => self
                .tree
                .find(parent_of(look.entry.as_str()).unwrap_or("/")),
        };
        if let Some(parent) = parent {
            self.check_look(session, parent, &look.conditions)?;
        }
        // Report an entry of another session as gone, because it must not make this session a holder (invariant 8).
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
            let names = self.names_within(parent, &mut self.answer_room(session))?;
            return Ok(Reply::Predecessor(Predecessor::Listed(names)));
        }
        self.check_wait(session, &look.entry, &look.conditions)?;
        let ahead = self.predecessor(session, entry, look.blockers, look.conditions, look.count);
        if matches!(ahead, Predecessor::Clear) {
            self.tree.grant(entry, now.unix_ms);
        }
        Ok(Reply::Predecessor(ahead))
    }

    /// Returns false if a child with one of the names in [`not_queues`](super::CoreOptions::not_queues) shows that the
    /// parent is not a queue.
    #[inline]
    fn is_queue(&self, parent: u32) -> bool {
        let is_child = |name: &&str| self.tree.child(parent, name).is_some();
        !self.tree.has_others(parent) || !self.options.not_queues.iter().any(is_child)
    }

    /// Checks the right to read the queue and the znodes of the conditions, which decide whether an entry is blocked
    /// (invariant 14).
    #[inline]
    fn check_look(&self, session: SessionRef, queue: u32, conditions: &[Condition]) -> Result<()> {
        let readable = |node| {
            let asked = || self.tree.path(node).to_string();
            self.allow(session, node, AclEntry::READ, asked)
        };
        let mut nodes = conditions
            .iter()
            .filter_map(|condition| self.tree.find(condition.znode().as_str()));
        readable(queue)?;
        nodes.try_for_each(readable)
    }

    #[inline]
    fn check_wait(
        &self,
        session: SessionRef,
        path: &ZnodePath,
        conditions: &[Condition],
    ) -> Result<()> {
        let data = |condition: &Condition| match condition {
            Condition::Data { data, .. } => data.len(),
            Condition::Children { .. } => 0,
        };
        if conditions.len() > MAX_CONDITIONS
            || conditions.iter().any(|it| data(it) > MAX_CONDITION_BYTES)
        {
            return Err(Error::BadArguments(format!(
                "an entry may wait for at most {MAX_CONDITIONS} conditions, with {MAX_CONDITION_BYTES} bytes of data each"
            )));
        }
        let bytes = path.as_str().len() + bytes_of_conditions(conditions);
        self.check_watch_room(session, 1, bytes)
    }

    /// Finds the entry or the condition that blocks the given entry, and arms a watch on the blocking znode.
    #[inline]
    fn predecessor(
        &mut self,
        session: SessionRef,
        entry: u32,
        blockers: Blockers,
        conditions: Vec<Condition>,
        count: bool,
    ) -> Predecessor<WatchKey> {
        let identities = &self.sessions.get(session.slot).identities;
        let ahead = self.tree.ahead_of(entry, blockers);
        let Some(blocker) = ahead.or_else(|| held_up_by(&self.tree, identities, &conditions))
        else {
            return Predecessor::Clear;
        };
        let by = self.tree.path(blocker);
        let count = count.then(|| self.tree.count_ahead_of(entry));
        let watcher = self.arm_turn(session, entry, blockers, blocker, &by);
        if !conditions.is_empty() {
            let (tree, sessions) = (&mut self.tree, &mut self.sessions);
            self.watches
                .keep_conditions(tree, sessions, watcher, conditions, ahead.is_none());
        }
        Predecessor::Blocked { by, watcher, count }
    }

    /// Arms a waiter's watch only on its nearest blocker, so that a departing entry wakes no waiter further back
    /// (invariant 4).
    fn arm_turn(
        &mut self,
        session: SessionRef,
        entry: u32,
        blockers: Blockers,
        blocker: u32,
        charged: &ZnodePath,
    ) -> WatchKey {
        let turn = WatchKind::Turn(self.tree.waiter(entry, blockers));
        self.arm(session, turn, charged, Some(blocker))
    }

    pub(super) fn get_queue(
        &self,
        session: SessionRef,
        parent: &ZnodePath,
        limit: usize,
    ) -> Result<CoreReply> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        let queue = self.tree.queue(self.readable(session, parent)?);
        let names = self.names_of(queue.take(limit), &mut self.answer_room(session))?;
        Ok(Reply::Queue {
            names,
            sorted: true,
        })
    }
}

/// Returns true if a condition holds, and `None` if the session may not read the condition's znode.
fn holds<Z, D: AsRef<[u8]>>(
    tree: &Tree,
    identities: &Identities,
    condition: &Condition<Z, D>,
    node: Option<u32>,
) -> Option<bool> {
    let Some(node) = node.map(|node| tree.node(node)) else {
        return Some(matches!(condition, Condition::Children { .. }));
    };
    let may_read = has_right(&node.acl, AclEntry::READ, identities, &tree.work);
    may_read.then(|| match condition {
        Condition::Data { data, .. } => node.data == data.as_ref(),
        Condition::Children { limit, .. } => node.children() <= *limit,
    })
}

/// Returns a znode that has more children than a condition of the entry allows. The entry then waits until children are
/// deleted. Returns `None` if the entry need not wait, because all conditions hold or a data condition fails. Also
/// returns `None` if the session may not read a condition's znode, because waiting would reveal the znode's state.
pub(super) fn held_up_by(
    tree: &Tree,
    identities: &Identities,
    conditions: &[Condition],
) -> Option<u32> {
    let mut held_up_by = None;
    for condition in conditions {
        let node = tree.find(condition.znode().as_str());
        match (holds(tree, identities, condition, node), condition) {
            (Some(true), _) => {}
            (Some(false), Condition::Children { .. }) => held_up_by = held_up_by.or(node),
            _ => return None,
        }
    }
    held_up_by
}

/// Maximum number of conditions of an entry. The entry's watch stores the conditions and checks them after each change.
const MAX_CONDITIONS: usize = 2;
const MAX_CONDITION_BYTES: usize = 1 << 10;

/// Maximum number of levels that are created for a missing queue. Without this limit, a request of one megabyte could
/// create half a million ancestors.
const MAX_MADE_LEVELS: usize = 16;
const MAX_MADE_PATH_BYTES: usize = 4 << 10;

fn asked_for(parent: &ZnodePath, name: &str) -> String {
    match parent.is_root() {
        true => format!("/{name}"),
        false => format!("{parent}/{name}"),
    }
}

/// Checks an entry's name without its number. The name must not end with a digit, because the digit would look like a
/// part of the number.
fn check_name(parent: &ZnodePath, name: &str) -> Result<()> {
    if name.as_bytes().last().is_some_and(u8::is_ascii_digit) {
        return Err(Error::BadArguments(format!(
            "the entry name \"{name}\" ends with a digit, where its number must start",
            name = name.escape_debug()
        )));
    }
    if is_unusual(name) {
        parent.join(&format!("{name}0"))?;
    }
    Ok(())
}
