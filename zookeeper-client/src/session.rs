//! One Lockkeeper session on a lent ZooKeeper session. It is a [`Backend`] that is opened and closed while the
//! ZooKeeper session continues.
//!
//! The crate sends a request when its future is created, but the future borrows the client, so [`spawn`] drives it.
//! [`spawn`] needs no executor, because the crate's task that receives the reply polls the future in place.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use lockkeeper_store::{
    Backend, BoxFuture, Error, Reply, Request, Response, Result, SessionId, SessionState,
    SessionStatus, spawn_detached,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use zookeeper_client as zk;

use crate::entries::Loan;
use crate::requests::carry_out;
use crate::{either, until};

/// Maximum number of requests in flight. We need this limit because the crate queues any number of requests.
const MAX_IN_FLIGHT: usize = 100_000;

pub(crate) struct LentSession {
    link: Arc<Link>,
    pub(crate) store_id: Option<String>,
    prefix_bytes: usize,
}

pub(crate) struct Link {
    /// `None` once this session is closed. When the last request drops its clone of the loan, the session's entries are
    /// deleted.
    pub(crate) loan: Mutex<Option<Arc<Loan>>>,
    state: zk::StateWatcher,
    pub(crate) status: Arc<SessionStatus>,
    in_flight: AtomicUsize,
    /// True once a server has refused a multiRead because it does not know it (before ZooKeeper 3.6).
    pub(crate) lacks_multi_read: AtomicBool,
    close_timeout: Duration,
}

impl LentSession {
    /// Creates a session. Closing it takes at most `close_timeout`.
    pub(crate) fn new(
        client: zk::Client,
        status: Arc<SessionStatus>,
        close_timeout: Duration,
    ) -> Self {
        let prefix_bytes = match client.path() {
            "/" => 0,
            chroot => chroot.len(),
        };
        let watcher = client.state_watcher();
        let link = Arc::new(Link {
            state: client.state_watcher(),
            loan: Mutex::new(Some(Arc::new(Loan::new(client, status.clone())))),
            status,
            in_flight: AtomicUsize::new(0),
            lacks_multi_read: AtomicBool::new(false),
            close_timeout,
        });
        spawn(publish(watcher, link.status.clone()));
        Self {
            link,
            store_id: None,
            prefix_bytes,
        }
    }
}

/// Publishes the connection's state in the status of this session. Only this task publishes states of the connection,
/// so that no reconnection is missed. Other code may also publish the end of the session.
async fn publish(mut watcher: zk::StateWatcher, status: Arc<SessionStatus>) {
    let mut state = watcher.state();
    loop {
        match state {
            zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly => {
                if status.state() == SessionState::Suspended {
                    status.set_state(SessionState::Reconnected);
                }
            }
            zk::SessionState::Disconnected => status.set_state(SessionState::Suspended),
            zk::SessionState::Expired | zk::SessionState::AuthFailed => {
                return status.set_state(SessionState::Expired);
            }
            zk::SessionState::Closed => return status.set_state(SessionState::Closed),
        }
        match either(watcher.changed(), final_state(&status)).await {
            Some(changed) => state = changed,
            None => return,
        }
    }
}

impl Backend for LentSession {
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
        self.store_id.as_deref()
    }

    fn prefix_bytes(&self) -> usize {
        self.prefix_bytes
    }
}

impl Drop for LentSession {
    fn drop(&mut self) {
        let loan = self.link.loan.lock().take();
        drop(loan);
        // This ends the publishing task, which would otherwise live as long as the program's ZooKeeper session.
        self.link.status.set_state(SessionState::Closed);
    }
}

impl fmt::Debug for LentSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = &self.link.status;
        write!(f, "LentSession({}, {:?})", status.id(), status.state())
    }
}

impl Link {
    fn submit(self: &Arc<Self>, request: Request) -> Response {
        let Some(loan) = self.loan.lock().clone() else {
            return Response::ready(Err(self.end()));
        };
        // Relaxed ordering is enough, because the counter protects no other memory.
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= MAX_IN_FLIGHT {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Response::ready(Err(Error::LimitReached {
                what: "requests in flight in one session",
                limit: MAX_IN_FLIGHT,
            }));
        }
        let link = self.clone();
        response(sent(async move {
            let reply = carry_out(&link, &loan, request).await;
            // Drop the loan before the reply is returned. When the session is closed, dropping the last loan starts the
            // deletes.
            drop(loan);
            link.in_flight.fetch_sub(1, Ordering::Relaxed);
            link.settle().await;
            link.record_expiry(reply)
        }))
    }

    fn close(self: &Arc<Self>) -> Response {
        // Later requests find no loan and fail. Requests in flight keep their clones of the loan, so the deletes are
        // sent after their replies.
        let Some(loan) = self.loan.lock().take() else {
            return Response::ready(Err(self.end()));
        };
        let returned = loan.returned();
        drop(loan);
        let link = self.clone();
        response(sent(async move {
            let clock = link.status.clock();
            let deadline = clock.now().after(link.close_timeout);
            let in_time = until(clock, deadline, returned).await;
            // If the end of the session was already published, this has no effect.
            link.status.set_state(SessionState::Closed);
            match link.status.end() {
                Some(expired @ Error::SessionExpired { .. }) => Err(expired),
                // The deletes continue in the background. Until they are done, the entries block their locks, so we
                // return an error.
                _ if in_time.is_none() => Err(Error::ConnectionLoss),
                _ => Ok(Reply::Done),
            }
        }))
    }

    /// Waits until the status shows the connection's state. So a caller that receives a reply on a new connection also
    /// sees the new connection in the status.
    pub(crate) async fn settle(&self) {
        if self.is_settled() {
            return;
        }
        let mut changes = self.status.states();
        while !self.is_settled() && changes.next().await.is_some() {}
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

    /// Publishes an expiry before the error is returned. The caller requests a new session immediately after this
    /// error, and the publishing task may not have published the expiry by then.
    pub(crate) fn record_expiry<T>(&self, answer: Result<T>) -> Result<T> {
        if let Err(Error::SessionExpired { .. }) = answer {
            self.status.set_state(SessionState::Expired);
        }
        answer
    }

    pub(crate) fn session(&self) -> SessionId {
        self.status.id()
    }

    pub(crate) fn end(&self) -> Error {
        let session = self.session();
        self.status
            .end()
            .unwrap_or(Error::SessionClosed { session })
    }
}

pub(crate) async fn final_state(status: &SessionStatus) {
    let mut changes = status.states();
    while !status.state().is_final() && changes.next().await.is_some() {}
}

/// Polls the work once, which sends the request. The rest of the work runs in place when the reply arrives, even if the
/// caller no longer waits for it.
pub(crate) fn sent<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> oneshot::Receiver<Result<T>> {
    let (send, answer) = oneshot::channel();
    spawn(async move {
        let _ = send.send(work.await);
    });
    answer
}

fn response(mut reply: oneshot::Receiver<Result<Reply>>) -> Response {
    match reply.try_recv() {
        Ok(reply) => Response::ready(reply),
        Err(_) => Response::pending(async move { received(reply.await) }),
    }
}

pub(crate) fn received<T>(answer: Result<Result<T>, oneshot::error::RecvError>) -> Result<T> {
    answer.unwrap_or_else(|_| Err(Error::Protocol("the client library panicked".to_owned())))
}

/// Runs `work` in place, in the task that wakes it. A panic must only end this work, because that task is the crate's
/// connection.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    spawn_detached(Guarded(Box::pin(work)));
}

struct Guarded(BoxFuture<()>);

impl Future for Guarded {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // After a panic the future is never polled again, so its broken state has no effect. The panic hook has already
        // reported the panic.
        catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))).unwrap_or(Poll::Ready(()))
    }
}
