//! [`Session`]: a client's session at a store, on top of any [`Backend`].

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
use crate::model::protocol::{PendingProof, Proof, ProofPolicy, Request, Response};
use crate::model::size::Scale;
use crate::model::types::{SessionId, SessionState};
use crate::runtime::clock::{Clock, Deadline};

use heartbeat::Heart;
pub use heartbeat::Heartbeat;
pub use requests::Call;
use requests::done;

/// A session at a store. An expired session stays expired and is never silently replaced with a new one.
///
/// Each method sends its request when it is called, not when its future is polled, so several requests can be pending.
/// The store executes them in the order of the calls. Dropping a future does not cancel its request. Dropping the last
/// clone of a session closes the session.
///
/// # Errors
/// Every request fails with [`Error::ConnectionLoss`] if the connection breaks before the answer arrives, and with
/// [`Error::SessionExpired`] or [`Error::SessionClosed`] once the session is over. The methods list only their
/// additional errors.
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
    /// Creates a session over `backend`. `acl` applies to the znodes that the session creates.
    pub fn new(backend: Arc<dyn Backend>, acl: Acl) -> Self {
        Self::configured(backend, &ConnectOptions::new().acl(acl))
    }

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

    /// Returns the session's id.
    pub fn id(&self) -> SessionId {
        self.0.status.id()
    }

    /// Returns the session's current state.
    pub fn state(&self) -> SessionState {
        self.0.status.state()
    }

    /// Returns a stream of the session's state changes after this call.
    pub fn states(&self) -> StateStream {
        self.0.status.states()
    }

    /// Returns the session's detailed status.
    pub fn status(&self) -> &Arc<SessionStatus> {
        &self.0.status
    }

    /// Returns the approximate size in bytes of a create in a multi, rounded up. `path` and `data` are the lengths of
    /// the create's path and data. The create uses this session's [`acl`](Self::acl). All operations of a multi
    /// together may have at most [`LARGEST_REQUEST_BYTES`].
    ///
    /// [`LARGEST_REQUEST_BYTES`]: crate::LARGEST_REQUEST_BYTES
    pub fn create_bytes(&self, path: usize, data: usize) -> usize {
        self.0.scale.create_op(path, data, &self.0.acl)
    }

    /// Returns the negotiated timeout. `None` if the store is in this process and never expires the session.
    pub fn timeout(&self) -> Option<Duration> {
        self.0.status.timeout()
    }

    /// Returns the time until which no other session can hold this session's locks, if the clocks and the server behave
    /// as assumed. `None` if the session has no timeout and holds its locks until it ends.
    pub fn held_until(&self) -> Option<Deadline> {
        self.0.status.held_until()
    }

    /// Returns the number of pending clean-ups: deletes of abandoned entries, and searches for entries whose create was
    /// not answered. If this number does not fall, the store refuses the clean-ups, and the remaining entries block
    /// their locks. The log names the znode and the error.
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

    /// Returns the patterns added with [`ConnectOptions::entry_pattern`].
    pub fn entry_patterns(&self) -> &[String] {
        &self.0.entry_patterns
    }

    /// Returns the id of the store. `None` if the store has no id or this session may not read it.
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

    /// Closes the session. From this call on, the session holds no lock. The store deletes the session's ephemeral
    /// znodes when the request arrives. Closing a session that is already over succeeds.
    ///
    /// Cancel safe: dropping the future does not stop the closing.
    pub fn close(&self) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
        // Mark the session as closing before sending the request. Once the server has the request, it may grant this
        // session's locks to other sessions (invariant 6).
        self.0.status.set_closing();
        let closing = self.call(Request::Close, done);
        async move {
            match closing.await {
                Err(error) if error.is_session_end() => Ok(()),
                other => other,
            }
        }
    }

    /// Blocks until all submitted requests have been written to the connection, for at most 5 ms.
    ///
    /// Call this in a `drop` that sends a last request. Once the request is written, it reaches the server even if the
    /// process exits. The call does not block while the session is suspended, or if the store is in this process. After
    /// a call has timed out, further calls return immediately until the connection accepts bytes again.
    pub fn flush(&self) -> Flushed {
        self.0.flush()
    }

    /// Returns the current lease. A granted lock is held while its lease is [valid](Lease::is_valid).
    #[inline]
    pub fn lease(&self) -> Lease {
        self.0.status.lease()
    }

    /// Returns the lease as soon as at least a fifth of the timeout is left before [`held_until`](Self::held_until), so
    /// that a lock granted now is not lost immediately. While a session is in use, its [heartbeat](Self::heartbeat)
    /// keeps the lease fresh, so the call usually returns immediately.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`Error::SessionExpired`] or [`Error::SessionClosed`] if the session ends first.
    pub async fn fresh_lease(&self) -> Result<Lease> {
        // An idle session at an ensemble sends no writes, so nothing would renew its lease. The heartbeat marks the
        // session as in use.
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
    /// Inlined, because the compiler removes most of this function if it knows the kind of request.
    #[inline]
    fn submit(&self, request: Request) -> Response {
        // Check the size before sending. A ZooKeeper server closes the connection on a request that is too large, and
        // then all other pending requests would fail too.
        match Error::if_forked().and_then(|()| self.scale.check(&request)) {
            Ok(()) => match self.status.sending() {
                None => self.backend.submit(request),
                Some(sent) => self.submit_as_proof(request, sent),
            },
            Err(error) => Response::ready(Err(error)),
        }
    }

    fn flush(&self) -> Flushed {
        // A suspended session has no connection to write to, so waiting would block the drop without any effect.
        match self.status.state().is_connected() {
            true => self.backend.flush(FLUSH_LIMIT),
            false => Flushed::Skipped,
        }
    }

    /// Submits a request whose answer may prove that the session is alive. `sent` must be read before the request is
    /// sent, because the renewed lease starts at that time (invariant 6).
    fn submit_as_proof(&self, request: Request, sent: PendingProof) -> Response {
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
    /// Starts a clean-up of this session and counts it as pending. Log messages about the clean-up contain `path`.
    pub fn new(session: &Session, path: &ZnodePath) -> Self {
        Self::of(session.status(), path)
    }

    /// Waits until a step that failed with `error` can be repeated, and returns the session. The wait does not keep the
    /// session open. If the program drops its last handle during the wait, the session closes, and the store deletes
    /// the session's ephemeral znodes.
    ///
    /// # Errors
    /// `error` if repeating cannot help. [`Error::SessionClosed`] if the session ended during the wait.
    pub async fn retry_after(&mut self, session: Session, error: Error) -> Result<Session> {
        if self.waits_for_connection(&error) {
            return Ok(session);
        }
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
