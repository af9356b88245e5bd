//! Listening sockets, of TCP and Unix: each accepts connections, and starts a task for each that the connection table admits.

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

/// Connections that the kernel keeps for a listener until they are accepted: after a restart all clients come at once.
pub(super) const BACKLOG: u32 = 4_096;

/// Listens on an address. Returns the address in use as well, since port 0 takes any free port.
pub(super) fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServerError> {
    let listening = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A restarted server must not wait until its predecessor's connections have left TIME_WAIT.
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

/// Pause after a connection could not be accepted, mostly for lack of file descriptors. The error returns at once until
/// one is closed, so without a pause this would be a busy loop.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// A listening socket, with the transport of its connections.
pub(super) enum Listener {
    Tcp(TcpListener, ListenerKind),
    Unix(UnixListener),
}

/// Transport of a TCP listener's connections.
#[derive(Clone)]
pub(super) enum ListenerKind {
    Plain,
    #[cfg(feature = "tls")]
    Tls(Arc<super::tls::Acceptor>),
}

/// Accepts connections for ever; the server aborts the task to stop.
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
    // A failure is ignored: replies would only be slower.
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
    // Every connected Unix socket has credentials, and without a user no limit would hold.
    let Ok(peer) = stream.peer_cred() else { return };
    let address = PeerAddress::Unix(Credentials {
        uid: peer.uid(),
        // 0 stands for a process of a pid namespace that this one does not contain.
        pid: peer.pid().filter(|pid| *pid > 0),
    });
    // The kernel's word, so it is a proof where one is required: the file's mode has let this user in, and lists name
    // it. The common id of all users unknown here is nobody's.
    let identity = (peer.uid() != UNKNOWN_USER).then(|| Identity::uid(peer.uid()));
    if let Some((guard, deadline)) = enter(address, shared) {
        tokio::spawn(serve(stream, guard, shared.clone(), deadline, identity));
    }
}

/// Number by which Linux shows every user that the server's user namespace does not have (`overflowuid`).
const UNKNOWN_USER: u32 = 65_534;

/// Enters a connection in the table. Returns its guard and the deadline of its handshake; `None` if it is refused.
pub(super) fn enter(address: PeerAddress, shared: &Shared) -> Option<(ConnectionGuard, Instant)> {
    match shared.table.enter(address) {
        Ok(guard) => Some((guard, Instant::now() + shared.limits.handshake)),
        // The socket is closed by its drop, without a byte: no task, no handshake and no TLS for a refused connection.
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
