//! [`Proxy`]: a listener on loopback before a server, whose connections can be held back in each direction, or cut.
//!
//! Bytes are never lost or changed, with one exception: the address by which a ZooKeeper tells others to reach it for
//! elections, as they would pass by the proxy otherwise.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// State of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wire {
    /// Bytes pass to the server, and back from it.
    to_server: bool,
    to_client: bool,
    /// Number of times that all connections were cut.
    cuts: u64,
}

/// A proxy in front of a server.
pub(crate) struct Proxy {
    address: SocketAddr,
    wire: watch::Sender<Wire>,
}

impl Proxy {
    /// Listens at `address`. With `advertised` it carries elections, and the connecting server is told of by that address.
    pub(crate) fn start(
        runtime: &Handle,
        address: SocketAddr,
        server: SocketAddr,
        advertised: Option<SocketAddr>,
    ) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let (wire, seen) = watch::channel(Wire {
            to_server: true,
            to_client: true,
            cuts: 0,
        });
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("it does not block");
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, advertised, seen.clone()));
            }
        });
        Ok(Self { address, wire })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds bytes back, in one direction or both, until [`mend`](Self::mend). Nobody is told.
    pub(crate) fn hold(&self, to_server: bool, to_client: bool) {
        self.wire.send_modify(|wire| {
            wire.to_server = !to_server;
            wire.to_client = !to_client;
        });
    }

    pub(crate) fn mend(&self) {
        self.hold(false, false);
    }

    /// Closes all connections. New ones are accepted.
    pub(crate) fn cut(&self) {
        self.wire.send_modify(|wire| wire.cuts += 1);
    }
}

/// Carries a connection to its end.
async fn carry(
    client: TcpStream,
    server: SocketAddr,
    advertised: Option<SocketAddr>,
    mut wire: watch::Receiver<Wire>,
) {
    let cuts = wire.borrow().cuts;
    let mut cut = wire.clone();
    let carrying = async {
        // A connection is a message, too.
        flows(&mut wire, |wire| wire.to_server).await;
        let server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ((mut from_client, to_client), (from_server, mut to_server)) =
            (client.into_split(), server.into_split());
        let there = async {
            if let Some(advertised) = advertised {
                introduce(&mut from_client, &mut to_server, advertised).await?;
            }
            pass(from_client, to_server, wire.clone(), |wire| wire.to_server).await
        };
        let back = pass(from_server, to_client, wire.clone(), |wire| wire.to_client);
        // An end that is gone closes the other one.
        tokio::select! {
            ended = there => ended,
            ended = back => ended,
        }
    };
    tokio::select! {
        _ = carrying => {}
        _ = cut.wait_for(|wire| wire.cuts != cuts) => {}
    }
}

/// Waits until bytes may pass.
async fn flows(wire: &mut watch::Receiver<Wire>, passes: fn(&Wire) -> bool) {
    // The proxy has gone, and this task is about to.
    let _ = wire.wait_for(passes).await;
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
    passes: fn(&Wire) -> bool,
) -> io::Result<()> {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut bytes).await;
        flows(&mut wire, passes).await;
        match read {
            Ok(read) if read > 0 => to.write_all(&bytes[..read]).await?,
            _ => return to.shutdown().await,
        }
    }
}

/// Passes the first message of an election's connection on, with another address of its sender.
///
/// It has a version, the server's number, and the address, with its length. A server that is told of one by a server of a
/// smaller number closes the connection, and connects to that address itself.
async fn introduce(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    advertised: SocketAddr,
) -> io::Result<()> {
    let mut head = [0; 16];
    from.read_exact(&mut head).await?;
    let length = from.read_i32().await?;
    let mut address = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut address).await?;
    let advertised = advertised.to_string();
    let length = (advertised.len() as u32).to_be_bytes();
    let message = [&head[..], &length, advertised.as_bytes()].concat();
    to.write_all(&message).await
}
