//! The connections of the HTTP server: how many, for how long, and with how long a head.

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

/// Limit of connections without a stream of events. When another arrives, the oldest is closed: a scraper's lasts for
/// milliseconds, and one that says nothing cannot keep it out.
pub(crate) const MAX_CONNECTIONS: usize = 32;

/// Time limit of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of a connection, which carries one request: also of a client that does not read. A stream has it for each
/// write.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Limit of a request's head, and of its headers.
const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 64;

/// Bytes that the system keeps for a client that has not read them: what comes later is as new as it can be.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// Pause after a connection could not be accepted, mostly for lack of file descriptors: the error returns at once until
/// one is closed.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The connection of a request.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    lasts: Arc<AtomicBool>,
}

impl Connection {
    /// Lets it last for as long as its stream of events. The pages limit the number of these.
    pub(crate) fn last(&self) {
        self.lasts.store(true, Ordering::Relaxed);
    }
}

/// Accepts connections for ever. Its tasks end with the runtime.
///
/// # Errors
/// If the listener cannot be used in this runtime.
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

/// Serves one request.
async fn serve(stream: TcpStream, connection: Connection, pages: Arc<impl Pages>) {
    // An optimization: without it the system keeps more.
    let _ = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
    let stream = Unstalled::new(stream, CONNECTION_TIMEOUT);
    let service =
        service_fn(async |request| Ok::<_, Infallible>(pages.answer(request, &connection).await));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        // A scraper connects anew each time: idle connections would need limits of their own.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let limit = async {
        tokio::time::sleep(CONNECTION_TIMEOUT).await;
        if connection.lasts.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    };
    // Errors are the client's: it has gone, or did not speak HTTP.
    tokio::select! {
        _ = served => {}
        () = limit => {}
    }
}

/// Names the methods of a page in a refusal of others.
pub(crate) fn allow(mut refusal: Response<Body>, methods: &'static str) -> Response<Body> {
    let headers = refusal.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static(methods));
    refusal
}
