//! [`Entries`]: the index of a queue. It finds and counts the entries ahead of a given entry.

use super::work::Work;

/// Sort key of a queue entry: its number, then the order of creation.
pub(super) type QueueKey = (i64, i64);

type Entry = (QueueKey, u32);

/// Sorted entries of a queue. The first entry is stored inline, so that a lock without waiters needs no allocation.
#[derive(Debug)]
pub(super) struct Entries {
    first: Option<Entry>,
    /// The other entries, in sorted pieces. If no other entry is left, one empty piece stays, so that the next waiter
    /// needs no allocation.
    rest: Vec<Vec<Entry>>,
    len: usize,
}

/// Maximum number of entries in a piece. Two neighboring pieces are merged if they have at most half as many entries
/// together.
const PIECE: usize = 256;

const PIECES_OF_A_UNIT: usize = 16;

impl Entries {
    pub(super) const NONE: Self = Self {
        first: None,
        rest: Vec::new(),
        len: 0,
    };

    pub(super) fn insert(&mut self, key: QueueKey, index: u32, work: &Work) {
        self.len += 1;
        match &mut self.first {
            Some(first) if first.0 < key => self.insert_behind((key, index), work),
            first => {
                if let Some(behind) = first.replace((key, index)) {
                    self.insert_behind(behind, work);
                }
            }
        }
    }

    fn insert_behind(&mut self, entry: Entry, work: &Work) {
        if self.rest.is_empty() {
            return self.rest.push(vec![entry]);
        }
        let at = self.piece_of(entry.0);
        let piece = &mut self.rest[at];
        match piece.last() {
            Some(last) if last.0 < entry.0 && piece.len() == PIECE => {
                self.insert_piece(at + 1, vec![entry], work);
            }
            _ => {
                let place = piece.partition_point(|(key, _)| *key < entry.0);
                piece.insert(place, entry);
                if piece.len() > PIECE {
                    let behind = piece.split_off(PIECE / 2);
                    self.insert_piece(at + 1, behind, work);
                }
            }
        }
    }

    fn insert_piece(&mut self, at: usize, piece: Vec<Entry>, work: &Work) {
        work.add((self.rest.len() - at) / PIECES_OF_A_UNIT);
        self.rest.insert(at, piece);
    }

    fn remove_piece(&mut self, at: usize, work: &Work) -> Vec<Entry> {
        work.add((self.rest.len() - at) / PIECES_OF_A_UNIT);
        self.rest.remove(at)
    }

    fn piece_of(&self, key: QueueKey) -> usize {
        let starts_before = |piece: &Vec<Entry>| piece.first().is_none_or(|first| first.0 <= key);
        match self.rest.last() {
            Some(last) if starts_before(last) => self.rest.len() - 1,
            _ => self.rest.partition_point(starts_before).saturating_sub(1),
        }
    }

    fn place_of(&self, key: QueueKey) -> (usize, Result<usize, usize>) {
        let at = self.piece_of(key);
        let piece = self.rest.get(at).map_or(&[][..], |piece| piece);
        (at, piece.binary_search_by_key(&key, |(other, _)| *other))
    }

    pub(super) fn remove(&mut self, key: QueueKey, work: &Work) {
        let (at, place) = match self.first {
            Some((first, _)) if first == key => {
                self.first = self.rest.first().and_then(|piece| piece.first().copied());
                if self.first.is_none() {
                    self.len = 0;
                    return;
                }
                (0, 0)
            }
            _ => match self.place_of(key) {
                (at, Ok(place)) => (at, place),
                (_, Err(_)) => return,
            },
        };
        self.len -= 1;
        self.rest[at].remove(place);
        let beside = |at: usize| self.rest.get(at).map_or(PIECE, Vec::len);
        if self.rest[at].is_empty() && self.rest.len() > 1 {
            self.remove_piece(at, work);
        } else if beside(at) + beside(at + 1) <= PIECE / 2 {
            let behind = self.remove_piece(at + 1, work);
            self.rest[at].extend(behind);
        }
    }

    pub(super) fn get(&self, key: QueueKey) -> Option<u32> {
        match self.first? {
            (first, index) if first == key => Some(index),
            _ => match self.place_of(key) {
                (at, Ok(place)) => Some(self.rest[at][place].1),
                (_, Err(_)) => None,
            },
        }
    }

    pub(super) fn contains(&self, key: QueueKey) -> bool {
        self.get(key).is_some()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn head(&self) -> Option<u32> {
        self.first.map(|(_, index)| index)
    }

    pub(super) fn ahead_of(&self, key: QueueKey) -> Option<Entry> {
        let first = self.first.filter(|(first, _)| *first < key)?;
        // Usually the key belongs to the last entry, which needs no search.
        if let Some([.., ahead, last]) = self.rest.last().map(Vec::as_slice)
            && last.0 == key
        {
            return Some(*ahead);
        }
        let (at, place) = self.place_of(key);
        let (Ok(place) | Err(place)) = place;
        let nearest = match place.checked_sub(1) {
            Some(before) => Some(self.rest[at][before]),
            None => at
                .checked_sub(1)
                .and_then(|at| self.rest[at].last().copied()),
        };
        Some(nearest.unwrap_or(first))
    }

    /// Counts the entries ahead of a key. Adds up the lengths of the pieces ahead of the key or of the pieces behind
    /// it, whichever are fewer.
    pub(super) fn count_ahead_of(&self, key: QueueKey, work: &Work) -> usize {
        if self.first.is_none_or(|(first, _)| first >= key) {
            return 0;
        }
        let (at, place) = self.place_of(key);
        let (Ok(place) | Err(place)) = place;
        let sum = |pieces: &[Vec<Entry>]| {
            work.add(pieces.len() / PIECES_OF_A_UNIT);
            pieces.iter().map(Vec::len).sum::<usize>()
        };
        let pieces_ahead = match at <= self.rest.len() / 2 {
            true => 1 + sum(&self.rest[..at]),
            false => self.len - sum(&self.rest[at..]),
        };
        pieces_ahead + place
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.first
            .into_iter()
            .chain(self.rest.iter().flatten().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_index_of_a_queue_is_an_ordered_map(
            steps in proptest::collection::vec((0..3, 0i64..1_500, 0i64..2), 1..6_000)
        ) {
            let (mut index, mut map) = (Entries::NONE, BTreeMap::new());
            let work = Work::default();
            for (place, (kind, number, creates)) in (2u32..).zip(&steps) {
                let key = (*number, *creates);
                if *kind == 0 {
                    index.remove(key, &work);
                    map.remove(&key);
                } else if let btree_map::Entry::Vacant(vacant) = map.entry(key) {
                    vacant.insert(place);
                    index.insert(key, place, &work);
                }
                prop_assert_eq!(index.len(), map.len());
                prop_assert_eq!(index.head(), map.values().next().copied());
                prop_assert_eq!(index.get(key), map.get(&key).copied());
            }
            let is_piece = |piece: &Vec<_>| (1..=PIECE).contains(&piece.len());
            prop_assert!(index.rest.len() <= 1 || index.rest.iter().all(is_piece));
            prop_assert!(index.iter().eq(map.iter().map(|(key, place)| (*key, *place))));
            for key in (0..1_500).flat_map(|number| [(number, 0), (number, 1)]) {
                prop_assert_eq!(index.get(key), map.get(&key).copied());
                prop_assert_eq!(index.contains(key), map.contains_key(&key));
            }
            for (at, key) in (0..1_500).step_by(37).map(|number| (number, 1)).enumerate() {
                let ahead = map.range(..key).next_back();
                prop_assert_eq!(index.ahead_of(key), ahead.map(|(key, place)| (*key, *place)));
                let count = index.count_ahead_of(key, &work);
                prop_assert_eq!(count, map.range(..key).count(), "{}", at);
            }
            while let Some((key, _)) = map.pop_first() {
                index.remove(key, &work);
                prop_assert_eq!(index.head(), map.values().next().copied());
            }
            prop_assert!(index.rest.len() <= 1);
        }
    }
}
