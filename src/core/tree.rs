//! [`Tree`]: the znodes. One slab of nodes, one hash table over their full paths.

use std::hash::{BuildHasher, Hasher};

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use slab::Slab;

use super::Stamp;
use super::entries::{Entries, Place};
use super::links::{Links, List, NIL};
use super::txn::{Kind, NewNode};
use crate::backend::{SHARED_MARK, Skip};
use crate::path::ZnodePath;
use crate::types::{Acl, SessionId, Stat, Zxid};

#[derive(Debug)]
pub(super) struct Node {
    pub(super) path: ZnodePath,
    hash: u64,
    pub(super) data: Bytes,
    #[cfg_attr(not(test), expect(dead_code, reason = "kept for access checks"))]
    pub(super) acl: Acl,
    pub(super) kind: Kind,
    /// The owning session of an ephemeral node, and its slot.
    pub(super) owner: SessionId,
    pub(super) owner_slot: u32,
    pub(super) czxid: Zxid,
    pub(super) mzxid: Zxid,
    pub(super) pzxid: Zxid,
    pub(super) ctime: i64,
    pub(super) mtime: i64,
    pub(super) version: i32,
    pub(super) aversion: i32,
    pub(super) parent: u32,
    pub(super) siblings: Links,
    /// Among the ephemeral nodes of the owner.
    pub(super) ephemerals: Links,
    pub(super) watches: List,
    place: Option<Place>,
    /// Whether it is a shared entry.
    is_shared: bool,
    /// Whether the reaper has an eye on it.
    pub(super) is_candidate: bool,
    family: Option<Box<Family>>,
}

/// What only parents have.
#[derive(Debug)]
struct Family {
    children: List,
    count: u32,
    /// How many children were ever created; the sequence counter.
    creates: i64,
    exclusive: Entries,
    shared: Entries,
}

impl Family {
    const NEW: Self = Self {
        children: List::EMPTY,
        count: 0,
        creates: 0,
        exclusive: Entries::NONE,
        shared: Entries::NONE,
    };

    fn queue_of(&mut self, is_shared: bool) -> &mut Entries {
        if is_shared {
            &mut self.shared
        } else {
            &mut self.exclusive
        }
    }
}

/// What is left of a node that was taken out.
pub(super) struct Gone {
    pub(super) path: ZnodePath,
    pub(super) parent: u32,
    pub(super) watches: List,
}

/// An entry of a queue that waits for the one ahead of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    entry: u32,
    /// Tells it from a later node in the same place.
    czxid: Zxid,
    skip: Skip,
}

/// What the rules for writes ask of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) is_ephemeral: bool,
    pub(super) version: i32,
    pub(super) children: u32,
    pub(super) creates: i64,
}

impl Node {
    pub(super) fn facts(&self) -> Facts {
        Facts {
            is_ephemeral: self.kind == Kind::Ephemeral,
            version: self.version,
            children: self.children(),
            creates: self.creates(),
        }
    }

    pub(super) fn children(&self) -> u32 {
        self.family.as_ref().map_or(0, |family| family.count)
    }

    pub(super) fn creates(&self) -> i64 {
        self.family.as_ref().map_or(0, |family| family.creates)
    }

    pub(super) fn stat(&self) -> Stat {
        let children = self.children();
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            // ZooKeeper's is 32 bits wide and wraps.
            cversion: (2 * self.creates() - i64::from(children)) as i32,
            aversion: self.aversion,
            ephemeral_owner: self.owner,
            data_length: self.data.len() as i32,
            num_children: children as i32,
        }
    }
}

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Slab<Node>,
    by_path: HashTable<u32>,
    hasher: FixedState,
}

/// The znodes that every ZooKeeper has from the start.
const SYSTEM_PATHS: [&str; 4] = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"];

/// Whether this znode can never be deleted.
pub(super) fn is_system_path(path: &str) -> bool {
    SYSTEM_PATHS.contains(&path)
}

pub(super) const ROOT: u32 = 0;

impl Tree {
    pub(super) fn new(hash_seed: u64) -> Self {
        let mut tree = Self {
            nodes: Slab::new(),
            by_path: HashTable::new(),
            hasher: FixedState::with_seed(hash_seed),
        };
        for path in SYSTEM_PATHS {
            let parent = crate::path::parent_of(path).and_then(|parent| tree.find(parent));
            let new = NewNode {
                path: ZnodePath::trusted(path),
                data: Bytes::new(),
                acl: Acl::open(),
                kind: Kind::Persistent,
                sequence: None,
                // They count as children, but not as creates; so does ZooKeeper.
                creates: 0,
            };
            let hash = tree.hash(path);
            tree.insert(
                parent.unwrap_or(NIL),
                new,
                hash,
                (SessionId(0), NIL),
                Stamp::default(),
            );
        }
        tree
    }

    pub(super) fn hash(&self, path: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(path.as_bytes());
        hasher.finish()
    }

    pub(super) fn find(&self, path: &str) -> Option<u32> {
        self.find_hashed(path, self.hash(path))
    }

    pub(super) fn find_hashed(&self, path: &str, hash: u64) -> Option<u32> {
        let same = |index: &u32| self.nodes[*index as usize].path.as_str() == path;
        self.by_path.find(hash, same).copied()
    }

    pub(super) fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    pub(super) fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }

    /// Adds a node that is not there, under a parent that is (`NIL` for the root's).
    pub(super) fn insert(
        &mut self,
        parent: u32,
        new: NewNode,
        hash: u64,
        (owner, owner_slot): (SessionId, u32),
        at: Stamp,
    ) -> u32 {
        let place = new.sequence.map(|sequence| (sequence, new.creates));
        let is_shared = place.is_some() && new.path.name().contains(SHARED_MARK);
        let index = self.nodes.insert(Node {
            path: new.path,
            hash,
            data: new.data,
            acl: new.acl,
            kind: new.kind,
            owner,
            owner_slot,
            czxid: at.zxid,
            mzxid: at.zxid,
            pzxid: at.zxid,
            ctime: at.date_ms,
            mtime: at.date_ms,
            version: 0,
            aversion: 0,
            parent,
            siblings: Links::NONE,
            ephemerals: Links::NONE,
            watches: List::EMPTY,
            place,
            is_shared,
            is_candidate: false,
            family: None,
        }) as u32;
        let nodes = &self.nodes;
        self.by_path
            .insert_unique(hash, index, |other| nodes[*other as usize].hash);
        if parent != NIL {
            self.adopt(parent, index, new.creates, at);
        }
        index
    }

    fn adopt(&mut self, parent: u32, index: u32, creates: i64, at: Stamp) {
        let mut family = self.take_family(parent);
        family
            .children
            .push_back(&mut self.nodes, |node| &mut node.siblings, index);
        family.count += 1;
        family.creates = creates;
        let node = self.node(index);
        if let Some(place) = node.place {
            family.queue_of(node.is_shared).insert(place, index);
        }
        let parent = self.node_mut(parent);
        parent.pzxid = at.zxid;
        parent.family = Some(family);
    }

    /// Taken out while it is worked on, so that the children can be reached, too.
    fn take_family(&mut self, parent: u32) -> Box<Family> {
        let family = self.node_mut(parent).family.take();
        family.unwrap_or_else(|| Box::new(Family::NEW))
    }

    /// Takes out a node that is there and has no children.
    pub(super) fn remove(&mut self, index: u32, at: Stamp) -> Gone {
        let &Node { hash, parent, .. } = self.node(index);
        if let Ok(entry) = self.by_path.find_entry(hash, |other| *other == index) {
            entry.remove();
        }
        let mut family = self.take_family(parent);
        family
            .children
            .unlink(&mut self.nodes, |node| &mut node.siblings, index);
        family.count -= 1;
        let Node {
            path,
            watches,
            place,
            is_shared,
            ..
        } = self.nodes.remove(index as usize);
        if let Some(place) = place {
            family.queue_of(is_shared).remove(place);
        }
        let above = self.node_mut(parent);
        above.pzxid = at.zxid;
        above.family = Some(family);
        Gone {
            path,
            parent,
            watches,
        }
    }

    /// The children of a node, in order of creation.
    pub(super) fn children(&self, index: u32) -> impl Iterator<Item = (u32, &Node)> {
        let family = self.node(index).family.as_ref();
        let list = family.map_or(List::EMPTY, |family| family.children);
        list.iter(&self.nodes, |node| &node.siblings)
    }

    /// How many nodes there are below a node.
    pub(super) fn count_below(&self, index: u32) -> usize {
        if index == ROOT {
            return self.nodes.len() - 1;
        }
        let mut count = 0;
        let mut open = vec![index];
        while let Some(index) = open.pop() {
            for (child, node) in self.children(index) {
                count += 1;
                if node.children() > 0 {
                    open.push(child);
                }
            }
        }
        count
    }

    /// The nearest entry of the same queue ahead of `index` that is not skipped. O(log n).
    pub(super) fn ahead_of(&self, index: u32, skip: Skip) -> Option<u32> {
        let (family, place) = self.queue_place(index)?;
        let exclusive = family.exclusive.ahead_of(place);
        let nearest = match skip {
            Skip::Shared => exclusive,
            Skip::None => exclusive.max(family.shared.ahead_of(place)),
        };
        nearest.map(|(_, index)| index)
    }

    /// An entry as one that waits.
    pub(super) fn waiter(&self, entry: u32, skip: Skip) -> Waiter {
        let czxid = self.node(entry).czxid;
        Waiter { entry, czxid, skip }
    }

    /// Whether who waits is there, and nobody blocks it. O(log n).
    pub(super) fn is_clear(&self, waiter: Waiter) -> bool {
        let node = self.nodes.get(waiter.entry as usize);
        node.is_some_and(|node| node.czxid == waiter.czxid)
            && self.ahead_of(waiter.entry, waiter.skip).is_none()
    }

    /// How many entries of the same queue are ahead of `index`. O(n).
    pub(super) fn count_ahead_of(&self, index: u32) -> usize {
        self.queue_place(index).map_or(0, |(family, place)| {
            family.exclusive.count_ahead_of(place) + family.shared.count_ahead_of(place)
        })
    }

    fn queue_place(&self, index: u32) -> Option<(&Family, Place)> {
        let node = self.node(index);
        let family = self.nodes.get(node.parent as usize)?.family.as_deref()?;
        Some((family, node.place?))
    }

    /// Whether `index` is an entry of a queue.
    pub(super) fn is_entry(&self, index: u32) -> bool {
        self.node(index).place.is_some()
    }

    /// The entries of the queue under `parent`, head first.
    pub(super) fn queue(&self, parent: u32) -> impl Iterator<Item = &Node> {
        let family = self.node(parent).family.as_deref();
        let mut exclusive = family
            .map(|family| family.exclusive.iter())
            .into_iter()
            .flatten()
            .peekable();
        let mut shared = family
            .map(|family| family.shared.iter())
            .into_iter()
            .flatten()
            .peekable();
        std::iter::from_fn(move || {
            let next = match (exclusive.peek(), shared.peek()) {
                (Some((one, _)), Some((other, _))) if other < one => shared.next(),
                (None, _) => shared.next(),
                _ => exclusive.next(),
            };
            next.map(|(_, index)| self.node(index))
        })
    }
}

/// Appends a sequence number as ZooKeeper does: `%010d`.
pub(super) fn push_number(text: &mut String, number: i64) {
    const WIDTH: usize = 10;
    let mut digits = [b'0'; 20];
    let mut start = digits.len();
    let mut rest = number.unsigned_abs();
    while rest > 0 {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let start = start.min(digits.len() - WIDTH);
    text.push_str(std::str::from_utf8(&digits[start..]).expect("digits are ASCII"));
}
