//! [`Session`]: what users and recipes hold.

mod heartbeat;
mod requests;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{
    Backend, Cleanup, FLUSH_LIMIT, Flushed, Lease, Reply, Request, Response, Sent, SessionStatus,
    StateStream,
};
use crate::clock::{Clock, Deadline};
use crate::connect::ConnectOptions;
use crate::error::{Error, Result};
use crate::fork;
use crate::path::ZnodePath;
use crate::size::Scale;
use crate::types::{Acl, SessionId, SessionState};

use heartbeat::Heart;
pub use heartbeat::Heartbeat;
pub use requests::Call;
use requests::done;

/// A session at a store. It never silently becomes another: when it has expired, it is over.
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
    /// A session that speaks through `backend`. `acl` is for the znodes that it makes.
    pub fn new(backend: Arc<dyn Backend>, acl: Acl) -> Self {
        Self::configured(backend, &ConnectOptions::new().acl(acl))
    }

    /// A session that speaks through `backend`, as a client's options say.
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

    /// The session's number, the owner of its ephemeral znodes.
    pub fn id(&self) -> SessionId {
        self.0.status.id()
    }

    /// Where the session stands now.
    pub fn state(&self) -> SessionState {
        self.0.status.state()
    }

    /// The changes of state from now on.
    pub fn states(&self) -> StateStream {
        self.0.status.states()
    }

    /// Where the session stands, in detail.
    pub fn status(&self) -> &Arc<SessionStatus> {
        &self.0.status
    }

    /// How many bytes a create takes in a multi, rounded up, by the lengths of its path and its data
    /// and with this session's [`acl`](Self::acl): what counts towards [`LARGEST_REQUEST_BYTES`].
    ///
    /// [`LARGEST_REQUEST_BYTES`]: crate::LARGEST_REQUEST_BYTES
    pub fn create_bytes(&self, path: usize, data: usize) -> usize {
        self.0.scale.create_op(path, data, &self.0.acl)
    }

    /// The negotiated timeout; `None` where the store never expires the session (in its own process).
    pub fn timeout(&self) -> Option<Duration> {
        self.0.status.timeout()
    }

    /// Until when nobody else can hold what this session holds, as far as clocks and the server
    /// allow; `None` for as long as it lives. See [`SessionStatus::held_until`].
    pub fn held_until(&self) -> Option<Deadline> {
        self.0.status.held_until()
    }

    /// Returns the number of clean-ups that have not come to their end: deletes of entries that were
    /// given up, and searches for those whose create was not answered. More than a few for long means that the store refuses
    /// them, and that locks cannot be had meanwhile; a log line says which and why.
    pub fn pending_cleanups(&self) -> usize {
        self.0.status.pending_cleanups()
    }

    /// The clock that the session lives by.
    pub fn clock(&self) -> &Clock {
        self.0.status.clock()
    }

    /// The access control list of the znodes that this session makes.
    pub fn acl(&self) -> &Acl {
        &self.0.acl
    }

    /// The further patterns of [`ConnectOptions::entry_pattern`].
    pub fn entry_patterns(&self) -> &[String] {
        &self.0.entry_patterns
    }

    /// The id of the store, where it has one that this session may read.
    pub fn store_id(&self) -> Option<&str> {
        self.0.backend.store_id()
    }

    /// The backend, for wrappers and tests.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    /// Sends any request.
    #[inline]
    pub fn submit(&self, request: Request) -> Response {
        self.0.submit(request)
    }

    /// Closes the session: from this call on nothing is believed to be held, and the store deletes
    /// its ephemeral znodes at once. Closing a session that is over succeeds.
    ///
    /// Dropping the future does not stop the closing.
    pub fn close(&self) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
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
    /// For the drop of a value that has sent its last request: the process may end right after it, and what has been
    /// written by then reaches the server all the same. It never waits while the session is suspended, nor in a store
    /// of this process; and after one wait that took too long none is begun until the thread of the connections has
    /// gone on.
    pub fn flush(&self) -> Flushed {
        self.0.flush()
    }

    /// Returns the lease that the session has now: a lock that is granted remembers it, and is held while it is
    /// [valid](Lease::is_valid).
    #[inline]
    pub fn lease(&self) -> Lease {
        self.0.status.lease()
    }

    /// Waits until a fifth of the timeout is left until [`held_until`](Self::held_until), and returns the lease: what is
    /// granted under it is not lost at once. The [heartbeat](Self::heartbeat) sees to it; on a session that has been in
    /// use it is so already.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`Error::SessionExpired`] or [`Error::SessionClosed`] when the session ends first.
    pub async fn fresh_lease(&self) -> Result<Lease> {
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
    /// Inlined: where the kind of request is known, little is left of it.
    #[inline]
    fn submit(&self, request: Request) -> Response {
        match fork::check().and_then(|()| self.scale.check(&request)) {
            Ok(()) => match self.status.sending() {
                None => self.backend.submit(request),
                Some(sent) => self.submit_as_proof(request, sent),
            },
            Err(error) => Response::ready(Err(error)),
        }
    }

    fn flush(&self) -> Flushed {
        match self.status.state().is_connected() {
            true => self.backend.flush(FLUSH_LIMIT),
            false => Flushed::Skipped,
        }
    }

    /// Sends a request whose answer proves that the session lives.
    fn submit_as_proof(&self, request: Request, sent: Sent) -> Response {
        let is_write = request.is_write();
        let judge = move |status: &SessionStatus, reply: &Result<Reply>| {
            if proves(reply) {
                status.answered(sent, is_write && is_commit(reply));
            }
        };
        match self.backend.submit(request).now_or_never() {
            Ok(reply) => {
                judge(&self.status, &reply);
                Response::ready(reply)
            }
            Err(response) => {
                let status = self.status.clone();
                Response::pending(async move {
                    let reply = response.await;
                    judge(&status, &reply);
                    reply
                })
            }
        }
    }
}

/// Whether the store itself has answered.
fn proves(reply: &Result<Reply>) -> bool {
    reply.as_ref().map_or_else(Error::is_answer, |_| true)
}

impl Cleanup {
    /// Counts a clean-up of this session as pending. `path` is what it concerns, for the log.
    pub fn new(session: &Session, path: &ZnodePath) -> Self {
        Self::of(session.status(), path)
    }

    /// Waits until a step that failed with `error` is worth repeating, and answers the session.
    ///
    /// Meanwhile it does not keep the session open: when nobody else has it any more, it closes, which
    /// deletes its nodes for good.
    ///
    /// # Errors
    /// `error`, if no repetition can help, and [`Error::SessionClosed`] if the session has ended
    /// meanwhile.
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

/// Returns true if the answer to a write shows that the ensemble has committed it, refused or not. A
/// follower may refuse by itself for want of a right (ZooKeeper's `enableEagerACLCheck`), and what it
/// does not know.
fn is_commit(reply: &Result<Reply>) -> bool {
    use Error::{InvalidAcl, NoAuth, Unimplemented};
    !matches!(
        reply,
        Err(NoAuth { .. } | InvalidAcl { .. } | Unimplemented { .. })
    )
}
