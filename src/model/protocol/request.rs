//! [`Request`]: a request of a session to its store, and the names of queue entries that requests rely on.

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

/// A request of a session to its store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Creates a znode. Answered by [`Reply::Created`].
    Create(Create),
    /// Deletes a znode, if it is at this version (`None`: at any). Answered by [`Reply::Done`].
    Delete {
        /// The znode.
        path: ZnodePath,
        /// The version that it must have.
        version: Option<i32>,
    },
    /// Deletes an entry of a queue that never held the lock, or that its session gives up as lost: a
    /// [`Delete`](Self::Delete) that the entries behind must not take for a release. Answered by [`Reply::Done`].
    Withdraw {
        /// The entry.
        entry: ZnodePath,
    },
    /// Returns the state of a znode, if it exists. Answered by [`Reply::Exists`].
    Exists {
        /// The znode.
        path: ZnodePath,
        /// True to watch it, or its creation.
        watch: bool,
    },
    /// Returns a znode's data. Answered by [`Reply::Data`].
    GetData {
        /// The znode.
        path: ZnodePath,
        /// True to watch it.
        watch: bool,
    },
    /// Replaces a znode's data, if the znode is at this version (`None`: at any). Answered by [`Reply::Stat`].
    SetData {
        /// The znode.
        path: ZnodePath,
        /// Its new data.
        data: Bytes,
        /// The version that it must have.
        version: Option<i32>,
    },
    /// Lists the names of a znode's children, in no particular order. Answered by [`Reply::Children`].
    GetChildren {
        /// The parent.
        path: ZnodePath,
        /// True to watch the list.
        watch: bool,
    },
    /// Carries out all of these under one zxid, each on the state that those before it leave, or none. Answered by
    /// [`Reply::Multi`].
    Multi(Vec<Op>),
    /// Reads all of these at one zxid. Answered by [`Reply::MultiRead`].
    MultiRead(Vec<ReadOp>),
    /// Waits until this session's server has applied the earlier commits. Answered by [`Reply::Done`].
    Sync {
        /// A path, which ZooKeeper asks for and ignores.
        path: ZnodePath,
    },
    /// Lists the paths of this session's ephemeral znodes that start with this text. Answered by [`Reply::Paths`].
    GetEphemerals {
        /// The text.
        prefix: ZnodePath,
    },
    /// Counts all znodes below a path. Answered by [`Reply::Count`].
    GetAllChildrenNumber {
        /// The top of the subtree, which is not counted itself.
        path: ZnodePath,
    },
    /// Watches a path from now on, until the watcher is dropped. Answered by [`Reply::Watching`].
    AddWatch {
        /// The znode, which need not exist.
        path: ZnodePath,
        /// The events to be watched for.
        mode: WatchMode,
    },
    /// Joins the queue under a parent, and looks for the nearest entry that blocks. Answered by [`Reply::Enqueued`].
    Enqueue(Enqueue),
    /// Looks for the nearest entry that blocks one in the queue, and watches it. Answered by [`Reply::Predecessor`].
    GetPredecessor(GetPredecessor),
    /// Lists the queue under a parent, head first. Answered by [`Reply::Queue`].
    ///
    /// An index holds all ephemeral children with a number, also under names of other recipes. A store without an index
    /// answers with every child, unsorted.
    GetQueue {
        /// The parent.
        parent: ZnodePath,
        /// Number of names at most, where the store has an index (0: all).
        limit: usize,
    },
    /// Returns an access control list. Answered by [`Reply::Acl`].
    GetAcl {
        /// The znode.
        path: ZnodePath,
    },
    /// Replaces an access control list, if it is at this version (`None`: at any). Answered by [`Reply::Stat`].
    SetAcl {
        /// The znode.
        path: ZnodePath,
        /// The new list.
        acl: Acl,
        /// The version that the list must have ([`Stat::aversion`](crate::Stat::aversion)).
        version: Option<i32>,
    },
    /// Proves an identity of the session's client, which counts from the next request on. Answered by [`Reply::Done`].
    AddAuth {
        /// The scheme, such as `digest`.
        scheme: String,
        /// The proof, in the scheme's own form.
        secret: Secret,
    },
    /// Ends the session, and deletes its ephemeral znodes. Answered by [`Reply::Done`].
    Close,
}

impl Request {
    /// Returns true for a request that goes through the store's log, in an ensemble through its quorum.
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

/// A znode to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// Its path; for a sequential mode without the number.
    pub path: ZnodePath,
    /// Its data.
    pub data: Bytes,
    /// Its lifetime, and whether it is numbered.
    pub mode: CreateMode,
    /// Its access control list.
    pub acl: Acl,
}

/// One operation of a [`Request::Multi`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// As [`Request::Create`].
    Create(Create),
    /// As [`Request::Delete`].
    Delete {
        /// The znode.
        path: ZnodePath,
        /// The version that it must have.
        version: Option<i32>,
    },
    /// As [`Request::SetData`].
    SetData {
        /// The znode.
        path: ZnodePath,
        /// Its new data.
        data: Bytes,
        /// The version that it must have.
        version: Option<i32>,
    },
    /// Fails unless the znode exists and is at this version (`None`: at any).
    Check {
        /// The znode.
        path: ZnodePath,
        /// The version that it must have.
        version: Option<i32>,
    },
    /// Fails unless the condition holds: with [`Error::BadVersion`](crate::Error::BadVersion) or
    /// [`NoNode`](crate::Error::NoNode) if it is of data, with [`NotEmpty`](crate::Error::NotEmpty) if it is of children.
    /// [`Unimplemented`](crate::Error::Unimplemented) on ZooKeeper.
    Require(Condition),
}

/// A condition on a znode, which the session must have the right to read.
///
/// It is checked once: by a multi ([`Op::Require`]) or with an entry by reference ([`Place::If`](crate::Place::If)). Or
/// the head of a queue waits for it ([`Enqueue::conditions`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<Z = ZnodePath, D = Bytes> {
    /// The znode exists and has these data. Unlike a version, they mean the same after the znode was deleted and created
    /// again.
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
        /// The most children.
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
    /// Returns the bytes of its path and data.
    pub(crate) fn bytes(&self) -> usize {
        let data = match self {
            Self::Data { data, .. } => data.len(),
            Self::Children { .. } => 0,
        };
        self.znode().as_str().len() + data
    }
}

impl Op {
    /// Refuses operations that ZooKeeper does not have.
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
    /// Returns the data of an entry of a queue, and the time at which the entry was granted.
    GetEntry(ZnodePath),
}

impl ReadOp {
    /// Returns the znode that it reads.
    pub fn path(&self) -> &ZnodePath {
        let (Self::GetData(path) | Self::GetChildren(path) | Self::GetEntry(path)) = self;
        path
    }
}

/// A request to join a queue: it creates an ephemeral sequential znode, and asks for the predecessor of this.
///
/// An entry of a queue is any ephemeral child with a name that ends with a number of ten digits or more, or a sign and
/// nine or more (ZooKeeper's `%010d`); order is numeric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueue {
    /// The queue.
    pub parent: ZnodePath,
    /// The entry's name, without the number. One valid part of a path.
    pub name: String,
    /// The entry's data.
    pub data: Bytes,
    /// The entry's access control list.
    pub acl: Acl,
    /// The entries that block it.
    pub blockers: Blockers,
    /// What the entry waits for once no entry blocks it: at most two conditions, with 1 KiB of data each. It waits while a
    /// condition on children fails and those on data hold; the store watches these znodes only then. Where the data
    /// differ, the limit of the children was computed from something else, so the wait is over. ZooKeeper's backend
    /// ignores conditions, and so does a server of version 3 of the extension: check them when the turn comes.
    pub conditions: Vec<Condition>,
    /// True to count the entries ahead.
    pub count: bool,
    /// Data of the queue's own znode, for a store that creates a missing queue with the entry: as a container, with the
    /// entry's access control list, below containers. `None`, on ZooKeeper, and for a path that is very long
    /// or lacks many ancestors: a missing queue is [`Error::NoNode`](crate::Error::NoNode).
    pub queue_data: Option<Bytes>,
}

/// A request for the predecessor of an entry that is in its queue already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetPredecessor {
    /// The entry.
    pub entry: ZnodePath,
    /// The entries that block it.
    pub blockers: Blockers,
    /// As [`Enqueue::conditions`].
    pub conditions: Vec<Condition>,
    /// True to count the entries ahead.
    pub count: bool,
}

/// The entries ahead that block an entry of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blockers {
    /// All of them.
    All,
    /// The exclusive ones: shared entries, with [`SHARED_MARKER`] in their names, do not block.
    Exclusive,
}

/// Part of the name of a shared entry (a reader's), as in Curator's read-write lock.
pub const SHARED_MARKER: &str = "__READ__";

/// Names of a semaphore's own children, as in Curator's. A path with one of them is no queue.
pub const SEMAPHORE_CHILDREN: [&str; 2] = ["locks", "leases"];

/// Returns the number at the end of a queue entry's name, if it is one.
///
/// ZooKeeper writes its signed 32-bit counter as `%010d`: ten digits, or a minus sign and nine or
/// more once it has wrapped. A longer run of digits is a 64-bit store's. The digits are read
/// backwards from the end; a minus sign counts only where nine or ten digits follow it and the
/// wrapped counter could have written it: after a name's own `-`, as in `lock--000000005`
/// (-5), against `lock-0000000005` (5).
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
    // `lock-0000000005` has a hyphen of its name, `lock--000000005` a sign. Ten digits behind a sign begin with no
    // zero: `%010d` pads to ten characters, the sign included.
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
