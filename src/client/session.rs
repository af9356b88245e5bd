//! [`Session`]: a client's session at a store, on top of any [`Backend`].
//!
//! This file has its life, its lease and the sending of requests; `session/requests.rs` the typed requests;
//! `session/heartbeat.rs` the heartbeats that keep the lease fresh; `session/proof.rs` the answers that renew it.

mod heartbeat;
mod proof;
mod requests;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{
    Backend, Cleanup, ConnectOptions, FLUSH_LIMIT, Flushed, Lease, SessionStatus, StateStream,
};
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Judge, Proof, Request, Response, Sent};
use crate::model::size::Scale;
use crate::model::types::{SessionId, SessionState};
use crate::runtime::clock::{Clock, Deadline};

use heartbeat::Heart;
pub use heartbeat::Heartbeat;
pub use requests::Call;
use requests::done;

/// A session at a store. It never silently becomes another session: once it has expired, it is over.
///
/// Each method sends its request when it is called, not when its future is polled, so that several
/// can be under way; the store carries them out in that order. Dropping a future does not take its
/// request back. A request fails with [`Error::ConnectionLoss`] if the connection broke before the
/// answer came, and with [`Error::SessionExpired`] or [`Error::SessionClosed`] once the session is
/// over. A clone is the same session; when the last clone is dropped, the session is closed.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper_store::{CreateMode, Store};
///
/// let client = Store::memory().connect().await?;
/// let session = client.session().await?;
/// let (path, stat) = session.create(&"/config".parse()?, "v1", CreateMode::Persistent).await?;
/// let (data, _) = session.get_data(&path).await?;
/// assert_eq!(data, "v1");
/// assert_eq!(stat.version, 0);
/// # Ok::<(), lockkeeper_store::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    status: Arc<SessionStatus>,
    acl: Acl,
    entry_patterns: Box<[String]>,
    scale: Scale,
    heart: Heart,
}

impl Session {
    /// Creates a session over `backend`. `acl` is the access control list of the znodes that it creates.
    pub fn new(backend: Arc<dyn Backend>, acl: Acl) -> Self {
        Self::configured(backend, &ConnectOptions::new().acl(acl))
    }

    /// Creates a session over `backend`, with a client's options.
    pub(crate) fn configured(backend: Arc<dyn Backend>, options: &ConnectOptions) -> Self {
        let session = Self(Arc::new(Inner {
            status: backend.status().clone(),
            scale: Scale {
                prefix: backend.prefix_bytes(),
            },
            backend,
            acl: options.acl.clone(),
            entry_patterns: options.entry_patterns.clone().into(),
            heart: Heart::default(),
        }));
        if session.0.status.has_timeout() {
            let pulse = session.0.status.pulse().clone();
            session.0.heart.start(&session.0.status);
            crate::spawn_detached(heartbeat::beat(Arc::downgrade(&session.0), pulse));
        }
        session
    }

    /// Returns the session's id, the owner of its ephemeral znodes.
    pub fn id(&self) -> SessionId {
        self.0.status.id()
    }

    /// Returns the session's present state.
    pub fn state(&self) -> SessionState {
        self.0.status.state()
    }

    /// Returns the stream of the session's changes of state from now on.
    pub fn states(&self) -> StateStream {
        self.0.status.states()
    }

    /// Returns the session's status in detail.
    pub fn status(&self) -> &Arc<SessionStatus> {
        &self.0.status
    }

    /// Returns the size of a create within a multi, in bytes, rounded up, for a path and data of these lengths and
    /// this session's [`acl`](Self::acl): its share of [`LARGEST_REQUEST_BYTES`].
    ///
    /// [`LARGEST_REQUEST_BYTES`]: crate::LARGEST_REQUEST_BYTES
    pub fn create_bytes(&self, path: usize, data: usize) -> usize {
        self.0.scale.create_op(path, data, &self.0.acl)
    }

    /// Returns the negotiated timeout; `None` if the store never expires the session (in its own process).
    pub fn timeout(&self) -> Option<Duration> {
        self.0.status.timeout()
    }

    /// Returns the moment until which no other session can hold what this one holds, as far as clocks and the server
    /// allow; `None` for as long as it lives. See [`SessionStatus::held_until`].
    pub fn held_until(&self) -> Option<Deadline> {
        self.0.status.held_until()
    }

    /// Returns the number of clean-ups under way: deletes of abandoned entries, and searches for entries with an
    /// unanswered create. More than a few for long mean that the store refuses them, and that locks are blocked
    /// meanwhile; a line in the log names the znode and the error.
    pub fn pending_cleanups(&self) -> usize {
        self.0.status.pending_cleanups()
    }

    /// Returns the session's clock.
    pub fn clock(&self) -> &Clock {
        self.0.status.clock()
    }

    /// Returns the access control list of the znodes that this session creates.
    pub fn acl(&self) -> &Acl {
        &self.0.acl
    }

    /// Returns the additional patterns of [`ConnectOptions::entry_pattern`].
    pub fn entry_patterns(&self) -> &[String] {
        &self.0.entry_patterns
    }

    /// Returns the id of the store; `None` if it has none that this session may read.
    pub fn store_id(&self) -> Option<&str> {
        self.0.backend.store_id()
    }

    /// Returns the backend, for wrappers and tests.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    /// Sends a request.
    #[inline]
    pub fn submit(&self, request: Request) -> Response {
        self.0.submit(request)
    }

    /// Closes the session: from this call on it holds nothing, and the store deletes its ephemeral znodes at once.
    /// Closing a session that is over succeeds.
    ///
    /// Cancel safe: dropping the future does not stop the closing.
    pub fn close(&self) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
        // Before the request is sent: from then on its locks may be granted to other sessions (invariant 6).
        self.0.status.set_closing();
        let closing = self.call(Request::Close, done);
        async move {
            match closing.await {
                Err(error) if error.is_session_end() => Ok(()),
                other => other,
            }
        }
    }

    /// Blocks until the requests submitted so far have been written to the connection, for at most 5 ms.
    ///
    /// For drops that send a last request: the process may exit right after them, and requests that are written by then
    /// reach the server all the same (invariant 7). Does not block while the session is suspended, nor in a store of
    /// this process, nor again after a wait that has timed out, until the connection has taken bytes again.
    pub fn flush(&self) -> Flushed {
        self.0.flush()
    }

    /// Returns the lease that the session has now: a lock that is granted remembers it, and is held while it is
    /// [valid](Lease::is_valid).
    #[inline]
    pub fn lease(&self) -> Lease {
        self.0.status.lease()
    }

    /// Waits until a fifth of the timeout is left until [`held_until`](Self::held_until), and returns the lease: a lock
    /// that is granted under it is not lost at once. The [heartbeat](Self::heartbeat) brings the proof; on a session
    /// that has been in use the lease is fresh already.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`Error::SessionExpired`] or [`Error::SessionClosed`] when the session ends first.
    pub async fn fresh_lease(&self) -> Result<Lease> {
        // Held over the wait: without a use, an idle session at an ensemble sends no write, and no proof would come.
        let _heartbeat = self.heartbeat();
        self.0.status.fresh_lease().await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({}, {:?})", self.id(), self.state())
    }
}

impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Inner {
    /// Inlined, so that little is left of it where the kind of request is known.
    #[inline]
    fn submit(&self, request: Request) -> Response {
        // Refused here, a request that is too large fails alone. A ZooKeeper server would close the connection for it,
        // and all other requests under way would fail with it.
        match Error::if_forked().and_then(|()| self.scale.check(&request)) {
            Ok(()) => match self.status.sending() {
                None => self.backend.submit(request),
                Some(sent) => self.submit_as_proof(request, sent),
            },
            Err(error) => Response::ready(Err(error)),
        }
    }

    fn flush(&self) -> Flushed {
        // A suspended session has no connection to write to: waiting would block the drop for nothing.
        match self.status.state().is_connected() {
            true => self.backend.flush(FLUSH_LIMIT),
            false => Flushed::Skipped,
        }
    }

    /// Sends a request, and renews the lease by its answer, which proves that the session is alive. `sent` was read
    /// before the request is sent: the lease counts from there (invariant 6).
    fn submit_as_proof(&self, request: Request, sent: Sent) -> Response {
        let is_write = request.is_write();
        match self.backend.submit(request).now_or_never() {
            Ok(reply) => {
                self.status.judge(sent, is_write, &reply);
                Response::ready(reply)
            }
            Err(response) => response.proving(Proof {
                status: self.status.clone(),
                sent,
                is_write,
            }),
        }
    }
}

impl Cleanup {
    /// Begins a clean-up of this session, and counts it as pending. `path` is shown in the log.
    pub fn new(session: &Session, path: &ZnodePath) -> Self {
        Self::of(session.status(), path)
    }

    /// Waits until a step that failed with `error` is worth repeating, and returns the session.
    ///
    /// The session is not kept open meanwhile: once no other handle is left it closes, which deletes its znodes.
    ///
    /// # Errors
    /// `error`, if no repetition can help, and [`Error::SessionClosed`] if the session has ended
    /// meanwhile.
    pub async fn retry_after(&mut self, session: Session, error: Error) -> Result<Session> {
        if self.waits_for_connection(&error) {
            return Ok(session);
        }
        // Not held over the pause: the last handle of the program must be able to close the session.
        let weak = Arc::downgrade(&session.0);
        drop(session);
        self.pause_after(error).await?;
        match weak.upgrade() {
            Some(inner) => Ok(Session(inner)),
            None => Err(Error::SessionClosed {
                session: self.status().id(),
            }),
        }
    }
}
