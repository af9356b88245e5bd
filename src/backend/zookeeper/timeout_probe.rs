//! [`TimeoutProbe`]: learns the session timeout that a reconnection has brought.
//!
//! A server may give another timeout to a session that comes back, and expires it by that one from then on.
//! zookeeper-client asks for its last timeout, and does not report the answer. So the probe requests a session with the
//! same timeout from each server, and closes it at once; the client's own connection is not involved. The shortest
//! answer counts, since the client may be connected to any of the servers. A server that does not answer in time is
//! left out: it cannot have answered the client either.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::handshake;
use super::io::{blocking, spawn};
use super::session::Link;
use super::tls::Tls;
use crate::clock::BootInstant;
use crate::types::HumanDuration;

/// Probe of the servers of one URL.
#[derive(Clone)]
pub(super) struct TimeoutProbe {
    /// As `host:port[,host:port…]`.
    pub(super) hosts: String,
    pub(super) tls: Option<Tls>,
    /// Schemes and secrets: a server that requires authentication closes no session without.
    pub(super) auth: Vec<(String, Vec<u8>)>,
}

/// The last connection of which the timeout is known.
struct KnownTimeout {
    connection: u64,
    timeout: Duration,
    /// Time of the last round of requests.
    asked: Option<BootInstant>,
}

impl KnownTimeout {
    /// Returns the time limit for a server to answer, which is also the shortest time between the probes of two
    /// connections. The lease is not extended while a probe waits, so most of it must be left afterwards.
    fn response_time(&self) -> Duration {
        MAX_RESPONSE_TIME.min(self.timeout / RESPONSE_FRACTION)
    }
}

/// Pauses between two rounds that no server answers.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// [`KnownTimeout::response_time`] is this part of the timeout, at most [`MAX_RESPONSE_TIME`].
const RESPONSE_FRACTION: u32 = 8;
const MAX_RESPONSE_TIME: Duration = Duration::from_secs(2);

/// Requested timeout that every server replaces by its minimum.
const MIN_TIMEOUT_REQUEST: Duration = Duration::from_millis(1);

/// Writes the timeout of each new connection to the session's status, until the session ends.
pub(super) async fn follow(probe: TimeoutProbe, link: Arc<Link>) {
    let status = &link.status;
    let Some(timeout) = status.timeout() else {
        return;
    };
    let mut known = KnownTimeout {
        connection: status.connection(),
        timeout,
        asked: None,
    };
    let mut states = status.states();
    loop {
        // Compared before each wait: `learn` also returns when yet another connection has replaced the one it asked for.
        if status.state().is_connected() && status.connection() != known.connection {
            probe.learn(&mut known, &link).await;
        } else if states.next().await.is_none() {
            return;
        }
        if status.state().is_final() {
            return;
        }
    }
}

impl TimeoutProbe {
    /// Asks until the timeout is known or the connection is lost. Ends the session if no server reports the timeout
    /// within one timeout, because all leases have ended by then and none can be given out.
    async fn learn(&self, known: &mut KnownTimeout, link: &Link) {
        let status = &link.status;
        let connection = status.connection();
        let is_current = || status.connection() == connection && status.state().is_connected();
        let deadline = status.clock().now().after(known.timeout);
        // If the connection before was lost before its timeout was known, any server may have shortened it.
        let missed = known.connection + 1 < connection;
        let mut pause = SHORTEST_PAUSE;
        // A connection that breaks again and again must not open a session at every server each time.
        if let Some(asked) = known.asked {
            let next = asked.after(known.response_time());
            status.clock().sleep_until(next).await;
            if !is_current() {
                return;
            }
        }
        // zookeeper-client asks for its last timeout, so the probe asks for the same.
        let timeout = loop {
            known.asked = Some(status.clock().now());
            let answer = self.ask_all(known, missed).await;
            // A later connection may have another timeout.
            if !is_current() {
                return;
            }
            if let Some(timeout) = answer {
                break timeout;
            }
            if status.clock().now() >= deadline {
                tracing::warn!(session = %status.id(), hosts = %self.hosts, "closing the session: no server reports its timeout after a reconnection");
                return link.abandon();
            }
            status.clock().sleep(pause).await;
            pause = LONGEST_PAUSE.min(2 * pause);
            if !is_current() {
                return;
            }
        };
        if timeout != known.timeout {
            tracing::info!(session = %status.id(), timeout = %HumanDuration(timeout), "session timeout renegotiated");
        }
        (known.connection, known.timeout) = (connection, timeout);
        // This runs on the thread that publishes states: the connection has not changed since it was compared.
        status.set_timeout(timeout);
    }

    /// Returns the shortest timeout that any server gives to a request for the known one; `None` if none answers. If an
    /// earlier answer was `missed` and a server is silent now, asks for the shortest that they ever give.
    async fn ask_all(&self, known: &KnownTimeout, missed: bool) -> Option<Duration> {
        let limit = known.response_time();
        let answers = self.ask_each(known.timeout, limit).await;
        let all = answers.iter().all(Option::is_some);
        let least = answers.into_iter().flatten().min()?;
        if all || !missed {
            return Some(least);
        }
        self.ask_each(MIN_TIMEOUT_REQUEST, limit)
            .await
            .into_iter()
            .flatten()
            .min()
    }

    async fn ask_each(&self, timeout: Duration, limit: Duration) -> Vec<Option<Duration>> {
        let hosts = self.hosts.split(',');
        // All are asked before any is awaited: silent servers cost the limit once.
        let asking: Vec<_> = hosts.map(|host| self.start(host, timeout, limit)).collect();
        let mut answers = Vec::with_capacity(asking.len());
        for answer in asking {
            answers.push(answer.await.ok());
        }
        answers
    }

    /// Asks one server, on a new thread that also closes the session.
    fn start(&self, host: &str, timeout: Duration, limit: Duration) -> oneshot::Receiver<Duration> {
        let (answer, answered) = oneshot::channel();
        let (probe, host) = (self.clone(), host.to_owned());
        let work = move || {
            if let Err(error) = probe.ask(&host, timeout, limit, answer) {
                tracing::debug!(host, %error, "server does not answer the session timeout probe");
            }
        };
        drop(spawn(Box::pin(blocking(work))));
        answered
    }

    fn ask(
        &self,
        host: &str,
        timeout: Duration,
        limit: Duration,
        answer: oneshot::Sender<Duration>,
    ) -> io::Result<()> {
        let stream = connect(host, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        match &self.tls {
            None => self.probe_over(stream, timeout, answer),
            Some(tls) => self.probe_over(tls.over(stream, host)?, timeout, answer),
        }
    }

    /// Opens a session and closes it. The server handles requests in order, so all are sent at once; the identities
    /// before the close, which a server that requires authentication refuses otherwise.
    fn probe_over(
        &self,
        mut server: impl Read + Write,
        timeout: Duration,
        answer: oneshot::Sender<Duration>,
    ) -> io::Result<()> {
        let mut out = handshake::connect(timeout);
        for (scheme, secret) in &self.auth {
            out.extend(handshake::auth(scheme, secret));
        }
        out.extend(handshake::close_session());
        server.write_all(&out)?;
        server.flush()?;
        let agreed = handshake::read_timeout(&mut server)?;
        // Fails if the prober is gone.
        let _ = answer.send(agreed);
        // Reads until the server closes the connection. Closing it from here could overtake the closeSession, and the
        // server would keep the session of a client that it takes for lost, until its timeout.
        let _ = server.read_to_end(&mut Vec::new());
        Ok(())
    }
}

fn connect(host: &str, limit: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
