//! [`KnownPaths`]: the persistent znodes that were looked up last, by their paths.

/// Number of the paths that are kept. A semaphore takes four; more would leave the cache.
const SLOTS: usize = 64;

/// Length of the longest path that is kept.
const MAX_BYTES: usize = 256;

/// Paths that were looked up lately, each with the node that was found. Each path has one slot, that of its hash, which it
/// shares with others. Ephemeral nodes are left out: they come and go, and have no children to be looked for.
#[derive(Debug)]
pub(super) struct KnownPaths(Box<[Slot]>);

/// The empty path is nobody's.
#[derive(Clone, Debug, Default)]
struct Slot {
    path: String,
    index: u32,
}

impl KnownPaths {
    pub(super) fn new() -> Self {
        Self(vec![Slot::default(); SLOTS].into())
    }

    #[inline]
    pub(super) fn get(&self, hash: u64, path: &str) -> Option<u32> {
        let slot = &self.0[hash as usize % SLOTS];
        (slot.path == path).then_some(slot.index)
    }

    pub(super) fn note(&mut self, hash: u64, path: &str, index: u32) {
        if path.len() <= MAX_BYTES {
            let slot = &mut self.0[hash as usize % SLOTS];
            slot.path.clear();
            slot.path.push_str(path);
            slot.index = index;
        }
    }

    /// Forgets a node that is removed: its index will be another one's.
    pub(super) fn forget(&mut self, index: u32) {
        for slot in &mut self.0 {
            if slot.index == index {
                slot.path.clear();
            }
        }
    }
}
