//! Entries of queues by reference, for sessions in the store's own process: joining a queue, waiting and leaving without
//! a request, a reply or a path.
//!
//! They do what [`Enqueue`](crate::Enqueue), a multi of conditions and a create, the event of a departure and
//! [`Delete`](crate::Request::Delete) do, by the same code of the core. A session elsewhere, and one with an answer that
//! has to wait or to refuse, has the requests alone: [`Session::enter`](crate::Session::enter) then says that nothing was
//! done.

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
use crate::model::watch::{News, PredecessorGone, WatchCell};

/// A znode's path, with the place at which its store has found it, so that it need not be looked up again.
///
/// It serves any number of sessions of one store. With a session of another store the place does not fit, and the path
/// is looked up.
#[derive(Debug)]
pub struct ZnodeHandle {
    path: ZnodePath,
    /// The znode, as it was found last. Read and written under the store's lock alone.
    index: AtomicU32,
    czxid: AtomicI64,
}

impl ZnodeHandle {
    /// Creates the handle of a znode, which need not exist.
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
        // Relaxed: the store's lock orders them.
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

/// Reference to a znode of a store, and to no later one in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeKey {
    pub(crate) index: u32,
    pub(crate) czxid: Zxid,
}

/// An entry to be put in a queue.
#[derive(Clone, Debug)]
pub struct NewEntry<'a> {
    /// The queue.
    pub queue: &'a ZnodeHandle,
    /// The entry's name, which no other entry has.
    pub name: EntryName,
    /// Its place among the others.
    pub place: Place<'a>,
    /// The entry's data.
    pub data: Bytes,
    /// The data with which a missing queue in memory is created, with its missing ancestors.
    pub queue_data: &'a Bytes,
    /// The entry's access control list.
    pub acl: &'a Acl,
    /// The time of its creation by the session's clock, for its [`Stat`](crate::Stat), in milliseconds since the epoch.
    pub unix_ms: i64,
}

/// The place of an entry in its queue: in turn, or at once, under a condition or several.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// It waits behind the entries that block it.
    InTurn(Blockers),
    /// It waits for nobody, and is created if no entry blocks it.
    IfFree(Blockers),
    /// It waits for nobody, and is created if all these conditions hold.
    If(&'a [Condition<&'a ZnodeHandle, &'a [u8]>]),
}

/// An entry that was put in a queue, by reference.
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

/// An entry that was put in a queue, and the one ahead that blocks it.
#[derive(Debug)]
pub struct Entered {
    /// The entry.
    pub entry: EntryKey,
    /// Its turn, if another entry is ahead; without one it holds.
    pub turn: Option<Turn>,
}

/// The wait of an entry for the one ahead of it: a future of the departure of that.
///
/// Dropping it leaves its watch armed until the entry ahead goes: see [`Session::forget`](crate::Session::forget).
#[must_use = "await it, or forget it"]
pub struct Turn {
    pub(crate) cell: Arc<WatchCell>,
    pub(crate) watch: u64,
    pub(crate) ahead: Option<EntryRole>,
    pub(crate) is_own: bool,
}

impl Turn {
    /// Returns the role of the entry ahead, if its name has the form of [`EntryName`].
    pub fn ahead(&self) -> Option<EntryRole> {
        self.ahead
    }

    /// Returns true if the entry ahead is of the same session.
    pub fn is_own(&self) -> bool {
        self.is_own
    }
}

impl Future for Turn {
    type Output = Result<PredecessorGone>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.cell.poll(context).map(|news| {
            Ok(match news? {
                News::Departure { gone, .. } => gone,
                News::Event(event) => unreachable!("no watch of a waiter fires {event:?}"),
            })
        })
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("ahead", &self.ahead)
            .finish_non_exhaustive()
    }
}
