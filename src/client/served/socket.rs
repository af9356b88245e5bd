//! Sockets of TCP and Unix: the place of a server ([`Endpoint`]), a connection to it that any thread may use
//! ([`Socket`]), and one that a runtime waits for ([`RegisteredSocket`]).

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(unix)]
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::Interest;
use tokio::runtime::Handle;

use super::session::Dial;
use crate::runtime::random::random;
#[cfg(feature = "simulation")]
use crate::runtime::simnet::{Network, SimSocket};

/// Place at which the servers of a store listen.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    Tcp {
        /// Each as `host:port`: of one server, or of the members of an ensemble.
        hosts: Vec<String>,
        /// True if they are connected to with TLS and never without.
        requires_tls: bool,
        /// True for servers that do not know our extension of the protocol.
        is_zookeeper: bool,
    },
    #[cfg(unix)]
    Unix {
        path: PathBuf,
        /// True if the server is to end a session with the client's process.
        ends_with_process: bool,
    },
    /// Hosts of a simulated network.
    #[cfg(feature = "simulation")]
    Simulated(SimEndpoint),
}

/// The servers of a simulated store, and the host that connects to them.
#[cfg(feature = "simulation")]
#[derive(Clone, Debug)]
pub(crate) struct SimEndpoint {
    pub(crate) network: Network,
    pub(crate) client: String,
    /// One, or the members of an ensemble.
    pub(crate) servers: Vec<String>,
    /// True for a client that does not know our extension of the protocol.
    pub(crate) is_plain: bool,
}

impl Endpoint {
    /// Returns true if the client states its process to the server.
    pub(super) fn states_process(&self) -> bool {
        match self {
            // A closed TCP connection proves nothing, and the kernel does not say which process is behind one.
            Self::Tcp { .. } => false,
            #[cfg(unix)]
            Self::Unix {
                ends_with_process, ..
            } => *ends_with_process,
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => false,
        }
    }

    /// Returns true if the client asks for no extension of the protocol.
    pub(super) fn is_plain(&self) -> bool {
        match self {
            Self::Tcp { is_zookeeper, .. } => *is_zookeeper,
            #[cfg(unix)]
            Self::Unix { .. } => false,
            #[cfg(feature = "simulation")]
            Self::Simulated(endpoint) => endpoint.is_plain,
        }
    }

    /// Returns the seed of a session's pauses between attempts to connect.
    pub(super) fn seed(&self) -> u64 {
        match self {
            #[cfg(feature = "simulation")]
            Self::Simulated(endpoint) => endpoint.network.draw(),
            _ => u64::from_ne_bytes(random()),
        }
    }

    /// Returns the longest pause between two attempts to connect.
    pub(super) fn longest_pause(&self) -> Duration {
        match self {
            // A server that comes back is not to be met by all clients of a network at once.
            Self::Tcp { .. } => Duration::from_secs(1),
            // An attempt costs two system calls. And a server that is killed again and again listens for moments only:
            // with long pauses a client misses them all, until its session is given up.
            #[cfg(unix)]
            Self::Unix { .. } => Duration::from_millis(100),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => Duration::from_secs(1),
        }
    }

    /// Returns true for a host of a simulated network.
    pub(super) fn is_simulated(&self) -> bool {
        #[cfg(feature = "simulation")]
        if matches!(self, Self::Simulated(_)) {
            return true;
        }
        false
    }

    /// Returns true if the way to the server may lead through a network.
    pub(super) fn is_network(&self) -> bool {
        match self {
            Self::Tcp { .. } => true,
            #[cfg(unix)]
            Self::Unix { .. } => false,
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => true,
        }
    }

    /// Returns true if TLS is asked for by the URL.
    pub(super) fn requires_tls(&self) -> bool {
        matches!(
            self,
            Self::Tcp {
                requires_tls: true,
                ..
            }
        )
    }

    /// Returns true if an error of [`connect`](Self::connect) says that no program of this machine listens there,
    /// and that TLS is not asked for: such a server is started without more ado.
    pub(super) fn is_absent(&self, error: &io::Error) -> bool {
        let kind = error.kind();
        match self {
            Self::Tcp {
                hosts,
                requires_tls: false,
                is_zookeeper: false,
            } => {
                let is_loopback = |host: &String| {
                    let address = host.parse::<SocketAddr>();
                    host.starts_with("localhost:") || address.is_ok_and(|it| it.ip().is_loopback())
                };
                hosts.iter().all(is_loopback) && kind == ErrorKind::ConnectionRefused
            }
            Self::Tcp { .. } => false,
            #[cfg(unix)]
            Self::Unix { .. } => matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => false,
        }
    }

    /// Returns the names of the servers in messages: `host:port`, or the path of a socket.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Self::Tcp { hosts, .. } => hosts.clone(),
            #[cfg(unix)]
            Self::Unix { path, .. } => vec![path.display().to_string()],
            #[cfg(feature = "simulation")]
            Self::Simulated(endpoint) => endpoint.servers.clone(),
        }
    }

    /// Connects to a server, on a runtime with IO.
    pub(super) async fn connect(&self, to: Dial) -> io::Result<Socket> {
        match self {
            Self::Tcp { hosts, .. } => {
                let addresses = tokio::net::lookup_host(&hosts[to.server]).await?;
                let mut addresses: Vec<_> = addresses.collect();
                // An address that does not answer takes the whole attempt, so the next one starts with another.
                if !addresses.is_empty() {
                    let first = to.round % addresses.len();
                    addresses.rotate_left(first);
                }
                let socket = tokio::net::TcpStream::connect(&addresses[..]).await?;
                let socket = socket.into_std()?;
                // Two small requests that are sent one after the other are not held back for the reply to the first.
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            }
            #[cfg(unix)]
            Self::Unix { path, .. } => {
                let socket = tokio::net::UnixStream::connect(path).await?;
                Ok(Socket::Unix(socket.into_std()?))
            }
            #[cfg(feature = "simulation")]
            Self::Simulated(endpoint) => {
                let server = &endpoint.servers[to.server];
                let connecting = endpoint.network.connect(&endpoint.client, server);
                connecting.await.map(Socket::Simulated)
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

/// A non-blocking socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    #[cfg(feature = "simulation")]
    Simulated(SimSocket),
}

impl Socket {
    /// Returns another handle to it.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(socket) => socket.try_clone().map(Self::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => socket.try_clone().map(Self::Unix),
            #[cfg(feature = "simulation")]
            Self::Simulated(socket) => Ok(Self::Simulated(socket.clone())),
        }
    }

    /// Ends the connection, in both directions.
    pub(super) fn shutdown(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.shutdown(Shutdown::Both),
            #[cfg(unix)]
            Self::Unix(socket) => socket.shutdown(Shutdown::Both),
            #[cfg(feature = "simulation")]
            Self::Simulated(socket) => {
                socket.shutdown();
                Ok(())
            }
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&mut &*socket).read(buffer),
            #[cfg(unix)]
            Socket::Unix(socket) => (&mut &*socket).read(buffer),
            #[cfg(feature = "simulation")]
            Socket::Simulated(socket) => socket.read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&mut &*socket).write(bytes),
            #[cfg(unix)]
            Socket::Unix(socket) => (&mut &*socket).write(bytes),
            #[cfg(feature = "simulation")]
            Socket::Simulated(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A handle to a socket, registered with a runtime.
#[derive(Debug)]
pub(super) enum RegisteredSocket {
    Tcp(tokio::net::TcpStream),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
    #[cfg(feature = "simulation")]
    Simulated(SimSocket),
}

impl RegisteredSocket {
    /// Registers a socket; `None` where the runtime is shut down, or was built without IO.
    pub(super) fn new(socket: &Socket, runtime: &Handle) -> Option<Self> {
        let socket = socket.try_clone().ok()?;
        let _entered = runtime.enter();
        // tokio panics in a runtime without IO, and has no way to ask.
        let registered = catch_unwind(AssertUnwindSafe(|| match socket {
            Socket::Tcp(socket) => tokio::net::TcpStream::from_std(socket).map(Self::Tcp),
            #[cfg(unix)]
            Socket::Unix(socket) => tokio::net::UnixStream::from_std(socket).map(Self::Unix),
            #[cfg(feature = "simulation")]
            Socket::Simulated(socket) => Ok(Self::Simulated(socket)),
        }));
        registered.ok()?.ok()
    }

    /// Waits until the socket may be ready.
    ///
    /// Cancel safe.
    pub(super) async fn ready(&self, interest: Interest) {
        // An error of the registration shows itself at the next use of the socket.
        let _ = match self {
            Self::Tcp(socket) => socket.ready(interest).await,
            #[cfg(unix)]
            Self::Unix(socket) => socket.ready(interest).await,
            #[cfg(feature = "simulation")]
            Self::Simulated(socket) => {
                let (for_reading, for_writing) = (interest.is_readable(), interest.is_writable());
                socket.ready(for_reading, for_writing).await;
                return;
            }
        };
    }

    /// Uses the socket. `WouldBlock` has [`ready`](Self::ready) wait again.
    pub(super) fn try_io<T>(
        &self,
        interest: Interest,
        io: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match self {
            Self::Tcp(socket) => socket.try_io(interest, io),
            #[cfg(unix)]
            Self::Unix(socket) => socket.try_io(interest, io),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => io(),
        }
    }
}
