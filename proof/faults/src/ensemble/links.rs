//! [`Links`]: the proxied connections between the servers of an ensemble.

use std::io;
use std::net::SocketAddr;

use testkit::{Proxy, free_address};

use super::SERVERS;

/// The direction in which a server is cut off from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// Nothing that it sends reaches them.
    Outgoing,
    /// Nothing that they send reaches it.
    Incoming,
    Both,
}

#[derive(Clone, Copy)]
pub(super) struct Peer {
    pub(super) quorum: SocketAddr,
    pub(super) election: SocketAddr,
}

struct ProxiedLink {
    from: usize,
    to: usize,
    quorum: Proxy,
    election: Proxy,
}

pub(super) struct Links {
    peers: Vec<Peer>,
    links: Vec<ProxiedLink>,
}

impl Links {
    pub(super) fn start() -> io::Result<Self> {
        let peer = |_| Peer {
            quorum: free_address(),
            election: free_address(),
        };
        let peers: Vec<_> = (0..SERVERS).map(peer).collect();
        let pairs = || (0..SERVERS).flat_map(|from| (0..SERVERS).map(move |to| (from, to)));
        let pairs = || pairs().filter(|(from, to)| from != to);
        // Each proxy of elections advertises the one for the opposite direction.
        let entrances: Vec<_> = pairs().map(|pair| (pair, free_address())).collect();
        let entrance = |pair| {
            let found = entrances.iter().find(|(other, _)| *other == pair);
            found.expect("there is one for each pair").1
        };
        let link = |(from, to): (usize, usize)| {
            let Peer { quorum, election } = peers[to];
            let (own, back) = (entrance((from, to)), entrance((to, from)));
            Ok(ProxiedLink {
                from,
                to,
                quorum: Proxy::of_bytes(free_address(), quorum)?,
                election: Proxy::of_elections(own, election, back)?,
            })
        };
        let links = pairs().map(link).collect::<io::Result<_>>()?;
        Ok(Self { peers, links })
    }

    /// Returns the addresses at which a server listens, or reaches another one.
    pub(super) fn peer(&self, from: usize, to: usize) -> Peer {
        let link = self
            .links
            .iter()
            .find(|link| (link.from, link.to) == (from, to));
        link.map_or(self.peers[to], |link| Peer {
            quorum: link.quorum.address(),
            election: link.election.address(),
        })
    }

    /// Cuts a server off from the others, in one direction or both. Its clients still reach it.
    pub(super) fn cut_off(&self, number: usize, silence: Silence) {
        let (outgoing, incoming) = (silence != Silence::Incoming, silence != Silence::Outgoing);
        for link in &self.links {
            for proxy in [&link.quorum, &link.election] {
                let is_of = |end: usize, requests: bool| end == number && requests;
                if is_of(link.from, outgoing) || is_of(link.to, incoming) {
                    proxy.hold_requests();
                }
                if is_of(link.from, incoming) || is_of(link.to, outgoing) {
                    proxy.hold_replies();
                }
            }
        }
    }

    pub(super) fn mend(&self) {
        for link in &self.links {
            link.quorum.mend();
            link.election.mend();
        }
    }
}
