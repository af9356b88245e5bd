//! [`Session`]: what users and recipes hold.

mod heartbeat;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use crate::backend::{
    Backend, Cleanup, Create, Enqueue, FLUSH_LIMIT, Flushed, GetPredecessor, Lease, Op, OpReply,
    Predecessor, ReadOp, ReadReply, Reply, Request, Response, Sent, SessionStatus, StateStream,
    unexpected,
};
use crate::clock::{Clock, Deadline};
use crate::connect::ConnectOptions;
use crate::error::{Error, Result};
use crate::fork;
use crate::identity::Secret;
use crate::path::ZnodePath;
use crate::size::Scale;
use crate::types::{Acl, CreateMode, SessionId, SessionState, Stat, WatchMode, Zxid};
use crate::watch::{PersistentWatcher, Watcher};

use heartbeat::Heart;
pub use heartbeat::Heartbeat;

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

    /// Makes a znode with the session's access control list; answers its path, number included, and its state.
    ///
    /// # Errors
    /// [`Error::NoNode`] without a parent, [`Error::NodeExists`],
    /// [`Error::NoChildrenForEphemerals`], [`Error::TooLarge`], and those of every request.
    pub fn create(
        &self,
        path: &ZnodePath,
        data: impl Into<Bytes>,
        mode: CreateMode,
    ) -> Call<(ZnodePath, Stat)> {
        let request = Request::Create(Create {
            path: path.clone(),
            data: data.into(),
            mode,
            acl: self.0.acl.clone(),
        });
        self.call(request, |reply| match reply {
            Reply::Created { path, stat } => Ok((path, stat)),
            reply => unexpected("create", reply),
        })
    }

    /// Makes a znode and those above it that are missing, as persistent ones. One that exists is left as it is.
    ///
    /// # Errors
    /// As [`create`](Self::create), but for `NoNode` and `NodeExists`.
    pub async fn create_all(&self, path: &ZnodePath, mode: CreateMode) -> Result<()> {
        let mut missing = vec![(path.clone(), mode)];
        while let Some((path, mode)) = missing.pop() {
            match self.create(&path, Bytes::new(), mode).await {
                Ok(_) | Err(Error::NodeExists { .. }) => {}
                Err(Error::NoNode { .. }) => {
                    let parent = path.parent().filter(|parent| !parent.is_root());
                    let Some(parent) = parent else {
                        return Err(Error::NoNode {
                            path: path.to_string(),
                        });
                    };
                    missing.push((path, mode));
                    missing.push((parent, CreateMode::Persistent));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Deletes a znode, if it is at this version (`None`: at any).
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::BadVersion`], [`Error::NotEmpty`], and those of every request.
    #[inline]
    pub fn delete(&self, path: &ZnodePath, version: Option<i32>) -> Call<()> {
        let path = path.clone();
        self.call(Request::Delete { path, version }, done)
    }

    /// Deletes an entry of a queue that was never held, or is not believed to be held any more:
    /// those behind do not take it for a release ([`DeleteReason`](crate::DeleteReason)).
    ///
    /// # Errors
    /// As [`delete`](Self::delete).
    pub fn withdraw(&self, entry: &ZnodePath) -> Call<()> {
        let entry = entry.clone();
        self.call(Request::Withdraw { entry }, done)
    }

    /// The state of a znode; `None` if there is none.
    pub fn exists(&self, path: &ZnodePath) -> Call<Option<Stat>> {
        let path = path.clone();
        self.call(
            Request::Exists { path, watch: false },
            |reply| match reply {
                Reply::Exists { stat, .. } => Ok(stat),
                reply => unexpected("exists", reply),
            },
        )
    }

    /// [`exists`](Self::exists), with a watch that fires when the znode is made, changed or deleted.
    pub fn watch_exists(&self, path: &ZnodePath) -> Call<(Option<Stat>, Watcher)> {
        let path = path.clone();
        self.call(Request::Exists { path, watch: true }, |reply| match reply {
            Reply::Exists {
                stat,
                watcher: Some(watcher),
            } => Ok((stat, watcher)),
            reply => unexpected("exists with a watch", reply),
        })
    }

    /// The data and state of a znode.
    ///
    /// # Errors
    /// [`Error::NoNode`], and those of every request.
    pub fn get_data(&self, path: &ZnodePath) -> Call<(Bytes, Stat)> {
        let path = path.clone();
        self.call(
            Request::GetData { path, watch: false },
            |reply| match reply {
                Reply::Data { data, stat, .. } => Ok((data, stat)),
                reply => unexpected("getData", reply),
            },
        )
    }

    /// [`get_data`](Self::get_data), with a watch that fires when the znode is changed or deleted.
    /// On a missing znode nothing is watched.
    pub fn watch_data(&self, path: &ZnodePath) -> Call<(Bytes, Stat, Watcher)> {
        let path = path.clone();
        self.call(
            Request::GetData { path, watch: true },
            |reply| match reply {
                Reply::Data {
                    data,
                    stat,
                    watcher: Some(watcher),
                } => Ok((data, stat, watcher)),
                reply => unexpected("getData with a watch", reply),
            },
        )
    }

    /// Replaces a znode's data, if it is at this version (`None`: at any).
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::BadVersion`], [`Error::TooLarge`], and those of every request.
    pub fn set_data(
        &self,
        path: &ZnodePath,
        data: impl Into<Bytes>,
        version: Option<i32>,
    ) -> Call<Stat> {
        let request = Request::SetData {
            path: path.clone(),
            data: data.into(),
            version,
        };
        self.call(request, |reply| match reply {
            Reply::Stat(stat) => Ok(stat),
            reply => unexpected("setData", reply),
        })
    }

    /// The names of a znode's children, in no particular order, and its own state.
    ///
    /// # Errors
    /// [`Error::NoNode`], and those of every request.
    pub fn get_children(&self, path: &ZnodePath) -> Call<(Vec<String>, Stat)> {
        let path = path.clone();
        self.call(
            Request::GetChildren { path, watch: false },
            |reply| match reply {
                Reply::Children { names, stat, .. } => Ok((names, stat)),
                reply => unexpected("getChildren", reply),
            },
        )
    }

    /// [`get_children`](Self::get_children), with a watch that fires when the list changes or the
    /// znode is deleted. On a missing znode nothing is watched.
    pub fn watch_children(&self, path: &ZnodePath) -> Call<(Vec<String>, Stat, Watcher)> {
        let path = path.clone();
        self.call(
            Request::GetChildren { path, watch: true },
            |reply| match reply {
                Reply::Children {
                    names,
                    stat,
                    watcher: Some(watcher),
                } => Ok((names, stat, watcher)),
                reply => unexpected("getChildren with a watch", reply),
            },
        )
    }

    /// Fails unless the znode exists and is at this version (`None`: at any). Goes through the store's log.
    ///
    /// # Errors
    /// [`Error::MultiFailed`] with [`Error::NoNode`] or [`Error::BadVersion`], and those of every request.
    pub fn check(&self, path: &ZnodePath, version: Option<i32>) -> Call<()> {
        let path = path.clone();
        let request = Request::Multi(vec![Op::Check { path, version }]);
        self.call(request, |reply| match reply {
            Reply::Multi(_) => Ok(()),
            reply => unexpected("check", reply),
        })
    }

    /// Carries out all operations under one zxid, each seeing those before it, or none of them.
    ///
    /// # Errors
    /// [`Error::MultiFailed`], which says which operation failed and why, and those of every request.
    pub fn multi(&self, ops: impl Into<Vec<Op>>) -> Call<Vec<OpReply>> {
        self.call(Request::Multi(ops.into()), |reply| match reply {
            Reply::Multi(replies) => Ok(replies),
            reply => unexpected("multi", reply),
        })
    }

    /// Reads several znodes at one zxid; each operation may fail by itself.
    pub fn multi_read(&self, ops: impl Into<Vec<ReadOp>>) -> Call<Vec<ReadReply>> {
        self.call(Request::MultiRead(ops.into()), |reply| match reply {
            Reply::MultiRead(replies) => Ok(replies),
            reply => unexpected("multiRead", reply),
        })
    }

    /// Waits until this session's server has caught up with what was committed before. A barrier,
    /// no proof: of itself it does not make a read linearizable.
    pub fn sync(&self, path: &ZnodePath) -> Call<()> {
        let path = path.clone();
        self.call(Request::Sync { path }, done)
    }

    /// This session's ephemeral znodes whose paths start with `prefix`. As in ZooKeeper it is one
    /// of text: `/a` is a prefix of `/ab`, too.
    pub fn get_ephemerals(&self, prefix: &ZnodePath) -> Call<Vec<ZnodePath>> {
        let prefix = prefix.clone();
        self.call(Request::GetEphemerals { prefix }, |reply| match reply {
            Reply::Paths(paths) => Ok(paths),
            reply => unexpected("getEphemerals", reply),
        })
    }

    /// How many znodes there are below a path.
    ///
    /// # Errors
    /// [`Error::NoNode`], and those of every request.
    pub fn get_all_children_number(&self, path: &ZnodePath) -> Call<usize> {
        let path = path.clone();
        self.call(
            Request::GetAllChildrenNumber { path },
            |reply| match reply {
                Reply::Count(count) => Ok(count),
                reply => unexpected("getAllChildrenNumber", reply),
            },
        )
    }

    /// Watches from now on, until the watcher is dropped.
    pub fn add_watch(&self, path: &ZnodePath, mode: WatchMode) -> Call<PersistentWatcher> {
        let path = path.clone();
        self.call(Request::AddWatch { path, mode }, |reply| match reply {
            Reply::Watching(watcher) => Ok(watcher),
            reply => unexpected("addWatch", reply),
        })
    }

    /// A znode's access control list, and its state. Whoever may not set the list sees `user:x` where
    /// it has a digest.
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::NoAuth`] without the right to read or to set the list, and those of
    /// every request.
    pub fn get_acl(&self, path: &ZnodePath) -> Call<(Acl, Stat)> {
        let path = path.clone();
        self.call(Request::GetAcl { path }, |reply| match reply {
            Reply::Acl { acl, stat } => Ok((acl, stat)),
            reply => unexpected("getACL", reply),
        })
    }

    /// Replaces a znode's access control list, if that is at this version ([`Stat::aversion`]; `None`:
    /// at any). No watch fires.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use lockkeeper_store::{Acl, ConnectOptions, CreateMode, Error, Store};
    ///
    /// let store = Store::memory();
    /// let options = ConnectOptions::new().auth("digest", "alice:secret");
    /// let alice = store.connect_with(options).await?.session().await?;
    /// let (path, _) = alice.create(&"/hers".parse()?, "", CreateMode::Persistent).await?;
    /// alice.set_acl(&path, Acl::creator_all(), Some(0)).await?;
    ///
    /// let other = store.connect().await?.session().await?;
    /// assert!(matches!(other.get_data(&path).await, Err(Error::NoAuth { .. })));
    /// other.add_auth("digest", "alice:secret").await?;
    /// other.get_data(&path).await?;
    /// # Ok::<(), lockkeeper_store::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::NoAuth`] without the right to set the list, [`Error::BadVersion`],
    /// [`Error::InvalidAcl`] for an empty list, one with an id that its scheme does not know, and one
    /// for `auth` of a session that has proved nothing; and those of every request.
    pub fn set_acl(&self, path: &ZnodePath, acl: Acl, version: Option<i32>) -> Call<Stat> {
        let path = path.clone();
        let request = Request::SetAcl { path, acl, version };
        self.call(request, |reply| match reply {
            Reply::Stat(stat) => Ok(stat),
            reply => unexpected("setACL", reply),
        })
    }

    /// Proves who the session speaks for, beside what it has proved already: from the next request on
    /// it has the rights of all of them. `digest` takes `user:password`. A session that a client opens
    /// after this one must prove it again; what stands in
    /// [`ConnectOptions::auth`](crate::ConnectOptions::auth) is proved by each.
    ///
    /// # Errors
    /// [`Error::AuthFailed`] for what proves nothing, as with a scheme that the store does not know: then
    /// the session is over. And those of every request.
    pub fn add_auth(&self, scheme: impl Into<String>, secret: impl Into<Bytes>) -> Call<()> {
        let (scheme, secret) = (scheme.into(), Secret::new(secret));
        self.call(Request::AddAuth { scheme, secret }, done)
    }

    /// Joins a queue; answers the entry's path, the zxid that made it, and who is ahead of it.
    ///
    /// # Errors
    /// [`Error::NoNode`] without the queue's parent, and those of [`create`](Self::create).
    #[inline]
    pub fn enqueue(&self, enqueue: Enqueue) -> Call<(ZnodePath, Zxid, Predecessor)> {
        self.call(Request::Enqueue(enqueue), |reply| match reply {
            Reply::Enqueued { path, czxid, ahead } => Ok((path, czxid, ahead)),
            reply => unexpected("enqueue", reply),
        })
    }

    /// Who is ahead of an entry now.
    pub fn get_predecessor(&self, look: GetPredecessor) -> Call<Predecessor> {
        self.call(Request::GetPredecessor(look), |reply| match reply {
            Reply::Predecessor(ahead) => Ok(ahead),
            reply => unexpected("lookAhead", reply),
        })
    }

    /// Lists a queue: the names of its ephemeral children with a number, head first, if the flag says so; else those
    /// of all children.
    ///
    /// # Errors
    /// [`Error::NoNode`], and those of every request.
    pub fn get_queue(&self, parent: &ZnodePath, limit: usize) -> Call<(Vec<String>, bool)> {
        let parent = parent.clone();
        self.call(Request::GetQueue { parent, limit }, |reply| match reply {
            Reply::Queue { names, sorted } => Ok((names, sorted)),
            reply => unexpected("getQueue", reply),
        })
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

    #[inline]
    fn call<T>(&self, request: Request, take: fn(Reply) -> Result<T>) -> Call<T> {
        Call {
            response: self.submit(request),
            take,
        }
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

#[inline]
fn done(reply: Reply) -> Result<()> {
    match reply {
        Reply::Done => Ok(()),
        reply => unexpected("a request without an answer of its own", reply),
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

/// The future of a typed request, which is under way already. Dropping it does not take it back.
#[must_use = "the request is under way; await its answer or drop it on purpose"]
pub struct Call<T> {
    response: Response,
    take: fn(Reply) -> Result<T>,
}

impl<T> Call<T> {
    /// The answer if it is there, else the call again. In a store of this process it always is.
    #[expect(clippy::result_large_err, reason = "as with `Response::now_or_never`")]
    #[inline]
    pub fn now_or_never(self) -> Result<Result<T>, Self> {
        match self.response.now_or_never() {
            Ok(reply) => Ok(reply.and_then(self.take)),
            Err(response) => Err(Self {
                response,
                take: self.take,
            }),
        }
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let take = self.take;
        Pin::new(&mut self.response)
            .poll(context)
            .map(|reply| reply.and_then(take))
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Call").field(&self.response).finish()
    }
}
