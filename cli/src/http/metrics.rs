//! [`MetricsPages`]: the metrics and health pages of a command.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use prometheus::{Registry, TextEncoder};
use tokio::sync::Mutex;

use super::{Body, Connection, HttpPort, HttpServer, Pages, allow};

/// Health of a command, for orchestrator probes. An error is one line with the reason.
pub(crate) trait Health: Send + Sync + 'static {
    /// Returns an error if the process must be restarted.
    fn check_alive(&self) -> Result<(), String>;
    /// Returns an error if the process cannot do its work now.
    fn check_ready(&self) -> Result<(), String>;
    fn admits(&self, _headers: &HeaderMap) -> bool {
        true
    }
}

const PATHS: &str = "/metrics, /healthz and /readyz";

/// After each reading, we pause for this many times as long as the reading took, so constant scraping uses at most a
/// fifth of a core.
const PAUSE_FACTOR: u32 = 4;

/// Longer readings count as this long when we compute the pause, so that a single stall does not delay the next reading
/// for long.
const LONGEST_READING: Duration = Duration::from_millis(100);

pub(crate) struct MetricsPages {
    registry: Registry,
    health: Box<dyn Health>,
    next_reading: Mutex<Instant>,
}

impl MetricsPages {
    pub(crate) fn start(
        address: SocketAddr,
        registry: Registry,
        health: impl Health,
    ) -> Result<HttpServer, String> {
        HttpPort::open(address, "--metrics-listen")?.serve(Self {
            registry,
            health: Box::new(health),
            next_reading: Mutex::new(Instant::now()),
        })
    }

    async fn metrics(&self) -> Response<Body> {
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

impl Pages for MetricsPages {
    const NAME: &'static str = "metrics and health are";

    async fn answer(&self, request: Request<Incoming>, _: &Connection) -> Response<Body> {
        let path = request.uri().path();
        if !matches!(path, "/metrics" | "/healthz" | "/readyz") {
            let text = format!("not found: there are {PATHS}\n");
            return page(StatusCode::NOT_FOUND, text);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let text = "only GET and HEAD are served\n".to_owned();
            return allow(page(StatusCode::METHOD_NOT_ALLOWED, text), "GET, HEAD");
        }
        match path {
            "/healthz" => checked("alive", self.health.check_alive()),
            "/readyz" => checked("ready", self.health.check_ready()),
            _ if !self.health.admits(request.headers()) => {
                let text = "the metrics need the token: as a bearer token, or as a password\n";
                challenge(page(StatusCode::UNAUTHORIZED, text.into()))
            }
            _ => self.metrics().await,
        }
    }
}

fn challenge(mut refusal: Response<Body>) -> Response<Body> {
    for scheme in ["Bearer", "Basic realm=\"metrics\""] {
        let scheme = HeaderValue::from_static(scheme);
        refusal.headers_mut().append(WWW_AUTHENTICATE, scheme);
    }
    refusal
}

fn checked(word: &str, outcome: Result<(), String>) -> Response<Body> {
    match outcome {
        Ok(()) => page(StatusCode::OK, format!("{word}\n")),
        Err(reason) => {
            // Replace line breaks, because the reason must be one line and may be an error of another component.
            let reason = reason.replace(['\n', '\r'], " ");
            page(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
        }
    }
}

fn page(status: StatusCode, text: String) -> Response<Body> {
    let mut page = Response::new(Body::from(text));
    *page.status_mut() = status;
    let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    page.headers_mut().insert(CONTENT_TYPE, format);
    page
}
