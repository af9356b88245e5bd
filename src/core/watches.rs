//! [`Watches`]: who wants to be told of what.
//!
//! A znode that exists carries the list of its watches, so that firing takes no look-up; those on
//! paths where no znode is are kept aside, and join it when it is made.

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};
use slab::Slab;

use super::Effects;
use super::acl::has_right;
use super::budget::WATCH_BYTES;
use super::intrusive_list::{Links, List, NIL};
use super::sessions::Sessions;
use super::tree::{Tree, Waiter};
use crate::path::ZnodePath;
use crate::types::{AclEntry, Zxid};
use crate::watch::{DeleteReason, EventKind, PredecessorGone, WatchedEvent};

/// Names one armed watch, and no later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WatchKey {
    /// Small numbers, used again: fit for an index.
    pub(crate) index: u32,
    stamp: u32,
}

impl WatchKey {
    #[cfg(any(test, feature = "server"))]
    /// Of what was never armed.
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

/// An event for a watcher.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fired {
    pub(crate) watch: WatchKey,
    /// The slot of the watcher's session.
    pub(crate) slot: u32,
    pub(crate) event: WatchedEvent,
    /// Whose departure it is to be judged, when the transaction is done.
    pub(super) waiter: Option<Waiter>,
    /// Whether the watch is used up.
    pub(crate) is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchKind {
    /// Of getData and exists.
    Data,
    /// Of getChildren.
    Child,
    /// Of an entry of a queue, on the one ahead of it.
    Turn(Waiter),
    Persistent,
    Recursive,
}

impl WatchKind {
    fn is_one_shot(self) -> bool {
        matches!(self, Self::Data | Self::Child | Self::Turn(_))
    }

    /// Tells the kinds apart that a session of another process can have.
    fn number(self) -> u64 {
        match self {
            Self::Data | Self::Turn(_) => 0,
            Self::Child => 1,
            Self::Persistent => 2,
            Self::Recursive => 3,
        }
    }

    /// Whether an event of its own znode is its business.
    fn wants(self, event: EventKind) -> bool {
        match event {
            EventKind::NodeDeleted => true,
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
    /// Under which it is in the index, if its session is of another process.
    hash: u64,
    /// It is used up, by an event that its session might not see. It stays, and tells nothing until it is armed again:
    /// else its absence would tell of the event.
    is_muted: bool,
    spot: WatchLocation,
    /// The bytes that it counts for: 0 if it is of a session of this process.
    bytes: u32,
    /// Among those on the same path.
    at_spot: Links,
    /// Among those of the same session.
    of_session: Links,
}

/// What happened to a znode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) node: u32,
    pub(super) kind: EventKind,
    pub(super) zxid: Zxid,
    /// Why, if it was deleted.
    pub(super) cause: DeleteReason,
}

/// Where a watch is kept.
#[derive(Clone, Debug)]
enum WatchLocation {
    Node(u32),
    Absent(ZnodePath),
    /// Nowhere: it has fired unseen, and waits for the end of its session.
    Spent,
}

impl WatchLocation {
    /// Whether it is this path, where `node` is if there is one.
    fn is(&self, path: &ZnodePath, node: Option<u32>) -> bool {
        match self {
            Self::Node(here) => node == Some(*here),
            Self::Absent(here) => node.is_none() && here == path,
            Self::Spent => false,
        }
    }
}

/// What is watched, as others are told.
#[cfg(any(test, feature = "server"))]
pub(super) enum Watched<'a> {
    Node(u32),
    Absent(&'a ZnodePath),
}

/// The kinds that a session of another process can have: no such session waits in a queue of the store's.
#[cfg(any(test, feature = "server"))]
const REMOTE_KINDS: [WatchKind; 4] = [
    WatchKind::Data,
    WatchKind::Child,
    WatchKind::Persistent,
    WatchKind::Recursive,
];

/// The hash under which a watch is in the index. It is the path's, so it stays when a znode comes or goes there.
fn index_hash(tree: &Tree, slot: u32, kind: WatchKind, path: &ZnodePath, node: Option<u32>) -> u64 {
    let of_path = node.map_or_else(|| tree.hash(path.as_str()), |node| tree.node(node).hash);
    let of_session = u64::from(slot) << 2 | kind.number();
    of_path ^ of_session.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The bytes that a watch on a path counts for. A znode that is watched may go, and its path stays: so that a delete
/// makes nothing larger, the path counts from the beginning.
fn bytes_of(path: &ZnodePath, is_local: bool) -> u32 {
    match is_local {
        true => 0,
        false => u32::try_from(WATCH_BYTES + path.as_str().len()).unwrap_or(u32::MAX),
    }
}

#[derive(Debug)]
pub(super) struct Watches {
    slab: Slab<Watch>,
    /// Those of sessions of other processes, by session, kind and path, each of which has one at most.
    index: HashTable<u32>,
    absent: HashMap<ZnodePath, List, FixedState>,
    /// The bytes that all of them count for.
    pub(super) bytes: usize,
    /// The most bytes of the events that one transaction has for all sessions of other processes.
    pub(super) event_bytes: usize,
    /// How many are recursive: with none, no ancestor need be looked at.
    recursive: usize,
    last_stamp: u32,
    last_event: u64,
}

impl Watches {
    pub(super) fn new(hash_seed: u64) -> Self {
        Self {
            slab: Slab::new(),
            index: HashTable::new(),
            absent: HashMap::with_hasher(FixedState::with_seed(hash_seed)),
            bytes: 0,
            event_bytes: usize::MAX,
            recursive: 0,
            last_stamp: 0,
            last_event: 0,
        }
    }

    /// Adds a watch on a path, where `node` is if there is one.
    pub(super) fn arm(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        slot: u32,
        kind: WatchKind,
        path: &ZnodePath,
        node: Option<u32>,
    ) -> WatchKey {
        let mut list = match node {
            Some(node) => tree.node(node).watches,
            None => self.absent.get(path).copied().unwrap_or(List::EMPTY),
        };
        let is_local = sessions.get(slot).is_local;
        let mut hash = 0;
        if !is_local {
            hash = index_hash(tree, slot, kind, path, node);
            if let Some(armed) = self.find(hash, slot, kind, path, node) {
                self.slab[armed as usize].is_muted = false;
                return self.key(armed);
            }
        }
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
            at_spot: Links::NONE,
            of_session: Links::NONE,
        }) as u32;
        if !is_local {
            let slab = &self.slab;
            let hash_of = |other: &u32| slab[*other as usize].hash;
            self.index.insert_unique(hash, index, hash_of);
        }
        match kind {
            // So an event below finds them without a look at all the others.
            WatchKind::Recursive => {
                list.push_front(&mut self.slab, |watch| &mut watch.at_spot, index);
            }
            _ => list.push_back(&mut self.slab, |watch| &mut watch.at_spot, index),
        }
        match node {
            Some(node) => tree.node_mut(node).watches = list,
            None => {
                self.absent.insert(path.clone(), list);
            }
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

    #[cfg(any(test, feature = "server"))]
    /// The watches on a path, where `node` is if there is one, of a session of another process, of the kinds that are
    /// wanted. O(1).
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
            let hash = index_hash(tree, slot, kind, path, node);
            self.find(hash, slot, kind, path, node)
        });
        found.map(|index| self.key(index)).collect()
    }

    /// The watch of a session of another process.
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
            watch.slot == slot && watch.kind == kind && watch.spot.is(path, node)
        };
        self.index.find(hash, is_sought).copied()
    }

    fn key(&self, index: u32) -> WatchKey {
        WatchKey {
            index,
            stamp: self.slab[index as usize].stamp,
        }
    }

    /// Takes a watch back, if it has not fired yet.
    pub(super) fn disarm(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        key: WatchKey,
    ) -> bool {
        let known = self.slab.get(key.index as usize);
        let is_armed = known.is_some_and(|watch| watch.stamp == key.stamp);
        if is_armed {
            self.remove(tree, sessions, key.index);
        }
        is_armed
    }

    fn remove(&mut self, tree: &mut Tree, sessions: &mut Sessions, index: u32) {
        match self.slab[index as usize].spot.clone() {
            WatchLocation::Node(node) => {
                let list = &mut tree.node_mut(node).watches;
                list.unlink(&mut self.slab, |watch| &mut watch.at_spot, index);
            }
            WatchLocation::Spent => {}
            WatchLocation::Absent(path) => {
                let list = self
                    .absent
                    .get_mut(&path)
                    .expect("an absent path's watch is listed");
                list.unlink(&mut self.slab, |watch| &mut watch.at_spot, index);
                if list.is_empty() {
                    self.absent.remove(&path);
                }
            }
        }
        self.forget(sessions, index);
    }

    /// Removes a watch that is in no path's list any more.
    fn forget(&mut self, sessions: &mut Sessions, index: u32) {
        let session = sessions.get_mut(self.slab[index as usize].slot);
        session
            .watches
            .unlink(&mut self.slab, |watch| &mut watch.of_session, index);
        session.watch_count -= 1;
        if !session.is_local {
            let hash = self.slab[index as usize].hash;
            if let Ok(entry) = self.index.find_entry(hash, |other| *other == index) {
                entry.remove();
            }
        }
        let watch = self.slab.remove(index as usize);
        session.bytes -= watch.bytes as usize;
        self.bytes -= watch.bytes as usize;
        self.recursive -= usize::from(watch.kind == WatchKind::Recursive);
    }

    /// Drops watches of a session, the oldest first and at most so many, saying which.
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

    /// A znode was made: what watched its path before watches it now.
    #[inline]
    pub(super) fn attach(&mut self, tree: &mut Tree, node: u32) {
        if self.absent.is_empty() {
            return;
        }
        if let Some(list) = self.absent.remove(&tree.node(node).path) {
            self.move_spot(list, &WatchLocation::Node(node));
            tree.node_mut(node).watches = list;
        }
    }

    /// A znode was deleted: what still watches it watches its path from now on.
    #[inline]
    pub(super) fn detach(&mut self, list: List, path: &ZnodePath) {
        if !list.is_empty() {
            self.move_spot(list, &WatchLocation::Absent(path.clone()));
            self.absent.insert(path.clone(), list);
        }
    }

    fn move_spot(&mut self, list: List, spot: &WatchLocation) {
        let mut at = list.first;
        while at != NIL {
            let watch = &mut self.slab[at as usize];
            watch.spot = spot.clone();
            at = watch.at_spot.next;
        }
    }

    /// Tells all who want to know what happened, each watcher once.
    #[inline]
    pub(super) fn fire(
        &mut self,
        tree: &mut Tree,
        sessions: &mut Sessions,
        what: Change,
        effects: &mut Effects,
    ) {
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
            at = watch.at_spot.next;
            if !watch.kind.wants(what.kind) || watch.is_muted {
                continue;
            }
            let (slot, is_last) = (watch.slot, watch.kind.is_one_shot());
            let is_hidden = !self.tell(tree, sessions, index, what, effects);
            if is_last && is_hidden && !sessions.get(slot).is_local {
                self.slab[index as usize].is_muted = true;
            } else if is_last {
                let list = &mut tree.node_mut(what.node).watches;
                list.unlink(&mut self.slab, |watch| &mut watch.at_spot, index);
                if is_hidden {
                    self.slab[index as usize].spot = WatchLocation::Spent;
                } else {
                    self.forget(sessions, index);
                }
            }
        }
        tree.work.add(looked_at);
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
                return; // they are the first
            }
            at = watch.at_spot.next;
            self.tell(tree, sessions, index, what, effects);
        }
    }

    /// As in 3.9 only who may read the znode is told; then, and only then, `false`: the watcher must still hear of its
    /// session's end, and its session must not learn of the event by the watch's absence.
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
        // A departure is no plain event, which another watch may have told already.
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
        session.last_event = self.last_event;
        let bytes = size_of::<Fired>() + tree.node(what.node).path.as_str().len();
        if !session.is_local && !effects.count(session, slot, bytes, (self.event_bytes, remote)) {
            return true;
        }
        effects.fired.push(Fired {
            watch: self.key(index),
            slot,
            event: WatchedEvent {
                kind: what.kind,
                path: tree.node(what.node).path.clone(),
                zxid: Some(what.zxid),
                // Whether the way is clear, the end of the transaction tells.
                departure: waiter.map(|_| PredecessorGone::new(false, what.cause)),
            },
            waiter,
            is_last: kind.is_one_shot(),
        });
        true
    }

    /// How many there are.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// A bound of the slots that they are in.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn slots(&self) -> usize {
        self.slab.capacity()
    }

    /// On how many paths without a znode.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn absences(&self) -> usize {
        self.absent.len()
    }

    /// Those in these slots that are of more than children, by the slots of their sessions.
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

    /// The bytes that all of them count for, added up.
    #[cfg(test)]
    pub(super) fn sum(&self) -> usize {
        self.slab
            .iter()
            .map(|(_, watch)| watch.bytes as usize)
            .sum()
    }

    /// The same of one session's.
    #[cfg(test)]
    pub(super) fn sum_of(&self, slot: u32) -> usize {
        let watches = self.slab.iter().filter(|(_, watch)| watch.slot == slot);
        watches.map(|(_, watch)| watch.bytes as usize).sum()
    }

    /// How many watches there are, and on how many paths without a znode.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.slab.len(), self.absent.len())
    }
}
