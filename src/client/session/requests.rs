//! The typed requests of a [`Session`], one method for each operation, and [`Call`], the future of their replies.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::task::coop;

use super::Session;
use crate::backend::LocalQueues;
use crate::model::acl::Acl;
use crate::model::entry::{Entered, EntryKey, NewEntry, Turn};
use crate::model::error::{Error, Result};
use crate::model::identity::Secret;
use crate::model::path::ZnodePath;
use crate::model::protocol::{
    Create, Enqueue, GetPredecessor, Op, OpReply, Predecessor, ReadOp, ReadReply, Reply, Request,
    Response, unexpected,
};
use crate::model::types::{CreateMode, Stat, Zxid};
use crate::model::watch::{DeleteReason, PersistentWatcher, WatchMode, Watcher};
use crate::runtime::fork;

impl Session {
    /// Creates a znode with the session's access control list, and returns its path, sequence number included, and
    /// its state.
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
            _ => unexpected("create"),
        })
    }

    /// Creates a znode and its missing ancestors: those of a container as containers, others as persistent znodes.
    /// Existing znodes are left as they are.
    ///
    /// # Errors
    /// As [`create`](Self::create), but for `NoNode` and `NodeExists`.
    pub async fn create_all(&self, path: &ZnodePath, mode: CreateMode) -> Result<()> {
        // As Curator does it: a path of containers that nobody uses goes as a whole.
        let above = match mode {
            CreateMode::Container => CreateMode::Container,
            _ => CreateMode::Persistent,
        };
        let mut missing = vec![(path.clone(), mode)];
        while let Some((path, mode)) = missing.pop() {
            match self.create(&path, Bytes::new(), mode).await {
                Ok(_) | Err(Error::NodeExists { .. }) => {}
                // Parents only when they are missing: mostly one request is enough. Another client may delete or create
                // some meanwhile, so each answer is taken as it comes.
                Err(Error::NoNode { .. }) => {
                    let parent = path.parent().filter(|parent| !parent.is_root());
                    let Some(parent) = parent else {
                        return Err(Error::NoNode {
                            path: path.to_string(),
                        });
                    };
                    missing.push((path, mode));
                    missing.push((parent, above));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Deletes a znode, if it has this version (`None`: any).
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::BadVersion`], [`Error::NotEmpty`], and those of every request.
    #[inline]
    pub fn delete(&self, path: &ZnodePath, version: Option<i32>) -> Call<()> {
        let path = path.clone();
        self.call(Request::Delete { path, version }, done)
    }

    /// Deletes an entry of a queue that was never held, or is no longer believed to be: the waiters behind it do not
    /// take that for a release ([`DeleteReason`](crate::DeleteReason)).
    ///
    /// # Errors
    /// As [`delete`](Self::delete).
    pub fn withdraw(&self, entry: &ZnodePath) -> Call<()> {
        let entry = entry.clone();
        self.call(Request::Withdraw { entry }, done)
    }

    /// Returns the state of a znode; `None` if it does not exist.
    pub fn exists(&self, path: &ZnodePath) -> Call<Option<Stat>> {
        let path = path.clone();
        self.call(
            Request::Exists { path, watch: false },
            |reply| match reply {
                Reply::Exists { stat, .. } => Ok(stat),
                _ => unexpected("exists"),
            },
        )
    }

    /// Returns the state of a znode as [`exists`](Self::exists) does, with a watch that fires when the znode is
    /// created, changed or deleted.
    pub fn watch_exists(&self, path: &ZnodePath) -> Call<(Option<Stat>, Watcher)> {
        let path = path.clone();
        self.call(Request::Exists { path, watch: true }, |reply| match reply {
            Reply::Exists {
                stat,
                watcher: Some(watcher),
            } => Ok((stat, watcher)),
            _ => unexpected("exists with a watch"),
        })
    }

    /// Returns the data and state of a znode.
    ///
    /// # Errors
    /// [`Error::NoNode`], and those of every request.
    pub fn get_data(&self, path: &ZnodePath) -> Call<(Bytes, Stat)> {
        let path = path.clone();
        self.call(
            Request::GetData { path, watch: false },
            |reply| match reply {
                Reply::Data { data, stat, .. } => Ok((data, stat)),
                _ => unexpected("getData"),
            },
        )
    }

    /// Returns data and state as [`get_data`](Self::get_data) does, with a watch that fires when the znode is changed
    /// or deleted. Sets no watch on a missing znode.
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
                _ => unexpected("getData with a watch"),
            },
        )
    }

    /// Replaces a znode's data, if it has this version (`None`: any).
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
            _ => unexpected("setData"),
        })
    }

    /// Returns the names of a znode's children, in no particular order, and its own state.
    ///
    /// # Errors
    /// [`Error::NoNode`], and those of every request.
    pub fn get_children(&self, path: &ZnodePath) -> Call<(Vec<String>, Stat)> {
        let path = path.clone();
        self.call(
            Request::GetChildren { path, watch: false },
            |reply| match reply {
                Reply::Children { names, stat, .. } => Ok((names, stat)),
                _ => unexpected("getChildren"),
            },
        )
    }

    /// Lists children as [`get_children`](Self::get_children) does, with a watch that fires when the list changes or
    /// the znode is deleted. Sets no watch on a missing znode.
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
                _ => unexpected("getChildren with a watch"),
            },
        )
    }

    /// Succeeds if the znode exists and has this version (`None`: any). Goes through the store's log.
    ///
    /// # Errors
    /// [`Error::MultiFailed`] with [`Error::NoNode`] or [`Error::BadVersion`], and those of every request.
    pub fn check(&self, path: &ZnodePath, version: Option<i32>) -> Call<()> {
        let path = path.clone();
        let request = Request::Multi(vec![Op::Check { path, version }]);
        self.call(request, |reply| match reply {
            Reply::Multi(_) => Ok(()),
            _ => unexpected("check"),
        })
    }

    /// Carries out all operations in one transaction, each seeing those before it, or none of them.
    ///
    /// # Errors
    /// [`Error::MultiFailed`] with the index of the failed operation and its error, and those of every request.
    pub fn multi(&self, ops: impl Into<Vec<Op>>) -> Call<Vec<OpReply>> {
        self.call(Request::Multi(ops.into()), |reply| match reply {
            Reply::Multi(replies) => Ok(replies),
            _ => unexpected("multi"),
        })
    }

    /// Reads several znodes at one zxid. Each operation may fail by itself.
    pub fn multi_read(&self, ops: impl Into<Vec<ReadOp>>) -> Call<Vec<ReadReply>> {
        self.call(Request::MultiRead(ops.into()), |reply| match reply {
            Reply::MultiRead(replies) => Ok(replies),
            _ => unexpected("multiRead"),
        })
    }

    /// Waits until this session's server has applied the transactions that were committed before. It is a barrier,
    /// which alone does not make a read linearizable (rule 26).
    pub fn sync(&self, path: &ZnodePath) -> Call<()> {
        let path = path.clone();
        self.call(Request::Sync { path }, done)
    }

    /// Returns the paths of this session's ephemeral znodes that start with `prefix`. As in ZooKeeper they are compared
    /// as text: `/a` is a prefix of `/ab`, too.
    pub fn get_ephemerals(&self, prefix: &ZnodePath) -> Call<Vec<ZnodePath>> {
        let prefix = prefix.clone();
        self.call(Request::GetEphemerals { prefix }, |reply| match reply {
            Reply::Paths(paths) => Ok(paths),
            _ => unexpected("getEphemerals"),
        })
    }

    /// Returns the number of znodes below a path.
    ///
    /// # Errors
    /// [`Error::NoNode`], and those of every request.
    pub fn get_all_children_number(&self, path: &ZnodePath) -> Call<usize> {
        let path = path.clone();
        self.call(
            Request::GetAllChildrenNumber { path },
            |reply| match reply {
                Reply::Count(count) => Ok(count),
                _ => unexpected("getAllChildrenNumber"),
            },
        )
    }

    /// Adds a persistent watch, until the watcher is dropped.
    pub fn add_watch(&self, path: &ZnodePath, mode: WatchMode) -> Call<PersistentWatcher> {
        let path = path.clone();
        self.call(Request::AddWatch { path, mode }, |reply| match reply {
            Reply::Watching(watcher) => Ok(watcher),
            _ => unexpected("addWatch"),
        })
    }

    /// Returns a znode's access control list, and its state. A session that may not set the list sees `user:x` in
    /// place of a digest.
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::NoAuth`] without the right to read or to set the list, and those of
    /// every request.
    pub fn get_acl(&self, path: &ZnodePath) -> Call<(Acl, Stat)> {
        let path = path.clone();
        self.call(Request::GetAcl { path }, |reply| match reply {
            Reply::Acl { acl, stat } => Ok((acl, stat)),
            _ => unexpected("getACL"),
        })
    }

    /// Replaces a znode's access control list, if the list has this version ([`Stat::aversion`]; `None`: any). No
    /// watch fires.
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
            _ => unexpected("setACL"),
        })
    }

    /// Proves a further identity of the session: from the next request on it has the rights of all of them. `digest`
    /// takes `user:password`. A session that a client opens after this one must prove it again; the identities of
    /// [`ConnectOptions::auth`](crate::ConnectOptions::auth) are proved by each.
    ///
    /// # Errors
    /// [`Error::AuthFailed`] for a wrong proof, or a scheme that the store does not know: then the session is over.
    /// And those of every request.
    pub fn add_auth(&self, scheme: impl Into<String>, secret: impl Into<Bytes>) -> Call<()> {
        let (scheme, secret) = (scheme.into(), Secret::new(secret));
        self.call(Request::AddAuth { scheme, secret }, done)
    }

    /// Joins a queue, and returns the entry's path, the zxid of its creation, and its predecessor.
    ///
    /// # Errors
    /// [`Error::NoNode`] without the queue's parent, and those of [`create`](Self::create).
    #[inline]
    pub fn enqueue(&self, enqueue: Enqueue) -> Call<(ZnodePath, Zxid, Predecessor)> {
        self.call(Request::Enqueue(enqueue), |reply| match reply {
            Reply::Enqueued { path, czxid, ahead } => Ok((path, czxid, ahead)),
            _ => unexpected("enqueue"),
        })
    }

    /// Joins a queue as [`enqueue`](Self::enqueue) does, or a multi with conditions, where the store is in this process: at
    /// once, without a request and without a path. `None`, and nothing was done, on any other store, and where only a
    /// request can do it or tell why not (a missing queue of a store with a log, a condition that does not hold, a refusal, a
    /// session with a timeout): then send that.
    ///
    /// The caller is responsible for the entry: it [leaves](Self::leave), and a turn that is not awaited is
    /// [forgotten](Self::forget).
    #[inline]
    pub fn enter(&self, entry: NewEntry<'_>) -> Option<Entered> {
        let queues = self.local()?;
        match self.0.scale.takes_entry(&entry) {
            true => queues.enter(entry),
            false => None,
        }
    }

    /// Deletes an entry that [`enter`](Self::enter) has created. `reason` is told to the entry behind. Returns false if only a request can do it: then send [`delete`](Self::delete) or
    /// [`withdraw`](Self::withdraw).
    #[inline]
    pub fn leave(&self, entry: EntryKey, reason: DeleteReason) -> bool {
        self.local()
            .is_some_and(|queues| queues.leave(entry, reason))
    }

    /// Disarms the watch by which an entry waits for its turn, before the entry leaves, or waits in another way.
    pub fn forget(&self, turn: &Turn) {
        if let Some(queues) = self.local() {
            queues.forget(turn);
        }
    }

    /// Returns true if an entry that [`enter`](Self::enter) has created exists. If not, [`exists`](Self::exists) tells
    /// why.
    #[inline]
    pub fn has_entry(&self, entry: EntryKey) -> bool {
        self.local().is_some_and(|queues| queues.has_entry(entry))
    }

    /// Returns the number of entries ahead of one that [`enter`](Self::enter) has created; `None` if it is gone.
    pub fn count_ahead(&self, entry: EntryKey) -> Option<usize> {
        self.local()?.count_ahead(entry)
    }

    #[inline]
    fn local(&self) -> Option<&dyn LocalQueues> {
        match fork::is_forked() {
            true => None,
            false => self.0.backend.local(),
        }
    }

    /// Returns an entry's present predecessor.
    pub fn get_predecessor(&self, look: GetPredecessor) -> Call<Predecessor> {
        self.call(Request::GetPredecessor(look), |reply| match reply {
            Reply::Predecessor(ahead) => Ok(ahead),
            _ => unexpected("lookAhead"),
        })
    }

    /// Lists a queue: if the returned flag is set, the names of its ephemeral sequential children, head first;
    /// otherwise those of all children, unsorted.
    ///
    /// # Errors
    /// [`Error::NoNode`], and those of every request.
    pub fn get_queue(&self, parent: &ZnodePath, limit: usize) -> Call<(Vec<String>, bool)> {
        let parent = parent.clone();
        self.call(Request::GetQueue { parent, limit }, |reply| match reply {
            Reply::Queue { names, sorted } => Ok((names, sorted)),
            _ => unexpected("getQueue"),
        })
    }

    #[inline]
    pub(super) fn call<T>(&self, request: Request, take: fn(Reply) -> Result<T>) -> Call<T> {
        Call {
            response: self.submit(request),
            take,
        }
    }
}

#[inline]
pub(super) fn done(reply: Reply) -> Result<()> {
    match reply {
        Reply::Done => Ok(()),
        _ => unexpected("a request with an empty reply"),
    }
}

/// Future of a typed request, which has been sent already. Dropping it does not withdraw the request.
#[must_use = "the request is under way; await its answer or drop it on purpose"]
pub struct Call<T> {
    response: Response,
    take: fn(Reply) -> Result<T>,
}

impl<T> Call<T> {
    /// Returns the reply if it has arrived, otherwise the call again. In a store of this process it always has.
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
        // In a store of this process every reply is ready: a loop of requests has to give way to other tasks.
        let budget = ready!(coop::poll_proceed(context));
        let reply = ready!(Pin::new(&mut self.response).poll(context));
        budget.made_progress();
        Poll::Ready(reply.and_then(self.take))
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Call").field(&self.response).finish()
    }
}
