//! [`Tree`]: the znodes in one slab.
//!
//! Queue entries are found by number in their queue's index. All other children are found by parent and name in one
//! hash table. Paths are not stored but assembled on demand.

use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher};

use bytes::Bytes;
use foldhash::fast::FixedState;
use slab::Slab;

use super::Stamp;
use super::budget::{bytes_of, bytes_of_acl};
use super::entries::Entries;
pub(super) use super::entries::QueueKey;
use super::intrusive_list::{Links, List, NIL};
use super::journal::{NewNode, NodeKind};
use super::known_paths::KnownPaths;
use super::names::NodeName;
use super::replay::NodeImage;
use super::table::Table;
use super::work::Work;
use crate::model::acl::Acl;
use crate::model::entry::{NodeKey, ZnodeHandle};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Blockers, sequence_of};
use crate::model::types::{AclEntry, SessionId, Stat, Zxid};

#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: NodeName,
    pub(super) path_bytes: u32,
    pub(super) data: Bytes,
    pub(super) acl: Acl,
    pub(super) kind: NodeKind,
    pub(super) owner: SessionId,
    pub(super) owner_slot: u32,
    pub(super) czxid: Zxid,
    pub(super) mzxid: Zxid,
    pub(super) ctime: i64,
    pub(super) mtime: i64,
    pub(super) version: i32,
    pub(super) aversion: i32,
    pub(super) parent: u32,
    pub(super) siblings: Links,
    pub(super) ephemerals: Links,
    pub(super) watches: List,
    pub(super) queue_key: Option<QueueKey>,
    /// Zxid of the last synchronously logged transaction whose effect this znode shows. A reply that shows the znode
    /// waits for this transaction, but not for unrelated writes (invariant 2).
    pub(super) kept: i64,
    /// Time at which a queue entry ceased to be blocked, in milliseconds since the Unix epoch, or
    /// [`NOT_KNOWN`](Self::NOT_KNOWN).
    granted_ms: i64,
    is_shared: bool,
    /// True for an entry that is found by its number in the queue's index and is not in the hash table.
    is_found_by_number: bool,
    pub(super) is_candidate: bool,
    family: Option<Box<Family>>,
}

/// The part of a node that only a parent needs. Most nodes are leaves.
#[derive(Debug)]
struct Family {
    children: List,
    count: u32,
    named: u32,
    /// Number of descendants. Not maintained for the root.
    below: u32,
    pzxid: Zxid,
    /// Number of children ever created, which is the sequence counter.
    creates: i64,
    exclusive: Entries,
    shared: Entries,
}

impl Family {
    const NEW: Self = Self {
        children: List::EMPTY,
        count: 0,
        named: 0,
        below: 0,
        pzxid: Zxid(0),
        creates: 0,
        exclusive: Entries::NONE,
        shared: Entries::NONE,
    };

    /// Returns true if no entry ahead blocks the given entry. Shared entries do not block each other.
    #[inline]
    fn is_clear(&self, key: QueueKey, is_shared: bool) -> bool {
        self.exclusive.len() + self.shared.len() == 1
            || self.exclusive.ahead_of(key).is_none()
                && (is_shared || self.shared.ahead_of(key).is_none())
    }

    fn queue_of(&mut self, is_shared: bool) -> &mut Entries {
        if is_shared {
            &mut self.shared
        } else {
            &mut self.exclusive
        }
    }
}

#[derive(Debug)]
pub(super) struct NewChild {
    pub(super) name: NodeName,
    pub(super) data: Bytes,
    pub(super) acl: Acl,
    pub(super) kind: NodeKind,
    pub(super) sequence: Option<i64>,
    pub(super) creates: i64,
}

impl From<NewNode> for NewChild {
    fn from(new: NewNode) -> Self {
        Self {
            name: NodeName::text(new.path.name()),
            data: new.data,
            acl: new.acl,
            kind: new.kind,
            sequence: new.sequence,
            creates: new.creates,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) entry: NodeKey,
    pub(super) blockers: Blockers,
}

/// The properties of a node that the rules for writes need. A multi changes a `NodeView` instead of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeView {
    pub(super) node: u32,
    pub(super) is_ephemeral: bool,
    pub(super) owner_slot: u32,
    pub(super) version: i32,
    pub(super) children: u32,
    pub(super) creates: i64,
    pub(super) data_bytes: usize,
    pub(super) bytes: usize,
    /// Index of the node's access control list among the lists that the multi creates, or `NIL` for a node in the tree.
    pub(super) made: u32,
    /// Index of the multi's operation that wrote the node's data, or `NIL`.
    pub(super) written: u32,
}

impl Node {
    /// Value of `granted_ms` for an entry that is blocked, or that was granted before the store was opened.
    const NOT_KNOWN: i64 = i64::MIN;

    pub(super) fn granted_at_ms(&self) -> Option<i64> {
        (self.granted_ms != Self::NOT_KNOWN).then_some(self.granted_ms)
    }

    pub(super) fn children(&self) -> u32 {
        self.family.as_ref().map_or(0, |family| family.count)
    }

    pub(super) fn creates(&self) -> i64 {
        self.family.as_ref().map_or(0, |family| family.creates)
    }

    /// Returns the last transaction that created or deleted a child, or the node itself, as in ZooKeeper.
    pub(super) fn pzxid(&self) -> Zxid {
        self.family
            .as_ref()
            .map_or(self.czxid, |family| family.pzxid)
    }

    pub(super) fn stat(&self) -> Stat {
        let children = self.children();
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid(),
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            // Wraps at 32 bits, as in ZooKeeper.
            cversion: self
                .creates()
                .wrapping_mul(2)
                .wrapping_sub(i64::from(children)) as i32,
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
    /// Index of nodes by parent and name. Excludes entries that are found by number.
    by_name: Table<u32>,
    pub(super) bytes: usize,
    pub(super) list_bytes: usize,
    hasher: FixedState,
    known: RefCell<KnownPaths>,
    buffer: RefCell<Vec<u8>>,
    /// In the tree, because almost all code of the core can access the tree.
    pub(super) work: Work,
}

/// Returns the key of an entry whose queue assigned its number. The number is the count of earlier creates.
fn numbered(sequence: i64) -> QueueKey {
    (sequence, sequence.wrapping_add(1))
}

/// Znodes that every ZooKeeper store has from the start.
const SYSTEM_PATHS: [&str; 4] = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"];

pub(super) fn is_system_path(path: &str) -> bool {
    SYSTEM_PATHS.contains(&path)
}

/// Returns the access control list of a system znode. Clients may read the configuration, but not write it.
fn system_acl(path: &str) -> Acl {
    if path != "/zookeeper/config" {
        return Acl::open();
    }
    Acl::new([AclEntry {
        permissions: AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    }])
}

pub(super) const ROOT: u32 = 0;

impl Tree {
    pub(super) fn new(hash_seed: u64) -> Self {
        let mut tree = Self {
            nodes: Slab::new(),
            by_name: Table::new(),
            bytes: 0,
            list_bytes: 0,
            hasher: FixedState::with_seed(hash_seed),
            known: RefCell::new(KnownPaths::new()),
            buffer: RefCell::default(),
            work: Work::default(),
        };
        for path in SYSTEM_PATHS {
            let parent = crate::model::path::parent_of(path).and_then(|parent| tree.find(parent));
            let new = NewChild {
                name: NodeName::text(crate::model::path::name_of(path)),
                data: Bytes::new(),
                acl: system_acl(path),
                kind: NodeKind::Persistent,
                sequence: None,
                // System znodes count as children but not as creates, as in ZooKeeper.
                creates: 0,
            };
            tree.insert(
                parent.unwrap_or(NIL),
                new,
                (SessionId(0), NIL),
                Stamp::restored(Zxid(0)),
            );
        }
        tree
    }

    pub(super) fn reserve(&mut self, nodes: usize) {
        self.nodes.reserve(nodes);
        let (all, hasher) = (&self.nodes, &self.hasher);
        self.by_name
            .reserve(nodes, |index| hash_of(hasher, &all[*index as usize]));
    }

    #[inline]
    pub(super) fn hash(&self, path: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(path.as_bytes());
        hasher.finish()
    }

    /// Finds a node by its path. Usually the node or its parent is cached.
    pub(super) fn find(&self, path: &str) -> Option<u32> {
        let (parent_path, name) = path.rsplit_once('/')?;
        if name.is_empty() {
            return (path == "/").then_some(ROOT);
        }
        let hash = self.hash(path);
        let known = self.known.borrow().get(hash, path);
        if known.is_some() {
            return known;
        }
        let parent = match parent_path {
            "" => Some(ROOT),
            _ => {
                let known = self.known.borrow();
                known.get(self.hash(parent_path), parent_path)
            }
        };
        let index = match parent {
            Some(parent) => self.child(parent, name)?,
            None => self.walk(path)?,
        };
        if self.node(index).kind != NodeKind::Ephemeral {
            self.known.borrow_mut().note(hash, path, index);
        }
        Some(index)
    }

    fn walk(&self, path: &str) -> Option<u32> {
        let (mut at, mut levels) = (Some(ROOT), 0);
        // No child has an empty name, so `//a` finds nothing.
        for name in path.strip_prefix('/')?.split('/') {
            levels += 1;
            at = at.and_then(|at| self.child(at, name));
            if at.is_none() {
                break;
            }
        }
        self.work.add(levels / LEVELS_OF_A_UNIT);
        at
    }

    #[inline]
    pub(super) fn child(&self, parent: u32, name: &str) -> Option<u32> {
        let family = self.node(parent).family.as_deref()?;
        let has_numbered = family.count > family.named;
        let entry = has_numbered.then(|| self.entry_named(family, name));
        entry.flatten().or_else(|| match family.named {
            0 => None,
            _ => self.named_child(parent, name),
        })
    }

    fn named_child(&self, parent: u32, name: &str) -> Option<u32> {
        let hash = hash_name(&self.hasher, parent, name);
        let is_sought = |index: &u32| {
            let node = &self.nodes[*index as usize];
            node.parent == parent && node.name.is(name)
        };
        self.by_name.find(hash, is_sought).copied()
    }

    #[inline]
    pub(super) fn has_child(&self, parent: u32, new: &NewChild) -> bool {
        // The number was assigned just now, so no other entry has it.
        let is_numbered = new.sequence == Some(new.creates - 1);
        let family = self.node(parent).family.as_deref();
        if is_numbered && family.is_none_or(|family| family.named == 0) {
            return false;
        }
        // An empty name counts as taken, because only the root has an empty name.
        let is_taken = |name: &str| name.is_empty() || self.child(parent, name).is_some();
        new.name.with_text(is_taken)
    }

    #[inline]
    fn entry_named(&self, family: &Family, name: &str) -> Option<u32> {
        let key = numbered(sequence_of(name)?);
        let entry = family
            .exclusive
            .get(key)
            .or_else(|| family.shared.get(key))?;
        let node = self.node(entry);
        (node.is_found_by_number && node.name.is(name)).then_some(entry)
    }

    #[inline]
    pub(super) fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    #[inline]
    pub(super) fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }

    #[inline] // so that unused fields are not computed
    pub(super) fn view(&self, index: u32) -> NodeView {
        let node = self.node(index);
        NodeView {
            node: index,
            is_ephemeral: node.kind == NodeKind::Ephemeral,
            owner_slot: node.owner_slot,
            version: node.version,
            children: node.children(),
            creates: node.creates(),
            data_bytes: node.data.len(),
            bytes: node.bytes(),
            made: NIL,
            written: NIL,
        }
    }

    /// Adds a node. `parent` is `NIL` for the root.
    #[inline]
    pub(super) fn insert(
        &mut self,
        parent: u32,
        new: NewChild,
        (owner, owner_slot): (SessionId, u32),
        at: Stamp,
    ) -> u32 {
        // Only ephemeral nodes are queue entries. A persistent numbered node, such as the path of a nested lock, would
        // block all other entries forever.
        let queue_key = new
            .sequence
            .filter(|_| new.kind == NodeKind::Ephemeral)
            .map(|sequence| (sequence, new.creates));
        let is_shared = queue_key.is_some() && new.name.is_shared();
        // A child is found by number only if its queue assigned the number. Check the number in the name, too, because
        // it is longer if the base name ends with digits.
        let is_found_by_number = queue_key
            .is_some_and(|key| key == numbered(key.0) && new.name.sequence() == Some(key.0));
        let path_bytes = self.path_bytes_below(parent, new.name.len());
        self.bytes += bytes_of(path_bytes, new.data.len(), &new.acl);
        self.list_bytes += bytes_of_acl(&new.acl);
        let index = self.nodes.insert(Node {
            name: new.name,
            path_bytes: path_bytes as u32,
            data: new.data,
            acl: new.acl,
            kind: new.kind,
            owner,
            owner_slot,
            czxid: at.zxid,
            mzxid: at.zxid,
            ctime: at.unix_ms,
            mtime: at.unix_ms,
            version: 0,
            aversion: 0,
            parent,
            siblings: Links::NONE,
            ephemerals: Links::NONE,
            watches: List::EMPTY,
            queue_key,
            kept: 0,
            granted_ms: Node::NOT_KNOWN,
            is_shared,
            is_found_by_number,
            is_candidate: false,
            family: None,
        }) as u32;
        if !is_found_by_number {
            let (nodes, hasher, work) = (&self.nodes, &self.hasher, &self.work);
            let hash = |index: &u32| hash_of(hasher, &nodes[*index as usize]);
            let hash_moved = |index: &u32| {
                work.add(1);
                hash(index)
            };
            self.by_name.insert(hash(&index), index, hash_moved);
        }
        if parent != NIL {
            self.adopt(parent, index, new.creates, at);
            self.count_below_from(parent, 1);
        }
        index
    }

    /// Adds `by` to the number of descendants of every ancestor.
    #[inline]
    fn count_below_from(&mut self, mut above: u32, by: i32) {
        let mut levels = 0;
        while above != ROOT {
            let node = &mut self.nodes[above as usize];
            if let Some(family) = &mut node.family {
                family.below = family.below.wrapping_add_signed(by);
            }
            above = node.parent;
            levels += 1;
        }
        self.work.add(levels);
    }

    #[inline]
    fn adopt(&mut self, parent: u32, index: u32, creates: i64, at: Stamp) {
        let mut family = self.take_family(parent);
        family
            .children
            .push_back(&mut self.nodes, |node| &mut node.siblings, index);
        family.count += 1;
        family.creates = creates;
        family.pzxid = at.zxid;
        let node = self.node(index);
        family.named += u32::from(!node.is_found_by_number);
        if let Some(queue_key) = node.queue_key {
            let is_shared = node.is_shared;
            let queue = family.queue_of(is_shared);
            queue.insert(queue_key, index, &self.work);
            if family.is_clear(queue_key, is_shared) {
                self.node_mut(index).granted_ms = at.unix_ms;
            }
        }
        self.node_mut(parent).family = Some(family);
    }

    /// Records the time at which an entry ceased to be blocked. A reply that shows this time also shows that the
    /// blockers are gone, so it must wait until the log contains their deletes.
    pub(super) fn grant(&mut self, index: u32, unix_ms: i64) {
        let node = self.node(index);
        if node.granted_ms != Node::NOT_KNOWN {
            return;
        }
        let kept = node.kept.max(self.node(node.parent).kept);
        let node = self.node_mut(index);
        (node.granted_ms, node.kept) = (unix_ms, kept);
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn count_create(&mut self, parent: u32) -> i64 {
        let mut family = self.take_family(parent);
        family.creates += 1;
        let creates = family.creates;
        self.node_mut(parent).family = Some(family);
        creates
    }

    /// Moves a node's [`Family`] out of the node, so that other nodes can be borrowed while the family changes.
    fn take_family(&mut self, parent: u32) -> Box<Family> {
        let node = self.node_mut(parent);
        let family = node.family.take();
        family.unwrap_or_else(|| {
            Box::new(Family {
                pzxid: node.czxid,
                ..Family::NEW
            })
        })
    }

    #[inline]
    pub(super) fn find_known(&self, znode: &ZnodeHandle) -> Option<u32> {
        let known = znode.known();
        if let Some(index) = self.at(known) {
            return Some(index);
        }
        let index = self.find(znode.path().as_str())?;
        znode.remember(self.key(index));
        Some(index)
    }

    #[inline]
    pub(super) fn at(&self, key: NodeKey) -> Option<u32> {
        let node = self.nodes.get(key.index as usize)?;
        (node.czxid == key.czxid).then_some(key.index)
    }

    pub(super) fn key(&self, index: u32) -> NodeKey {
        let czxid = self.node(index).czxid;
        NodeKey { index, czxid }
    }

    pub(super) fn path(&self, index: u32) -> ZnodePath {
        let mut buffer = self.buffer.borrow_mut();
        buffer.resize(self.node(index).path_bytes as usize, b'/');
        self.write_path(index, &mut buffer);
        ZnodePath::trusted(std::str::from_utf8(&buffer).expect("names are text"))
    }

    fn write_path(&self, index: u32, buffer: &mut [u8]) {
        let (mut at, mut end, mut levels) = (index, buffer.len(), 0);
        while at != ROOT {
            let node = self.node(at);
            let start = end - node.name.len();
            node.name
                .with_text(|name| buffer[start..end].copy_from_slice(name.as_bytes()));
            buffer[start - 1] = b'/';
            (at, end, levels) = (node.parent, start - 1, levels + 1);
        }
        self.work.add(levels / LEVELS_OF_A_UNIT);
    }

    #[inline]
    pub(super) fn path_bytes_below(&self, parent: u32, name_bytes: usize) -> usize {
        match parent {
            NIL | ROOT => 1 + name_bytes,
            _ => self.node(parent).path_bytes as usize + 1 + name_bytes,
        }
    }

    pub(super) fn set_data(&mut self, index: u32, data: Bytes) {
        let node = &mut self.nodes[index as usize];
        self.bytes = self.bytes - node.data.len() + data.len();
        node.data = data;
    }

    pub(super) fn set_acl(&mut self, index: u32, acl: Acl) {
        let node = &mut self.nodes[index as usize];
        let (before, after) = (bytes_of_acl(&node.acl), bytes_of_acl(&acl));
        self.bytes = self.bytes - before + after;
        self.list_bytes = self.list_bytes - before + after;
        node.acl = acl;
    }

    /// Restores a node. `parent` is `NIL` for a system znode.
    pub(super) fn restore(&mut self, parent: u32, owner_slot: u32, image: NodeImage) {
        let index = match parent {
            NIL => self.find(image.path.as_str()),
            _ => None,
        };
        let index = index.unwrap_or_else(|| {
            let new = NewChild {
                name: NodeName::text(image.path.name()),
                data: Bytes::new(),
                acl: Acl::open(),
                kind: image.kind,
                sequence: image.queue_key.map(|(sequence, _)| sequence),
                creates: image.queue_key.map_or(0, |(_, creates)| creates),
            };
            let creates = self.node(parent).creates();
            let at = Stamp::restored(self.node(parent).pzxid());
            let index = self.insert(parent, new, (image.owner, owner_slot), at);
            // Restore the parent's count of creates, because `insert` has overwritten it.
            let family = self.node_mut(parent).family.as_mut();
            family.expect("it has a child").creates = creates;
            index
        });
        // Subtract the bytes that `insert` has added for empty data and an open access control list.
        self.bytes -= self.node(index).bytes();
        self.list_bytes -= bytes_of_acl(&self.node(index).acl);
        let mut family = self.take_family(index);
        family.creates = image.creates;
        family.pzxid = image.pzxid;
        let node = self.node_mut(index);
        let has_had_children = image.creates != 0 || family.count > 0 || image.pzxid != image.czxid;
        node.family = has_had_children.then_some(family);
        node.data = image.data;
        node.acl = image.acl;
        node.granted_ms = Node::NOT_KNOWN;
        (node.czxid, node.mzxid) = (image.czxid, image.mzxid);
        (node.ctime, node.mtime) = (image.ctime, image.mtime);
        (node.version, node.aversion) = (image.version, image.aversion);
        self.bytes += self.node(index).bytes();
        self.list_bytes += bytes_of_acl(&self.node(index).acl);
    }

    pub(super) fn is_taken(&self, parent: u32, queue_key: QueueKey) -> bool {
        let family = self.node(parent).family.as_ref();
        family.is_some_and(|family| {
            family.exclusive.contains(queue_key) || family.shared.contains(queue_key)
        })
    }

    /// Returns the next node in a walk: parents before children, and children in order of creation.
    pub(super) fn after(&self, index: u32) -> Option<u32> {
        let family = self.node(index).family.as_ref();
        if let Some(family) = family.filter(|family| !family.children.is_empty()) {
            return Some(family.children.first);
        }
        let mut at = index;
        while at != ROOT {
            let node = self.node(at);
            if node.siblings.next != NIL {
                return Some(node.siblings.next);
            }
            at = node.parent;
        }
        None
    }

    #[inline]
    pub(super) fn remove(&mut self, index: u32, at: Stamp) {
        let node = self.node(index);
        let parent = node.parent;
        let (bytes, list_bytes) = (node.bytes(), bytes_of_acl(&node.acl));
        self.bytes -= bytes;
        self.list_bytes -= list_bytes;
        if self.node(index).kind != NodeKind::Ephemeral {
            self.known.get_mut().forget(index);
        }
        if !self.node(index).is_found_by_number {
            let hash = hash_of(&self.hasher, self.node(index));
            self.by_name.remove(hash, |other| *other == index);
        }
        let mut family = self.take_family(parent);
        family
            .children
            .unlink(&mut self.nodes, |node| &mut node.siblings, index);
        family.count -= 1;
        family.pzxid = at.zxid;
        let node = self.node(index);
        family.named -= u32::from(!node.is_found_by_number);
        if let Some(queue_key) = node.queue_key {
            let queue = family.queue_of(node.is_shared);
            queue.remove(queue_key, &self.work);
        }
        self.node_mut(parent).family = Some(family);
        self.count_below_from(parent, -1);
        self.nodes.remove(index as usize);
    }

    pub(super) fn children(&self, index: u32) -> impl Iterator<Item = (u32, &Node)> {
        let family = self.node(index).family.as_ref();
        let list = family.map_or(List::EMPTY, |family| family.children);
        list.iter(&self.nodes, |node| &node.siblings)
    }

    pub(super) fn count_below(&self, index: u32) -> usize {
        match index {
            ROOT => self.nodes.len() - 1,
            index => {
                let family = self.node(index).family.as_ref();
                family.map_or(0, |family| family.below as usize)
            }
        }
    }

    #[inline]
    pub(super) fn ahead_of(&self, index: u32, blockers: Blockers) -> Option<u32> {
        let (family, queue_key) = self.queue_key_of(index)?;
        // The first entry of a queue is not blocked, so skip the search.
        if family.exclusive.head() == Some(index) && family.shared.head().is_none() {
            return None;
        }
        let exclusive = family.exclusive.ahead_of(queue_key);
        let nearest = match blockers {
            Blockers::Exclusive => exclusive,
            Blockers::All => exclusive.max(family.shared.ahead_of(queue_key)),
        };
        nearest.map(|(_, nearest)| nearest)
    }

    #[inline]
    pub(super) fn has_blocker(&self, queue: u32, blockers: Blockers) -> bool {
        let family = self.node(queue).family.as_deref();
        let counts_shared = blockers != Blockers::Exclusive;
        family.is_some_and(|family| {
            family.exclusive.len() > 0 || counts_shared && family.shared.len() > 0
        })
    }

    pub(super) fn waiter(&self, entry: u32, blockers: Blockers) -> Waiter {
        let entry = self.key(entry);
        Waiter { entry, blockers }
    }

    /// Returns the waiter's entry if it exists and nothing blocks it.
    pub(super) fn clear(&self, waiter: Waiter) -> Option<u32> {
        let entry = self.at(waiter.entry);
        entry.filter(|entry| self.ahead_of(*entry, waiter.blockers).is_none())
    }

    pub(super) fn count_ahead_of(&self, index: u32) -> usize {
        self.queue_key_of(index).map_or(0, |(family, queue_key)| {
            let queues = [&family.exclusive, &family.shared];
            queues
                .map(|queue| queue.count_ahead_of(queue_key, &self.work))
                .iter()
                .sum()
        })
    }

    fn queue_key_of(&self, index: u32) -> Option<(&Family, QueueKey)> {
        let node = self.node(index);
        let family = self.nodes.get(node.parent as usize)?.family.as_deref()?;
        Some((family, node.queue_key?))
    }

    #[inline]
    pub(super) fn has_others(&self, parent: u32) -> bool {
        let family = self.node(parent).family.as_deref();
        family.is_some_and(|family| {
            family.exclusive.len() + family.shared.len() < family.count as usize
        })
    }

    pub(super) fn is_entry(&self, index: u32) -> bool {
        self.node(index).queue_key.is_some()
    }

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

const LEVELS_OF_A_UNIT: usize = 4;

#[inline]
fn hash_name(hasher: &FixedState, parent: u32, name: &str) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write_u32(parent);
    hasher.write(name.as_bytes());
    hasher.finish()
}

#[inline]
fn hash_of(hasher: &FixedState, node: &Node) -> u64 {
    node.name
        .with_text(|name| hash_name(hasher, node.parent, name))
}
