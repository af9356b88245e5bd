//! Names of queue entries. Several libraries can share a path, because the names have Curator's form.

use std::cell::Cell;

use lockkeeper_store::{Blockers, EntryName, EntryRole, SEMAPHORE_CHILDREN, Session, sequence_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    Read,
    Write,
    /// A waiter for a semaphore's permits, under `locks/`.
    Acquirer,
    /// A semaphore's permit, under `leases/`.
    Lease,
    Candidate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecipeName(&'static str, &'static str);

const MUTEX: RecipeName = RecipeName("a mutex", "mutex");
const READ_WRITE_LOCK: RecipeName = RecipeName("a read-write lock", "read-write lock");
const SEMAPHORE: RecipeName = RecipeName("a semaphore", "semaphore");
const ELECTION: RecipeName = RecipeName("an election", "election");

impl Kind {
    pub(crate) const COUNT: usize = 6;

    pub(crate) const NAME_BYTES: usize = 1 + EntryName::MAX_BYTES;

    pub(crate) fn title(self) -> &'static str {
        self.recipe().1
    }

    pub(crate) fn role(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Read => "reader",
            Self::Write => "writer",
            Self::Acquirer | Self::Lease => "semaphore",
            Self::Candidate => "election",
        }
    }

    fn recipe(self) -> RecipeName {
        match self {
            Self::Mutex => MUTEX,
            Self::Read | Self::Write => READ_WRITE_LOCK,
            Self::Acquirer | Self::Lease => SEMAPHORE,
            Self::Candidate => ELECTION,
        }
    }

    fn entry_role(self) -> EntryRole {
        match self {
            Self::Mutex | Self::Acquirer => EntryRole::Lock,
            Self::Read => EntryRole::Read,
            Self::Write => EntryRole::Write,
            Self::Lease => EntryRole::Lease,
            Self::Candidate => EntryRole::Latch,
        }
    }

    /// Returns true if an entry with the role `ahead` belongs to the same recipe as this kind.
    pub(crate) fn waits_for(self, ahead: EntryRole) -> bool {
        match self {
            Self::Read | Self::Write => matches!(ahead, EntryRole::Read | EntryRole::Write),
            _ => ahead == self.entry_role(),
        }
    }

    pub(crate) fn blockers(self) -> Blockers {
        match self {
            Self::Read => Blockers::Exclusive,
            _ => Blockers::All,
        }
    }

    /// Returns true if an entry of this kind is only granted after all entries ahead of it have left.
    pub(crate) fn is_exclusive(self) -> bool {
        !matches!(self, Self::Read | Self::Lease)
    }

    pub(crate) fn is_own(self, child: &str) -> bool {
        // Count bytes, because slicing the string could split a character.
        let digits = child.bytes().rev().take_while(u8::is_ascii_digit).count();
        child.as_bytes()[..child.len() - digits].ends_with(self.entry_role().suffix().as_bytes())
    }

    pub(crate) fn foreign_recipe(self, child: &str) -> Option<&'static str> {
        if self.is_own(child) {
            return None;
        }
        let owner = match child {
            part if SEMAPHORE_CHILDREN.contains(&part) => SEMAPHORE,
            _ => form_of(entry_stem(child)?.1)?.recipe?,
        };
        (owner != self.recipe()).then_some(owner.0)
    }

    /// Returns a name without its number, such as `_c_<uuid>-lock-`.
    pub(crate) fn name(self, id: EntryId) -> String {
        self.entry_name(id).to_string()
    }

    pub(crate) fn entry_name(self, id: EntryId) -> EntryName {
        EntryName::new(id.0, self.entry_role())
    }
}

struct NameForm {
    ending: &'static str,
    /// `None` if the name does not show the recipe. kazoo uses the same names for a mutex and a writer.
    recipe: Option<RecipeName>,
}

/// The forms of contenders' names. Curator and we use `_c_<uuid>-lock-`, go-zookeeper `_c_<32 digits>-lock-`, the
/// recipes in ZooKeeper's documentation `<guid>-lock-` and `<guid>-n_`, kazoo `<32 digits>__lock__`. The id may be
/// missing.
const FORMS: [NameForm; 9] = [
    NameForm::of("lock-", MUTEX),
    NameForm::of("__READ__", READ_WRITE_LOCK),
    NameForm::of("__WRIT__", READ_WRITE_LOCK),
    NameForm::of("latch-", ELECTION),
    NameForm::of("lease-", SEMAPHORE),
    NameForm::of("permit-", SEMAPHORE),
    NameForm::of_any("__lock__"),
    NameForm::of_any("__rlock__"),
    NameForm::of_any("n_"),
];

impl NameForm {
    const fn of(ending: &'static str, recipe: RecipeName) -> Self {
        let recipe = Some(recipe);
        Self { ending, recipe }
    }

    const fn of_any(ending: &'static str) -> Self {
        let recipe = None;
        Self { ending, recipe }
    }

    fn fits(&self, stem: &str) -> bool {
        let is_whole = |before: &str| {
            before.is_empty() || before.ends_with('-') || self.ending.starts_with('_')
        };
        stem.strip_suffix(self.ending).is_some_and(is_whole)
    }
}

fn form_of(stem: &str) -> Option<NameForm> {
    FORMS.into_iter().find(|form| form.fits(stem))
}

/// Returns true for names of ZooKeeper's own `WriteLock` recipe (`x-<session id>-`).
fn is_write_lock(stem: &str) -> bool {
    let id = stem
        .strip_prefix("x-")
        .and_then(|rest| rest.strip_suffix('-'));
    id.is_some_and(|id| {
        !id.is_empty()
            && id
                .bytes()
                .all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    })
}

fn entry_stem(name: &str) -> Option<(i64, &str)> {
    let number = sequence_of(name)?;
    let stem = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let stem = if number < 0 {
        stem.strip_suffix('-')?
    } else {
        stem
    };
    Some((number, stem))
}

/// Returns the number of a child whose name has a known form or matches one of the session's patterns. Such a child is
/// only a contender if it is also ephemeral (see [`contenders`](crate::queue::contenders)).
pub(crate) fn contender_number(session: &Session, child: &str) -> Option<i64> {
    let (number, stem) = entry_stem(child)?;
    let is_known = form_of(stem).is_some() || is_write_lock(stem);
    let mut patterns = session.entry_patterns().iter();
    (is_known || patterns.any(|pattern| stem.ends_with(pattern))).then_some(number)
}

/// Returns true if a name contains an id that was generated for a single create. We assume that such a znode is
/// ephemeral.
pub(crate) fn has_unique_id(name: &str) -> bool {
    name.starts_with(PREFIX) || name.contains("lock__")
}

/// Kind of a lock, derived from the names of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// A mutex, or a lock of another library whose names do not show its kind.
    Mutex,
    /// A read-write lock.
    ReadWriteLock,
    /// A semaphore.
    Semaphore,
    /// An election.
    Election,
}

impl LockKind {
    /// Returns its name: `mutex`, `rwlock`, `semaphore` or `election`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::ReadWriteLock => "rwlock",
            Self::Semaphore => "semaphore",
            Self::Election => "election",
        }
    }
}

impl std::fmt::Display for LockKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns a queue's recipe, or a mutex if the names do not show it.
pub(crate) fn recipe_of<'a>(contenders: impl IntoIterator<Item = &'a str>) -> LockKind {
    let mut kinds = contenders.into_iter().filter_map(|name| {
        let form = form_of(entry_stem(name)?.1)?;
        match form.recipe {
            Some(READ_WRITE_LOCK) => Some(LockKind::ReadWriteLock),
            Some(SEMAPHORE) => Some(LockKind::Semaphore),
            Some(ELECTION) => Some(LockKind::Election),
            // kazoo's names only show the recipe of a reader.
            None if form.ending == "__rlock__" => Some(LockKind::ReadWriteLock),
            _ => None,
        }
    });
    kinds.next().unwrap_or(LockKind::Mutex)
}

pub(crate) fn converted(name: &str) -> Option<String> {
    const SIDES: [(&str, &str); 2] = [("__READ__", "__WRIT__"), ("__WRIT__", "__READ__")];
    let (from, to) = SIDES.iter().find(|(from, _)| name.contains(from))?;
    Some(name.replacen(from, to, 1))
}

pub(crate) fn is_writer(name: &str) -> bool {
    name.contains("__WRIT__")
}

const PREFIX: &str = "_c_";

/// A UUID in an entry's name, used to find the znode after a lost reply.
///
/// Each thread increments the last twelve digits of a random version 4 UUID, because generating a UUID per lock would
/// cost more than all other bookkeeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId(u128);

const COUNTED: u128 = (1 << 48) - 1;

impl EntryId {
    pub(crate) fn fresh() -> Self {
        thread_local! {
            static NEXT: Cell<EntryId> = Cell::new(EntryId::random());
        }
        NEXT.with(|next| next.replace(next.get().next()))
    }

    fn random() -> Self {
        let mut bytes = seed();
        bytes[6] = bytes[6] & 0x0f | 0x40; // version 4
        bytes[8] = bytes[8] & 0x3f | 0x80; // variant 1
        Self(u128::from_be_bytes(bytes))
    }

    fn next(self) -> Self {
        Self(self.0 & !COUNTED | self.0.wrapping_add(1) & COUNTED)
    }
}

fn seed() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a source of randomness");
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
        let id = |end: u128| EntryId(0x0123_4567_89ab_4def_8fff << 48 | end);
        for (one, next) in [
            (0, 1),
            (0x0000_000f_ffff, 0x0000_0010_0000),
            (0xffff_ffff_ffff, 0),
        ] {
            assert_eq!(id(one).next(), id(next));
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
        let stranger = |kind: Kind, child| kind.foreign_recipe(child);
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
        assert_eq!(stranger(Kind::Mutex, "my-latch-a"), None);
        assert_eq!(stranger(Kind::Mutex, "_c_x__lock__0000000001"), None);
    }

    #[test]
    fn contenders_have_known_forms() {
        let client = now(lockkeeper_store::Store::memory().connect());
        let session = now(client.session());
        let number = |name: &str| contender_number(&session, name);
        for (name, expected) in [
            ("_c_00112233-4455-4677-8899-aabbccddeeff-lock-0000000001", 1),
            ("_c_00112233445566778899aabbccddeeff-lock-0000000002", 2),
            ("lock-0000000003", 3),
            ("some-id-lock-0000000004", 4),
            ("lock--000000005", -5),
            ("lock--2147483648", -2_147_483_648),
            ("x-lock-12345678901", 12_345_678_901),
            ("_c_x-latch-0000000006", 6),
            ("_c_x-lease-0000000007", 7),
            ("_c_x-__READ__0000000008", 8),
            ("_c_x-__WRIT__-000000009", -9),
            ("00112233445566778899aabbccddeeff__lock__0000000010", 10),
            ("00112233445566778899aabbccddeeff__rlock__0000000011", 11),
            ("n_0000000014", 14),
            ("x-72057594037927936-0000000012", 12),
            ("x--72057594037927936-0000000013", 13),
        ] {
            assert_eq!(number(name), Some(expected), "{name}");
        }
        for name in [
            "0000000000",
            "1234567890123",
            "job-0000000001",
            "clock-0000000001",
            "lock-1",
            "lock-",
            "my-latch-a",
            "x-0000000001",
            "x-y-0000000001",
            "locks",
            "config",
            "",
        ] {
            assert_eq!(number(name), None, "{name}");
        }
    }

    #[test]
    fn further_patterns_are_the_callers() {
        let options = |pattern| lockkeeper_store::ConnectOptions::new().entry_pattern(pattern);
        let number = |pattern, name| {
            let client = now(lockkeeper_store::Store::memory().connect_with(options(pattern)));
            contender_number(&now(client.session()), name)
        };
        assert_eq!(number("job-", "my-job-0000000001"), Some(1));
        assert_eq!(number("job-", "lock-0000000001"), Some(1));
        assert_eq!(number("job-", "jobs-0000000001"), None);
        assert_eq!(number("", "1234567890123"), Some(1_234_567_890_123));
    }

    fn now<T>(work: impl Future<Output = Result<T, lockkeeper_store::Error>>) -> T {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(work).poll(&mut context) {
            std::task::Poll::Ready(answer) => answer.unwrap(),
            std::task::Poll::Pending => panic!("a store in memory answers at once"),
        }
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
