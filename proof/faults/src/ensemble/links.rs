//! [`Links`]: the proxied connections between the servers of an ensemble.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

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

/// The two addresses of a ZooKeeper server.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    pub(super) quorum: SocketAddr,
    pub(super) election: SocketAddr,
}

struct ProxiedLink {
    from: usize,
    to: usize,
    proxies: Vec<Proxy>,
}

pub(super) struct Links(Vec<ProxiedLink>);

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    let all = (0..SERVERS).flat_map(|from| (0..SERVERS).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
}

impl Links {
    /// Returns the links of ZooKeeper servers, and for each server the addresses of all as it knows them.
    pub(super) fn of_zookeepers() -> io::Result<(Self, Vec<Vec<Peer>>)> {
        let peer = |_| Peer {
            quorum: free_address(),
            election: free_address(),
        };
        let peers: Vec<_> = (0..SERVERS).map(peer).collect();
        // The entrances of the links, or the server's own addresses. Each proxy of elections advertises the one for
        // the opposite direction.
        let known = |from| {
            let entrance = |to| if from == to { peers[to] } else { peer(to) };
            (0..SERVERS).map(entrance).collect::<Vec<_>>()
        };
        let known: Vec<_> = (0..SERVERS).map(known).collect();
        let link = |(from, to): (usize, usize)| {
            let (entrance, back) = (known[from][to], known[to][from]);
            let quorum = Proxy::of_bytes(entrance.quorum, peers[to].quorum)?;
            let election =
                Proxy::of_elections(entrance.election, peers[to].election, back.election)?;
            Ok(ProxiedLink {
                from,
                to,
                proxies: vec![quorum, election],
            })
        };
        let links = pairs().map(link).collect::<io::Result<_>>()?;
        Ok((Self(links), known))
    }

    /// Returns the links of etcd members, which listen at these addresses. All members know each other by the same
    /// names, so each member needs a `/etc/hosts` in which they are at [`entrance`].
    pub(super) fn of_etcds(peers: &[SocketAddr]) -> io::Result<Self> {
        let link = |(from, to): (usize, usize)| {
            let entrance = SocketAddr::from((entrance(from, to), peers[to].port()));
            Ok(ProxiedLink {
                from,
                to,
                proxies: vec![Proxy::of_bytes(entrance, peers[to])?],
            })
        };
        Ok(Self(pairs().map(link).collect::<io::Result<_>>()?))
    }

    /// Cuts a server off from the others, in one direction or both. Its clients still reach it.
    pub(super) fn cut_off(&self, number: usize, silence: Silence) {
        let (outgoing, incoming) = (silence != Silence::Incoming, silence != Silence::Outgoing);
        for link in &self.0 {
            for proxy in &link.proxies {
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
        let proxies = self.0.iter().flat_map(|link| &link.proxies);
        proxies.for_each(Proxy::mend);
    }
}

/// Returns the loopback address at which a member reaches another one.
pub(super) fn entrance(from: usize, to: usize) -> Ipv4Addr {
    match from == to {
        true => Ipv4Addr::LOCALHOST,
        false => Ipv4Addr::new(127, 10 + from as u8, 10 + to as u8, 1),
    }
}
