//! The names of queue entries: Curator's, so that mixed fleets share a path.

use std::cell::Cell;

use lockkeeper_store::Skip;

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
        let unnumbered = child.trim_end_matches(|c: char| c.is_ascii_digit());
        if unnumbered.ends_with(self.suffix()) {
            return None;
        }
        let owner = match child {
            "locks" | "leases" => SEMAPHORE,
            _ => MARKS.into_iter().find(|(mark, _)| child.contains(mark))?.1,
        };
        (owner != self.recipe()).then_some(owner.0)
    }

    /// An entry's name, without its number: `_c_<uuid>-lock-`.
    pub(crate) fn name(self, id: EntryId) -> String {
        let uuid = id.text();
        let uuid = std::str::from_utf8(&uuid).expect("hexadecimal digits are ASCII");
        let mut name = String::with_capacity(PREFIX.len() + UUID_CHARS + self.suffix().len());
        name.push_str(PREFIX);
        name.push_str(uuid);
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

/// What no other entry has: a version 4 UUID. By hand: made and formatted by a general crate it
/// costs more than the rest of an uncontended lock's bookkeeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId {
    high: u64,
    low: u64,
}

impl EntryId {
    pub(crate) fn random() -> Self {
        Self {
            high: (random_u64() & !0xf000) | 0x4000,
            low: (random_u64() >> 2) | (0b10 << 62),
        }
    }

    fn text(self) -> [u8; UUID_CHARS] {
        let mut digits = [0; 32];
        let bytes = [self.high.to_be_bytes(), self.low.to_be_bytes()];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes.as_flattened()) {
            pair.copy_from_slice(&HEX[usize::from(*byte)]);
        }
        let mut text = [b'-'; UUID_CHARS];
        for (to, from) in [
            (0, 0..8),
            (9, 8..12),
            (14, 12..16),
            (19, 16..20),
            (24, 20..32),
        ] {
            text[to..to + from.len()].copy_from_slice(&digits[from]);
        }
        text
    }
}

/// The two digits of each byte.
const HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

/// xoshiro256++ (Blackman and Vigna), seeded on each thread from the system's randomness.
fn random_u64() -> u64 {
    thread_local! {
        static STATE: Cell<[u64; 4]> = Cell::new(seed());
    }
    STATE.with(|state| {
        let mut s = state.get();
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        state.set(s);
        result
    })
}

fn seed() -> [u64; 4] {
    let mut bytes = [0u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())
            .expect("the system has randomness");
    }
    std::array::from_fn(|i| {
        u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_curators_and_unique() {
        let [a, b] = [(); 2].map(|()| Kind::Mutex.name(EntryId::random()));
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
    fn a_conversion_keeps_the_identity_and_the_number() {
        let reader = "_c_x-__READ__0000000007";
        let writer = "_c_x-__WRIT__0000000007";
        assert_eq!(converted(reader).as_deref(), Some(writer));
        assert_eq!(converted(writer).as_deref(), Some(reader));
        assert_eq!(converted("_c_x-lock-0000000007"), None);
    }
}
