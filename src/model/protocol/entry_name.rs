//! [`EntryName`]: the name of a queue entry in Curator's form, stored as its parts.

use std::fmt;

/// Name of a queue entry without the number that the store appends: `_c_<uuid>-lock-`, as in Curator.
///
/// The embedded store keeps only these parts and builds the text on demand.
///
/// ```
/// use lockkeeper_store::{EntryName, EntryRole};
///
/// let name = EntryName::new(0x0011_2233_4455_4677_8899_aabb_ccdd_eeff, EntryRole::Lock);
/// assert_eq!(name.to_string(), "_c_00112233-4455-4677-8899-aabbccddeeff-lock-");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryName {
    id: [u64; 2],
    role: EntryRole,
}

/// Role of a queue entry. The end of the entry's name shows the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryRole {
    /// A contender for a mutex, or for a semaphore's permits.
    Lock,
    /// A reader, whose entry is shared.
    Read,
    /// A writer.
    Write,
    /// A semaphore's lease.
    Lease,
    /// A candidate of an election.
    Latch,
}

impl EntryRole {
    /// Returns the last part of the name. The store appends the number to this part.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Lock => "-lock-",
            Self::Read => "-__READ__",
            Self::Write => "-__WRIT__",
            Self::Lease => "-lease-",
            Self::Latch => "-latch-",
        }
    }
}

const PREFIX: &[u8] = b"_c_";

const HEAD_BYTES: usize = PREFIX.len() + 36;

/// Positions of a UUID's hyphens. Bit `n` is set if a hyphen follows the first `n` digits of the id.
const HYPHENS_BEFORE: u32 = 1 << 8 | 1 << 12 | 1 << 16 | 1 << 20;

impl EntryName {
    /// Length of the longest name in bytes.
    pub const MAX_BYTES: usize = HEAD_BYTES + EntryRole::Read.suffix().len();

    /// Creates a name. No other entry may have the same id.
    pub const fn new(id: u128, role: EntryRole) -> Self {
        let id = [(id >> 64) as u64, id as u64];
        Self { id, role }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        const ROLES: [EntryRole; 5] = [
            EntryRole::Lock,
            EntryRole::Read,
            EntryRole::Write,
            EntryRole::Lease,
            EntryRole::Latch,
        ];
        let (head, suffix) = name.as_bytes().split_first_chunk::<HEAD_BYTES>()?;
        let role = ROLES
            .into_iter()
            .find(|role| role.suffix().as_bytes() == suffix)?;
        let mut id = [0; 2];
        let mut at = PREFIX.len();
        for digit in 0..32 {
            at += (HYPHENS_BEFORE >> digit & 1) as usize;
            let value = match head[at] {
                digit @ b'0'..=b'9' => digit - b'0',
                digit @ b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            id[digit / 16] = id[digit / 16] << 4 | u64::from(value);
            at += 1;
        }
        let has_form = head.starts_with(PREFIX)
            && [8, 13, 18, 23]
                .iter()
                .all(|at| head[PREFIX.len() + at] == b'-');
        has_form.then_some(Self { id, role })
    }

    /// Returns the role.
    pub const fn role(self) -> EntryRole {
        self.role
    }

    /// Returns the length of the name in bytes.
    #[allow(clippy::len_without_is_empty, reason = "no name is empty")]
    pub const fn len(self) -> usize {
        HEAD_BYTES + self.role.suffix().len()
    }

    pub(crate) fn write(self, buffer: &mut [u8; Self::MAX_BYTES]) -> usize {
        buffer[..PREFIX.len()].copy_from_slice(PREFIX);
        let mut at = PREFIX.len();
        for digit in 0..32 {
            if HYPHENS_BEFORE >> digit & 1 == 1 {
                buffer[at] = b'-';
                at += 1;
            }
            let half = self.id[digit / 16];
            let value = half >> (60 - digit % 16 * 4) & 15;
            buffer[at] = b"0123456789abcdef"[value as usize];
            at += 1;
        }
        let suffix = self.role.suffix().as_bytes();
        buffer[HEAD_BYTES..HEAD_BYTES + suffix.len()].copy_from_slice(suffix);
        self.len()
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut buffer = [0; Self::MAX_BYTES];
        let length = self.write(&mut buffer);
        f.write_str(std::str::from_utf8(&buffer[..length]).expect("it is ASCII"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_its_suffix_behind_the_id() {
        let id = 0xf001_2233_4455_4677_8899_aabb_ccdd_ee01;
        for (role, suffix) in [
            (EntryRole::Lock, "-lock-"),
            (EntryRole::Read, "-__READ__"),
            (EntryRole::Write, "-__WRIT__"),
            (EntryRole::Lease, "-lease-"),
            (EntryRole::Latch, "-latch-"),
        ] {
            let name = EntryName::new(id, role);
            let text = format!("_c_f0012233-4455-4677-8899-aabbccddee01{suffix}");
            assert_eq!(name.to_string(), text);
            assert_eq!(name.len(), text.len());
            assert_eq!(EntryName::parse(&text), Some(name));
            for at in 0..text.len() {
                let mut other = text.clone();
                other.replace_range(at..=at, "G");
                assert_eq!(EntryName::parse(&other), None, "{other}");
            }
            assert_eq!(EntryName::parse(&text[1..]), None);
            assert_eq!(EntryName::parse(&format!("{text}-")), None);
            assert_eq!(
                role.suffix().contains(super::super::SHARED_MARKER),
                role == EntryRole::Read
            );
        }
    }
}
