//! [`Admission`]: who a client has shown to be, and whether that lets it in.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::connection_table::network;
use crate::clock::BootInstant;
use crate::error::{Error, Result};
use crate::identity::{Identities, Identity};

/// Whom a server lets in.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) requires_auth: bool,
    /// Whose digests count; empty: anybody's.
    pub(super) users: Vec<Identity>,
    pub(super) superuser: Option<Identity>,
}

/// What one client has shown.
pub(super) struct Admission {
    policy: Arc<Policy>,
    is_proven: bool,
    /// The same as the store has of this connection, by the same limits: what is refused there is not
    /// kept here either.
    identities: Identities,
    /// What whoAmI tells: schemes and users.
    who: Arc<[(String, String)]>,
}

/// What a proof of identity is worth.
pub(super) enum Proof {
    /// This identity.
    Of(Identity),
    /// Nothing that was not known already.
    Nothing,
    Refused,
    /// One more than a client may have, or one that is too long.
    BeyondLimit(Error),
}

impl Admission {
    pub(super) fn new(policy: Arc<Policy>, address: IpAddr) -> Self {
        Self {
            policy,
            is_proven: false,
            identities: Identities::default(),
            who: [("ip".to_owned(), address.to_string())].into(),
        }
    }

    /// Adds an identity that the client has proved: before its first request, by its certificate, or now.
    ///
    /// # Errors
    /// By the limits of [`Identities`].
    pub(super) fn add(&mut self, identity: &Identity) -> Result<()> {
        self.identities.add(identity.clone())?;
        self.is_proven |= identity.is_proof();
        let known = self.who.iter().cloned();
        let entry = (identity.scheme.to_string(), identity.shown().to_owned());
        if !self.who.contains(&entry) {
            self.who = known.chain([entry]).collect();
        }
        Ok(())
    }

    /// Whether the client may ask for anything.
    pub(super) fn is_admitted(&self) -> bool {
        self.is_proven || !self.policy.requires_auth
    }

    pub(super) fn who(&self) -> Arc<[(String, String)]> {
        self.who.clone()
    }

    /// Judges what a client has sent to prove an identity.
    pub(super) fn prove(&mut self, scheme: &str, secret: &[u8]) -> Proof {
        if scheme == "ip" {
            return Proof::Nothing;
        }
        let Ok(identity) = Identity::proved(scheme, secret) else {
            return Proof::Refused;
        };
        let policy = &self.policy;
        let is_known = policy.users.is_empty()
            || policy.users.contains(&identity)
            || policy.superuser.as_ref() == Some(&identity);
        if !is_known {
            return Proof::Refused;
        }
        match self.add(&identity) {
            Ok(()) => Proof::Of(identity),
            Err(error) => Proof::BeyondLimit(error),
        }
    }
}

/// Failed proofs of identity, by network.
///
/// A penalty is for the failed answer alone and holds nothing but its connection: honest clients that share the address
/// of an attacker are answered at once. Networks share places by chance, so that there is no list to fill; all that
/// can come of that is a longer penalty.
#[derive(Debug)]
pub(super) struct Penalties {
    slots: Mutex<Vec<Failures>>,
    /// Nobody can choose an address that shares another one's place.
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    count: u32,
    last: BootInstant,
}

const SLOTS: usize = 4_096;

/// Penalty of the first failure; each further one doubles it.
const FIRST: Duration = Duration::from_millis(100);

/// No penalty is longer than this many doublings make it: 3.2 s, which leaves a handshake time enough.
const DOUBLINGS: u32 = 5;

/// Failures are forgotten when there was none for this long.
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
    /// Counts a failure, and returns the time for which its answer is to be held back.
    pub(super) fn add(&self, address: SocketAddr, now: BootInstant) -> Duration {
        let slot = self.hasher.hash_one(network(address)) as usize % SLOTS;
        let failures = &mut self.slots.lock()[slot];
        if now.since(failures.last) >= FORGOTTEN_AFTER {
            failures.count = 0;
        }
        let doublings = failures.count.min(DOUBLINGS);
        *failures = Failures {
            count: doublings + 1,
            last: now,
        };
        FIRST * 2_u32.pow(doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_grow_for_each_network_and_are_forgotten() {
        let penalties = Penalties::default();
        let (one, other): (SocketAddr, SocketAddr) = (
            "[2001:db8::1]:1".parse().unwrap(),
            "[2001:db8::2]:1".parse().unwrap(),
        );
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
