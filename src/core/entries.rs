//! [`Entries`]: the entries of a queue in their order.

use std::collections::BTreeMap;

/// Where a node stands among the entries of its parent's queue: its number, then the order of creation.
pub(super) type QueueKey = (i64, i64);

/// The entries of a queue, by their places. The first is kept apart: a queue that nobody waits in
/// comes and goes without an allocation.
#[derive(Debug)]
pub(super) struct Entries {
    first: Option<(QueueKey, u32)>,
    /// All of them behind the first.
    rest: BTreeMap<QueueKey, u32>,
}

impl Entries {
    pub(super) const NONE: Self = Self {
        first: None,
        rest: BTreeMap::new(),
    };

    pub(super) fn insert(&mut self, place: QueueKey, index: u32) {
        match &mut self.first {
            Some(first) if first.0 < place => {
                self.rest.insert(place, index);
            }
            first => {
                if let Some((behind, index)) = first.replace((place, index)) {
                    self.rest.insert(behind, index);
                }
            }
        }
    }

    pub(super) fn remove(&mut self, place: QueueKey) {
        if self.first.is_some_and(|(first, _)| first == place) {
            self.first = self.rest.pop_first();
        } else {
            self.rest.remove(&place);
        }
    }

    pub(super) fn contains(&self, place: QueueKey) -> bool {
        self.first.is_some_and(|(first, _)| first == place) || self.rest.contains_key(&place)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// The first of all.
    #[inline]
    pub(super) fn head(&self) -> Option<u32> {
        self.first.map(|(_, index)| index)
    }

    /// The nearest one ahead of a place. O(log n).
    pub(super) fn ahead_of(&self, place: QueueKey) -> Option<(QueueKey, u32)> {
        let first = self.first.filter(|(first, _)| *first < place)?;
        // Who asks is mostly the last, or new: that is known without a search.
        let mut backwards = self.rest.iter().rev();
        let nearest = match backwards.next() {
            Some((last, _)) if *last == place => backwards.next(),
            Some((last, _)) if *last > place => self.rest.range(..place).next_back(),
            last => last,
        };
        Some(nearest.map_or(first, |(place, index)| (*place, *index)))
    }

    /// How many are ahead of a place. O(n).
    pub(super) fn count_ahead_of(&self, place: QueueKey) -> usize {
        self.iter().take_while(|(other, _)| *other < place).count()
    }

    /// All, first to last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (QueueKey, u32)> {
        let rest = self.rest.iter().map(|(place, index)| (*place, *index));
        self.first.into_iter().chain(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_the_places_whatever_comes_and_goes() {
        let mut entries = Entries::NONE;
        let order = |entries: &Entries| entries.iter().map(|(_, index)| index).collect::<Vec<_>>();
        for number in [5, 9, 2, 7, -3] {
            entries.insert((number, 0), number as u32);
        }
        assert_eq!(order(&entries), [-3i32 as u32, 2, 5, 7, 9]);
        assert_eq!(entries.ahead_of((7, 0)), Some(((5, 0), 5)));
        assert_eq!(entries.ahead_of((2, 0)).map(|(place, _)| place.0), Some(-3));
        assert_eq!(entries.ahead_of((-3, 0)), None);
        assert_eq!(entries.count_ahead_of((9, 0)), 4);
        entries.remove((-3, 0));
        entries.remove((5, 0));
        assert_eq!(order(&entries), [2, 7, 9]);
        assert_eq!(entries.ahead_of((7, 0)), Some(((2, 0), 2)));
        for number in [2, 9, 7] {
            entries.remove((number, 0));
        }
        assert_eq!(order(&entries), []);
    }
}
