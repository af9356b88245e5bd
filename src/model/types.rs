//! Plain data in requests and replies: ids, [`Stat`], create modes, ACL entries, session states.

use std::fmt;
use std::time::Duration;

/// Longest session timeout, 24.8 days, because ZooKeeper's protocol encodes a timeout as a signed 32-bit number of
/// milliseconds.
pub(crate) const MAX_SESSION_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// A duration in messages and logs, such as `1.5s`.
#[derive(Clone, Copy, Debug)]
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Number of a transaction. Within one store, later transactions have greater numbers.
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

/// Number of a session. An ephemeral znode's `ephemeral_owner` is the number of its session.
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

/// State of a znode without its data, with the fields of ZooKeeper's `Stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stat {
    /// The transaction that created the znode.
    pub czxid: Zxid,
    /// The transaction that last set the znode's data, or that created the znode.
    pub mzxid: Zxid,
    /// The transaction that created the znode, or that last created or deleted a child.
    pub pzxid: Zxid,
    /// Creation time, in milliseconds since the epoch, by the server's clock.
    pub ctime: i64,
    /// Time of the last change of the znode's data, in milliseconds since the epoch, by the server's clock.
    pub mtime: i64,
    /// Number of changes of the znode's data. `i32::MAX` is followed by `i32::MIN`, and -2 by 0, because -1 means any
    /// version.
    pub version: i32,
    /// Number of creates and deletes of children.
    pub cversion: i32,
    /// Number of changes of its access control list.
    pub aversion: i32,
    /// The owning session, or 0 if the znode is not ephemeral.
    pub ephemeral_owner: SessionId,
    /// Length of its data in bytes.
    pub data_length: i32,
    /// Number of its children.
    pub num_children: i32,
}

impl Stat {
    /// Returns true if the znode ends with its session.
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral_owner != SessionId(0)
    }
}

/// Lifetime of a new znode, and whether the store appends a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CreateMode {
    /// Exists until it is deleted.
    Persistent,
    /// Like [`Persistent`](Self::Persistent), with the parent's counter appended to the name in at least ten digits.
    /// The counter has 64 bits in the embedded store. In ZooKeeper the counter has 32 bits and is not allowed to wrap.
    PersistentSequential,
    /// Deleted at the end of its session. Cannot have children.
    Ephemeral,
    /// Like [`Ephemeral`](Self::Ephemeral), with a number as in [`PersistentSequential`](Self::PersistentSequential).
    EphemeralSequential,
    /// The store deletes the znode at the first sweep after its last child was deleted (by default, it sweeps once a
    /// minute). A client that creates a child may find the container deleted and must then create the container again
    /// (ZOOKEEPER-2163).
    Container,
    /// The store deletes the znode at the first sweep that finds it without children and unchanged for this time. The
    /// time is in whole milliseconds, from 1 to 2^40 − 1. A ZooKeeper server returns `Unimplemented` unless
    /// `zookeeper.extendedTypesEnabled` is set (ZOOKEEPER-2169).
    PersistentTtl(Duration),
    /// Like [`PersistentTtl`](Self::PersistentTtl), with a number as in
    /// [`PersistentSequential`](Self::PersistentSequential).
    PersistentSequentialTtl(Duration),
}

impl CreateMode {
    /// Returns true if the store appends a number to the name.
    pub fn is_sequential(self) -> bool {
        matches!(
            self,
            Self::PersistentSequential
                | Self::EphemeralSequential
                | Self::PersistentSequentialTtl(_)
        )
    }

    /// Returns true if the znode ends with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }
}

/// Entry of an access control list: the rights of clients that prove an identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The rights, as a sum of [`AclEntry::READ`] and the other constants.
    pub permissions: u8,
    /// `world`, `auth`, `digest`, `ip`, `x509`, `uid` (user number of a Unix socket's client) or another scheme of the
    /// server.
    pub scheme: String,
    /// The identity, in the scheme's format.
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

/// State of a session from its client's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// Connected for the first time.
    Connected,
    /// The connection is lost, but the store still keeps the session for now.
    Suspended,
    /// Connected again in the same session.
    Reconnected,
    /// The store ended the session and deleted its ephemeral znodes. Final.
    Expired,
    /// This client closed the session. Final.
    Closed,
}

impl SessionState {
    /// Returns true if no other state can follow.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Expired | Self::Closed)
    }

    /// Returns true if requests currently reach the store.
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Connected | Self::Reconnected)
    }
}
