//! [`PeerAddress`]: a client's address. [`Network`]: the part of the address that counts for limits and penalties.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerAddress {
    Tcp(SocketAddr),
    Unix(Credentials),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) uid: u32,
    /// `None` if the server's pid namespace does not show the process.
    pub(super) pid: Option<i32>,
}

/// The part of an address that a client cannot easily change. Limits and penalties count all connections from one
/// network together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Network {
    /// An IPv4 address, even if mapped to IPv6, or the first 64 bits of an IPv6 address.
    Ip(IpAddr),
    User(u32),
}

/// Number of low bits of an IPv6 address that limits ignore, because one client often owns all addresses that differ
/// only in these bits.
const INTERFACE_BITS: u32 = 64;

impl PeerAddress {
    pub(super) fn network(self) -> Network {
        let address = match self {
            Self::Tcp(address) => address,
            Self::Unix(credentials) => return Network::User(credentials.uid),
        };
        Network::Ip(match address.ip().to_canonical() {
            IpAddr::V6(ip) => {
                let bits = ip.to_bits() >> INTERFACE_BITS << INTERFACE_BITS;
                Ipv6Addr::from_bits(bits).into()
            }
            ip => ip,
        })
    }
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(Credentials { uid, pid }) => {
                write!(f, "unix:uid={uid}")?;
                pid.map_or(Ok(()), |pid| write!(f, ",pid={pid}"))
            }
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::User(uid) => write!(f, "uid {uid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_user_count_together_and_are_shown_apart() {
        let of = |uid, pid| PeerAddress::Unix(Credentials { uid, pid });
        assert_eq!(of(7, Some(1)).network(), of(7, None).network());
        assert_ne!(of(7, Some(1)).network(), of(8, Some(1)).network());
        assert_eq!(of(7, Some(1)).to_string(), "unix:uid=7,pid=1");
        assert_eq!(of(7, None).to_string(), "unix:uid=7");
    }
}
