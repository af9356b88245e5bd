//! [`WatchTable`]: a client's view of its session's watches.
//!
//! A server keeps one watch per path and kind, no matter how many requests armed it, and drops its watches when the
//! connection ends. Therefore the client counts its watchers, removes the server's watch after the last watcher is
//! dropped, and arms all watches again on the next connection.
//!
//! A watch on a queue predecessor belongs to one watcher and is not armed again. The predecessor may have left while
//! there was no connection, so the waiter must ask again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use foldhash::HashMap;

use crate::model::path::ZnodePath;
use crate::model::watch::{EventKind, WatchMode};

pub(super) type WatchKey = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Interest {
    Data,
    /// Creation of a missing znode. At the server, this is a [`Data`](Self::Data) watch.
    Existence,
    Children,
    Persistent,
    Recursive,
}

impl Interest {
    pub(super) fn of(mode: WatchMode) -> Self {
        match mode {
            WatchMode::Persistent => Self::Persistent,
            WatchMode::PersistentRecursive => Self::Recursive,
        }
    }

    pub(super) fn server_watch(self) -> ServerWatch {
        match self {
            Self::Data | Self::Existence => ServerWatch::Data,
            Self::Children => ServerWatch::Children,
            Self::Persistent => ServerWatch::Persistent,
            Self::Recursive => ServerWatch::Recursive,
        }
    }

    fn is_one_shot(self) -> bool {
        !matches!(self, Self::Persistent | Self::Recursive)
    }

    fn is_fired_by(self, kind: EventKind) -> bool {
        match kind {
            EventKind::NodeCreated | EventKind::NodeDataChanged => self != Self::Children,
            EventKind::NodeDeleted => true,
            EventKind::NodeChildrenChanged => {
                matches!(self, Self::Children | Self::Persistent)
            }
        }
    }
}

/// Kind of a watch at the server, with the kind's number in removeWatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ServerWatch {
    Children = 1,
    Data = 2,
    Persistent = 4,
    Recursive = 5,
}

#[derive(Debug, Default)]
pub(super) struct WatchTable {
    last_key: WatchKey,
    watchers: HashMap<WatchKey, (Interest, ZnodePath)>,
    /// Watchers of each path, oldest first. The map is sorted, so that all simulated runs arm watches in the same
    /// order.
    by_path: BTreeMap<ZnodePath, PathWatches>,
    /// Number of recursive watchers. If it is 0, an event need not search the ancestors of its path.
    recursive: usize,
    predecessors: HashMap<i64, (WatchKey, ZnodePath)>,
    numbers: HashMap<WatchKey, i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    Path(ServerWatch, ZnodePath),
    Predecessor(i64),
}

#[derive(Debug, Default)]
struct PathWatches {
    watchers: Vec<(WatchKey, Interest)>,
    /// Watches of requests that are not answered yet. If we sent a removal now, the server would remove these too.
    arming: Vec<ServerWatch>,
    /// Removals that are deferred until the requests that arm these watches are answered.
    put_off: Vec<ServerWatch>,
}

impl PathWatches {
    fn is_empty(&self) -> bool {
        self.watchers.is_empty() && self.arming.is_empty()
    }

    fn is_done_with(&self, watch: ServerWatch) -> bool {
        !self.arming.contains(&watch)
            && !self
                .watchers
                .iter()
                .any(|(_, interest)| interest.server_watch() == watch)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rearming {
    pub(super) data: Vec<ZnodePath>,
    pub(super) existence: Vec<ZnodePath>,
    pub(super) children: Vec<ZnodePath>,
    pub(super) persistent: Vec<ZnodePath>,
    pub(super) recursive: Vec<ZnodePath>,
}

impl WatchTable {
    pub(super) fn arming(&mut self, watch: ServerWatch, path: &ZnodePath) {
        let watches = self.by_path.entry(path.clone()).or_default();
        watches.arming.push(watch);
    }

    /// Records the answer to a request that arms a watch. Returns true if the caller must now send the deferred removal
    /// of the watch.
    pub(super) fn answered(&mut self, watch: ServerWatch, path: &ZnodePath) -> bool {
        let Entry::Occupied(mut entry) = self.by_path.entry(path.clone()) else {
            return false;
        };
        let watches = entry.get_mut();
        if let Some(at) = watches.arming.iter().position(|it| *it == watch) {
            watches.arming.swap_remove(at);
        }
        let is_done = watches.is_done_with(watch);
        let at = watches.put_off.iter().position(|it| *it == watch);
        let was_put_off = match at.filter(|_| !watches.arming.contains(&watch)) {
            Some(at) => watches.put_off.swap_remove(at) == watch,
            None => false,
        };
        if watches.is_empty() {
            entry.remove();
        }
        was_put_off && is_done
    }

    pub(super) fn add(&mut self, interest: Interest, path: &ZnodePath) -> WatchKey {
        let key = self.next_key();
        self.recursive += usize::from(interest == Interest::Recursive);
        self.watchers.insert(key, (interest, path.clone()));
        let watches = self.by_path.entry(path.clone()).or_default();
        watches.watchers.push((key, interest));
        key
    }

    fn next_key(&mut self) -> WatchKey {
        self.last_key += 1;
        self.last_key
    }

    pub(super) fn add_predecessor(&mut self, number: i64, path: &ZnodePath) -> WatchKey {
        let key = self.next_key();
        self.predecessors.insert(number, (key, path.clone()));
        self.numbers.insert(key, number);
        key
    }

    pub(super) fn departed(&mut self, number: i64) -> Option<(WatchKey, ZnodePath)> {
        let (key, path) = self.predecessors.remove(&number)?;
        self.numbers.remove(&key);
        Some((key, path))
    }

    pub(super) fn lose_predecessors(&mut self) -> Vec<WatchKey> {
        self.predecessors.clear();
        let mut keys: Vec<_> = self.numbers.drain().map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys
    }

    pub(super) fn remove(&mut self, key: WatchKey) -> Option<Idle> {
        if let Some(number) = self.numbers.remove(&key) {
            self.predecessors.remove(&number);
            return Some(Idle::Predecessor(number));
        }
        let (interest, path) = self.watchers.remove(&key)?;
        self.recursive -= usize::from(interest == Interest::Recursive);
        let Entry::Occupied(mut entry) = self.by_path.entry(path.clone()) else {
            return None;
        };
        let watches = entry.get_mut();
        watches.watchers.retain(|(other, _)| *other != key);
        let watch = interest.server_watch();
        let is_done = watches.is_done_with(watch);
        if !is_done && watches.arming.contains(&watch) && !watches.put_off.contains(&watch) {
            watches.put_off.push(watch);
        }
        if watches.is_empty() {
            entry.remove();
        }
        is_done.then_some(Idle::Path(watch, path))
    }

    /// Returns the watchers that an event fires. The flag is true for a one-shot watcher, which this call removes.
    pub(super) fn fire(&mut self, kind: EventKind, path: &ZnodePath) -> Vec<(WatchKey, bool)> {
        let mut fired = Vec::new();
        if let Entry::Occupied(mut entry) = self.by_path.entry(path.clone()) {
            let watches = entry.get_mut();
            watches.watchers.retain(|(key, interest)| {
                if !interest.is_fired_by(kind) {
                    return true;
                }
                let is_last = interest.is_one_shot();
                fired.push((*key, is_last));
                if is_last {
                    self.watchers.remove(key);
                }
                !is_last
            });
            if watches.is_empty() {
                entry.remove();
            }
        }
        if self.recursive > 0 {
            self.fire_above(kind, path, &mut fired);
        }
        fired
    }

    fn fire_above(&self, kind: EventKind, path: &ZnodePath, fired: &mut Vec<(WatchKey, bool)>) {
        let mut above = path.parent();
        while let Some(path) = above {
            let watchers = self.by_path.get(&path).into_iter();
            for (key, interest) in watchers.flat_map(|it| &it.watchers) {
                if *interest == Interest::Recursive && interest.is_fired_by(kind) {
                    fired.push((*key, false));
                }
            }
            above = path.parent();
        }
    }

    /// Returns the watches to arm on a new connection. Forgets the requests of the old connection.
    pub(super) fn rearming(&mut self) -> Rearming {
        let mut lists = Rearming::default();
        self.by_path.retain(|path, watches| {
            watches.arming.clear();
            watches.put_off.clear();
            let has = |interest| watches.watchers.iter().any(|(_, it)| *it == interest);
            for (interest, list) in [
                (Interest::Data, &mut lists.data),
                (Interest::Existence, &mut lists.existence),
                (Interest::Children, &mut lists.children),
                (Interest::Persistent, &mut lists.persistent),
                (Interest::Recursive, &mut lists.recursive),
            ] {
                if has(interest) {
                    list.push(path.clone());
                }
            }
            !watches.is_empty()
        });
        lists
    }

    pub(super) fn persistent(&self) -> Vec<WatchKey> {
        let watchers = self.watchers.iter();
        let persistent = watchers.filter(|(_, (interest, _))| !interest.is_one_shot());
        let mut keys: Vec<_> = persistent.map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_fires_the_watches_that_it_concerns() {
        use EventKind::*;
        let path: ZnodePath = "/a".parse().unwrap();
        let interests = [
            Interest::Data,
            Interest::Existence,
            Interest::Children,
            Interest::Persistent,
            Interest::Recursive,
        ];
        for (kind, expected) in [
            (NodeCreated, vec![1, 2, 4, 5]),
            (NodeDataChanged, vec![1, 2, 4, 5]),
            (NodeDeleted, vec![1, 2, 3, 4, 5]),
            (NodeChildrenChanged, vec![3, 4]),
        ] {
            let mut table = WatchTable::default();
            for interest in interests {
                table.add(interest, &path);
            }
            let keys = |fired: Vec<(WatchKey, bool)>| {
                let keys = fired.into_iter().map(|(key, _)| key);
                keys.collect::<Vec<_>>()
            };
            assert_eq!(keys(table.fire(kind, &path)), expected, "{kind:?}");
            let again: Vec<_> = expected.into_iter().filter(|key| *key > 3).collect();
            assert_eq!(keys(table.fire(kind, &path)), again, "{kind:?}");
        }
    }
}
