//! [`Request`]: a session's request to its store, and the form of the names of queue entries.

use bytes::Bytes;

use crate::model::acl::Acl;
#[cfg(feature = "client")]
use crate::model::error::Error;
use crate::model::identity::Secret;
use crate::model::path::ZnodePath;
use crate::model::types::CreateMode;
use crate::model::watch::WatchMode;

#[cfg(doc)]
use super::Reply;

/// A session's request to its store. Each variant of [`Reply`] names the requests that it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Creates a znode.
    Create(Create),
    /// Deletes a znode if it has this version (`None`: any).
    Delete {
        /// The znode.
        path: ZnodePath,
        /// The required version.
        version: Option<i32>,
    },
    /// Deletes a queue entry that never held the lock, or that its session considers lost. Unlike after a
    /// [`Delete`](Self::Delete), waiters do not treat the departure as a release of the lock.
    Withdraw {
        /// The entry.
        entry: ZnodePath,
    },
    /// Returns a znode's state if the znode exists.
    Exists {
        /// The znode.
        path: ZnodePath,
        /// True to watch the znode or its creation.
        watch: bool,
    },
    /// Returns a znode's data.
    GetData {
        /// The znode.
        path: ZnodePath,
        /// True to watch the znode.
        watch: bool,
    },
    /// Replaces a znode's data if the znode has this version (`None`: any).
    SetData {
        /// The znode.
        path: ZnodePath,
        /// Its new data.
        data: Bytes,
        /// The required version.
        version: Option<i32>,
    },
    /// Lists the names of a znode's children, in no particular order.
    GetChildren {
        /// The parent.
        path: ZnodePath,
        /// True to watch the list.
        watch: bool,
    },
    /// Executes all of these operations under one zxid, or none of them. Each operation sees the changes of the
    /// operations before it.
    Multi(Vec<Op>),
    /// Executes these reads, all at the same zxid.
    MultiRead(Vec<ReadOp>),
    /// Waits until this session's server has applied all earlier commits.
    Sync {
        /// A path, which ZooKeeper requires and ignores.
        path: ZnodePath,
    },
    /// Lists this session's ephemeral znodes whose path starts with a prefix.
    GetEphemerals {
        /// The prefix, compared as text, so the prefix `/a` matches `/ab`.
        prefix: ZnodePath,
    },
    /// Counts all znodes below a path.
    GetAllChildrenNumber {
        /// The top of the subtree, which is not counted.
        path: ZnodePath,
    },
    /// Watches a path until the watcher is dropped.
    AddWatch {
        /// The znode, which need not exist.
        path: ZnodePath,
        /// The events to watch for.
        mode: WatchMode,
    },
    /// Joins the queue under a parent and finds the nearest blocking entry.
    Enqueue(Enqueue),
    /// Finds and watches the nearest entry that blocks a given one.
    GetPredecessor(GetPredecessor),
    /// Lists the queue under a parent, head first.
    ///
    /// A store with an index returns all numbered ephemeral children, even if their names belong to other recipes. A
    /// store without an index returns all children, unsorted.
    GetQueue {
        /// The parent.
        parent: ZnodePath,
        /// The maximum number of names, or 0 for all. Only a store with an index applies the limit.
        limit: usize,
    },
    /// Returns a znode's access control list.
    GetAcl {
        /// The znode.
        path: ZnodePath,
    },
    /// Replaces a znode's access control list if the list has this version (`None`: any).
    SetAcl {
        /// The znode.
        path: ZnodePath,
        /// The new list.
        acl: Acl,
        /// The required version of the list ([`Stat::aversion`](crate::Stat::aversion)).
        version: Option<i32>,
    },
    /// Proves an identity. Its rights apply to the session's later requests.
    AddAuth {
        /// The scheme, such as `digest`.
        scheme: String,
        /// The proof, in the scheme's format.
        secret: Secret,
    },
    /// Ends the session and deletes its ephemeral znodes.
    Close,
}

impl Request {
    /// Returns true if the request must pass through the store's log, or through an ensemble's quorum.
    pub fn is_write(&self) -> bool {
        matches!(
            self,
            Self::Create(_)
                | Self::Delete { .. }
                | Self::Withdraw { .. }
                | Self::SetData { .. }
                | Self::SetAcl { .. }
                | Self::Multi(_)
                | Self::Enqueue(_)
                | Self::Close
        )
    }
}

/// A new znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// The path. In a sequential mode, the store appends a number to it.
    pub path: ZnodePath,
    /// Its data.
    pub data: Bytes,
    /// The znode's lifetime, and whether the store appends a number to its name.
    pub mode: CreateMode,
    /// Its access control list.
    pub acl: Acl,
}

/// One operation of a [`Request::Multi`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// See [`Request::Create`].
    Create(Create),
    /// See [`Request::Delete`].
    Delete {
        /// The znode.
        path: ZnodePath,
        /// The required version.
        version: Option<i32>,
    },
    /// See [`Request::SetData`].
    SetData {
        /// The znode.
        path: ZnodePath,
        /// Its new data.
        data: Bytes,
        /// The required version.
        version: Option<i32>,
    },
    /// Fails unless the znode exists and has this version (`None`: any).
    Check {
        /// The znode.
        path: ZnodePath,
        /// The required version.
        version: Option<i32>,
    },
    /// Fails unless the condition holds.
    ///
    /// A data condition fails with [`Error::BadVersion`](crate::Error::BadVersion) or [`NoNode`](crate::Error::NoNode),
    /// a condition on children with [`NotEmpty`](crate::Error::NotEmpty). ZooKeeper returns
    /// [`Unimplemented`](crate::Error::Unimplemented).
    Require(Condition),
}

/// Condition on a znode. The session must have the right to read the znode.
///
/// A multi ([`Op::Require`]) and an entry that does not wait ([`EnqueueMode::When`](crate::EnqueueMode::When)) check
/// the condition once. With [`Enqueue::conditions`], the head of a queue waits for the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<Z = ZnodePath, D = Bytes> {
    /// The znode exists and has this data. Unlike a version, the data can still be compared after the znode was deleted
    /// and recreated.
    Data {
        /// The znode.
        znode: Z,
        /// Its data.
        data: D,
    },
    /// The znode has at most this many children. A missing znode has none.
    Children {
        /// The parent.
        znode: Z,
        /// The maximum number of children.
        limit: u32,
    },
}

impl<Z, D> Condition<Z, D> {
    /// Returns the znode.
    pub fn znode(&self) -> &Z {
        let (Self::Data { znode, .. } | Self::Children { znode, .. }) = self;
        znode
    }
}

impl Condition {
    pub(crate) fn bytes(&self) -> usize {
        let data = match self {
            Self::Data { data, .. } => data.len(),
            Self::Children { .. } => 0,
        };
        self.znode().as_str().len() + data
    }
}

impl Op {
    #[cfg(feature = "client")]
    pub(crate) fn check_known_to_zookeeper(ops: &[Self]) -> Result<(), Error> {
        match ops.iter().any(|op| matches!(op, Self::Require(_))) {
            true => Err(Error::Unimplemented {
                what: "conditions on data or children in a multi",
            }),
            false => Ok(()),
        }
    }
}

/// One operation of a [`Request::MultiRead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOp {
    /// Returns a znode's data.
    GetData(ZnodePath),
    /// Lists a znode's children.
    GetChildren(ZnodePath),
    /// Returns a queue entry's data and the time of its grant.
    GetEntry(ZnodePath),
}

impl ReadOp {
    /// Returns the znode.
    pub fn path(&self) -> &ZnodePath {
        let (Self::GetData(path) | Self::GetChildren(path) | Self::GetEntry(path)) = self;
        path
    }
}

/// Request to join a queue: creates an ephemeral sequential znode and finds its predecessor.
///
/// A queue entry is any ephemeral child whose name ends with a number in ZooKeeper's format `%010d`: at least ten
/// digits, or a sign and at least nine. The order is numeric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueue {
    /// The queue.
    pub parent: ZnodePath,
    /// The entry's name without the number, valid as one part of a path.
    pub name: String,
    /// The entry's data.
    pub data: Bytes,
    /// The entry's access control list.
    pub acl: Acl,
    /// The entries that block it.
    pub blockers: Blockers,
    /// Conditions that the entry waits for once no other entry blocks it. At most two, with 1 KiB of data each.
    ///
    /// The entry waits while all data conditions hold and a condition on children fails. If the data changes, the wait
    /// ends, because the caller computed the limit of children from the old data. The ZooKeeper backend and servers
    /// with version 3 of Lockkeeper's protocol extension ignore conditions, so check them again when the wait ends.
    pub conditions: Vec<Condition>,
    /// True to count the entries ahead.
    pub count: bool,
    /// Data of the queue's znode, if the store may create a missing queue together with the entry. The queue and its
    /// missing ancestors become containers with the entry's access control list. A request for a missing queue fails
    /// with [`Error::NoNode`](crate::Error::NoNode) if this field is `None`, if the store is ZooKeeper, or if the
    /// queue's path is very long or lacks many ancestors.
    pub queue_data: Option<Bytes>,
}

/// Request for the predecessor of an entry that is already in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetPredecessor {
    /// The entry.
    pub entry: ZnodePath,
    /// The entries that block it.
    pub blockers: Blockers,
    /// See [`Enqueue::conditions`].
    pub conditions: Vec<Condition>,
    /// True to count the entries ahead.
    pub count: bool,
}

/// Entries ahead that block a queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blockers {
    /// All entries ahead.
    All,
    /// Only exclusive entries. Shared entries, with [`SHARED_MARKER`] in their names, do not block.
    Exclusive,
}

/// Marker in the name of a shared (reader's) entry, as in Curator's read-write lock.
pub const SHARED_MARKER: &str = "__READ__";

/// Names of a semaphore's children, as in Curator. A znode with such a child is not a queue.
pub const SEMAPHORE_CHILDREN: [&str; 2] = ["locks", "leases"];

/// Returns the number at the end of a queue entry's name, or `None` if the name is not an entry's name.
///
/// ZooKeeper writes its signed 32-bit counter as `%010d`: ten digits, or a minus sign and at least nine digits after
/// the counter has wrapped. A 64-bit store may write more digits. We read a hyphen as a minus sign only if nine or ten
/// digits follow and a wrapped counter could have written this text, so `lock--000000005` is -5 and `lock-0000000005`
/// is 5.
///
/// ```
/// use lockkeeper_store::sequence_of;
/// assert_eq!(sequence_of("_c_x-lock-0000000005"), Some(5));
/// assert_eq!(sequence_of("lock--000000005"), Some(-5));
/// assert_eq!(sequence_of("lock--2147483648"), Some(-2147483648));
/// assert_eq!(sequence_of("lock-12345678901"), Some(12345678901));
/// assert_eq!(sequence_of("config"), None);
/// ```
pub fn sequence_of(name: &str) -> Option<i64> {
    let bytes = name.as_bytes();
    let digits = bytes
        .iter()
        .rev()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let start = bytes.len() - digits;
    // Ten digits after a sign never start with zero, because `%010d` pads to ten characters including the sign.
    let signed = start >= 1
        && bytes[start - 1] == b'-'
        && (digits == 9
            || (digits == 10
                && bytes[start] != b'0'
                && start >= 2
                && matches!(bytes[start - 2], b'-' | b'_')));
    let number = match digits {
        9 | 10 if signed => &name[start - 1..],
        10..=18 => &name[start..],
        _ => return None,
    };
    number.parse().ok()
}
