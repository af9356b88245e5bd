//! [`Penalties`]: the time for which the answer to a wrong password is held back, so that guessing takes long.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;

use super::connection_table::network;
use crate::clock::BootInstant;

/// Failed proofs of identity, by network.
///
/// A penalty is for the failed answer alone and holds nothing but its connection: honest clients that share the address
/// of an attacker are answered at once. Networks share places by chance, so that there is no list to fill; all that
/// can come of that is a longer penalty.
#[derive(Debug)]
pub(super) struct Penalties {
    places: Mutex<Vec<Failures>>,
    /// Nobody can choose an address that shares another one's place.
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    count: u32,
    last: BootInstant,
}

const PLACES: usize = 4_096;

/// Penalty of the first failure; each further one doubles it.
const FIRST: Duration = Duration::from_millis(100);

/// No penalty is longer than this many doublings make it: 3.2 s, which leaves a handshake time enough.
const DOUBLINGS: u32 = 5;

/// Failures are forgotten when there was none for this long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

impl Default for Penalties {
    fn default() -> Self {
        Self {
            places: Mutex::new(vec![Failures::default(); PLACES]),
            hasher: RandomState::new(),
        }
    }
}

impl Penalties {
    /// Counts a failure, and returns the time for which its answer is to be held back.
    pub(super) fn add(&self, address: SocketAddr, now: BootInstant) -> Duration {
        let place = self.hasher.hash_one(network(address)) as usize % PLACES;
        let failures = &mut self.places.lock()[place];
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
