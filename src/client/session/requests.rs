//! Typed requests of a [`Session`], and [`Call`], the future of their replies.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::task::coop;

use super::Session;
use crate::backend::LocalQueues;
use crate::model::acl::Acl;
use crate::model::entry::{Enqueued, EntryKey, NewEntry, PredecessorWatch};
use crate::model::error::{Error, Result};
use crate::model::identity::Secret;
use crate::model::path::ZnodePath;
use crate::model::protocol::{
    Create, Enqueue, GetPredecessor, Op, OpReply, Predecessor, ReadOp, ReadReply, Reply, Request,
    Response, unexpected,
};
use crate::model::types::{CreateMode, Stat, Zxid};
use crate::model::watch::{DeleteReason, PersistentWatcher, WatchMode, Watcher};
use crate::runtime::process::is_forked;

impl Session {
    /// Creates a znode with the session's access control list. Returns the znode's path, including the sequence number,
    /// and its Stat.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the parent does not exist, [`Error::NodeExists`], [`Error::NoChildrenForEphemerals`],
    /// [`Error::TooLarge`].
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

    /// Creates a znode and its missing ancestors. If `mode` is a container, the ancestors become containers too,
    /// otherwise persistent znodes.
    ///
    /// # Errors
    /// As [`create`](Self::create), except `NoNode` and `NodeExists`.
    pub async fn create_all(&self, path: &ZnodePath, mode: CreateMode) -> Result<()> {
        // Like Curator, create containers as ancestors too. The server then deletes the whole path once it is unused.
        let above = match mode {
            CreateMode::Container => CreateMode::Container,
            _ => CreateMode::Persistent,
        };
        let mut missing = vec![(path.clone(), mode)];
        while let Some((path, mode)) = missing.pop() {
            match self.create(&path, Bytes::new(), mode).await {
                Ok(_) | Err(Error::NodeExists { .. }) => {}
                // Create the parents only after a failure, because usually all parents exist and one request is enough.
                // Loop, because other clients may create or delete parents concurrently.
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

    /// Deletes a znode if it has this version (`None`: any).
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::BadVersion`], [`Error::NotEmpty`].
    #[inline]
    pub fn delete(&self, path: &ZnodePath, version: Option<i32>) -> Call<()> {
        let path = path.clone();
        self.call(Request::Delete { path, version }, done)
    }

    /// Deletes a queue entry that never held the lock, or whose lock the client already considers lost. The waiters
    /// behind the entry receive [`DeleteReason::Unknown`](crate::DeleteReason::Unknown), so they do not mistake the
    /// delete for a release.
    ///
    /// # Errors
    /// As [`delete`](Self::delete).
    pub fn withdraw(&self, entry: &ZnodePath) -> Call<()> {
        let entry = entry.clone();
        self.call(Request::Withdraw { entry }, done)
    }

    /// Returns the state of a znode. `None` if it does not exist.
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

    /// Like [`exists`](Self::exists), with a watch that fires when the znode is created, changed or deleted.
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
    /// [`Error::NoNode`].
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

    /// Like [`get_data`](Self::get_data), with a watch that fires when the znode is changed or deleted. A missing znode
    /// gets no watch.
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

    /// Replaces a znode's data if it has this version (`None`: any).
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::BadVersion`], [`Error::TooLarge`].
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

    /// Returns the names of a znode's children, in no particular order, and the znode's Stat.
    ///
    /// # Errors
    /// [`Error::NoNode`].
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

    /// Like [`get_children`](Self::get_children), with a watch that fires when the list changes or the znode is
    /// deleted. A missing znode gets no watch.
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

    /// Succeeds if the znode exists and has this version (`None`: any). The store executes the check as a transaction,
    /// not as a read.
    ///
    /// # Errors
    /// [`Error::MultiFailed`] with [`Error::NoNode`] or [`Error::BadVersion`].
    pub fn check(&self, path: &ZnodePath, version: Option<i32>) -> Call<()> {
        let path = path.clone();
        let request = Request::Multi(vec![Op::Check { path, version }]);
        self.call(request, |reply| match reply {
            Reply::Multi(_) => Ok(()),
            _ => unexpected("check"),
        })
    }

    /// Executes all operations in one transaction, or none of them. Each operation sees the effects of the operations
    /// before it.
    ///
    /// # Errors
    /// [`Error::MultiFailed`] with the index and error of the failed operation.
    pub fn multi(&self, ops: impl Into<Vec<Op>>) -> Call<Vec<OpReply>> {
        self.call(Request::Multi(ops.into()), |reply| match reply {
            Reply::Multi(replies) => Ok(replies),
            _ => unexpected("multi"),
        })
    }

    /// Reads several znodes in the same state of the store. An operation that fails does not affect the others.
    pub fn multi_read(&self, ops: impl Into<Vec<ReadOp>>) -> Call<Vec<ReadReply>> {
        self.call(Request::MultiRead(ops.into()), |reply| match reply {
            Reply::MultiRead(replies) => Ok(replies),
            _ => unexpected("multiRead"),
        })
    }

    /// Waits until this session's server has applied all transactions that were committed before this call. A later
    /// read is still not always linearizable.
    pub fn sync(&self, path: &ZnodePath) -> Call<()> {
        let path = path.clone();
        self.call(Request::Sync { path }, done)
    }

    /// Returns the paths of this session's ephemeral znodes that start with `prefix`. Paths are compared as text, so
    /// `/a` is also a prefix of `/ab`.
    pub fn get_ephemerals(&self, prefix: &ZnodePath) -> Call<Vec<ZnodePath>> {
        let prefix = prefix.clone();
        self.call(Request::GetEphemerals { prefix }, |reply| match reply {
            Reply::Paths(paths) => Ok(paths),
            _ => unexpected("getEphemerals"),
        })
    }

    /// Returns the number of znodes below a path, at any depth.
    ///
    /// # Errors
    /// [`Error::NoNode`].
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

    /// Adds a persistent watch. Dropping the watcher removes the watch.
    pub fn add_watch(&self, path: &ZnodePath, mode: WatchMode) -> Call<PersistentWatcher> {
        let path = path.clone();
        self.call(Request::AddWatch { path, mode }, |reply| match reply {
            Reply::Watching(watcher) => Ok(watcher),
            _ => unexpected("addWatch"),
        })
    }

    /// Returns a znode's access control list and its Stat. A session that may not set the list sees `user:x` instead of
    /// each digest.
    ///
    /// # Errors
    /// [`Error::NoNode`]. [`Error::NoAuth`] if the session may neither read the znode nor set the list.
    pub fn get_acl(&self, path: &ZnodePath) -> Call<(Acl, Stat)> {
        let path = path.clone();
        self.call(Request::GetAcl { path }, |reply| match reply {
            Reply::Acl { acl, stat } => Ok((acl, stat)),
            _ => unexpected("getACL"),
        })
    }

    /// Replaces a znode's access control list if the list has this version ([`Stat::aversion`]; `None`: any). No watch
    /// fires.
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
    /// [`Error::NoNode`]. [`Error::NoAuth`] without the right to set the list. [`Error::BadVersion`].
    /// [`Error::InvalidAcl`] for an empty list, for an id that is invalid in its scheme, or for the scheme `auth` if
    /// the session has proved no identity.
    pub fn set_acl(&self, path: &ZnodePath, acl: Acl, version: Option<i32>) -> Call<Stat> {
        let path = path.clone();
        let request = Request::SetAcl { path, acl, version };
        self.call(request, |reply| match reply {
            Reply::Stat(stat) => Ok(stat),
            _ => unexpected("setACL"),
        })
    }

    /// Proves another identity of this session. Later requests also have the rights of this identity. For the scheme
    /// `digest`, the secret is `user:password`. If the client later opens a new session, that session proves only the
    /// identities of [`ConnectOptions::auth`](crate::ConnectOptions::auth).
    ///
    /// # Errors
    /// [`Error::AuthFailed`] for a wrong proof or an unknown scheme. This error also ends the session.
    pub fn add_auth(&self, scheme: impl Into<String>, secret: impl Into<Bytes>) -> Call<()> {
        let (scheme, secret) = (scheme.into(), Secret::new(secret));
        self.call(Request::AddAuth { scheme, secret }, done)
    }

    /// Joins a queue. Returns the entry's path, the zxid of its creation, and its predecessor.
    ///
    /// # Errors
    /// [`Error::NoNode`] if the queue's parent does not exist, and the errors of [`create`](Self::create).
    #[inline]
    pub fn enqueue(&self, enqueue: Enqueue) -> Call<(ZnodePath, Zxid, Predecessor)> {
        self.call(Request::Enqueue(enqueue), |reply| match reply {
            Reply::Enqueued { path, czxid, ahead } => Ok((path, czxid, ahead)),
            _ => unexpected("enqueue"),
        })
    }

    /// Joins a queue without a request, if the store is in this process. The effect is the same as that of
    /// [`enqueue`](Self::enqueue), or of a multi that checks the entry's conditions and creates the entry.
    ///
    /// Returns `None`, without side effects, if joining the queue (or learning why it fails) requires a request. The
    /// caller must then send the request. This happens, for example, if the store is in another process, if the session
    /// has a timeout, or if a condition does not hold.
    ///
    /// The caller must eventually [`leave`](Self::leave) the queue. A caller that receives a watch must await the watch
    /// or [cancel](Self::cancel_watch) it.
    #[inline]
    pub fn enter(&self, entry: NewEntry<'_>) -> Option<Enqueued> {
        let queues = self.local()?;
        match self.0.scale.takes_entry(&entry) {
            true => queues.enter(entry),
            false => None,
        }
    }

    /// Deletes an entry created by [`enter`](Self::enter), and passes `reason` to the entry behind it. If this returns
    /// false, the caller must send [`delete`](Self::delete) or [`withdraw`](Self::withdraw) instead.
    #[inline]
    pub fn leave(&self, entry: EntryKey, reason: DeleteReason) -> bool {
        self.local()
            .is_some_and(|queues| queues.leave(entry, reason))
    }

    /// Removes the watch of a waiting entry. If you no longer await the watch, call this before the entry leaves the
    /// queue.
    pub fn cancel_watch(&self, turn: &PredecessorWatch) {
        if let Some(queues) = self.local() {
            queues.cancel_watch(turn);
        }
    }

    /// Returns true if an entry created by [`enter`](Self::enter) still exists. If this returns false, only
    /// [`exists`](Self::exists) shows whether the entry exists.
    #[inline]
    pub fn has_entry(&self, entry: EntryKey) -> bool {
        self.local().is_some_and(|queues| queues.has_entry(entry))
    }

    /// Returns the number of entries ahead of an entry created by [`enter`](Self::enter). `None` if that entry no
    /// longer exists.
    pub fn count_ahead(&self, entry: EntryKey) -> Option<usize> {
        self.local()?.count_ahead(entry)
    }

    #[inline]
    fn local(&self) -> Option<&dyn LocalQueues> {
        match is_forked() {
            true => None,
            false => self.0.backend.local(),
        }
    }

    /// Returns an entry's current predecessor.
    pub fn get_predecessor(&self, look: GetPredecessor) -> Call<Predecessor> {
        self.call(Request::GetPredecessor(look), |reply| match reply {
            Reply::Predecessor(ahead) => Ok(ahead),
            _ => unexpected("getPredecessor"),
        })
    }

    /// Lists a queue. If the returned flag is true, the names are the queue's ephemeral sequential children, head
    /// first. If the flag is false, the names are all children of the queue, unsorted.
    ///
    /// # Errors
    /// [`Error::NoNode`].
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

/// Future of a typed request that has already been sent. Dropping it does not cancel the request.
#[must_use = "the request is under way; await its answer or drop it on purpose"]
pub struct Call<T> {
    response: Response,
    take: fn(Reply) -> Result<T>,
}

impl<T> Call<T> {
    /// Returns the reply if it has arrived, otherwise the call. A store in this process always replies immediately.
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
        // A store in this process answers immediately. Without this budget, a task that sends requests in a loop would
        // never yield to other tasks.
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
