//! Sends small requests at once: `TCP_NODELAY` on the connections that zookeeper-client makes.
//!
//! The crate (0.11.2, the latest) does not set it, and writes each request separately. Of a create and a list that are
//! sent together the kernel would then hold back the second until the first is acknowledged, which mostly means
//! answered: two round trips for a lock instead of one. (Java's client sets it.) Measured in rounds beside a create alone,
//! an acquire takes 1.1 to 1.2 times as long as the create with it, and 1.4 to 1.5 times without.
//!
//! The crate neither gives out its sockets nor takes a connector or a resolver, and ZooKeeper has no request that creates
//! and lists, so there is no way round: the sockets are found among this process's descriptors, by their peer's port;
//! `pidfd_getfd` duplicates a descriptor without unsafe code. Where the system forbids it, a lock takes the second round
//! trip. A release of the crate that sets the option makes this file superfluous. Only connections to ZooKeeper need it:
//! those to a served store are our own client's.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::net::{getpeername, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Sets `TCP_NODELAY` on a connection to one of these hosts (`host:port[,host:port…]`) that does not have it. Called for
/// each new connection, so that none is left.
pub(super) fn set_nodelay(hosts: &str) {
    let ports: Vec<u16> = hosts
        .split(',')
        .filter_map(|host| host.rsplit_once(':')?.1.parse().ok())
        .collect();
    if let Err(error) = set_nodelay_on_one(&ports) {
        tracing::debug!(%error, "TCP_NODELAY is not set: a lock takes one round trip more");
    }
}

fn set_nodelay_on_one(ports: &[u16]) -> io::Result<()> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut sockets = sockets()?;
    // The newest descriptors mostly have the highest numbers, and the new connection is the one to be found.
    sockets.sort_unstable_by(|one, other| other.cmp(one));
    for socket in sockets {
        // It may have been closed since it was listed; another that took its number is checked by its peer as well.
        let Ok(socket) = pidfd_getfd(&process, socket, PidfdGetfdFlags::empty()) else {
            continue;
        };
        if peer_port(&socket).is_some_and(|port| ports.contains(&port))
            && !sockopt::tcp_nodelay(&socket)?
        {
            return Ok(sockopt::set_tcp_nodelay(&socket, true)?);
        }
    }
    Ok(())
}

/// Returns the numbers of this process's sockets. Other descriptors must not be duplicated: closing the duplicate of a
/// file would release the process's locks on it (`fcntl`).
fn sockets() -> io::Result<Vec<RawFd>> {
    let mut sockets = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_socket = fs::read_link(entry.path()).is_ok_and(|target| {
            target
                .as_os_str()
                .as_encoded_bytes()
                .starts_with(b"socket:")
        });
        if is_socket && let Some(number) = entry.file_name().to_str() {
            sockets.extend(number.parse::<RawFd>());
        }
    }
    Ok(sockets)
}

/// Returns the port that a socket is connected to.
fn peer_port(socket: &OwnedFd) -> Option<u16> {
    let peer = getpeername(socket.as_fd()).ok()??;
    SocketAddr::try_from(peer).ok().map(|peer| peer.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_to_that_port_and_no_others_send_at_once() {
        let (ours, others) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            TcpListener::bind("127.0.0.1:0").unwrap(),
        );
        let connect = |to: &TcpListener| TcpStream::connect(to.local_addr().unwrap()).unwrap();
        let (first, second, other) = (connect(&ours), connect(&ours), connect(&others));
        let port = ours.local_addr().unwrap().port();
        set_nodelay_on_one(&[port]).unwrap();
        set_nodelay_on_one(&[port]).unwrap();
        assert!(first.nodelay().unwrap() && second.nodelay().unwrap());
        assert!(!other.nodelay().unwrap());
    }
}
