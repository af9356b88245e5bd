//! [`SessionLink`]: the state of one wrapped session, which the client's backend, the test's commands and the [`Pump`]
//! share.
//!
//! The client and the test only put requests and commands into the [`LinkState`] and wake the [`Pump`], which then runs
//! on the waking thread ([`spawn_detached`](crate::spawn_detached)). So a reply without a delay has arrived when
//! `submit` returns, as in the embedded store.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::faults::Shared;
use super::plan::Loss;
use super::pump::Pump;
use super::{RequestKind, Traffic};
use crate::backend::{Backend, Flushed, SessionStatus};
use crate::model::error::{Error, Result};
use crate::model::protocol::{Reply, Request, Response};
use crate::runtime::clock::BootInstant;
use crate::runtime::future::BoxFuture;

pub(super) struct SessionLink {
    pub(super) status: Arc<SessionStatus>,
    pub(super) link_state: Mutex<LinkState>,
    pub(super) waker: OnceLock<Waker>,
    pub(super) shared: Arc<Shared>,
}

#[derive(Default)]
pub(super) struct LinkState {
    pub(super) inner: Option<Arc<dyn Backend>>,
    pub(super) requests: VecDeque<QueuedRequest>,
    pub(super) commands: VecDeque<Command>,
    pub(super) traffic: Traffic,
    pub(super) dropped: bool,
    pub(super) over: Option<Error>,
}

pub(super) struct QueuedRequest {
    pub(super) request: Request,
    pub(super) answer: ReplySender,
    pub(super) drawn: bool,
}

pub(super) type ReplySender = oneshot::Sender<Result<Reply>>;

#[derive(Debug)]
pub(super) enum Command {
    Pause,
    Resume,
    Disconnect(Option<Duration>),
    Reconnect,
    Delay(Duration),
    Lose(RequestKind, Loss),
    Heal,
}

impl SessionLink {
    pub(super) fn open(
        inner: Arc<dyn Backend>,
        shared: Arc<Shared>,
        number: u64,
        sent: BootInstant,
    ) -> (Arc<Self>, Arc<dyn Backend>) {
        let theirs = inner.status();
        let status = SessionStatus::new(
            theirs.id(),
            theirs.clock().clone(),
            theirs.timeout(),
            theirs.quorum_only() || shared.quorum_only.load(Ordering::Relaxed),
            sent,
        );
        let status = Arc::new(match theirs.tick() {
            Some(tick) => status.with_tick(tick),
            None => status,
        });
        let (states, store_id) = (theirs.states(), inner.store_id().map(str::to_owned));
        let prefix_bytes = inner.prefix_bytes();
        let random = shared.plan.lock().random(number);
        let link = Arc::new(Self {
            status,
            link_state: Mutex::new(LinkState {
                inner: Some(inner),
                ..LinkState::default()
            }),
            waker: OnceLock::new(),
            shared,
        });
        let mut pump = Pump::new(link.clone(), states, random);
        crate::spawn_detached(std::future::poll_fn(move |context| pump.poll(context)));
        let backend = Arc::new(Wrapped {
            link: link.clone(),
            store_id,
            prefix_bytes,
        });
        (link, backend)
    }

    pub(super) fn command(&self, command: Command) {
        self.link_state.lock().commands.push_back(command);
        self.wake();
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.link_state.lock().traffic
    }

    pub(super) fn inner(&self) -> Option<Arc<dyn Backend>> {
        self.link_state.lock().inner.clone()
    }

    pub(super) fn expire(&self) -> BoxFuture<Result<()>> {
        if self.status.timeout().is_none() {
            // A session without a timeout has no lease that could end first. So mark its locks as lost before the store
            // ends the session.
            self.status.set_closing();
        }
        match self.inner() {
            Some(inner) => self.shared.connector.expire(&inner),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    pub(super) fn count(&self, traffic: Traffic) {
        self.link_state.lock().traffic += traffic;
        *self.shared.total.lock() += traffic;
    }

    pub(super) fn lost(&self) -> Error {
        self.status.end().unwrap_or(Error::ConnectionLoss)
    }
}

struct Wrapped {
    link: Arc<SessionLink>,
    store_id: Option<String>,
    prefix_bytes: usize,
}

impl Backend for Wrapped {
    fn submit(&self, request: Request) -> Response {
        let (answer, mut reply) = oneshot::channel();
        {
            let mut link_state = self.link.link_state.lock();
            if let Some(error) = &link_state.over {
                return Response::ready(Err(error.clone()));
            }
            link_state.requests.push_back(QueuedRequest {
                request,
                answer,
                drawn: false,
            });
        }
        self.link.wake();
        if let Ok(reply) = reply.try_recv() {
            return Response::ready(reply);
        }
        let link = self.link.clone();
        Response::pending(async move { reply.await.unwrap_or_else(|_| Err(link.lost())) })
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

    fn flush(&self, limit: Duration) -> Flushed {
        let inner = self.link.inner();
        inner.map_or(Flushed::Skipped, |inner| inner.flush(limit))
    }

    fn read_elsewhere(&self) {
        if let Some(inner) = self.link.inner() {
            inner.read_elsewhere();
        }
    }
}

impl Drop for Wrapped {
    fn drop(&mut self) {
        self.link.link_state.lock().dropped = true;
        self.link.wake();
    }
}

impl fmt::Debug for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Wrapped({}, {:?})",
            self.link.status.id(),
            self.link.status.state()
        )
    }
}
