//! TCP and Unix listeners, which start a task for each accepted connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::time::Instant;

use super::connection::serve;
use super::connection_table::{ConnectionGuard, Refusal};
use super::peer::{Credentials, PeerAddress};
use super::{ServerError, Shared};
use crate::model::identity::Identity;

/// Maximum number of connections that the kernel queues. It is high, because after a restart all clients connect at the
/// same time.
pub(super) const BACKLOG: u32 = 4_096;

pub(super) fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServerError> {
    let listening = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Start even while connections of an earlier server are in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listening().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse { address },
        _ => ServerError::Listen { address, source },
    })
}

/// Pause after a failed accept. Usually there are no file descriptors left. Accept then fails immediately, so a loop
/// without a pause would keep a core busy.
const RETRY_DELAY: Duration = Duration::from_millis(50);

pub(super) enum Listener {
    Tcp(TcpListener, ListenerKind),
    Unix(UnixListener),
}

#[derive(Clone)]
pub(super) enum ListenerKind {
    Plain,
    #[cfg(feature = "tls")]
    Tls(Arc<super::tls::Acceptor>),
}

pub(super) async fn accept(listener: Listener, shared: Arc<Shared>) {
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener, kind) => listener
                .accept()
                .await
                .map(|(stream, address)| start(stream, address, &shared, kind)),
            Listener::Unix(listener) => listener
                .accept()
                .await
                .map(|(stream, _)| start_unix(stream, &shared)),
        };
        if let Err(error) = accepted {
            let throttle = &shared.table.log_throttle.accept_failed;
            if let Some(suppressed) = throttle.allow(shared.clock().now()) {
                tracing::warn!(%error, suppressed, "accept failed");
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

fn start(stream: TcpStream, address: SocketAddr, shared: &Arc<Shared>, kind: &ListenerKind) {
    let Some((guard, deadline)) = enter(address.into(), shared) else {
        return;
    };
    let _ = stream.set_nodelay(true);
    let shared = shared.clone();
    match kind.clone() {
        ListenerKind::Plain => tokio::spawn(serve(stream, guard, shared, deadline, None)),
        #[cfg(feature = "tls")]
        ListenerKind::Tls(acceptor) => {
            guard.set_tls();
            tokio::spawn(super::tls::serve(acceptor, stream, guard, shared, deadline))
        }
    };
}

fn start_unix(stream: UnixStream, shared: &Arc<Shared>) {
    // Limits apply to the user, so refuse a connection without credentials.
    let Ok(peer) = stream.peer_cred() else { return };
    let address = PeerAddress::Unix(Credentials {
        uid: peer.uid(),
        // The kernel reports 0 for a process in a pid namespace that ours does not contain.
        pid: peer.pid().filter(|pid| *pid > 0),
    });
    // The kernel vouches for the user id, so the id proves an identity. All users who are unknown in our user namespace
    // share one id, which therefore proves nothing.
    let identity = (peer.uid() != UNKNOWN_USER).then(|| Identity::uid(peer.uid()));
    if let Some((guard, deadline)) = enter(address, shared) {
        tokio::spawn(serve(stream, guard, shared.clone(), deadline, identity));
    }
}

/// Id that Linux shows for users outside the server's user namespace (`overflowuid`).
const UNKNOWN_USER: u32 = 65_534;

pub(super) fn enter(address: PeerAddress, shared: &Shared) -> Option<(ConnectionGuard, Instant)> {
    match shared.table.enter(address) {
        Ok(guard) => Some((guard, Instant::now() + shared.limits.handshake)),
        // The caller drops the socket, which closes the connection without a task, a handshake or TLS.
        Err(Refusal::Shutdown) => None,
        Err(refusal) => {
            if let Some(suppressed) = shared
                .table
                .log_throttle
                .refused
                .allow(shared.clock().now())
            {
                tracing::warn!(%address, reason = %refusal, suppressed, "connection refused");
            }
            None
        }
    }
}
