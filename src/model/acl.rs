//! [`Acl`]: an access control list, and the rights that it grants to a set of identities.
//!
//! A list may have a thousand entries and a session 64 identities, and nearly every request checks a right. So a long
//! list is compiled at its first use, and each list caches its last verdict (invariant 10).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::model::identity::{IP, Identities, Identity, Network, is_anyone};
use crate::model::types::AclEntry;

/// An access control list. The default, [`Acl::open`], gives every client all rights.
#[derive(Clone, Default)]
pub struct Acl(Option<Arc<List>>);

struct List {
    entries: Box<[AclEntry]>,
    text_bytes: usize,
    rights: Rights,
}

impl Acl {
    /// Returns the open list: `world:anyone` with all rights (ZooKeeper's `OPEN_ACL_UNSAFE`).
    pub fn open() -> Self {
        Self(None)
    }

    /// Returns a list that grants all rights to the znode's creator (ZooKeeper's `CREATOR_ALL_ACL`).
    pub fn creator_all() -> Self {
        Self::new([AclEntry {
            permissions: AclEntry::ALL,
            scheme: "auth".into(),
            id: String::new(),
        }])
    }

    /// Creates a list from entries.
    pub fn new(entries: impl Into<Vec<AclEntry>>) -> Self {
        let entries: Box<[AclEntry]> = entries.into().into();
        let texts = entries.iter().map(|it| it.scheme.len() + it.id.len());
        Self(Some(Arc::new(List {
            text_bytes: texts.sum(),
            entries,
            rights: Rights::default(),
        })))
    }

    /// Returns the entries, or `None` for the open list.
    pub fn entries(&self) -> Option<&[AclEntry]> {
        self.0.as_ref().map(|list| &*list.entries)
    }

    #[inline]
    pub(crate) fn size(&self) -> (usize, usize) {
        let size = |list: &Arc<List>| (list.entries.len(), list.text_bytes);
        self.0.as_ref().map_or((0, 0), size)
    }

    #[inline]
    pub(crate) fn granted(&self, identities: &Identities) -> Option<Granted> {
        let list = self.0.as_ref()?;
        Some(list.rights.granted(&list.entries, identities))
    }
}

impl fmt::Debug for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Acl").field(&self.entries()).finish()
    }
}

impl PartialEq for Acl {
    fn eq(&self, other: &Self) -> bool {
        self.entries() == other.entries()
    }
}

impl Eq for Acl {}

impl Hash for Acl {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries().hash(state);
    }
}

/// A list is searched without being compiled if it has at most this many pairs of an entry and a client's identity.
const FEW_PAIRS: usize = 32;

/// All rights of the superuser, including bits that have no name.
const EVERY_RIGHT: u8 = u8::MAX;

#[derive(Debug, Default)]
pub(crate) struct Rights {
    compiled: OnceLock<Compiled>,
    /// The last verdict, or 0 if there is none: the stamp of the identities, with their rights in the lowest byte. One
    /// word holds both, so that no thread sees the stamp of one set of identities with the rights of another.
    verdict: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) rights: u8,
    pub(crate) work: usize,
}

impl Rights {
    /// Every call must pass the same entries.
    pub(crate) fn granted(&self, entries: &[AclEntry], identities: &Identities) -> Granted {
        let stamp = identities.stamp();
        let verdict = self.verdict.load(Ordering::Relaxed);
        // A stamp belongs to one set of identities forever, and a list's entries never change, so no verdict is
        // outdated. `Relaxed` suffices because the word depends on nothing else in memory.
        if verdict >> u8::BITS == stamp {
            return Granted {
                rights: verdict as u8,
                work: 0,
            };
        }
        let granted = self.judge(entries, identities);
        let verdict = stamp << u8::BITS | u64::from(granted.rights);
        self.verdict.store(verdict, Ordering::Relaxed);
        granted
    }

    fn judge(&self, entries: &[AclEntry], identities: &Identities) -> Granted {
        if identities.iter().any(Identity::is_superuser) {
            return Granted {
                rights: EVERY_RIGHT,
                work: identities.len(),
            };
        }
        let pairs = entries.len() * identities.len();
        if pairs <= FEW_PAIRS {
            return Granted {
                rights: compared(entries, identities),
                work: entries.len() + pairs,
            };
        }
        // The request that causes the compilation pays for its work.
        let mut work = 0;
        let compiled = self.compiled.get_or_init(|| {
            work = entries.len();
            Compiled::new(entries)
        });
        work += identities.len();
        let mut rights = compiled.everybody;
        for identity in identities.iter() {
            rights |= match identity.scheme {
                IP => {
                    work += compiled.networks.len();
                    compiled.of_address(&identity.id)
                }
                _ => compiled.of_name(entries, identity),
            };
        }
        Granted { rights, work }
    }
}

fn compared(entries: &[AclEntry], identities: &[Identity]) -> u8 {
    let is_meant = |entry: &&AclEntry| {
        is_anyone(entry)
            || identities
                .iter()
                .any(|identity| identity.is_meant_by(entry))
    };
    let granting = entries.iter().filter(is_meant);
    granting.fold(0, |rights, entry| rights | entry.permissions)
}

#[derive(Debug)]
struct Compiled {
    everybody: u8,
    networks: Box<[(Network, u8)]>,
    /// Indices of all other entries, sorted by scheme and id.
    by_name: Box<[u32]>,
}

impl Compiled {
    fn new(entries: &[AclEntry]) -> Self {
        let (mut everybody, mut networks, mut by_name) = (0, Vec::new(), Vec::new());
        for (index, entry) in entries.iter().enumerate() {
            if is_anyone(entry) {
                everybody |= entry.permissions;
            } else if entry.scheme == IP {
                let network = Network::parse(&entry.id);
                networks.extend(network.map(|network| (network, entry.permissions)));
            } else {
                by_name.push(index as u32);
            }
        }
        by_name.sort_unstable_by_key(|index| name(&entries[*index as usize]));
        Self {
            everybody,
            networks: networks.into(),
            by_name: by_name.into(),
        }
    }

    fn of_address(&self, address: &str) -> u8 {
        let Ok(address) = address.parse::<IpAddr>() else {
            return 0;
        };
        let meant = self
            .networks
            .iter()
            .filter(|(network, _)| network.has(address));
        meant.fold(0, |rights, (_, permissions)| rights | permissions)
    }

    /// Several entries may have the same id with different permissions.
    fn of_name(&self, entries: &[AclEntry], identity: &Identity) -> u8 {
        let entry = |index: &u32| &entries[*index as usize];
        let sought = (identity.scheme, &*identity.id);
        let first = self
            .by_name
            .partition_point(|index| name(entry(index)) < sought);
        let meant = self.by_name[first..].iter().map(entry);
        meant
            .take_while(|entry| name(entry) == sought)
            .fold(0, |rights, entry| rights | entry.permissions)
    }
}

fn name(entry: &AclEntry) -> (&str, &str) {
    (&entry.scheme, &entry.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(permissions: u8, scheme: &str, id: &str) -> AclEntry {
        AclEntry {
            permissions,
            scheme: scheme.into(),
            id: id.into(),
        }
    }

    fn entries(count: usize) -> Vec<AclEntry> {
        let each = |at: usize| {
            let permissions = 1 << (at % 5);
            let user = at / 3 % 40;
            match at % 7 {
                0 => entry(permissions, "x509", &format!("CN={user}")),
                1 => entry(permissions, "ip", &format!("10.0.{user}.0/24")),
                2 if at % 50 == 2 => entry(permissions, "world", "anyone"),
                _ => entry(
                    permissions,
                    "digest",
                    &Identity::digest(&[user as u8, b':']).id,
                ),
            }
        };
        (0..count).map(each).collect()
    }

    fn identities(from: usize, count: usize) -> Identities {
        let each = |user: usize| match user % 4 {
            0 => Identity::x509(&format!("CN={user}")),
            1 => Identity::ip(IpAddr::from([10, 0, user as u8, 1])),
            _ => Identity::digest(&[user as u8, b':']),
        };
        Identities::new((from..from + count).map(each)).unwrap()
    }

    #[test]
    fn a_compiled_list_gives_the_rights_that_a_comparison_gives() {
        for length in [0, 1, 2, 3, 8, 30, 100, 300] {
            for skipped in 0..7 {
                let entries = &entries(length + skipped)[skipped..];
                for count in [0, 1, 2, 5, 30] {
                    for from in 0..20 {
                        let identities = identities(from, count);
                        let granted = Rights::default().granted(entries, &identities);
                        let expected = compared(entries, &identities);
                        assert_eq!(granted.rights, expected, "{entries:?} {identities:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_verdict_is_of_these_identities_and_no_others() {
        for length in [1, 200] {
            let mine = Identity::x509("CN=me");
            let mut list = entries(length);
            list.retain(|entry| !is_anyone(entry));
            list.push(entry(AclEntry::ADMIN, "x509", "CN=me"));
            let rights = Rights::default();
            let asked = |identities: &Identities| rights.granted(&list, identities).rights;
            let mut me = identities(50, 3);
            let stranger = identities(50, 3);
            assert_eq!((asked(&stranger), asked(&me)), (0, 0));
            me.add(mine).unwrap();
            assert_eq!(
                asked(&me),
                AclEntry::ADMIN,
                "an identity that came later counts"
            );
            assert_eq!(asked(&stranger), 0);
            assert_eq!(asked(&me.clone()), AclEntry::ADMIN);
            assert_eq!(asked(&Identities::default()), 0);
            assert_eq!(asked(&me), AclEntry::ADMIN);
            me.add(Identity::superuser()).unwrap();
            assert_eq!(asked(&me), EVERY_RIGHT);
            assert_eq!(asked(&stranger), 0);
        }
    }

    #[test]
    fn the_second_question_is_answered_without_a_look_at_the_list() {
        let (entries, identities) = (entries(1_000), identities(0, 60));
        let rights = Rights::default();
        let first = rights.granted(&entries, &identities);
        let second = rights.granted(&entries, &identities);
        assert_eq!((second.rights, second.work), (first.rights, 0));
        assert!(first.work < 1_000 + 60 * 200, "{} units", first.work);
    }
}
