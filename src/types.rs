//! The data that requests and replies are made of.

use std::fmt;
use std::time::Duration;

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
