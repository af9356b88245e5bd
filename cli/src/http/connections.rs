//! The connections of the HTTP server: how many, for how long, and with how long a head.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::Pages;

/// Limit of connections. When another arrives, the oldest is closed: a scraper's lasts for milliseconds, and one that
/// says nothing cannot keep it out.
const MAX_CONNECTIONS: usize = 32;

/// Time limit of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of a connection, which carries one request: also of a client that does not read.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Limit of a request's head, and of its headers.
const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 64;

/// Pause after a connection could not be accepted, mostly for lack of file descriptors: the error returns at once until
/// one is closed.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Accepts connections for ever. Its tasks end with the runtime.
///
/// # Errors
/// If the listener cannot be used in this runtime.
pub(super) async fn accept(
    listener: std::net::TcpListener,
    pages: Arc<Pages>,
) -> io::Result<Infallible> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let task = tokio::spawn(serve(stream, pages.clone()));
        connections.push_back(task.abort_handle());
    }
}

/// Serves one request.
async fn serve(stream: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(|request| pages.answer(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        // A scraper connects anew each time: idle connections would need limits of their own.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // Errors are the client's: it has gone, or did not speak HTTP.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}
