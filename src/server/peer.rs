//! [`PeerAddress`]: a client's address, and the part of it by which limits and penalties count ([`Network`]).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerAddress {
    Tcp(SocketAddr),
    Unix(Credentials),
}

/// As of the connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) uid: u32,
    /// `None` for a process that this server's pid namespace does not show.
    pub(super) pid: Option<i32>,
}

/// Limits and penalties count by this part of an address, which a client cannot choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Network {
    /// An IPv4 address, even if it arrived over IPv6, or the first 64 bits of an IPv6 address.
    Ip(IpAddr),
    /// A user of this machine, whose processes count together.
    User(u32),
}

/// Bits of an IPv6 address below the network's. One client may have all of these addresses.
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
