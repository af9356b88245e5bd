//! Authentication: [`Policy`] decides which proofs of identity are accepted, [`Admission`] keeps a client's identities,
//! and [`Penalties`] delays the answers to wrong proofs.
//!
//! The core does the authorization, because it checks access control lists in the same way for every client (invariant
//! 14).

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::access::{Access, WordClients};
use super::peer::PeerAddress;
use crate::model::error::{Error, Result};
use crate::model::identity::{DIGEST, Identities, Identity};
use crate::runtime::clock::BootInstant;
use crate::wire::admin::Whitelist;

#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    pub(super) generation: u64,
    pub(super) requires_auth: bool,
    /// If empty, any digest is accepted, as in ZooKeeper.
    pub(super) users: Vec<Identity>,
    pub(super) superuser: Option<Identity>,
    pub(super) words: Whitelist,
    pub(super) word_clients: WordClients,
}

impl Policy {
    fn accepts(&self, identity: &Identity) -> bool {
        identity.scheme != DIGEST
            || self.users.is_empty()
            || self.users.contains(identity)
            || self.superuser.as_ref() == Some(identity)
    }
}

pub(super) struct Admission {
    policy: Arc<Policy>,
    is_proven: bool,
    /// The store keeps the same identities for this connection, under the same limits.
    identities: Identities,
    who_am_i: Arc<[(String, String)]>,
}

pub(super) enum Proof {
    Accepted(Identity),
    /// The proof is accepted, but the client has already proved this identity.
    Known,
    Refused,
    /// The client has too many identities, or this identity is too long.
    LimitReached(Error),
}

impl Admission {
    pub(super) fn new(policy: Arc<Policy>) -> Self {
        Self {
            policy,
            is_proven: false,
            identities: Identities::default(),
            who_am_i: [].into(),
        }
    }

    pub(super) fn add(&mut self, identity: &Identity) -> Result<()> {
        self.identities.add(identity.clone())?;
        self.is_proven |= identity.is_proof();
        let known = self.who_am_i.iter().cloned();
        let entry = (identity.scheme.to_string(), identity.shown().to_owned());
        if !self.who_am_i.contains(&entry) {
            self.who_am_i = known.chain([entry]).collect();
        }
        Ok(())
    }

    /// Applies the current policy. Returns false if the client has an identity that the policy no longer accepts, or
    /// that is no longer the super user.
    pub(super) fn renew(&mut self, access: &Access) -> bool {
        if access.is_current(self.policy.generation) {
            return true;
        }
        let former = std::mem::replace(&mut self.policy, access.policy());
        let superuser = self.policy.superuser.as_ref();
        self.identities.iter().all(|identity| {
            let was_superuser = former.superuser.as_ref() == Some(identity);
            self.policy.accepts(identity) && (!was_superuser || superuser == Some(identity))
        })
    }

    pub(super) fn known(&self) -> usize {
        self.identities.len()
    }

    pub(super) fn shown(&self) -> Vec<String> {
        self.identities.iter().map(ToString::to_string).collect()
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.is_proven || !self.policy.requires_auth
    }

    pub(super) fn who_am_i(&self) -> Arc<[(String, String)]> {
        self.who_am_i.clone()
    }

    pub(super) fn prove(&mut self, scheme: &str, secret: &[u8]) -> Proof {
        // As in ZooKeeper, the packet's text is ignored, because the connection has proved the client's address.
        if scheme == "ip" {
            return Proof::Known;
        }
        let Ok(identity) = Identity::proved(scheme, secret) else {
            return Proof::Refused;
        };
        if !self.policy.accepts(&identity) {
            return Proof::Refused;
        }
        // A client that repeats a proof or reaches a limit has not guessed wrong, so it gets no penalty.
        match self.add(&identity) {
            Ok(()) => Proof::Accepted(identity),
            Err(error) => Proof::LimitReached(error),
        }
    }
}

/// Failed proofs of identity, counted by network.
///
/// A penalty delays only the connection whose proof failed, not other clients of its network. The table has a fixed
/// size, so attackers cannot fill the memory. If two networks share a slot by chance, their penalties only get longer.
#[derive(Debug)]
pub(super) struct Penalties {
    slots: Mutex<Vec<Failures>>,
    /// Randomly seeded, so that no attacker can choose an address that shares a victim's slot.
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    count: u32,
    last: BootInstant,
}

/// Number of slots (about 64 KiB).
const SLOTS: usize = 4_096;

/// Delay of the answer to the first failure. Each further failure doubles the delay.
const FIRST_PENALTY: Duration = Duration::from_millis(100);

/// Maximum number of doublings. The longest penalty is 3.2 s, which leaves enough time for a handshake.
const DOUBLINGS: u32 = 5;

const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

impl Default for Penalties {
    fn default() -> Self {
        Self {
            slots: Mutex::new(vec![Failures::default(); SLOTS]),
            hasher: RandomState::new(),
        }
    }
}

impl Penalties {
    pub(super) fn add(&self, address: PeerAddress, now: BootInstant) -> Duration {
        let slot = self.hasher.hash_one(address.network()) as usize % SLOTS;
        let failures = &mut self.slots.lock()[slot];
        if now.since(failures.last) >= FORGOTTEN_AFTER {
            failures.count = 0;
        }
        let doublings = failures.count.min(DOUBLINGS);
        // Store the limited number, so that the count cannot overflow.
        *failures = Failures {
            count: doublings + 1,
            last: now,
        };
        FIRST_PENALTY * 2_u32.pow(doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_grow_for_each_network_and_are_forgotten() {
        let penalties = Penalties::default();
        let address = |text: &str| PeerAddress::Tcp(text.parse().unwrap());
        let (one, other) = (address("[2001:db8::1]:1"), address("[2001:db8::2]:1"));
        let at = |address, seconds: u64| {
            let now = BootInstant::from_nanos(seconds * 1_000_000_000);
            penalties.add(address, now).as_millis()
        };
        let grown: Vec<_> = (100..107).map(|second| at(one, second)).collect();
        assert_eq!(grown, [100, 200, 400, 800, 1_600, 3_200, 3_200]);
        assert_eq!(at(other, 107), 3_200, "it is of the same network");
        assert_eq!(at(one, 166), 3_200);
        assert_eq!(at(one, 226), 100);
    }
}
