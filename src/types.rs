//! The data that requests and replies are made of.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::identity::Identities;
use crate::path::ZnodePath;
use crate::rights::{Granted, Rights};

/// The number of a transaction. Within one store it only grows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Zxid(pub i64);

impl fmt::Display for Zxid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Zxid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zxid({:#x})", self.0)
    }
}

/// The number of a session; it is the owner of that session's ephemeral znodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SessionId(pub i64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({:#x})", self.0)
    }
}

/// What the store knows about a znode, besides its data: the fields of the ZooKeeper programmer's
/// guide ("ZooKeeper Stat Structure"), under the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stat {
    /// The transaction that made the znode.
    pub czxid: Zxid,
    /// The last transaction that made it or set its data.
    pub mzxid: Zxid,
    /// The last transaction that made or deleted one of its children, or made it.
    pub pzxid: Zxid,
    /// When it was made, in milliseconds since the epoch, by the server's clock.
    pub ctime: i64,
    /// When its data was last set, likewise.
    pub mtime: i64,
    /// How often its data was set. `i32::MAX` is followed by `i32::MIN`, and -2 by 0: -1 means any.
    pub version: i32,
    /// How often a child of it was made or deleted.
    pub cversion: i32,
    /// How often its access control list was set.
    pub aversion: i32,
    /// The owning session; 0 for a znode that is not ephemeral.
    pub ephemeral_owner: SessionId,
    /// The length of its data, in bytes.
    pub data_length: i32,
    /// How many children it has.
    pub num_children: i32,
}

impl Stat {
    /// Returns true for a znode that goes with its session.
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral_owner != SessionId(0)
    }
}

/// How a znode is made: how long it lives, and whether the store numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CreateMode {
    /// Stays until it is deleted.
    Persistent,
    /// [`Persistent`](Self::Persistent), its name ended with the parent's counter in ten digits or
    /// more. The counter has 64 bits in the embedded store; ZooKeeper's has 32, and is not let wrap.
    PersistentSequential,
    /// Goes with its session. Has no children.
    Ephemeral,
    /// [`Ephemeral`](Self::Ephemeral), numbered likewise.
    EphemeralSequential,
    /// Removed by the store at its next sweep after its last child went (once a minute, where
    /// nothing else is set). A create under it may find it gone: make it again. See ZOOKEEPER-2163.
    Container,
    /// Removed by the store when it had no child and no change for this long, at the next sweep.
    /// From 1 ms to 2^40 − 1 ms, in whole milliseconds. A ZooKeeper server allows it with
    /// `zookeeper.extendedTypesEnabled` only, and says `Unimplemented` otherwise (ZOOKEEPER-2169).
    PersistentTtl(Duration),
    /// [`PersistentTtl`](Self::PersistentTtl), numbered.
    PersistentSequentialTtl(Duration),
}

impl CreateMode {
    /// Whether the store ends the name with a number.
    pub fn is_sequential(self) -> bool {
        matches!(
            self,
            Self::PersistentSequential
                | Self::EphemeralSequential
                | Self::PersistentSequentialTtl(_)
        )
    }

    /// Whether the znode goes with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }
}

/// One entry of an access control list: these rights, for those who prove this identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The rights: a sum of [`AclEntry::READ`] and its like.
    pub permissions: u8,
    /// `world`, `auth`, `digest`, `ip`, `x509` or a scheme of the server's own.
    pub scheme: String,
    /// Who, in the scheme's own terms.
    pub id: String,
}

impl AclEntry {
    /// The right to read data and list children.
    pub const READ: u8 = 1;
    /// The right to set data.
    pub const WRITE: u8 = 2;
    /// The right to create children.
    pub const CREATE: u8 = 4;
    /// The right to delete children.
    pub const DELETE: u8 = 8;
    /// The right to set the list itself.
    pub const ADMIN: u8 = 16;
    /// All five rights.
    pub const ALL: u8 = 31;
}

/// An access control list. The default, [`Acl::open`], lets everybody do everything.
#[derive(Clone, Default)]
pub struct Acl(Option<Arc<List>>);

/// The entries of a list that is not the open one, and what the store knows of the rights that they give.
struct List {
    entries: Box<[AclEntry]>,
    rights: Rights,
}

impl Acl {
    /// `world:anyone` with all rights (ZooKeeper's `OPEN_ACL_UNSAFE`).
    pub fn open() -> Self {
        Self(None)
    }

    /// All rights for whoever creates the znode (ZooKeeper's `CREATOR_ALL_ACL`).
    pub fn creator_all() -> Self {
        Self::new([AclEntry {
            permissions: AclEntry::ALL,
            scheme: "auth".into(),
            id: String::new(),
        }])
    }

    /// A list of one's own.
    pub fn new(entries: impl Into<Vec<AclEntry>>) -> Self {
        Self(Some(Arc::new(List {
            entries: entries.into().into(),
            rights: Rights::default(),
        })))
    }

    /// The entries; `None` for the open list.
    pub fn entries(&self) -> Option<&[AclEntry]> {
        self.0.as_ref().map(|list| &*list.entries)
    }

    /// Finds the rights of somebody with these identities; `None` for the open list, which asks for nothing.
    #[inline]
    pub(crate) fn granted(&self, identities: &Identities) -> Option<Granted> {
        let list = self.0.as_ref()?;
        Some(list.rights.granted(&list.entries, identities))
    }
}

impl fmt::Debug for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Acl").field(&self.entries()).finish()
    }
}

impl PartialEq for Acl {
    fn eq(&self, other: &Self) -> bool {
        self.entries() == other.entries()
    }
}

impl Eq for Acl {}

impl Hash for Acl {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries().hash(state);
    }
}

/// What happened to a watched znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// The znode was made.
    NodeCreated,
    /// The znode was deleted.
    NodeDeleted,
    /// The znode's data was set.
    NodeDataChanged,
    /// A child of the znode was made or deleted.
    NodeChildrenChanged,
}

/// A watch that fired.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WatchedEvent {
    /// What happened.
    pub kind: EventKind,
    /// To which znode.
    pub path: ZnodePath,
    /// In which transaction; `None` where the server does not say (ZooKeeper before 3.9).
    pub zxid: Option<Zxid>,
    /// Consequence for the waiter; only for a watcher of [`Predecessor::Blocked`](crate::Predecessor::Blocked).
    pub departure: Option<PredecessorGone>,
}

/// The departure of the entry of a queue that another waited for, as the store knew it at the end
/// of that very transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PredecessorGone {
    /// Whether the entry that waits is there, and nobody ahead of it blocks it any more. If not,
    /// look ahead again.
    pub clear: bool,
    /// How the one ahead left.
    pub cause: DeleteReason,
}

impl PredecessorGone {
    /// A departure.
    pub fn new(clear: bool, cause: DeleteReason) -> Self {
        Self { clear, cause }
    }
}

/// How an entry left its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeleteReason {
    /// Its own session deleted it.
    Released,
    /// Its session ended.
    Died,
    /// Somebody else deleted it.
    Removed,
    /// Its own session [withdrew](crate::Session::withdraw) it: it may never have known that its turn
    /// had come. Or the store cannot say.
    Unknown,
}

/// The modes of a watch that survives firing (ZOOKEEPER-1416: servers since 3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchMode {
    /// Everything that happens to one znode, its children included.
    Persistent,
    /// Creation, deletion and data of a znode and all below it; never `NodeChildrenChanged`.
    PersistentRecursive,
}

/// Where a session stands with its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// Connected for the first time.
    Connected,
    /// The connection is lost; the session lives on at the store, for now.
    Suspended,
    /// Connected again, in the same session.
    Reconnected,
    /// The store ended the session: its ephemeral znodes are gone. Final.
    Expired,
    /// The session was closed from this side. Final.
    Closed,
}

impl SessionState {
    /// Whether no other state can follow.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Expired | Self::Closed)
    }

    /// Whether requests reach the store now.
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Connected | Self::Reconnected)
    }
}
