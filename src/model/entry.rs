//! Fast path for the embedded store: joins a queue, waits in it and leaves it without a request, a reply or a path.
//!
//! The fast path runs the same core code as the requests [`Enqueue`](crate::Enqueue), `Multi` and
//! [`Delete`](crate::Request::Delete). If the store is not embedded in this process, must delay the reply or refuses
//! the request, [`Session::enter`](crate::Session::enter) does nothing and returns `None`. The caller then sends the
//! request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::model::acl::Acl;
use crate::model::error::Result;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Blockers, Condition, EntryName, EntryRole};
use crate::model::types::Zxid;
use crate::model::watch::{PredecessorGone, WatchCell, WatchUpdate};

/// A znode's path and its last known location in the store, which saves look-ups. Sessions of the same store can share
/// a handle. Use a separate handle for each store, because a location does not name its store.
#[derive(Debug)]
pub struct ZnodeHandle {
    path: ZnodePath,
    index: AtomicU32,
    czxid: AtomicI64,
}

impl ZnodeHandle {
    /// Creates a handle. The znode need not exist.
    pub fn new(path: ZnodePath) -> Self {
        Self {
            path,
            index: AtomicU32::new(u32::MAX),
            czxid: AtomicI64::new(0),
        }
    }

    /// Returns the znode's path.
    pub fn path(&self) -> &ZnodePath {
        &self.path
    }

    #[inline]
    pub(crate) fn known(&self) -> NodeKey {
        // Relaxed suffices, because the store's lock orders all accesses.
        NodeKey {
            index: self.index.load(Ordering::Relaxed),
            czxid: Zxid(self.czxid.load(Ordering::Relaxed)),
        }
    }

    pub(crate) fn remember(&self, key: NodeKey) {
        self.index.store(key.index, Ordering::Relaxed);
        self.czxid.store(key.czxid.0, Ordering::Relaxed);
    }
}

/// Reference to one znode. It does not match a later znode in the same slot, because the czxid differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeKey {
    pub(crate) index: u32,
    pub(crate) czxid: Zxid,
}

/// A new entry for a queue.
#[derive(Clone, Debug)]
pub struct NewEntry<'a> {
    /// The queue.
    pub queue: &'a ZnodeHandle,
    /// The entry's unique name.
    pub name: EntryName,
    /// Mode in which the entry joins the queue.
    pub mode: EnqueueMode<'a>,
    /// The entry's data.
    pub data: Bytes,
    /// Data of the queue's znode. An in-memory store creates a missing queue and its missing ancestors together with
    /// the entry.
    pub queue_data: &'a Bytes,
    /// The entry's access control list.
    pub acl: &'a Acl,
    /// The creation time in the entry's [`Stat`](crate::Stat), in milliseconds since the epoch, by the session's clock.
    pub unix_ms: i64,
}

/// Mode in which an entry joins its queue.
#[derive(Clone, Copy, Debug)]
pub enum EnqueueMode<'a> {
    /// The entry waits behind the entries that block it.
    Queued(Blockers),
    /// The entry does not wait. It is created only if no entry blocks it.
    IfFree(Blockers),
    /// The entry does not wait. It is created only if all conditions hold.
    When(&'a [Condition<&'a ZnodeHandle, &'a [u8]>]),
}

/// Reference to an entry in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryKey {
    pub(crate) node: NodeKey,
    pub(crate) number: i64,
}

impl EntryKey {
    /// Returns the transaction that created the entry.
    pub fn czxid(&self) -> Zxid {
        self.node.czxid
    }

    /// Returns the entry's path.
    pub fn path(&self, queue: &ZnodeHandle, name: EntryName) -> ZnodePath {
        let above = match queue.path.is_root() {
            true => "",
            false => queue.path.as_str(),
        };
        let number = self.number;
        ZnodePath::trusted(format!("{above}/{name}{number:010}"))
    }
}

/// An entry that has joined a queue, with a future for the entry ahead that blocks it.
#[derive(Debug)]
pub struct Enqueued {
    /// The entry.
    pub entry: EntryKey,
    /// Resolves when the blocking entry ahead leaves. `None` if nothing blocks this entry, which then holds the lock.
    pub turn: Option<PredecessorWatch>,
}

/// Future that resolves when the blocking entry ahead leaves.
///
/// Dropping the future leaves the watch armed until the blocking entry leaves.
/// [`Session::cancel_watch`](crate::Session::cancel_watch) disarms the watch.
#[must_use = "await it, or forget it"]
pub struct PredecessorWatch {
    pub(crate) cell: Arc<WatchCell>,
    pub(crate) watch: u64,
    pub(crate) ahead: Option<EntryRole>,
    pub(crate) is_own: bool,
}

impl PredecessorWatch {
    /// Returns the role of the entry ahead, if its name has the form of [`EntryName`].
    pub fn ahead(&self) -> Option<EntryRole> {
        self.ahead
    }

    /// Returns true if the entry ahead belongs to the same session.
    pub fn is_own(&self) -> bool {
        self.is_own
    }
}

impl Future for PredecessorWatch {
    type Output = Result<PredecessorGone>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.cell.poll(context).map(|news| {
            Ok(match news? {
                WatchUpdate::Departure { gone, .. } => gone,
                WatchUpdate::Event(event) => unreachable!("no watch of a waiter fires {event:?}"),
            })
        })
    }
}

impl fmt::Debug for PredecessorWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PredecessorWatch")
            .field("ahead", &self.ahead)
            .finish_non_exhaustive()
    }
}
