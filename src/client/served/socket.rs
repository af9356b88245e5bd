//! Addresses of servers ([`Endpoint`]), the ways to connect to them ([`Dialer`]), and non-blocking connections that any
//! thread may use ([`Socket`], [`RegisteredSocket`]).

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use tokio::io::Interest;
use tokio::runtime::Handle;

pub(crate) use super::session::Dial;
use crate::runtime::future::BoxFuture;
use crate::runtime::platform::random;

#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) names: Vec<String>,
    pub(crate) dialer: Arc<dyn Dialer>,
    pub(crate) requires_tls: bool,
    /// True if the servers do not know our protocol extension.
    pub(crate) is_plain: bool,
    pub(crate) ends_with_process: bool,
    pub(crate) is_network: bool,
    pub(crate) longest_pause: Duration,
}

impl Endpoint {
    pub(crate) fn tcp(hosts: Vec<String>, requires_tls: bool, is_zookeeper: bool) -> Self {
        let is_loopback = |host: &String| {
            let address = host.parse::<SocketAddr>();
            host.starts_with("localhost:") || address.is_ok_and(|it| it.ip().is_loopback())
        };
        let is_startable = !requires_tls && !is_zookeeper && hosts.iter().all(is_loopback);
        Self {
            names: hosts.clone(),
            dialer: Arc::new(TcpDialer {
                hosts,
                is_startable,
            }),
            requires_tls,
            is_plain: is_zookeeper,
            // Over TCP, the server cannot know which process is at the other end, and a closed connection does not
            // prove that this process has died.
            ends_with_process: false,
            is_network: true,
            // A long pause spreads the reconnections to a restarted server.
            longest_pause: Duration::from_secs(1),
        }
    }

    #[cfg(unix)]
    pub(crate) fn unix(path: PathBuf, ends_with_process: bool) -> Self {
        Self {
            names: vec![path.display().to_string()],
            dialer: Arc::new(UnixDialer(path)),
            requires_tls: false,
            is_plain: false,
            ends_with_process,
            is_network: false,
            // An attempt costs only two system calls, so the pause can be short. With a longer pause, a client could
            // miss a server that is repeatedly killed and listens only briefly each time.
            longest_pause: Duration::from_millis(100),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(","))
    }
}

pub(crate) trait Dialer: fmt::Debug + Send + Sync {
    /// The future must run on a runtime with IO.
    fn connect(&self, to: Dial) -> BoxFuture<io::Result<Arc<dyn Socket>>>;

    /// Returns true if this error of [`connect`](Self::connect) means that no program listens at an address of this
    /// machine. Messages about the failure then advise the user to start a server.
    fn is_absent(&self, _error: ErrorKind) -> bool {
        false
    }

    fn seed(&self) -> u64 {
        u64::from_ne_bytes(random())
    }

    fn is_simulated(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct TcpDialer {
    hosts: Vec<String>,
    /// True if the user can start the servers, because they are Lockkeeper servers on this machine without TLS.
    is_startable: bool,
}

impl Dialer for TcpDialer {
    fn connect(&self, to: Dial) -> BoxFuture<io::Result<Arc<dyn Socket>>> {
        let host = self.hosts[to.server].clone();
        Box::pin(async move {
            let addresses = tokio::net::lookup_host(host).await?;
            let mut addresses: Vec<_> = addresses.collect();
            // An address that does not respond uses up the whole attempt, so the next attempt starts with another
            // address.
            if !addresses.is_empty() {
                let first = to.round % addresses.len();
                addresses.rotate_left(first);
            }
            let socket = tokio::net::TcpStream::connect(&addresses[..]).await?;
            let socket = socket.into_std()?;
            // Without `TCP_NODELAY`, a small request would wait until the server has acknowledged the previous one.
            socket.set_nodelay(true)?;
            Ok(Arc::new(socket) as Arc<dyn Socket>)
        })
    }

    fn is_absent(&self, error: ErrorKind) -> bool {
        self.is_startable && error == ErrorKind::ConnectionRefused
    }
}

#[cfg(unix)]
#[derive(Debug)]
struct UnixDialer(PathBuf);

#[cfg(unix)]
impl Dialer for UnixDialer {
    fn connect(&self, _: Dial) -> BoxFuture<io::Result<Arc<dyn Socket>>> {
        let path = self.0.clone();
        Box::pin(async move {
            let socket = tokio::net::UnixStream::connect(path).await?;
            Ok(Arc::new(socket.into_std()?) as Arc<dyn Socket>)
        })
    }

    fn is_absent(&self, error: ErrorKind) -> bool {
        matches!(error, ErrorKind::ConnectionRefused | ErrorKind::NotFound)
    }
}

pub(crate) trait Socket: fmt::Debug + Send + Sync {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    fn shutdown(&self) -> io::Result<()>;

    /// Blocks until the socket accepts more bytes. Returns false on timeout.
    fn wait_writable(&self, limit: Duration) -> bool;

    /// Registers the socket with the current runtime.
    ///
    /// # Panics
    /// In a runtime without IO.
    fn register(&self) -> io::Result<Box<dyn RegisteredSocket>>;
}

pub(super) fn registered(
    socket: &dyn Socket,
    runtime: &Handle,
) -> Option<Box<dyn RegisteredSocket>> {
    let _entered = runtime.enter();
    // tokio panics in a runtime without IO, and offers no way to check for IO first.
    let registered = catch_unwind(AssertUnwindSafe(|| socket.register()));
    registered.ok()?.ok()
}

impl Read for &dyn Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read(buffer)
    }
}

impl Write for &dyn Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (**self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) trait RegisteredSocket: Send + Sync {
    /// Resolves when the socket may be ready for an operation of this interest.
    fn poll_ready(&self, interest: Interest, context: &mut Context<'_>) -> Poll<()>;

    /// Runs `io` on the socket. If `io` returns `WouldBlock`, the next [`poll_ready`](Self::poll_ready) waits again.
    fn try_io(&self, interest: Interest, io: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()>;
}

macro_rules! system_socket {
    ($socket:ty, $registered:ty) => {
        impl Socket for $socket {
            fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                Read::read(&mut &*self, buffer)
            }

            fn write(&self, bytes: &[u8]) -> io::Result<usize> {
                Write::write(&mut &*self, bytes)
            }

            fn shutdown(&self) -> io::Result<()> {
                self.shutdown(Shutdown::Both)
            }

            fn wait_writable(&self, limit: Duration) -> bool {
                wait_writable(self, limit)
            }

            fn register(&self) -> io::Result<Box<dyn RegisteredSocket>> {
                Ok(Box::new(<$registered>::from_std(self.try_clone()?)?))
            }
        }

        impl RegisteredSocket for $registered {
            fn poll_ready(&self, interest: Interest, context: &mut Context<'_>) -> Poll<()> {
                // Ignore an error here, because the next use of the socket returns it too.
                let is_readable =
                    interest.is_readable() && self.poll_read_ready(context).is_ready();
                let is_writable =
                    interest.is_writable() && self.poll_write_ready(context).is_ready();
                match is_readable || is_writable {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }

            fn try_io(
                &self,
                interest: Interest,
                io: &mut dyn FnMut() -> io::Result<()>,
            ) -> io::Result<()> {
                self.try_io(interest, io)
            }
        }
    };
}

system_socket!(TcpStream, tokio::net::TcpStream);
#[cfg(unix)]
system_socket!(UnixStream, tokio::net::UnixStream);

fn wait_writable(socket: &impl AsFd, limit: Duration) -> bool {
    let Ok(limit) = limit.try_into() else {
        return false;
    };
    let mut sockets = [PollFd::new(socket, PollFlags::OUT)];
    poll(&mut sockets, Some(&limit)).is_ok_and(|ready| ready > 0)
}
