//! [`Reply`]: a store's answer to a [`Request`](super::Request).
//!
//! A reply is generic over what stands for the watches that it arms: keys in the core, which knows no tasks, and
//! watchers for users. So there is one type from the core to the user, and one place that puts watchers for keys
//! ([`Reply::with_watchers`]).

use bytes::Bytes;

use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::types::{Stat, Zxid};
use crate::model::watch::{ArmedWatch, PersistentWatcher, Watcher};

/// A store's answer to a request. `W` stands for a watch that fires once, `P` for one that stays.
#[derive(Debug)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "each variant says which request it answers, and holds what that asks"
)]
pub enum Reply<W = Watcher, P = PersistentWatcher> {
    /// To a create.
    Created { path: ZnodePath, stat: Stat },
    /// To a request with nothing to report but success: delete, withdraw, sync, addAuth, close.
    Done,
    /// To exists.
    Exists {
        stat: Option<Stat>,
        watcher: Option<W>,
    },
    /// To getData.
    Data {
        data: Bytes,
        stat: Stat,
        watcher: Option<W>,
    },
    /// To setData and setACL.
    Stat(Stat),
    /// To getACL.
    Acl { acl: Acl, stat: Stat },
    /// To getChildren.
    Children {
        names: Vec<String>,
        stat: Stat,
        watcher: Option<W>,
    },
    /// To a multi.
    Multi(Vec<OpReply>),
    /// To a multi-read.
    MultiRead(Vec<ReadReply>),
    /// To getEphemerals.
    Paths(Vec<ZnodePath>),
    /// To getAllChildrenNumber.
    Count(usize),
    /// To addWatch.
    Watching(P),
    /// To enqueue.
    Enqueued {
        path: ZnodePath,
        czxid: Zxid,
        ahead: Predecessor<W>,
    },
    /// To getPredecessor.
    Predecessor(Predecessor<W>),
    /// To getQueue: names, and whether they are sorted contenders or just all children.
    Queue { names: Vec<String>, sorted: bool },
}

/// The nearest entry ahead that blocks an entry of a queue.
#[derive(Debug)]
#[non_exhaustive]
pub enum Predecessor<W = Watcher> {
    /// None: the entry holds.
    Clear,
    /// The nearest entry that blocks. Its deletion, and nothing else of it, is watched already.
    Blocked {
        /// The blocking entry.
        by: ZnodePath,
        /// Fires when that entry is deleted, with the consequence for the waiter:
        /// [`WatchedEvent::predecessor_gone`](crate::WatchedEvent::predecessor_gone).
        watcher: W,
        /// Number of all entries ahead, blocking or not, if it was asked for.
        count: Option<usize>,
    },
    /// The entry itself does not exist, or is another session's.
    Gone,
    /// All children of the parent, for the caller to sort: the store has no index, or one of
    /// [`SEMAPHORE_CHILDREN`](super::SEMAPHORE_CHILDREN) stands beside the entries.
    Listed(Vec<String>),
    /// Not known, although the entry was created: the connection broke, or only a list can tell. Ask again with
    /// [`GetPredecessor`](super::GetPredecessor).
    Unknown,
}

impl<K> Reply<K, K> {
    /// Replaces the key of the watch that was armed, if there is one, by a watcher of what `armed` makes of it.
    #[inline]
    pub(crate) fn with_watchers(self, armed: impl FnOnce(K) -> ArmedWatch) -> Reply {
        match self {
            // The replies to a free lock and to its release, field by field: the others are copied as a whole.
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
            // So is the reply to a lock that is held.
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
        /// Its path, number included.
        path: ZnodePath,
        /// Its state; `None` where the server does not say (in a multi, ZooKeeper before 3.9).
        stat: Option<Stat>,
    },
    /// A znode was deleted.
    Deleted,
    /// Data was set.
    Set(Stat),
    /// The check held.
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
    /// An entry of a queue.
    Entry {
        /// The znode's data.
        data: Bytes,
        /// Its state.
        stat: Stat,
        /// Time from which on nothing ahead has blocked it, in milliseconds since the Unix epoch, by the server's
        /// clock. `None` while something blocks it, and where the store does not know: on ZooKeeper, of an entry that
        /// has waited and is of another library, and of one that was granted before a restart of the store.
        granted_at_ms: Option<i64>,
    },
    /// The names of the children.
    Children(Vec<String>),
    /// This operation failed; the others need not have.
    Failed(Error),
}

/// Returns the error of a typed method that has got the reply to another kind of request.
///
/// # Errors
/// Always [`Error::Protocol`].
pub(crate) fn unexpected<T>(request: &'static str) -> Result<T> {
    Err(Error::Protocol(format!(
        "{request} was answered with the reply to another kind of request"
    )))
}
