//! [`Mortal`]: a client that can be cut off from its store, as by the death of its program.
//!
//! The store sees the same in both cases: the client falls silent without a closeSession, and the
//! session lives on until its timeout has passed.
//!
//! - In this process the client's requests go through a [`Wire`], which swallows them once it is cut.
//! - To a server they go through a relay on a local port, which is closed with all its connections.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper::{Client, Clock, ConnectOptions, Error, connect_with};
use lockkeeper_store::{Backend, BoxFuture, Connector, Request, Response, SessionStatus};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A client, and what it takes to cut it off.
pub(crate) struct Mortal {
    client: Client,
    cut: Arc<AtomicBool>,
    relay: Option<JoinHandle<()>>,
}

impl Mortal {
    /// Opens another client of the store that `first` is a client of.
    pub(crate) async fn open(first: &Client, options: ConnectOptions) -> Result<Self, Error> {
        let cut = Arc::<AtomicBool>::default();
        let url = first.target().to_owned();
        let Some((scheme, hosts)) = url.split_once("://") else {
            let wires = Wires {
                connector: first.connector().clone(),
                cut: cut.clone(),
            };
            return Ok(Self {
                client: Client::open(Arc::new(wires), url, options).await?,
                cut,
                relay: None,
            });
        };
        let (hosts, chroot) = hosts.split_at(hosts.find('/').unwrap_or(hosts.len()));
        let (port, relay) = relay(hosts).await.map_err(unreachable)?;
        let near = format!("{scheme}://127.0.0.1:{port}{chroot}");
        Ok(Self {
            client: connect_with(near.as_str(), options).await?,
            cut,
            relay: Some(relay),
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Cuts the client off. From now on nothing that it says reaches the store.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        if let Some(relay) = &self.relay {
            relay.abort();
        }
    }
}

fn unreachable(error: std::io::Error) -> Error {
    Error::Protocol(format!("no relay could be opened: {error}"))
}

/// Opens a local port that leads to the first of `hosts` that answers. Aborting the task closes
/// the port and all connections.
async fn relay(hosts: &str) -> std::io::Result<(u16, JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
    let relay = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let hosts = hosts.clone();
            connections.spawn(async move {
                for host in hosts {
                    if let Ok(mut far) = TcpStream::connect(host).await {
                        // Either end may hang up; the other is told by the closing.
                        let _ = copy_bidirectional(&mut near, &mut far).await;
                        return;
                    }
                }
            });
        }
    });
    Ok((port, relay))
}

/// Opens sessions whose requests go through a [`Wire`].
#[derive(Debug)]
struct Wires {
    connector: Arc<dyn Connector>,
    cut: Arc<AtomicBool>,
}

impl Connector for Wires {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>, Error>> {
        let (opening, cut) = (self.connector.open(options), self.cut.clone());
        Box::pin(async move {
            let backend = opening.await?;
            Ok(Arc::new(Wire { backend, cut }) as Arc<dyn Backend>)
        })
    }

    fn clock(&self) -> &Clock {
        self.connector.clock()
    }
}

/// A session's way to its store, which can be cut.
#[derive(Debug)]
struct Wire {
    backend: Arc<dyn Backend>,
    cut: Arc<AtomicBool>,
}

impl Backend for Wire {
    fn submit(&self, request: Request) -> Response {
        if self.cut.load(Ordering::Acquire) {
            return Response::pending(std::future::pending());
        }
        self.backend.submit(request)
    }

    fn status(&self) -> &Arc<SessionStatus> {
        self.backend.status()
    }

    fn store_id(&self) -> Option<&str> {
        self.backend.store_id()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.cut.load(Ordering::Acquire) {
            // Dropping a backend closes its session, and the dead close nothing.
            std::mem::forget(self.backend.clone());
        }
    }
}
