//! The names of queue entries: Curator's, so that mixed fleets share a path.

use std::cell::RefCell;

use lockkeeper_store::{SEMAPHORE_PARTS, Skip};

/// The kinds of entry, by what their names contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A mutex's contender.
    Mutex,
    /// A read-write lock's reader.
    Read,
    /// A read-write lock's writer.
    Write,
    /// One who waits for a semaphore's permits, under `locks/`.
    Acquirer,
    /// A semaphore's permit, under `leases/`.
    Lease,
    /// One who stands for an election.
    Candidate,
}

/// A recipe, as a user calls it: with its article and without.
#[derive(Debug, PartialEq, Eq)]
struct Title(&'static str, &'static str);

const MUTEX: Title = Title("a mutex", "mutex");
const READ_WRITE_LOCK: Title = Title("a read-write lock", "read-write lock");
const SEMAPHORE: Title = Title("a semaphore", "semaphore");
const ELECTION: Title = Title("an election", "election");

impl Kind {
    /// How much longer than its queue's path that of an entry is at the most, without its number.
    pub(crate) const NAME_BYTES: usize = 1 + PREFIX.len() + UUID_CHARS + "-__READ__".len();

    /// What a user calls the recipe.
    pub(crate) fn title(self) -> &'static str {
        self.recipe().1
    }

    fn recipe(self) -> Title {
        match self {
            Self::Mutex => MUTEX,
            Self::Read | Self::Write => READ_WRITE_LOCK,
            Self::Acquirer | Self::Lease => SEMAPHORE,
            Self::Candidate => ELECTION,
        }
    }

    /// What an entry's name ends with, before its number.
    fn suffix(self) -> &'static str {
        match self {
            Self::Mutex | Self::Acquirer => "-lock-",
            Self::Read => "-__READ__",
            Self::Write => "-__WRIT__",
            Self::Lease => "-lease-",
            Self::Candidate => "-latch-",
        }
    }

    /// Which entries ahead do not block one of this kind.
    pub(crate) fn skip(self) -> Skip {
        match self {
            Self::Read => Skip::Shared,
            _ => Skip::None,
        }
    }

    /// Whether its holder is alone, so that all ahead of it have left when it leaves.
    pub(crate) fn is_exclusive(self) -> bool {
        !matches!(self, Self::Read | Self::Lease)
    }

    /// Whether a name, or a path, ends as those of this kind.
    pub(crate) fn is_own(self, child: &str) -> bool {
        let digits = child.bytes().rev().take_while(u8::is_ascii_digit).count();
        child.as_bytes()[..child.len() - digits].ends_with(self.suffix().as_bytes())
    }

    /// Which other recipe a child belongs to, if its name tells.
    pub(crate) fn stranger(self, child: &str) -> Option<&'static str> {
        const MARKS: [(&str, Title); 6] = [
            ("-lock-", MUTEX),
            ("__READ__", READ_WRITE_LOCK),
            ("__WRIT__", READ_WRITE_LOCK),
            ("-latch-", ELECTION),
            ("-lease-", SEMAPHORE),
            ("-permit-", SEMAPHORE),
        ];
        if self.is_own(child) {
            return None;
        }
        let owner = match child {
            part if SEMAPHORE_PARTS.contains(&part) => SEMAPHORE,
            _ => MARKS.into_iter().find(|(mark, _)| child.contains(mark))?.1,
        };
        (owner != self.recipe()).then_some(owner.0)
    }

    /// An entry's name, without its number: `_c_<uuid>-lock-`.
    pub(crate) fn name(self, id: EntryId) -> String {
        let head = std::str::from_utf8(&id.head).expect("hexadecimal digits are ASCII");
        let mut name = String::with_capacity(head.len() + self.suffix().len());
        name.push_str(head);
        name.push_str(self.suffix());
        name
    }
}

/// The name that an entry of a read-write lock has after its conversion: the same, of the other side.
pub(crate) fn converted(name: &str) -> Option<String> {
    const SIDES: [(&str, &str); 2] = [("__READ__", "__WRIT__"), ("__WRIT__", "__READ__")];
    let (from, to) = SIDES.iter().find(|(from, _)| name.contains(from))?;
    Some(name.replacen(from, to, 1))
}

/// Whether an entry is a read-write lock's writer.
pub(crate) fn is_writer(name: &str) -> bool {
    name.contains("__WRIT__")
}

const PREFIX: &str = "_c_";
const UUID_CHARS: usize = 36;

/// What no other entry has: a UUID, as the head of a name, `_c_<uuid>`.
///
/// Each thread draws a version 4 UUID at random, and counts on from it in its last twelve digits:
/// two threads' ranges meet only if the 74 random bits before these are the same. Drawn and written
/// out anew for each entry it would cost more than the rest of an uncontended lock's bookkeeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(8))] // so that a check of the text takes a word at a time
pub(crate) struct EntryId {
    head: [u8; HEAD_BYTES],
}

const HEAD_BYTES: usize = PREFIX.len() + UUID_CHARS;

/// How many digits at the end of a UUID are counted on.
const COUNTED_DIGITS: usize = 12;

impl EntryId {
    /// The next of this thread.
    pub(crate) fn fresh() -> Self {
        thread_local! {
            static NEXT: RefCell<EntryId> = RefCell::new(EntryId::random());
        }
        NEXT.with_borrow_mut(|next| {
            let id = *next;
            next.count_on();
            id
        })
    }

    fn random() -> Self {
        let mut bytes = seed();
        bytes[6] = bytes[6] & 0x0f | 0x40; // version 4
        bytes[8] = bytes[8] & 0x3f | 0x80; // variant 1
        let mut head = [b'-'; HEAD_BYTES];
        head[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let places = (0..UUID_CHARS).filter(|at| ![8, 13, 18, 23].contains(at));
        for (at, digit) in places.zip(digits) {
            head[PREFIX.len() + at] = b"0123456789abcdef"[usize::from(digit)];
        }
        Self { head }
    }

    fn count_on(&mut self) {
        for digit in self.head[HEAD_BYTES - COUNTED_DIGITS..].iter_mut().rev() {
            *digit = match *digit {
                b'f' => b'0',
                b'9' => b'a',
                digit => digit + 1,
            };
            if *digit != b'0' {
                break;
            }
        }
    }
}

fn seed() -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())
            .expect("the system has randomness");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_curators_and_unique() {
        let [a, b] = [(); 2].map(|()| Kind::Mutex.name(EntryId::fresh()));
        assert_ne!(a, b);
        assert_eq!(a.len(), 3 + 36 + 6);
        assert!(a.starts_with("_c_") && a.ends_with("-lock-"), "{a}");
        let uuid = &a[3..39];
        assert_eq!(uuid.as_bytes()[14], b'4', "version 4: {uuid}");
        assert!(b"89ab".contains(&uuid.as_bytes()[19]), "variant 1: {uuid}");
        let dashes: Vec<_> = uuid.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!(dashes, [8, 13, 18, 23]);
    }

    #[test]
    fn an_id_is_followed_by_the_next_number() {
        let id = |uuid: &str| {
            let mut head = [0; HEAD_BYTES];
            head.copy_from_slice(format!("_c_{uuid}").as_bytes());
            EntryId { head }
        };
        for (one, next) in [
            ("000000000000", "000000000001"),
            ("00000000000f", "000000000010"),
            ("0000000000a9", "0000000000aa"),
            ("0000000fffff", "000000100000"),
            ("ffffffffffff", "000000000000"),
        ] {
            let [mut one, next] =
                [one, next].map(|end| id(&format!("01234567-89ab-4def-8fff-{end}")));
            one.count_on();
            assert_eq!(one, next);
        }
    }

    #[test]
    fn threads_do_not_share_ids() {
        let draw = || (0..300).map(|_| Kind::Mutex.name(EntryId::fresh()));
        let other = std::thread::spawn(move || draw().collect::<Vec<_>>());
        let mut names: Vec<_> = draw().chain(other.join().unwrap()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 600);
    }

    #[test]
    fn a_name_tells_the_recipe_that_it_belongs_to() {
        let stranger = |kind: Kind, child| kind.stranger(child);
        assert_eq!(stranger(Kind::Mutex, "_c_x-lock-0000000001"), None);
        assert_eq!(stranger(Kind::Mutex, "config"), None);
        assert_eq!(
            stranger(Kind::Mutex, "_c_x-__READ__0000000001"),
            Some("a read-write lock")
        );
        assert_eq!(stranger(Kind::Read, "_c_x-__WRIT__0000000001"), None);
        assert_eq!(
            stranger(Kind::Write, "_c_x-lock-0000000001"),
            Some("a mutex")
        );
        assert_eq!(stranger(Kind::Acquirer, "_c_x-lock-0000000001"), None);
        assert_eq!(stranger(Kind::Candidate, "leases"), Some("a semaphore"));
    }

    #[test]
    fn a_kind_knows_its_own_by_the_end_of_a_name_or_a_path() {
        assert!(Kind::Mutex.is_own("/lock/_c_x-lock-0000000001"));
        assert!(Kind::Mutex.is_own("lock-é-lock-"));
        for stranger in ["/-lock-/_c_x-latch-0000000001", "-lock-é", "0000000001", ""] {
            assert!(!Kind::Mutex.is_own(stranger), "{stranger}");
        }
    }

    #[test]
    fn a_conversion_keeps_the_identity_and_the_number() {
        let reader = "_c_x-__READ__0000000007";
        let writer = "_c_x-__WRIT__0000000007";
        assert_eq!(converted(reader).as_deref(), Some(writer));
        assert_eq!(converted(writer).as_deref(), Some(reader));
        assert_eq!(converted("_c_x-lock-0000000007"), None);
    }
}
