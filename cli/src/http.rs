//! [`HttpServer`]: pages of a command over HTTP, on a thread of its own: metrics and health, or the dashboard.
//!
//! The thread shares nothing with the tasks that serve the store but the locks that a reading takes for a moment: no
//! client of this port, however hostile, keeps the store from its work.

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

/// The pages of a port.
pub(crate) trait Pages: Send + Sync + 'static {
    /// Name of the pages, for the log.
    const NAME: &'static str;

    /// Answers a request.
    fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> impl Future<Output = Response<Body>> + Send;

    /// Works beside the requests, for ever.
    fn run(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// An open port that does not serve yet: connections wait.
#[derive(Debug)]
pub(crate) struct HttpPort {
    address: SocketAddr,
    listener: TcpListener,
}

/// A server of pages. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct HttpServer {
    address: SocketAddr,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpPort {
    /// Listens.
    ///
    /// # Errors
    /// A sentence for the operator, who has set the address with `option`.
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

    /// Serves pages.
    ///
    /// # Errors
    /// If the system gives no thread, or no further file.
    pub(crate) fn serve<P: Pages>(self, pages: P) -> Result<HttpServer, String> {
        let Self { address, listener } = self;
        let told = |error: io::Error| format!("cannot serve {address}: {error}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(told)?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            let pages = Arc::new(pages);
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = pages.run() => {}
                    Err(error) = accept(listener, pages.clone()) => {
                        tracing::error!(%error, "{} not served any more", P::NAME);
                    }
                }
            });
        };
        let thread = std::thread::Builder::new().name("lockkeeper-http".into());
        let thread = thread.spawn(serve).map_err(told)?;
        Ok(HttpServer {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl HttpServer {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic ends the process.
            let _ = thread.join();
        }
    }
}
