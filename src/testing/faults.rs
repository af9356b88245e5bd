//! [`Faults`]: fault injection for the sessions of any store.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::plan::{Loss, Plan};
use super::session_link::{Command, SessionLink};
use super::{RequestKind, Traffic};
use crate::backend::{Backend, ConnectOptions, Connector};
use crate::client::connect::Client;
use crate::client::session::Session;
use crate::model::error::{Error, Result};
use crate::model::types::SessionId;
use crate::runtime::clock::{BootInstant, Clock};
use crate::runtime::future::BoxFuture;

/// A [`Connector`] that wraps any store and injects faults into its sessions, either at random according to a [`Plan`],
/// or on command through the methods of this type.
///
/// The faults occur between the client and the store, where a network would be. When a connection breaks, every
/// unanswered request fails with [`ConnectionLoss`](crate::Error::ConnectionLoss). Until the connection is restored,
/// the session's state is [`Suspended`](crate::SessionState::Suspended) and new requests wait. One-shot watches stay
/// armed, and fire after the reconnection if something changed. Persistent watches yield `ConnectionLoss` and miss the
/// events in between. Delays never change the order of a session's replies and watch events.
///
/// A command takes effect before the method returns. Clones share one wrapper.
///
/// # Panics
/// A command panics if the session was not opened through this wrapper or no longer exists.
#[derive(Clone)]
pub struct Faults(Arc<Shared>);

pub(super) struct Shared {
    pub(super) connector: Arc<dyn Connector>,
    pub(super) plan: Mutex<Plan>,
    pub(super) total: Mutex<Traffic>,
    opened: AtomicU64,
    pub(super) quorum_only: AtomicBool,
    /// In the order of opening, because sorting by the random session ids would make runs with the same seed differ.
    links: Mutex<Vec<(SessionId, Weak<SessionLink>)>>,
}

/// A value that names a session: a [`Client`] (its current session), a [`Session`] or a [`SessionId`].
pub trait SessionSelector {
    /// Returns the session's id.
    fn session_id(&self) -> SessionId;
}

impl SessionSelector for Client {
    fn session_id(&self) -> SessionId {
        self.current_session().id()
    }
}

impl SessionSelector for Session {
    fn session_id(&self) -> SessionId {
        self.id()
    }
}

impl SessionSelector for SessionId {
    fn session_id(&self) -> SessionId {
        *self
    }
}

impl Faults {
    /// Wraps the store of a connector.
    pub fn over(connector: Arc<dyn Connector>, plan: Plan) -> Self {
        Self(Arc::new(Shared {
            connector,
            plan: Mutex::new(plan),
            total: Mutex::default(),
            opened: AtomicU64::new(0),
            quorum_only: AtomicBool::new(false),
            links: Mutex::default(),
        }))
    }

    /// Opens a client, and injects the faults into its sessions. `target` is the store's name in errors.
    ///
    /// # Errors
    /// The errors of [`Client::open`].
    pub async fn connect(&self, target: &str, options: ConnectOptions) -> Result<Client> {
        Client::open(Arc::new(self.clone()), target.to_owned(), options).await
    }

    /// Returns the plan.
    pub fn plan(&self) -> Plan {
        self.0.plan.lock().clone()
    }

    /// Replaces the plan for future requests.
    pub fn set_plan(&self, plan: Plan) {
        *self.0.plan.lock() = plan;
    }

    /// Makes future sessions follow the rules of an ensemble, where only committed writes prove that a session is alive
    /// ([`SessionStatus::quorum_only`]).
    ///
    /// [`SessionStatus::quorum_only`]: crate::SessionStatus::quorum_only
    pub fn prove_by_quorum(&self) {
        self.0.quorum_only.store(true, Ordering::Relaxed);
    }

    /// Loses the next request of this kind before it reaches the store, and breaks the connection.
    pub fn lose_request(&self, selector: &impl SessionSelector, on: RequestKind) {
        self.command(selector, Command::Lose(on, Loss::Request));
    }

    /// Loses the reply to the next request of this kind after the store has carried it out, and breaks the connection.
    pub fn lose_reply(&self, selector: &impl SessionSelector, on: RequestKind) {
        self.command(selector, Command::Lose(on, Loss::Reply));
    }

    /// Garbles the reply to the next request of this kind. The store carries out the request, but the client gets
    /// [`Error::Protocol`]. The connection stays up.
    pub fn garble_reply(&self, selector: &impl SessionSelector, on: RequestKind) {
        self.command(selector, Command::Lose(on, Loss::Garbled));
    }

    /// Refuses the next request of this kind with `error` before it reaches the store. The connection stays up.
    pub fn refuse(&self, selector: &impl SessionSelector, on: RequestKind, error: Error) {
        self.command(selector, Command::Lose(on, Loss::Refused(error)));
    }

    /// Delays every future reply and event by `delay`.
    pub fn delay_replies(&self, selector: &impl SessionSelector, delay: Duration) {
        self.command(selector, Command::Delay(delay));
    }

    /// Breaks the connection until [`reconnect`](Self::reconnect).
    pub fn disconnect(&self, selector: &impl SessionSelector) {
        self.command(selector, Command::Disconnect(None));
    }

    /// Breaks the connection, and restores it after `outage`.
    pub fn disconnect_for(&self, selector: &impl SessionSelector, outage: Duration) {
        self.command(selector, Command::Disconnect(Some(outage)));
    }

    /// Restores the connection. Does nothing if the connection is not broken.
    pub fn reconnect(&self, selector: &impl SessionSelector) {
        self.command(selector, Command::Reconnect);
    }

    /// Stops the client until [`resume`](Self::resume), like a SIGSTOP or a suspended machine. The client sends no
    /// request and no heartbeat, and receives nothing. Tasks that use the client continue until they wait for the
    /// store.
    pub fn pause(&self, selector: &impl SessionSelector) {
        self.command(selector, Command::Pause);
    }

    /// Resumes a stopped client. Its session may have expired in the meantime.
    pub fn resume(&self, selector: &impl SessionSelector) {
        self.command(selector, Command::Resume);
    }

    /// Makes the store end the session before its timeout. The client notices once it is connected and not paused.
    /// Until then it may assume that it holds a lock that another client already holds. A session without a timeout,
    /// however, considers its locks lost before the store ends the session. To test
    /// [`held_until`](Session::held_until), give the session a timeout, and pause or disconnect it for longer than the
    /// timeout.
    ///
    /// # Errors
    /// The errors of [`Connector::expire`].
    pub async fn expire(&self, selector: &impl SessionSelector) -> Result<()> {
        self.link(selector.session_id()).expire().await
    }

    /// Ends all faults. The plan becomes empty, all clients are resumed and reconnected, and delayed messages are
    /// delivered.
    pub fn heal(&self) {
        let seed = self.plan().seed();
        self.set_plan(Plan::new(seed));
        let links: Vec<_> = self
            .0
            .links
            .lock()
            .iter()
            .filter_map(|(_, link)| link.upgrade())
            .collect();
        for link in links {
            link.command(Command::Heal);
        }
    }

    /// Returns the traffic of all sessions together.
    pub fn traffic(&self) -> Traffic {
        *self.0.total.lock()
    }

    /// Returns the traffic of one session.
    pub fn traffic_of(&self, selector: &impl SessionSelector) -> Traffic {
        self.link(selector.session_id()).traffic()
    }

    fn command(&self, selector: &impl SessionSelector, command: Command) {
        self.link(selector.session_id()).command(command);
    }

    fn link(&self, session: SessionId) -> Arc<SessionLink> {
        let links = self.0.links.lock();
        let known = links.iter().find(|(id, _)| *id == session);
        let link = known.and_then(|(_, link)| link.upgrade());
        drop(links);
        link.unwrap_or_else(|| {
            panic!("session {session} is none of those opened through this wrapper")
        })
    }

    fn wrap(&self, inner: Arc<dyn Backend>, number: u64, sent: BootInstant) -> Arc<dyn Backend> {
        let session = inner.status().id();
        let (link, backend) = SessionLink::open(inner, self.0.clone(), number, sent);
        let mut links = self.0.links.lock();
        // Remove sessions that no longer exist, so that the list stays short.
        links.retain(|(_, link)| link.strong_count() > 0);
        links.push((session, Arc::downgrade(&link)));
        backend
    }
}

impl Connector for Faults {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        // Read the clock before sending the request, as a real backend does, because the lease starts at this time
        // (invariant 6). Take the session's number here, too, so that it depends only on the order of the calls.
        let sent = self.clock().now();
        let number = self.0.opened.fetch_add(1, Ordering::Relaxed);
        let (faults, opening) = (self.clone(), self.0.connector.open(options));
        Box::pin(async move { Ok(faults.wrap(opening.await?, number, sent)) })
    }

    fn clock(&self) -> &Clock {
        self.0.connector.clock()
    }

    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        let (faults, session) = (self.clone(), backend.status().id());
        Box::pin(async move { Faults::expire(&faults, &session).await })
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("over", &self.0.connector)
            .field("plan", &*self.0.plan.lock())
            .finish()
    }
}
