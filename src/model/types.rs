//! Plain data of requests and replies: ids, [`Stat`], create modes, ACL entries, session states.

use std::fmt;
use std::time::Duration;

/// Longest timeout of a session, 24.8 days: ZooKeeper's protocol states it in milliseconds, as a signed 32-bit number.
pub(crate) const MAX_SESSION_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// A duration in messages and logs: `1.5s`.
#[derive(Clone, Copy, Debug)]
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of a duration this form is made for people, and it takes the precision from `f`.
        fmt::Debug::fmt(&self.0, f)
    }
}

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

/// State of a znode besides its data: the fields of the ZooKeeper programmer's guide ("ZooKeeper Stat Structure"),
/// under the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stat {
    /// The transaction that created the znode.
    pub czxid: Zxid,
    /// The last transaction that created it or set its data.
    pub mzxid: Zxid,
    /// The last transaction that created or deleted one of its children, or created it.
    pub pzxid: Zxid,
    /// Time of its creation, in milliseconds since the epoch, by the server's clock.
    pub ctime: i64,
    /// Time of the last change of its data, likewise.
    pub mtime: i64,
    /// Number of changes of its data. `i32::MAX` is followed by `i32::MIN`, and -2 by 0: -1 means any.
    pub version: i32,
    /// Number of times that a child was created or deleted.
    pub cversion: i32,
    /// Number of changes of its access control list.
    pub aversion: i32,
    /// The owning session; 0 for a znode that is not ephemeral.
    pub ephemeral_owner: SessionId,
    /// The length of its data, in bytes.
    pub data_length: i32,
    /// Number of its children.
    pub num_children: i32,
}

impl Stat {
    /// Returns true for a znode that goes with its session.
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral_owner != SessionId(0)
    }
}

/// Lifetime of a new znode, and whether the store numbers it.
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
    /// Returns true if the store ends the name with a number.
    pub fn is_sequential(self) -> bool {
        matches!(
            self,
            Self::PersistentSequential
                | Self::EphemeralSequential
                | Self::PersistentSequentialTtl(_)
        )
    }

    /// Returns true if the znode goes with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }
}

/// One entry of an access control list: these rights, for clients that prove this identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The rights: a sum of [`AclEntry::READ`] and its like.
    pub permissions: u8,
    /// `world`, `auth`, `digest`, `ip`, `x509`, `uid` (the user of a Unix socket's client, by number) or a scheme of the server's own.
    pub scheme: String,
    /// The identity, in the scheme's own form.
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

/// State of a session, as its client knows it.
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
    /// Returns true if no other state can follow.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Expired | Self::Closed)
    }

    /// Returns true if requests reach the store now.
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Connected | Self::Reconnected)
    }
}
