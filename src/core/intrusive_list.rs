//! [`List`]: a doubly linked list in insertion order, with its links inside the slab entries. Adding and removing needs
//! no look-up and no allocation.

use slab::Slab;

pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    prev: u32,
    pub(super) next: u32,
}

impl Links {
    pub(super) const NONE: Self = Self {
        prev: NIL,
        next: NIL,
    };
}

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

    /// Appends entry `index`. The entry's `links` must not already be part of a list.
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

    /// Removes entry `index`, which must be in this list.
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
