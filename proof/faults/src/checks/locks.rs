//! Exclusion and order of grants, by tokens and by the times at which guards believed that they held. Does no I/O.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use lockkeeper::{FencingGate, FencingToken};
use testkit::keys::recipe;

use crate::report::Share;
use crate::time::seconds;

/// A worker process: its number, and the number of times that it was restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WorkerId {
    pub(crate) number: usize,
    pub(crate) life: u32,
    pub(crate) belief: Belief,
}

/// Reliability of a worker's belief that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Belief {
    /// Belief of a guard of this library, which excludes other holders.
    Promised,
    /// Belief of Curator or kazoo, whose holders must rely on their tokens.
    Hoped,
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.belief {
            Belief::Promised => "worker",
            Belief::Hoped => "foreign worker",
        };
        write!(f, "{name} {}.{}", self.number, self.life)
    }
}

/// A grant, and when its guard believed that it held.
#[derive(Clone, Debug)]
struct Grant {
    holder: (WorkerId, u64),
    share: Share,
    token: FencingToken,
    from: u64,
    to: u64,
}

#[derive(Default)]
struct Lock {
    grants: Vec<Grant>,
    gate: FencingGate,
}

#[derive(Default)]
pub(super) struct Locks {
    locks: BTreeMap<String, Lock>,
    places: HashMap<(WorkerId, u64), (String, usize)>,
}

impl Locks {
    pub(super) fn granted(
        &mut self,
        holder: (WorkerId, u64),
        key: &str,
        share: Share,
        token: FencingToken,
        at: u64,
    ) {
        let grants = &mut self.locks.entry(key.to_owned()).or_default().grants;
        self.places.insert(holder, (key.to_owned(), grants.len()));
        grants.push(Grant {
            holder,
            share,
            token,
            from: at,
            to: at,
        });
    }

    /// Extends the time at which a guard believed. The holder's clock may be read late, but never early.
    pub(super) fn held(&mut self, holder: (WorkerId, u64), at: u64) {
        if let Some((key, place)) = self.places.get(&holder) {
            let lock = self.locks.get_mut(key).expect("places are of locks");
            let grant = &mut lock.grants[*place];
            grant.to = grant.to.max(at);
        }
    }

    pub(super) fn key(&self, holder: (WorkerId, u64)) -> Option<&str> {
        self.places.get(&holder).map(|(key, _)| key.as_str())
    }

    /// Writes to the resource of a lock with the token of a grant. Returns `false` if the token is refused.
    pub(super) fn write(&mut self, holder: (WorkerId, u64)) -> bool {
        let Some((key, place)) = self.places.get(&holder) else {
            return false;
        };
        let lock = self.locks.get_mut(key).expect("places are of locks");
        let Grant { share, token, .. } = lock.grants[*place];
        match share {
            Share::Exclusive => lock.gate.admit(token).is_ok(),
            Share::Shared => lock.gate.admit_shared(token).is_ok(),
            // Permits exclude no other holder.
            Share::Permits(_) => true,
        }
    }

    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (key, lock) in &self.locks {
            let mut grants: Vec<_> = lock.grants.iter().collect();
            grants.sort_by_key(|grant| grant.from);
            wrong.extend(disordered(key, &grants));
            grants.retain(|grant| grant.holder.0.belief == Belief::Promised);
            wrong.extend(overlaps(key, &grants).into_iter().next());
        }
        wrong
    }

    /// Returns how often too many believed that they held, including the beliefs of other clients.
    pub(super) fn unpromised_overlaps(&self) -> u64 {
        let overlaps_of = |(key, lock): (&String, &Lock)| {
            let mut grants: Vec<_> = lock.grants.iter().collect();
            grants.sort_by_key(|grant| grant.from);
            overlaps(key, &grants).len() as u64
        };
        self.locks.iter().map(overlaps_of).sum()
    }
}

/// Returns the first grant out of queue order. An exclusive token must exceed all earlier exclusive tokens, and no
/// reader may be granted after a later writer.
fn disordered(key: &str, grants: &[&Grant]) -> Option<String> {
    let mut newest: Option<&Grant> = None;
    for grant in grants {
        let newer = newest.filter(|newest| match grant.share {
            Share::Exclusive => newest.token >= grant.token,
            // A downgraded writer keeps its token.
            Share::Shared => newest.token > grant.token,
            Share::Permits(_) => false,
        });
        if let Some(newer) = newer {
            return Some(format!(
                "tokens, order: {key} was granted {grant} after {newer}"
            ));
        }
        if grant.share == Share::Exclusive {
            newest = Some(grant);
        }
    }
    None
}

/// Returns when too many believed that they held.
fn overlaps(key: &str, grants: &[&Grant]) -> Vec<String> {
    let Some(recipe) = recipe(key) else {
        return vec![format!("error: {key} is no lock")];
    };
    let capacity = u64::from(recipe.capacity());
    let weight = |grant: &Grant| match grant.share {
        Share::Exclusive => capacity,
        Share::Shared => 1,
        Share::Permits(count) => u64::from(count),
    };
    let mut found = Vec::new();
    let mut holders: Vec<&Grant> = Vec::new();
    for grant in grants {
        holders.retain(|holder| holder.to > grant.from);
        holders.push(grant);
        if holders.iter().map(|holder| weight(holder)).sum::<u64>() > capacity {
            let named: Vec<_> = holders.iter().map(ToString::to_string).collect();
            found.push(format!(
                "exclusion: {key} was believed to be held {}",
                named.join(" and ")
            ));
        }
    }
    found
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((worker, _), token) = (self.holder, self.token);
        let (from, to) = (seconds(self.from), seconds(self.to));
        write!(
            f,
            "by {worker} with token {token} from {from:.6} to {to:.6}"
        )
    }
}
