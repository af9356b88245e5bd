//! [`List`]: a doubly linked list with its links inside the slab entries. Adding and removing take no look-up and no
//! allocation, and the order is that of insertion.

use slab::Slab;

/// No entry.
pub(super) const NIL: u32 = u32::MAX;

/// An entry's place in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    prev: u32,
    pub(super) next: u32,
}

impl Links {
    /// Links of an entry that is in no list.
    pub(super) const NONE: Self = Self {
        prev: NIL,
        next: NIL,
    };
}

/// The two ends of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) first: u32,
    last: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self {
        first: NIL,
        last: NIL,
    };

    pub(super) fn is_empty(self) -> bool {
        self.first == NIL
    }

    /// Appends entry `index`, which must not be in a list through these links.
    pub(super) fn push_back<T>(
        &mut self,
        entries: &mut Slab<T>,
        links: impl Fn(&mut T) -> &mut Links,
        index: u32,
    ) {
        *links(&mut entries[index as usize]) = Links {
            prev: self.last,
            next: NIL,
        };
        match self.last {
            NIL => self.first = index,
            last => links(&mut entries[last as usize]).next = index,
        }
        self.last = index;
    }

    /// Puts entry `index`, which must not be in a list through these links, before all others.
    pub(super) fn push_front<T>(
        &mut self,
        entries: &mut Slab<T>,
        links: impl Fn(&mut T) -> &mut Links,
        index: u32,
    ) {
        *links(&mut entries[index as usize]) = Links {
            prev: NIL,
            next: self.first,
        };
        match self.first {
            NIL => self.last = index,
            first => links(&mut entries[first as usize]).prev = index,
        }
        self.first = index;
    }

    /// Takes entry `index` out, which must be in this list.
    pub(super) fn unlink<T>(
        &mut self,
        entries: &mut Slab<T>,
        links: impl Fn(&mut T) -> &mut Links,
        index: u32,
    ) {
        let Links { prev, next } =
            std::mem::replace(links(&mut entries[index as usize]), Links::NONE);
        match prev {
            NIL => self.first = next,
            prev => links(&mut entries[prev as usize]).next = next,
        }
        match next {
            NIL => self.last = prev,
            next => links(&mut entries[next as usize]).prev = prev,
        }
    }

    /// Returns the entries, first to last.
    pub(super) fn iter<'a, T>(
        self,
        entries: &'a Slab<T>,
        links: impl Fn(&T) -> &Links + 'a,
    ) -> impl Iterator<Item = (u32, &'a T)> + 'a {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let index = at;
            (index != NIL).then(|| {
                let entry = &entries[index as usize];
                at = links(entry).next;
                (index, entry)
            })
        })
    }
}
