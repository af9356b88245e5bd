//! [`Table`]: a hash table in parts, so that an insert moves at most one part of a large table.

use hashbrown::HashTable;

/// Number of parts. When a table of four million names grows, it moves only a few thousand names at a time.
const PARTS: usize = 1 << 10;

/// Position of the hash bits that select the part. The hash table of the part uses the lowest and highest bits.
const PART_SHIFT: u32 = 32;

#[derive(Debug)]
pub(super) struct Table<T> {
    parts: Box<[HashTable<T>]>,
    len: usize,
}

fn part_of(hash: u64) -> usize {
    (hash >> PART_SHIFT) as usize % PARTS
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            parts: (0..PARTS).map(|_| HashTable::new()).collect(),
            len: 0,
        }
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, is_sought: impl FnMut(&T) -> bool) -> Option<&T> {
        self.parts[part_of(hash)].find(hash, is_sought)
    }

    pub(super) fn find_mut(
        &mut self,
        hash: u64,
        is_sought: impl FnMut(&T) -> bool,
    ) -> Option<&mut T> {
        self.parts[part_of(hash)].find_mut(hash, is_sought)
    }

    /// Adds a value that is not in the table. If a part grows, calls `hash_of` for each value that moves.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, value: T, hash_of: impl Fn(&T) -> u64) {
        self.len += 1;
        self.parts[part_of(hash)].insert_unique(hash, value, hash_of);
    }

    #[inline]
    pub(super) fn remove(&mut self, hash: u64, is_sought: impl FnMut(&T) -> bool) -> Option<T> {
        let entry = self.parts[part_of(hash)].find_entry(hash, is_sought).ok()?;
        self.len -= 1;
        Some(entry.remove().0)
    }

    pub(super) fn reserve(&mut self, more: usize, hash_of: impl Fn(&T) -> u64) {
        for part in &mut self.parts {
            part.reserve(more / PARTS, &hash_of);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}
