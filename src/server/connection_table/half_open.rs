//! [`HalfOpen`]: connections that are not admitted yet, and the choice of a victim when there are too many.
//!
//! The victim is the oldest connection of the network that has the most half-open connections, so a machine that floods
//! the server evicts its own connections first. A client with only one connection is safe as long as the flood uses
//! fewer networks than the limit.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use crate::server::peer::{Network, PeerAddress};

#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    by_network: HashMap<Network, BTreeSet<Arrival>>,
    /// Networks in ascending order of their number of connections. Among networks with the same number, the network
    /// with the oldest connection is last.
    ranks: BTreeSet<Rank>,
    count: usize,
}

/// Arrival number and slot of a connection.
type Arrival = (u64, usize);

/// Number of a network's connections, arrival number of its oldest connection, and the network.
type Rank = (usize, Reverse<u64>, Network);

impl HalfOpen {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn insert(&mut self, address: PeerAddress, arrival: u64, slot: usize) {
        self.change(address.network(), |connections| {
            connections.insert((arrival, slot));
        });
    }

    /// Removes a connection, unless an eviction has removed it already.
    pub(super) fn remove(&mut self, address: PeerAddress, arrival: u64, slot: usize) {
        self.change(address.network(), |connections| {
            connections.remove(&(arrival, slot));
        });
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
        let (.., network) = *self.ranks.last()?;
        let mut victim = None;
        self.change(network, |connections| victim = connections.pop_first());
        victim.map(|(_, slot)| slot)
    }

    fn change(&mut self, network: Network, change: impl FnOnce(&mut BTreeSet<Arrival>)) {
        let connections = self.by_network.entry(network).or_default();
        let (before, former) = (connections.len(), rank(network, connections));
        change(connections);
        let (after, rank) = (connections.len(), rank(network, connections));
        // Remove a network without connections, because an attacker may use any number of networks.
        if after == 0 {
            self.by_network.remove(&network);
        }
        if let Some(former) = former {
            self.ranks.remove(&former);
        }
        self.ranks.extend(rank);
        self.count = self.count + after - before;
    }
}

fn rank(network: Network, connections: &BTreeSet<Arrival>) -> Option<Rank> {
    let (oldest, _) = connections.first()?;
    Some((connections.len(), Reverse(*oldest), network))
}
