//! [`KnownPaths`]: a cache of recently looked up persistent znodes, by path.

/// Number of cached paths. A semaphore uses four. A larger table would not fit into the processor's cache.
const SLOTS: usize = 64;

const MAX_BYTES: usize = 256;

/// A path can only be in the slot that its hash selects. Ephemeral nodes are not cached, because they are short-lived
/// and have no children.
#[derive(Debug)]
pub(super) struct KnownPaths(Box<[Slot]>);

/// An empty path marks an unused slot.
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

    /// Removes a deleted node, because its index will be reused.
    pub(super) fn forget(&mut self, index: u32) {
        for slot in &mut self.0 {
            if slot.index == index {
                slot.path.clear();
            }
        }
    }
}
