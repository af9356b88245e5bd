//! [`HttpServer`]: serves a command's pages over HTTP on its own thread.
//!
//! The tasks that serve the store run on other threads. The only locks that they share with this thread are held
//! briefly, so no HTTP client can delay the store.

mod body;
mod connections;
mod metrics;
mod stalls;
pub(crate) mod token;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::sync::oneshot;

use self::connections::accept;

pub(crate) use self::body::{Body, read_all};
pub(crate) use self::connections::{Connection, MAX_CONNECTIONS, allow};
pub(crate) use self::metrics::{Health, MetricsPages};

pub(crate) trait Pages: Send + Sync + 'static {
    const NAME: &'static str;

    fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> impl Future<Output = Response<Body>> + Send;

    fn run(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// A port that listens but is not served yet. Connections wait in its queue.
#[derive(Debug)]
pub(crate) struct HttpPort {
    address: SocketAddr,
    listener: TcpListener,
}

#[derive(Debug)]
pub(crate) struct HttpServer {
    address: SocketAddr,
    thread: Background,
}

/// A thread with its own runtime. Dropping this handle ends the thread.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn start<F: Future>(
        name: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    _ = work() => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl HttpPort {
    pub(crate) fn open(address: SocketAddr, option: &str) -> Result<Self, String> {
        let told = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => format!(
                "{address} is in use by another program: choose another address with {option}"
            ),
            _ => format!("{option}: cannot listen on {address}: {error}"),
        };
        let listener = TcpListener::bind(address).map_err(told)?;
        let address = listener.local_addr().map_err(told)?;
        listener.set_nonblocking(true).map_err(told)?;
        Ok(Self { address, listener })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn serve<P: Pages>(self, pages: P) -> Result<HttpServer, String> {
        let Self { address, listener } = self;
        let told = |error: io::Error| format!("cannot serve {address}: {error}");
        let serve = move || async move {
            let pages = Arc::new(pages);
            tokio::select! {
                () = pages.run() => {}
                Err(error) = accept(listener, pages.clone()) => {
                    tracing::error!(%error, "{} not served any more", P::NAME);
                }
            }
        };
        let thread = Background::start("lockkeeper-http", serve).map_err(told)?;
        Ok(HttpServer { address, thread })
    }
}

impl HttpServer {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn into_thread(self) -> Background {
        self.thread
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
