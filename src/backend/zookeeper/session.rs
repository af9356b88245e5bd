//! A session at a ZooKeeper server, as a [`Backend`].

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use zookeeper_client as zk;

use super::io::{self, Task, spawn};
use super::nodelay::set_nodelay;
use super::requests::carry_out;
use super::timeout_probe::{TimeoutProbe, follow};
use crate::backend::sequence_limit::SequenceLimit;
use crate::backend::{Backend, FLUSH_LIMIT, Flushed, LAST_DROP_LIMIT, SessionStatus};
use crate::error::{Error, Result};
use crate::future::BoxFuture;
use crate::protocol::{Reply, Request, Response};
use crate::types::{HumanDuration, SessionId, SessionState};

/// Limit of requests of one session in flight: the crate queues them without a limit of its own.
const MAX_IN_FLIGHT: usize = 100_000;

/// Limit of connections in a row that were shorter than [`BRIEF_CONNECTION`]. The crate reconnects without a pause after
/// each of them, so a server that closes a connection at its first request would be asked hundreds of times a second.
const MAX_BRIEF_CONNECTIONS: u32 = 100;
const BRIEF_CONNECTION: Duration = Duration::from_millis(50);

/// A session at a ZooKeeper server.
pub(super) struct ZooKeeperSession {
    link: Arc<Link>,
    chroot: Chroot,
    /// Disconnected when the last reference to the client is dropped, which sends closeSession.
    client_dropped: Mutex<Receiver<Infallible>>,
}

/// The crate's client, which closes the session when it is dropped, and a sender that is dropped after it.
pub(super) struct Client {
    // Fields are dropped in this order: when the receiver is disconnected, the crate's connection has been told to send
    // closeSession.
    client: zk::Client,
    _on_drop: Sender<Infallible>,
}

impl Deref for Client {
    type Target = zk::Client;

    fn deref(&self) -> &zk::Client {
        &self.client
    }
}

/// Properties of the store under a session's chroot.
pub(super) struct Chroot {
    pub(super) store_id: Option<String>,
    pub(super) prefix_bytes: usize,
    pub(super) sequence_limit: SequenceLimit,
}

/// State that a session's requests and watchers share.
pub(super) struct Link {
    /// `None` once the session is being closed. It closes when no request holds the client any more.
    pub(super) client: Mutex<Option<Arc<Client>>>,
    state: zk::StateWatcher,
    pub(super) status: Arc<SessionStatus>,
    pub(super) sequence_limit: SequenceLimit,
    in_flight: AtomicUsize,
    /// True once a server has refused a multiRead as unknown (before ZooKeeper 3.6).
    pub(super) lacks_multi_read: AtomicBool,
    close_timeout: Duration,
}

impl ZooKeeperSession {
    /// Creates a session over a connected client. Closing it takes at most `close_timeout`.
    pub(super) fn new(
        client: zk::Client,
        status: Arc<SessionStatus>,
        probe: TimeoutProbe,
        chroot: Chroot,
        close_timeout: Duration,
    ) -> Self {
        let watcher = client.state_watcher();
        let hosts = probe.hosts.clone();
        let (sender, client_dropped) = channel();
        let link = Link {
            state: client.state_watcher(),
            client: Mutex::new(Some(Arc::new(Client {
                client,
                _on_drop: sender,
            }))),
            status,
            sequence_limit: chroot.sequence_limit,
            in_flight: AtomicUsize::new(0),
            lacks_multi_read: AtomicBool::new(false),
            close_timeout,
        };
        let link = Arc::new(link);
        drop(spawn(Box::pin(publish(watcher, link.clone(), hosts))));
        drop(spawn(Box::pin(follow(probe, link.clone()))));
        Self {
            link,
            chroot,
            client_dropped: Mutex::new(client_dropped),
        }
    }
}

/// Writes the connection's state to the session's status. No other task does, so that no reconnection is missed; only
/// an expiry may be written by the first that hears of it.
async fn publish(mut watcher: zk::StateWatcher, link: Arc<Link>, hosts: String) {
    let status = &link.status;
    let mut state = watcher.state();
    let (mut connected, mut disconnected) = (status.clock().now(), status.clock().now());
    let mut brief_connections = 0;
    loop {
        match state {
            zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly => {
                // The first connection is not a reconnection.
                if status.state() == SessionState::Suspended {
                    connected = status.clock().now();
                    set_nodelay(&hosts);
                    // A member of an ensemble has the leader confirm a session that comes back, which touches it
                    // (ZooKeeper 3.9: `Learner.validateSession`, `Leader.revalidateSession`). The handshake was sent
                    // after the loss of the connection before it was known: so that moment is proved.
                    status.prove(disconnected);
                    status.set_state(SessionState::Reconnected);
                }
            }
            zk::SessionState::Disconnected => {
                disconnected = status.clock().now();
                // Before the state: no reply of the next connection may extend the lease by the timeout of this one.
                status.unsettle_timeout();
                status.set_state(SessionState::Suspended);
                brief_connections = match disconnected.since(connected) < BRIEF_CONNECTION {
                    true => brief_connections + 1,
                    false => 0,
                };
                if brief_connections >= MAX_BRIEF_CONNECTIONS {
                    tracing::warn!(session = %status.id(), hosts, "closing the session: the servers close each connection");
                    return link.abandon();
                }
            }
            zk::SessionState::Expired | zk::SessionState::AuthFailed => {
                return status.set_state(SessionState::Expired);
            }
            zk::SessionState::Closed => return status.set_state(SessionState::Closed),
        }
        state = watcher.changed().await;
    }
}

impl Backend for ZooKeeperSession {
    fn submit(&self, request: Request) -> Response {
        match request {
            Request::Close => self.link.close(),
            request => self.link.submit(request),
        }
    }

    fn status(&self) -> &Arc<SessionStatus> {
        &self.link.status
    }

    fn store_id(&self) -> Option<&str> {
        self.chroot.store_id.as_deref()
    }

    fn prefix_bytes(&self) -> usize {
        self.chroot.prefix_bytes
    }

    fn flush(&self, limit: Duration) -> Flushed {
        io::flush(limit)
    }
}

impl Drop for ZooKeeperSession {
    /// Closes the session. The process may be about to exit, so this waits, for a limited time, until closeSession
    /// has been written. It follows the replies to the requests in flight, which hold the client until then.
    fn drop(&mut self) {
        drop(self.link.client.lock().take());
        // Without a connection nothing can be written: the server ends the session when its timeout has passed.
        if !self.link.status.state().is_connected() || !io::can_wait() {
            return;
        }
        let client_dropped = self.client_dropped.get_mut();
        if client_dropped.try_recv() == Err(TryRecvError::Empty)
            && client_dropped.recv_timeout(LAST_DROP_LIMIT) == Err(RecvTimeoutError::Timeout)
        {
            let (session, limit) = (self.link.session(), LAST_DROP_LIMIT);
            tracing::warn!(%session, limit = %HumanDuration(limit), "closeSession not written in time");
            return;
        }
        io::flush(FLUSH_LIMIT);
    }
}

impl fmt::Debug for ZooKeeperSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ZooKeeperSession({}, {:?})",
            self.link.status.id(),
            self.link.status.state()
        )
    }
}

impl Link {
    pub(super) fn submit(self: &Arc<Self>, request: Request) -> Response {
        let Some(client) = self.client.lock().clone() else {
            return Response::ready(Err(self.end()));
        };
        // Relaxed: the counter guards no other memory.
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= MAX_IN_FLIGHT {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Response::ready(Err(Error::LimitReached {
                what: "requests in flight in one session",
                limit: MAX_IN_FLIGHT,
            }));
        }
        let link = self.clone();
        let carried_out = sent(Box::pin(async move {
            let reply = carry_out(&link, client, request).await;
            // The client is dropped by now: the last request in flight at a close sends closeSession with that.
            link.in_flight.fetch_sub(1, Ordering::Relaxed);
            link.settle().await;
            link.record_expiry(reply)
        }));
        match carried_out {
            Ok(reply) => Response::ready(reply),
            Err(pending) => Response::pending(async move { pending.await? }),
        }
    }

    /// Drops the client, and waits until it has closed the session at the server.
    fn close(&self) -> Response {
        // Later requests find no client, and fail; requests in flight keep theirs, so closeSession follows their replies.
        if self.client.lock().take().is_none() {
            return Response::ready(Err(self.end()));
        }
        let (status, timeout) = (self.status.clone(), self.close_timeout);
        let closing = spawn(Box::pin(async move {
            let deadline = status.clock().now().after(timeout);
            if status
                .clock()
                .until(deadline, final_state(&status))
                .await
                .is_none()
            {
                // The server has not confirmed the end, and may keep the session's locks until its timeout: an error.
                status.set_state(SessionState::Closed);
                return Err(Error::ConnectionLoss);
            }
            match status.end() {
                Some(error @ Error::SessionExpired { .. }) => Err(error),
                _ => Ok(Reply::Done),
            }
        }));
        Response::pending(async move { closing.await? })
    }

    /// Ends the session from this side. The state comes first: its locks must be lost here before the server, which is
    /// sent closeSession when no request holds the client any more, may grant them to others.
    pub(super) fn abandon(&self) {
        self.status.set_state(SessionState::Expired);
        drop(self.client.lock().take());
    }

    /// Waits until the status shows the connection's present state: a caller that sees a reply or an event of a new
    /// connection must see the new connection as well.
    pub(super) async fn settle(&self) {
        if self.is_settled() {
            return;
        }
        let mut changes = self.status.states();
        while !self.is_settled() && changes.next().await.is_some() {}
    }

    /// Writes the session's expiry to its status before the error is returned: the crate informs its watchers before
    /// it changes its state, and a caller that gets the error goes on with a new session at once.
    pub(super) fn record_expiry<T>(&self, answer: Result<T>) -> Result<T> {
        if let Err(Error::SessionExpired { .. }) = answer {
            self.status.set_state(SessionState::Expired);
        }
        answer
    }

    fn is_settled(&self) -> bool {
        let state = self.status.state();
        match self.state.peek_state() {
            zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly => {
                state != SessionState::Suspended
            }
            zk::SessionState::Disconnected => !state.is_connected(),
            _ => state.is_final(),
        }
    }

    pub(super) fn session(&self) -> SessionId {
        self.status.id()
    }

    /// Returns the error of a request after the session's end.
    pub(super) fn end(&self) -> Error {
        self.status.end().unwrap_or(Error::SessionClosed {
            session: self.session(),
        })
    }
}

/// Waits until the session is over.
pub(super) async fn final_state(status: &SessionStatus) {
    let mut changes = status.states();
    while !status.state().is_final() && changes.next().await.is_some() {}
}

/// Polls once, which sends the request, and leaves the rest to the connections' thread: it goes on if the caller does
/// not, and drops the client when it is done.
pub(super) fn sent<T: Send + 'static>(mut work: BoxFuture<T>) -> Result<T, Task<T>> {
    match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Ok(answer),
        Poll::Pending => Err(spawn(work)),
    }
}
