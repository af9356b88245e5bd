//! [`Reply`]: a store's answer to a [`Request`](super::Request).
//!
//! A reply is generic over the type of the watches that the request has armed. The core returns watch keys, because it
//! cannot wake tasks. [`Reply::with_watchers`] replaces the keys with watchers.

use bytes::Bytes;

use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::types::{Stat, Zxid};
use crate::model::watch::{ArmedWatch, PersistentWatcher, Watcher};

/// A store's answer to a request. `W` is the type of a one-shot watch, and `P` the type of a persistent watch.
#[derive(Debug)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "each variant says which request it answers, and holds what that asks"
)]
pub enum Reply<W = Watcher, P = PersistentWatcher> {
    /// Reply to a create.
    Created { path: ZnodePath, stat: Stat },
    /// Reply to delete, withdraw, sync, addAuth and close, which return no data.
    Done,
    /// Reply to exists.
    Exists {
        stat: Option<Stat>,
        watcher: Option<W>,
    },
    /// Reply to getData.
    Data {
        data: Bytes,
        stat: Stat,
        watcher: Option<W>,
    },
    /// Reply to setData and setACL.
    Stat(Stat),
    /// Reply to getACL.
    Acl { acl: Acl, stat: Stat },
    /// Reply to getChildren.
    Children {
        names: Vec<String>,
        stat: Stat,
        watcher: Option<W>,
    },
    /// Reply to a multi.
    Multi(Vec<OpReply>),
    /// Reply to a multi-read.
    MultiRead(Vec<ReadReply>),
    /// Reply to getEphemerals.
    Paths(Vec<ZnodePath>),
    /// Reply to getAllChildrenNumber.
    Count(usize),
    /// Reply to addWatch.
    Watching(P),
    /// Reply to enqueue.
    Enqueued {
        path: ZnodePath,
        czxid: Zxid,
        ahead: Predecessor<W>,
    },
    /// Reply to getPredecessor.
    Predecessor(Predecessor<W>),
    /// Reply to getQueue. If `sorted` is true, `names` contains the contenders in order. Otherwise it contains all
    /// children, unsorted.
    Queue { names: Vec<String>, sorted: bool },
}

/// The nearest entry ahead that blocks a queue entry.
#[derive(Debug)]
#[non_exhaustive]
pub enum Predecessor<W = Watcher> {
    /// No entry blocks this entry, so it holds the lock.
    Clear,
    /// The nearest blocking entry. The store has already armed a watch for its deletion, and for no other event.
    Blocked {
        /// The blocking entry.
        by: ZnodePath,
        /// Fires when the blocking entry is deleted. The event also reports whether another entry still blocks the
        /// waiter ([`WatchedEvent::predecessor_gone`](crate::WatchedEvent::predecessor_gone)).
        watcher: W,
        /// Number of all entries ahead, blocking or not, if requested.
        count: Option<usize>,
    },
    /// The entry does not exist or belongs to another session.
    Gone,
    /// All children of the parent. The caller must find the predecessor among them, because the store has no index or
    /// one of the children has a name in [`SEMAPHORE_CHILDREN`](super::SEMAPHORE_CHILDREN).
    Listed(Vec<String>),
    /// The entry was created, but its predecessor is unknown, because the connection broke or the store must list the
    /// children. Send a [`GetPredecessor`](super::GetPredecessor).
    Unknown,
}

impl<K> Reply<K, K> {
    /// Replaces the watch key, if there is one, with a watcher. `armed` returns the watch of a key.
    #[inline]
    pub(crate) fn with_watchers(self, armed: impl FnOnce(K) -> ArmedWatch) -> Reply {
        match self {
            // The most frequent replies are built field by field, because copying a reply as a whole takes longer.
            Self::Enqueued {
                path,
                czxid,
                ahead: Predecessor::Clear,
            } => Reply::Enqueued {
                path,
                czxid,
                ahead: Predecessor::Clear,
            },
            Self::Done => Reply::Done,
            Self::Enqueued {
                path,
                czxid,
                ahead: Predecessor::Blocked { by, watcher, count },
            } => Reply::Enqueued {
                path,
                czxid,
                ahead: Predecessor::Blocked {
                    watcher: Watcher::of_waiter(armed(watcher), by.clone()),
                    by,
                    count,
                },
            },
            other => other.map_watchers(armed),
        }
    }

    #[inline(never)]
    fn map_watchers(self, armed: impl FnOnce(K) -> ArmedWatch) -> Reply {
        match self {
            Self::Created { path, stat } => Reply::Created { path, stat },
            Self::Done => Reply::Done,
            Self::Exists { stat, watcher } => Reply::Exists {
                stat,
                watcher: watcher.map(armed).map(Watcher::of),
            },
            Self::Data {
                data,
                stat,
                watcher,
            } => Reply::Data {
                data,
                stat,
                watcher: watcher.map(armed).map(Watcher::of),
            },
            Self::Stat(stat) => Reply::Stat(stat),
            Self::Acl { acl, stat } => Reply::Acl { acl, stat },
            Self::Children {
                names,
                stat,
                watcher,
            } => Reply::Children {
                names,
                stat,
                watcher: watcher.map(armed).map(Watcher::of),
            },
            Self::Multi(replies) => Reply::Multi(replies),
            Self::MultiRead(replies) => Reply::MultiRead(replies),
            Self::Paths(paths) => Reply::Paths(paths),
            Self::Count(count) => Reply::Count(count),
            Self::Watching(watch) => Reply::Watching(PersistentWatcher::of(armed(watch))),
            Self::Enqueued { path, czxid, ahead } => Reply::Enqueued {
                path,
                czxid,
                ahead: ahead.map(armed),
            },
            Self::Predecessor(predecessor) => Reply::Predecessor(predecessor.map(armed)),
            Self::Queue { names, sorted } => Reply::Queue { names, sorted },
        }
    }
}

impl<K> Predecessor<K> {
    fn map(self, armed: impl FnOnce(K) -> ArmedWatch) -> Predecessor {
        match self {
            Self::Clear => Predecessor::Clear,
            Self::Blocked { by, watcher, count } => Predecessor::Blocked {
                watcher: Watcher::of_waiter(armed(watcher), by.clone()),
                by,
                count,
            },
            Self::Gone => Predecessor::Gone,
            Self::Listed(names) => Predecessor::Listed(names),
            Self::Unknown => Predecessor::Unknown,
        }
    }
}

/// The reply to one operation of a multi.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpReply {
    /// A znode was created.
    Created {
        /// Its path, including the number.
        path: ZnodePath,
        /// The znode's state, or `None` if the server does not report it (ZooKeeper before 3.9 in a multi).
        stat: Option<Stat>,
    },
    /// A znode was deleted.
    Deleted,
    /// Data was set.
    Set(Stat),
    /// The check succeeded.
    Checked,
}

/// The reply to one operation of a multi-read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadReply {
    /// The data.
    Data {
        /// The znode's data.
        data: Bytes,
        /// Its state.
        stat: Stat,
    },
    /// A queue entry.
    Entry {
        /// The znode's data.
        data: Bytes,
        /// Its state.
        stat: Stat,
        /// Time at which the entry ceased to be blocked, in milliseconds since the Unix epoch by the server's clock.
        ///
        /// `None` while the entry is blocked, or if the store does not know the time. ZooKeeper does not know it for
        /// another library's entry that had to wait. After a restart, a store does not know it for earlier grants.
        granted_at_ms: Option<i64>,
    },
    /// The names of the children.
    Children(Vec<String>),
    /// This operation failed. The other operations may have succeeded.
    Failed(Error),
}

pub(crate) fn unexpected<T>(request: &'static str) -> Result<T> {
    Err(Error::Protocol(format!(
        "{request} was answered with the reply to another kind of request"
    )))
}
