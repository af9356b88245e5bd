//! [`HttpServer`]: metrics and health of a command, over HTTP, on a thread of its own.
//!
//! The thread shares nothing with the tasks that serve the store but the locks that a reading takes for a moment: no
//! client of this port, however hostile, keeps the store from its work.

mod connections;

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use prometheus::{Registry, TextEncoder};
use tokio::sync::{Mutex, oneshot};

use self::connections::accept;

/// Health of a command, for the probes of an orchestrator. An error is one line with the reason.
pub(crate) trait Health: Send + Sync + 'static {
    /// Checks that the process can go on: if not, it has to be started anew.
    fn check_alive(&self) -> Result<(), String>;
    /// Checks that it does its work now.
    fn check_ready(&self) -> Result<(), String>;
}

/// A server of metrics and health. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct HttpServer {
    address: SocketAddr,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The paths that are served.
const PATHS: &str = "/metrics, /healthz and /readyz";

/// Each reading of the metrics is followed by a pause of so many times its duration: clients that ask for them without
/// end get a fifth of a core.
const PAUSE_FACTOR: u32 = 4;

struct Pages {
    registry: Registry,
    health: Box<dyn Health>,
    /// Moment before which the metrics are not read again.
    next_reading: Mutex<Instant>,
}

impl HttpServer {
    /// Listens, and serves. Returns when the port is open.
    ///
    /// # Errors
    /// A sentence for the operator, who has set the address with `option`.
    pub(crate) fn start(
        address: SocketAddr,
        option: &str,
        registry: Registry,
        health: impl Health,
    ) -> Result<Self, String> {
        let told = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => format!(
                "{address} is in use by another program: choose another address with {option}"
            ),
            _ => format!("{option}: cannot listen on {address}: {error}"),
        };
        let listener = TcpListener::bind(address).map_err(told)?;
        let address = listener.local_addr().map_err(told)?;
        listener.set_nonblocking(true).map_err(told)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(told)?;
        let pages = Arc::new(Pages {
            registry,
            health: Box::new(health),
            next_reading: Mutex::new(Instant::now()),
        });
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    Err(error) = accept(listener, pages) => {
                        tracing::error!(%error, "metrics and health are not served any more");
                    }
                }
            });
        };
        let thread = std::thread::Builder::new().name("lockkeeper-http".into());
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread.spawn(serve).map_err(told)?),
        })
    }

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

impl Pages {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<String>, Infallible> {
        let path = request.uri().path();
        if !matches!(path, "/metrics" | "/healthz" | "/readyz") {
            let text = format!("not found: there are {PATHS}\n");
            return Ok(page(StatusCode::NOT_FOUND, text));
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let text = "only GET and HEAD are served\n".to_owned();
            let mut refusal = page(StatusCode::METHOD_NOT_ALLOWED, text);
            let allowed = hyper::header::HeaderValue::from_static("GET, HEAD");
            refusal.headers_mut().insert(ALLOW, allowed);
            return Ok(refusal);
        }
        Ok(match path {
            "/healthz" => checked("alive", self.health.check_alive()),
            "/readyz" => checked("ready", self.health.check_ready()),
            _ => self.metrics().await,
        })
    }

    /// Reads the metrics, one reading at a time.
    async fn metrics(&self) -> Response<String> {
        let mut next = self.next_reading.lock().await;
        tokio::time::sleep_until((*next).into()).await;
        let begun = Instant::now();
        let text = TextEncoder::new().encode_to_string(&self.registry.gather());
        let took = begun.elapsed();
        *next = Instant::now() + PAUSE_FACTOR * took.min(LONGEST_READING);
        match text {
            Ok(text) => page(StatusCode::OK, text),
            Err(error) => page(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
}

/// A reading counts as no longer than this, so that one stall of the machine does not delay the next for long.
const LONGEST_READING: Duration = Duration::from_millis(100);

fn checked(word: &str, outcome: Result<(), String>) -> Response<String> {
    match outcome {
        Ok(()) => page(StatusCode::OK, format!("{word}\n")),
        Err(reason) => {
            // The errors of others may have line breaks.
            let reason = reason.replace(['\n', '\r'], " ");
            page(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
        }
    }
}

/// A page in the text format of Prometheus, which is plain text for people, too.
fn page(status: StatusCode, text: String) -> Response<String> {
    let mut page = Response::new(text);
    *page.status_mut() = status;
    let format =
        hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    page.headers_mut().insert(CONTENT_TYPE, format);
    page
}
