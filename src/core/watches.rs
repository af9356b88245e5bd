//! [`Watches`]: the watch table, and the events that a transaction fires.
//!
//! Each znode has a list of its watches, so firing needs no look-up. A watch on a missing znode moves to the znode's
//! list when the znode is created. Events are added to [`Effects`] in the order of the changes, before every later
//! reply (invariant 3).

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use slab::Slab;

use super::Effects;
use super::acl::has_right;
use super::budget::WATCH_BYTES;
use super::intrusive_list::{Links, List, NIL};
use super::queue::held_up_by;
use super::sessions::Sessions;
use super::table::Table;
use super::tree::{ROOT, Tree, Waiter};
use super::work::Work;
use crate::model::path::ZnodePath;
use crate::model::protocol::Condition;
use crate::model::types::{AclEntry, Zxid};
use crate::model::watch::{DeleteReason, EventKind, PredecessorGone, WatchUpdate, WatchedEvent};

/// Key of an armed watch. The stamp distinguishes the watch from a later watch in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WatchKey {
    pub(crate) index: u32,
    stamp: u32,
}

impl WatchKey {
    #[cfg(any(test, feature = "server"))]
    pub(super) const NONE: Self = Self {
        index: u32::MAX,
        stamp: 0,
    };

    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.stamp) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_u64(key: u64) -> Self {
        Self {
            index: key as u32,
            stamp: (key >> 32) as u32,
        }
    }
}

/// Lets a remote session refer to a watch on a predecessor by number.
#[cfg(any(feature = "client", feature = "server"))]
impl crate::model::watch::WatchNumber for WatchKey {
    fn watch_number(&self) -> i64 {
        self.to_u64().cast_signed()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fired {
    pub(crate) watch: WatchKey,
    pub(crate) slot: u32,
    pub(crate) news: WatchUpdate,
    pub(crate) is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchKind {
    /// One-shot watch of getData or exists.
    Data,
    /// One-shot watch of getChildren.
    Child,
    /// One-shot watch of a queue entry on its predecessor, which fires when the predecessor is deleted. If the entry
    /// has conditions, the watch moves from blocker to blocker instead, and fires when nothing blocks the entry
    /// ([`settle`](Watches::settle)).
    Turn(Waiter),
    /// Internal watch on the znode of a data condition. Contains the index of the waiter's watch, which
    /// [`settle`](Watches::settle) checks when that znode changes.
    Guard(u32),
    Persistent,
    Recursive,
}

impl WatchKind {
    fn is_one_shot(self) -> bool {
        matches!(self, Self::Data | Self::Child | Self::Turn(_))
    }

    fn number(self) -> u64 {
        match self {
            Self::Data | Self::Turn(_) | Self::Guard(_) => 0,
            Self::Child => 1,
            Self::Persistent => 2,
            Self::Recursive => 3,
        }
    }

    fn wants(self, event: EventKind) -> bool {
        match event {
            EventKind::NodeDeleted => true,
            // Only the predecessor's delete can give a waiter the lock (invariant 4).
            EventKind::NodeCreated | EventKind::NodeDataChanged => {
                !matches!(self, Self::Child | Self::Turn(_))
            }
            EventKind::NodeChildrenChanged => matches!(self, Self::Child | Self::Persistent),
        }
    }
}

#[derive(Debug)]
struct Watch {
    slot: u32,
    stamp: u32,
    kind: WatchKind,
    hash: u64,
    /// True if the watch has fired for an event that its session may not see. The watch then stays in the table without
    /// firing until the client arms it again, because a missing watch would reveal the event (invariant 14).
    is_muted: bool,
    spot: WatchLocation,
    bytes: u32,
    /// Conditions that the waiter's entry waits for in addition to the entries ahead.
    conditions: Box<[Condition]>,
    guard: u32,
    at_spot: Links,
    of_session: Links,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) node: u32,
    pub(super) kind: EventKind,
    pub(super) zxid: Zxid,
    pub(super) reason: DeleteReason,
}

#[derive(Clone, Debug)]
enum WatchLocation {
    Node(u32),
    Absent(ZnodePath),
    /// On no znode or path. Either the watch is being moved, or it is kept until the session ends because it has fired
    /// for an event that its session may not see.
    Spent,
}

impl WatchLocation {
    fn is(&self, path: &ZnodePath, node: Option<u32>) -> bool {
        match self {
            Self::Node(here) => node == Some(*here),
            Self::Absent(here) => node.is_none() && here == path,
            Self::Spent => false,
        }
    }
}

#[cfg(any(test, feature = "server"))]
pub(super) enum Watched<'a> {
    Node(u32),
    Absent(&'a ZnodePath),
}

/// Kinds of watches that a remote session identifies by path.
#[cfg(any(test, feature = "server"))]
const REMOTE_KINDS: [WatchKind; 4] = [
    WatchKind::Data,
    WatchKind::Child,
    WatchKind::Persistent,
    WatchKind::Recursive,
];

/// Returns a watch's hash in the index. The hash depends on the path and not on the znode, so it stays the same when
/// the znode is created or deleted.
fn index_hash(tree: &Tree, slot: u32, kind: WatchKind, path: &ZnodePath) -> u64 {
    let of_path = tree.hash(path.as_str());
    let of_session = u64::from(slot) << 2 | kind.number();
    of_path ^ of_session.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn waiter_hash(slot: u32, waiter: Waiter) -> u64 {
    FixedState::default().hash_one((slot, waiter.entry))
}

pub(super) fn bytes_of_conditions(conditions: &[Condition]) -> usize {
    let bytes = |condition: &Condition| WATCH_BYTES + condition.bytes();
    conditions.iter().map(bytes).sum()
}

/// Returns the bytes charged for a watch. A watch stores its path only while the znode is missing, but the path is
/// always charged. Otherwise, deleting a znode could increase the charged size.
fn bytes_of(path: &ZnodePath, is_local: bool) -> u32 {
    match is_local {
        true => 0,
        false => u32::try_from(WATCH_BYTES + path.as_str().len()).unwrap_or(u32::MAX),
    }
}

#[derive(Debug)]
pub(super) struct Watches {
    slab: Slab<Watch>,
    /// Watches of remote sessions. A session has at most one watch of each kind on a path, and at most one for each of
    /// its waiting entries.
    index: Table<u32>,
    absent: Table<(ZnodePath, List)>,
    pub(super) bytes: usize,
    pub(super) event_bytes: usize,
    /// Number of recursive watches. If the number is 0, an event need not check the znode's ancestors.
    recursive: usize,
    /// Watches whose blocker has changed in the current transaction.
    unsettled: Vec<WatchKey>,
    last_stamp: u32,
    last_event: u64,
}

impl Watches {
    pub(super) fn new() -> Self {
        Self {
            slab: Slab::new(),
            index: Table::new(),
            absent: Table::new(),
            bytes: 0,
            event_bytes: usize::MAX,
            recursive: 0,
            unsettled: Vec::new(),
            last_stamp: 0,
            last_event: 0,
        }
    }

    pub(super) fn arm(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        slot: u32,
        kind: WatchKind,
        path: &ZnodePath,
        node: Option<u32>,
    ) -> WatchKey {
        let is_local = sessions.get(slot).is_local;
        let mut hash = 0;
        // As in ZooKeeper, a remote session has at most one watch of each kind on a path. In a local session, each
        // watcher has its own watch.
        if !is_local {
            hash = match kind {
                WatchKind::Turn(waiter) => waiter_hash(slot, waiter),
                _ => index_hash(tree, slot, kind, path),
            };
            match (self.find(hash, slot, kind, path, node), kind) {
                // Replace the old watch. The new watch has another number, so it stays armed if the client cancels the
                // old number later.
                (Some(armed), WatchKind::Turn(_)) => self.remove(tree, sessions, armed),
                (Some(armed), _) => {
                    self.slab[armed as usize].is_muted = false;
                    return self.key(armed);
                }
                (None, _) => {}
            }
        }
        let mut list = match node {
            Some(node) => tree.node(node).watches,
            None => self
                .absent_list(tree, path)
                .map_or(List::EMPTY, |list| *list),
        };
        self.last_stamp = self.last_stamp.wrapping_add(1);
        let bytes = bytes_of(path, sessions.get(slot).is_local);
        let index = self.slab.insert(Watch {
            slot,
            stamp: self.last_stamp,
            kind,
            hash,
            is_muted: false,
            spot: node.map_or_else(|| WatchLocation::Absent(path.clone()), WatchLocation::Node),
            bytes,
            conditions: Box::default(),
            guard: NIL,
            at_spot: Links::NONE,
            of_session: Links::NONE,
        }) as u32;
        if !is_local {
            let (slab, work) = (&self.slab, &tree.work);
            let hash_of = |other: &u32| {
                work.add(1);
                slab[*other as usize].hash
            };
            self.index.insert(hash, index, hash_of);
        }
        match kind {
            // Recursive watches are first in the list, so that an event below the znode finds them without visiting the
            // other watches.
            WatchKind::Recursive => {
                list.push_front(&mut self.slab, |watch| &mut watch.at_spot, index);
            }
            _ => list.push_back(&mut self.slab, |watch| &mut watch.at_spot, index),
        }
        match node {
            Some(node) => tree.node_mut(node).watches = list,
            None => match self.absent_list(tree, path) {
                Some(known) => *known = list,
                None => self.insert_absent(tree, path.clone(), list),
            },
        }
        let session = sessions.get_mut(slot);
        session
            .watches
            .push_back(&mut self.slab, |watch| &mut watch.of_session, index);
        session.watch_count += 1;
        session.bytes += bytes as usize;
        self.bytes += bytes as usize;
        self.recursive += usize::from(kind == WatchKind::Recursive);
        self.key(index)
    }

    /// Adds conditions to a waiter's watch. `is_held_up` is true if the watch is on a condition's znode instead of an
    /// entry ahead.
    pub(super) fn keep_conditions(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        key: WatchKey,
        conditions: Vec<Condition>,
        is_held_up: bool,
    ) {
        let watch = &mut self.slab[key.index as usize];
        let session = sessions.get_mut(watch.slot);
        let bytes = match session.is_local {
            true => 0,
            false => bytes_of_conditions(&conditions),
        };
        watch.conditions = conditions.into();
        watch.bytes += bytes as u32;
        session.bytes += bytes;
        self.bytes += bytes;
        if is_held_up {
            self.guard(tree, key.index);
        }
    }

    /// Adds a [guard](WatchKind::Guard) on the znode of the entry's data condition, if there is one, because the
    /// waiter's own watch is on the znode of the children condition.
    fn guard(&mut self, tree: &mut Tree, index: u32) {
        let watch = &self.slab[index as usize];
        let data = watch.conditions.iter().find_map(|it| match it {
            Condition::Data { znode, .. } => tree.find(znode.as_str()),
            Condition::Children { .. } => None,
        });
        // If both conditions of an entry are on the same znode, the watch itself receives all events and needs no
        // guard.
        let Some(node) =
            data.filter(|node| !matches!(watch.spot, WatchLocation::Node(at) if at == *node))
        else {
            return;
        };
        let guard = Watch {
            slot: watch.slot,
            stamp: watch.stamp,
            kind: WatchKind::Guard(index),
            hash: 0,
            is_muted: false,
            spot: WatchLocation::Spent,
            bytes: 0,
            conditions: Box::default(),
            guard: NIL,
            at_spot: Links::NONE,
            of_session: Links::NONE,
        };
        let guard = self.slab.insert(guard) as u32;
        self.put(tree, guard, node);
        self.slab[index as usize].guard = guard;
    }

    fn put(&mut self, tree: &mut Tree, index: u32, node: u32) {
        self.slab[index as usize].spot = WatchLocation::Node(node);
        let list = &mut tree.node_mut(node).watches;
        list.push_back(&mut self.slab, |watch| &mut watch.at_spot, index);
    }

    /// Returns a remote session's watches on a path, of the kinds that `wants` accepts.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn of_session_on(
        &self,
        tree: &Tree,
        slot: u32,
        path: &ZnodePath,
        node: Option<u32>,
        wants: impl Fn(WatchKind) -> bool,
    ) -> Vec<WatchKey> {
        let found = REMOTE_KINDS.into_iter().filter(|kind| wants(*kind));
        let found = found.filter_map(|kind| {
            let hash = index_hash(tree, slot, kind, path);
            self.find(hash, slot, kind, path, node)
        });
        found.map(|index| self.key(index)).collect()
    }

    fn find(
        &self,
        hash: u64,
        slot: u32,
        kind: WatchKind,
        path: &ZnodePath,
        node: Option<u32>,
    ) -> Option<u32> {
        let is_sought = |index: &u32| {
            let watch = &self.slab[*index as usize];
            let is_there = || match (watch.kind, kind) {
                // The same entry waits again, possibly for another blocker.
                (WatchKind::Turn(armed), WatchKind::Turn(waiter)) => armed.entry == waiter.entry,
                (armed, kind) => armed == kind && watch.spot.is(path, node),
            };
            watch.slot == slot && is_there()
        };
        self.index.find(hash, is_sought).copied()
    }

    fn key(&self, index: u32) -> WatchKey {
        WatchKey {
            index,
            stamp: self.slab[index as usize].stamp,
        }
    }

    pub(super) fn disarm(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        key: WatchKey,
    ) -> bool {
        let is_armed = self.armed(key).is_some();
        if is_armed {
            self.remove(tree, sessions, key.index);
        }
        is_armed
    }

    fn armed(&self, key: WatchKey) -> Option<&Watch> {
        // The slot may be free, or another watch may have reused it. No key refers to a guard.
        let known = self.slab.get(key.index as usize);
        known.filter(|watch| watch.stamp == key.stamp && !matches!(watch.kind, WatchKind::Guard(_)))
    }

    fn remove(&mut self, tree: &mut Tree, sessions: &mut Sessions, index: u32) {
        self.lift(tree, index);
        self.forget(sessions, index);
    }

    fn lift(&mut self, tree: &mut Tree, index: u32) {
        let guard = std::mem::replace(&mut self.slab[index as usize].guard, NIL);
        if guard != NIL {
            self.lift(tree, guard);
            self.slab.remove(guard as usize);
        }
        let spot = &mut self.slab[index as usize].spot;
        match std::mem::replace(spot, WatchLocation::Spent) {
            WatchLocation::Node(node) => {
                let list = &mut tree.node_mut(node).watches;
                list.unlink(&mut self.slab, |watch| &mut watch.at_spot, index);
            }
            WatchLocation::Spent => {}
            WatchLocation::Absent(path) => {
                let mut list = self
                    .take_absent(tree, &path)
                    .expect("an absent path's watch is listed");
                list.unlink(&mut self.slab, |watch| &mut watch.at_spot, index);
                if !list.is_empty() {
                    self.insert_absent(tree, path, list);
                }
            }
        }
    }

    fn forget(&mut self, sessions: &mut Sessions, index: u32) {
        let session = sessions.get_mut(self.slab[index as usize].slot);
        session
            .watches
            .unlink(&mut self.slab, |watch| &mut watch.of_session, index);
        session.watch_count -= 1;
        if !session.is_local {
            let hash = self.slab[index as usize].hash;
            self.index.remove(hash, |other| *other == index);
        }
        let watch = self.slab.remove(index as usize);
        session.bytes -= watch.bytes as usize;
        self.bytes -= watch.bytes as usize;
        self.recursive -= usize::from(watch.kind == WatchKind::Recursive);
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn is_of(&self, slot: u32, key: WatchKey) -> bool {
        self.armed(key).is_some_and(|watch| watch.slot == slot)
    }

    pub(super) fn drop_some(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        slot: u32,
        most: usize,
        dropped: &mut dyn FnMut(WatchKey),
    ) {
        for _ in 0..most {
            let first = sessions.get(slot).watches.first;
            if first == NIL {
                return;
            }
            dropped(self.key(first));
            self.remove(tree, sessions, first);
        }
    }

    #[inline]
    pub(super) fn attach(&mut self, tree: &mut Tree, node: u32) {
        // Avoid hashing the path, because usually no session watches a missing znode.
        if self.absent.len() == 0 {
            return;
        }
        if let Some(list) = self.take_absent(tree, &tree.path(node)) {
            self.move_spot(list, &WatchLocation::Node(node), &tree.work);
            tree.node_mut(node).watches = list;
        }
    }

    /// Moves a znode's remaining watches to the list of missing paths, before the znode is deleted.
    #[inline]
    pub(super) fn detach(&mut self, tree: &Tree, node: u32) {
        let list = tree.node(node).watches;
        if !list.is_empty() {
            let path = tree.path(node);
            self.move_spot(list, &WatchLocation::Absent(path.clone()), &tree.work);
            self.insert_absent(tree, path, list);
        }
    }

    fn absent_list(&mut self, tree: &Tree, path: &ZnodePath) -> Option<&mut List> {
        let hash = tree.hash(path.as_str());
        let found = self.absent.find_mut(hash, |(other, _)| other == path);
        found.map(|(_, list)| list)
    }

    fn insert_absent(&mut self, tree: &Tree, path: ZnodePath, list: List) {
        let hash_of = |(path, _): &(ZnodePath, List)| {
            tree.work.add(1);
            tree.hash(path.as_str())
        };
        let hash = tree.hash(path.as_str());
        self.absent.insert(hash, (path, list), hash_of);
    }

    fn take_absent(&mut self, tree: &Tree, path: &ZnodePath) -> Option<List> {
        let hash = tree.hash(path.as_str());
        let taken = self.absent.remove(hash, |(other, _)| other == path);
        taken.map(|(_, list)| list)
    }

    fn move_spot(&mut self, list: List, spot: &WatchLocation, work: &Work) {
        let mut at = list.first;
        while at != NIL {
            work.add(1);
            let watch = &mut self.slab[at as usize];
            watch.spot = spot.clone();
            at = watch.at_spot.next;
        }
    }

    /// Fires the watches that a change affects. Each watcher receives one event.
    #[inline]
    pub(super) fn fire(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        what: Change,
        effects: &mut Effects,
    ) {
        // Usually there is no watch. Recursive watches ignore changes of a znode's children, because they receive the
        // events of each child.
        let is_watched = !tree.node(what.node).watches.is_empty();
        let is_recursive = self.recursive > 0 && what.kind != EventKind::NodeChildrenChanged;
        if is_watched || is_recursive {
            self.fire_all(tree, sessions, what, is_recursive, effects);
        }
    }

    fn fire_all(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        what: Change,
        is_recursive: bool,
        effects: &mut Effects,
    ) {
        // The znode's own watches and the recursive watches of its ancestors share one event number, so that a session
        // with several of these watches receives one event.
        self.last_event += 1;
        self.fire_list(tree, sessions, what, effects);
        let mut ancestor = tree.node(what.node).parent;
        let mut depth = 0;
        while is_recursive && ancestor != NIL {
            self.fire_recursive(tree, sessions, ancestor, what, effects);
            ancestor = tree.node(ancestor).parent;
            depth += 1;
        }
        tree.work.add(depth);
    }

    fn fire_list(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        what: Change,
        effects: &mut Effects,
    ) {
        let mut at = tree.node(what.node).watches.first;
        let mut looked_at = 0;
        while at != NIL {
            looked_at += 1;
            let index = at;
            let watch = &self.slab[index as usize];
            // Read the next link before the watch may be unlinked.
            at = watch.at_spot.next;
            // Any event on this znode may change whether the entry is blocked, so `settle` checks the watch at the end
            // of the transaction.
            if !watch.conditions.is_empty() {
                self.unsettle(tree, index);
                continue;
            }
            if !watch.kind.wants(what.kind) || watch.is_muted {
                continue;
            }
            if let WatchKind::Guard(guarded) = watch.kind {
                self.unsettle(tree, guarded);
                continue;
            }
            let (slot, is_last) = (watch.slot, watch.kind.is_one_shot());
            let is_hidden = !self.tell(tree, sessions, index, what, effects);
            // `tell` hides the event from a client that may not read the znode. A remote client can check whether its
            // watch is still armed (`checkWatches`), so keep the watch in its list. Otherwise the check would reveal
            // the event.
            if is_last && is_hidden && !sessions.get(slot).is_local {
                self.slab[index as usize].is_muted = true;
            } else if is_last {
                let list = &mut tree.node_mut(what.node).watches;
                list.unlink(&mut self.slab, |watch| &mut watch.at_spot, index);
                if is_hidden {
                    // Keep the watch without a znode, because its local watcher must still be notified of the session's
                    // end.
                    self.slab[index as usize].spot = WatchLocation::Spent;
                } else {
                    self.forget(sessions, index);
                }
            }
        }
        tree.work.add(looked_at);
    }

    fn unsettle(&mut self, tree: &mut Tree, index: u32) {
        self.lift(tree, index);
        self.unsettled.push(self.key(index));
    }

    pub(super) fn has_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Checks the watches whose blockers changed in a transaction, at the end of that transaction. A watch moves to its
    /// entry's current blocker without an event, or it fires because the entry is gone or no longer blocked.
    pub(super) fn settle(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        zxid: Zxid,
        effects: &mut Effects,
    ) {
        for key in std::mem::take(&mut self.unsettled) {
            // The watch's session may have ended in the same transaction.
            let Some(watch) = self.armed(key) else {
                continue;
            };
            let WatchKind::Turn(waiter) = watch.kind else {
                unreachable!("only the watches of waiters have conditions")
            };
            let entry = tree.at(waiter.entry);
            tree.work.add(1);
            let ahead = entry.and_then(|entry| tree.ahead_of(entry, waiter.blockers));
            let identities = &sessions.get(watch.slot).identities;
            let held_up_by = match (entry, ahead) {
                (Some(_), None) => held_up_by(tree, identities, &watch.conditions),
                _ => None,
            };
            match ahead.or(held_up_by) {
                Some(blocker) => {
                    self.put(tree, key.index, blocker);
                    if held_up_by.is_some() {
                        self.guard(tree, key.index);
                    }
                }
                None => {
                    let what = Change {
                        node: entry.unwrap_or(ROOT),
                        kind: EventKind::NodeDeleted,
                        zxid,
                        reason: DeleteReason::Unknown,
                    };
                    self.tell(tree, sessions, key.index, what, effects);
                    self.forget(sessions, key.index);
                }
            }
        }
    }

    fn fire_recursive(
        &mut self,
        tree: &Tree,
        sessions: &mut Sessions,
        ancestor: u32,
        what: Change,
        effects: &mut Effects,
    ) {
        let mut at = tree.node(ancestor).watches.first;
        while at != NIL {
            let index = at;
            let watch = &self.slab[index as usize];
            if watch.kind != WatchKind::Recursive {
                return; // recursive watches are first
            }
            at = watch.at_spot.next;
            self.tell(tree, sessions, index, what, effects);
        }
    }

    /// Adds an event for one watch. Returns false only if the watch's session may not read the changed znode.
    ///
    /// The right is checked for each event, because the access control list may have changed since the watch was armed.
    /// A waiter's watch needs no right, because its event concerns the waiter's own entry.
    fn tell(
        &self,
        tree: &Tree,
        sessions: &mut Sessions,
        index: u32,
        what: Change,
        effects: &mut Effects,
    ) -> bool {
        let &Watch { slot, kind, .. } = &self.slab[index as usize];
        let waiter = match kind {
            WatchKind::Turn(waiter) => Some(waiter),
            _ => None,
        };
        let remote = sessions.remote;
        let session = sessions.get_mut(slot);
        tree.work.add(1);
        let is_told = !session.is_local && session.last_event == self.last_event;
        // The session already receives an event for another of its watches. Only a waiter's event is sent as well,
        // because it also reports whether the waiter's entry is still blocked.
        if is_told && waiter.is_none() {
            return true;
        }
        if waiter.is_none()
            && !has_right(
                &tree.node(what.node).acl,
                AclEntry::READ,
                &session.identities,
                &tree.work,
            )
        {
            return false;
        }
        // A waiter's event does not replace the event for the session's other watches, so do not record it here.
        if waiter.is_none() {
            session.last_event = self.last_event;
        }
        // Above the limit, drop the event. Return true, because false would mean that the session may not read the
        // znode.
        let bytes = size_of::<Fired>() + tree.node(what.node).path_bytes as usize;
        if !session.is_local && !effects.count(session, slot, bytes, (self.event_bytes, remote)) {
            return true;
        }
        if let Some(waiter) = waiter {
            effects.waiters.push((effects.fired.len(), waiter));
        }
        effects.fired.push(Fired {
            watch: self.key(index),
            slot,
            news: match waiter {
                // `resolve_waiters` completes this event at the end of the transaction, because the transaction may
                // still create or delete other entries.
                Some(_) => WatchUpdate::Departure {
                    zxid: what.zxid,
                    gone: PredecessorGone::new(false, what.reason),
                },
                None => WatchUpdate::Event(WatchedEvent {
                    kind: what.kind,
                    path: tree.path(what.node),
                    zxid: Some(what.zxid),
                    predecessor_gone: None,
                }),
            },
            is_last: kind.is_one_shot(),
        });
        true
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn slots(&self) -> usize {
        self.slab.capacity()
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn absences(&self) -> usize {
        self.absent.len()
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn each_listed(
        &self,
        slots: std::ops::Range<usize>,
        see: &mut dyn FnMut(u32, Watched<'_>),
    ) {
        let watches = slots.filter_map(|slot| self.slab.get(slot));
        for watch in watches.filter(|watch| watch.kind != WatchKind::Child) {
            let at = match &watch.spot {
                WatchLocation::Node(node) => Watched::Node(*node),
                WatchLocation::Absent(path) => Watched::Absent(path),
                WatchLocation::Spent => continue,
            };
            see(watch.slot, at);
        }
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn sum(&self) -> usize {
        self.slab
            .iter()
            .map(|(_, watch)| watch.bytes as usize)
            .sum()
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn sum_of(&self, slot: u32) -> usize {
        let watches = self.slab.iter().filter(|(_, watch)| watch.slot == slot);
        watches.map(|(_, watch)| watch.bytes as usize).sum()
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.slab.len(), self.absent.len())
    }
}
