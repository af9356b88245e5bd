//! [`Mortal`]: a client that can be cut off from its store, as by the death of its program.
//!
//! The store sees the same in both cases: the client falls silent without a closeSession, and the
//! session lives on until its timeout has passed. In this process the client's requests go through a
//! [`Wire`], which swallows them after the cut; to a server they go through a relay on a local port
//! or a socket, which the cut closes with all its connections.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockkeeper::{Client, Clock, ConnectOptions, Error, connect_with};
use lockkeeper_store::{Backend, BoxFuture, Connector, Request, Response, SessionStatus};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

/// A client with its means of being cut off.
pub(crate) struct Mortal {
    client: Client,
    cut: Arc<AtomicBool>,
    relay: Option<AbortHandle>,
}

impl Mortal {
    /// Opens another client of the store that `first` is a client of.
    pub(crate) async fn open(first: &Client, options: ConnectOptions) -> Result<Self, Error> {
        let cut = Arc::<AtomicBool>::default();
        let url = first.target();
        let (client, relay) = match url.split_once("://") {
            None => {
                let wires = Arc::new(Wires {
                    connector: first.connector().clone(),
                    cut: cut.clone(),
                });
                (Client::open(wires, url.to_owned(), options).await?, None)
            }
            Some(("lockkeeper+unix", target)) => {
                static RELAYS: AtomicUsize = AtomicUsize::new(0);
                let (socket, query) = target.split_at(target.find('?').unwrap_or(target.len()));
                let near = format!("{socket}-{}", RELAYS.fetch_add(1, Ordering::Relaxed));
                let relay = relay_unix(&near, socket.to_owned()).map_err(no_relay)?;
                let near = format!("lockkeeper+unix://{near}{query}");
                (connect_with(near.as_str(), options).await?, Some(relay))
            }
            Some((scheme, hosts)) => {
                let (hosts, chroot) = hosts.split_at(hosts.find('/').unwrap_or(hosts.len()));
                let (port, relay) = relay(hosts.to_owned()).await.map_err(no_relay)?;
                let near = format!("{scheme}://127.0.0.1:{port}{chroot}");
                (connect_with(near.as_str(), options).await?, Some(relay))
            }
        };
        Ok(Self { client, cut, relay })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Cuts the client off. From now on nothing that it sends reaches the store.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        if let Some(relay) = &self.relay {
            relay.abort();
        }
    }
}

/// Opens a local port that leads to the first of `hosts` that answers. Aborting the task closes
/// the port and all connections.
async fn relay(hosts: String) -> std::io::Result<(u16, AbortHandle)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let relay = tokio::spawn(async move {
        // Dropped with this task, which aborts its own tasks.
        let mut connections = JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let hosts = hosts.clone();
            connections.spawn(async move {
                for host in hosts.split(',') {
                    if let Ok(mut far) = TcpStream::connect(host).await {
                        // Either end may hang up; the other sees its connection close.
                        let _ = copy_bidirectional(&mut near, &mut far).await;
                        return;
                    }
                }
            });
        }
    });
    Ok((port, relay.abort_handle()))
}

/// The same for a Unix socket, from one path to another.
fn relay_unix(near: &str, far: String) -> std::io::Result<AbortHandle> {
    let listener = UnixListener::bind(near)?;
    let relay = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let far = far.clone();
            connections.spawn(async move {
                if let Ok(mut far) = UnixStream::connect(far).await {
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
    });
    Ok(relay.abort_handle())
}

fn no_relay(error: std::io::Error) -> Error {
    Error::Protocol(format!("no relay could be opened: {error}"))
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

/// A session's connection to its store, which can be cut.
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
            // Dropping the backend would close its session, which a dead program cannot do.
            std::mem::forget(self.backend.clone());
        }
    }
}
