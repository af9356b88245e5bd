//! [`Address`]: a server on this machine, over TCP or a Unix socket.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Address {
    pub(crate) fn loopback(port: u16) -> Self {
        Self::Tcp((Ipv4Addr::LOCALHOST, port).into())
    }

    /// Returns the address in the URL of a served store. `None` if it has no single address.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        if scheme.ends_with("+unix") {
            let path = rest.split('?').next()?;
            return Some(Self::Unix(path.into()));
        }
        rest.split('/').next()?.parse().ok().map(Self::Tcp)
    }

    /// Connects, over TCP with `TCP_NODELAY`.
    pub(crate) async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(address) => Box::new(tcp(*address).await?),
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}

async fn tcp(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
