//! The connections of the HTTP server, and limits on their number, duration and request size.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Response;
use hyper::header::{ALLOW, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::stalls::Unstalled;
use super::{Body, Pages};

/// Maximum number of connections without an event stream. When a new connection exceeds this limit, the server closes
/// the oldest connection, so idle connections cannot keep a scraper out.
pub(crate) const MAX_CONNECTIONS: usize = 32;

const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of a connection, which carries one request. For an event stream, the limit applies to each write instead.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 64;

/// A small send buffer, so that a slow client still reads recent events.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// Pause after a failed accept. Without the pause, we would spin while the process has no free file descriptor.
const RETRY_DELAY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    lasts: Arc<AtomicBool>,
}

impl Connection {
    /// Exempts the connection from the time limit, because it carries an event stream. The [`Pages`] implementation
    /// limits the number of event streams.
    pub(crate) fn last(&self) {
        self.lasts.store(true, Ordering::Relaxed);
    }
}

pub(super) async fn accept(
    listener: std::net::TcpListener,
    pages: Arc<impl Pages>,
) -> io::Result<Infallible> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections: VecDeque<(AbortHandle, Arc<AtomicBool>)> = VecDeque::new();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        };
        connections.retain(|(task, lasts)| !task.is_finished() && !lasts.load(Ordering::Relaxed));
        if connections.len() >= MAX_CONNECTIONS
            && let Some((oldest, _)) = connections.pop_front()
        {
            oldest.abort();
        }
        let lasts = Arc::new(AtomicBool::new(false));
        let connection = Connection {
            peer,
            lasts: lasts.clone(),
        };
        let task = tokio::spawn(serve(stream, connection, pages.clone()));
        connections.push_back((task.abort_handle(), lasts));
    }
}

async fn serve(stream: TcpStream, connection: Connection, pages: Arc<impl Pages>) {
    let _ = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
    let stream = Unstalled::new(stream, CONNECTION_TIMEOUT);
    let service =
        service_fn(async |request| Ok::<_, Infallible>(pages.answer(request, &connection).await));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        // Serve one request per connection, because scrapers reconnect for each request, and idle connections would
        // need limits of their own.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let limit = async {
        tokio::time::sleep(CONNECTION_TIMEOUT).await;
        if connection.lasts.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    };
    tokio::select! {
        _ = served => {}
        () = limit => {}
    }
}

pub(crate) fn allow(mut refusal: Response<Body>, methods: &'static str) -> Response<Body> {
    let headers = refusal.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static(methods));
    refusal
}
