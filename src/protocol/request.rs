//! [`Request`]: what a session can ask of its store.

use bytes::Bytes;

use crate::acl::Acl;
use crate::identity::Secret;
use crate::path::ZnodePath;
use crate::types::CreateMode;
use crate::watch::WatchMode;

#[cfg(doc)]
use super::Reply;

/// What a session can ask of its store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Make a znode. Answered by [`Reply::Created`].
    Create(Create),
    /// Delete a znode, if it is at this version (`None`: at any). Answered by [`Reply::Done`].
    Delete {
        /// The znode.
        path: ZnodePath,
        /// The version that it must have.
        version: Option<i32>,
    },
    /// Delete an entry of a queue that was never held, or is not believed to be held any more: a
    /// [`Delete`](Self::Delete) that those behind do not take for a release. Answered by [`Reply::Done`].
    Withdraw {
        /// The entry.
        entry: ZnodePath,
    },
    /// Look whether a znode exists. Answered by [`Reply::Exists`].
    Exists {
        /// The znode.
        path: ZnodePath,
        /// Whether to watch it, or its coming.
        watch: bool,
    },
    /// Read data. Answered by [`Reply::Data`].
    GetData {
        /// The znode.
        path: ZnodePath,
        /// Whether to watch it.
        watch: bool,
    },
    /// Replace data, if the znode is at this version (`None`: at any). Answered by [`Reply::Stat`].
    SetData {
        /// The znode.
        path: ZnodePath,
        /// What it shall hold.
        data: Bytes,
        /// The version that it must have.
        version: Option<i32>,
    },
    /// List the names of the children, in no particular order. Answered by [`Reply::Children`].
    GetChildren {
        /// The parent.
        path: ZnodePath,
        /// Whether to watch the list.
        watch: bool,
    },
    /// Carry out all of these under one zxid, each seeing those before it, or none. Answered by [`Reply::Multi`].
    Multi(Vec<Op>),
    /// Read all of these at one zxid. Answered by [`Reply::MultiRead`].
    MultiRead(Vec<ReadOp>),
    /// Wait until this session's server has caught up with what was committed before. Answered by [`Reply::Done`].
    Sync {
        /// Where (ZooKeeper asks for a path and ignores it).
        path: ZnodePath,
    },
    /// List this session's ephemeral znodes whose paths start with this text. Answered by [`Reply::Paths`].
    GetEphemerals {
        /// The text.
        prefix: ZnodePath,
    },
    /// Count all znodes below a path. Answered by [`Reply::Count`].
    GetAllChildrenNumber {
        /// The top, itself not counted.
        path: ZnodePath,
    },
    /// Watch from now on, until the watcher is dropped. Answered by [`Reply::Watching`].
    AddWatch {
        /// The znode, which need not exist.
        path: ZnodePath,
        /// What to be told.
        mode: WatchMode,
    },
    /// Join the queue under a parent, and say who is ahead. Answered by [`Reply::Enqueued`].
    Enqueue(Enqueue),
    /// Asks for the nearest entry that blocks this one. Answered by [`Reply::Predecessor`].
    GetPredecessor(GetPredecessor),
    /// Who is in the queue under a parent, head first? Answered by [`Reply::Queue`].
    ///
    /// An index holds all ephemeral children with a number, whatever else is in their names. A store without an
    /// index answers with every child, unsorted.
    GetQueue {
        /// The parent.
        parent: ZnodePath,
        /// At most how many, where the store can count (0: all).
        limit: usize,
    },
    /// Read an access control list. Answered by [`Reply::Acl`].
    GetAcl {
        /// The znode.
        path: ZnodePath,
    },
    /// Replace an access control list, if it is at this version (`None`: at any). Answered by [`Reply::Stat`].
    SetAcl {
        /// The znode.
        path: ZnodePath,
        /// Who may do what with it from now on.
        acl: Acl,
        /// The version that the list must have ([`Stat::aversion`]).
        version: Option<i32>,
    },
    /// Prove who the session speaks for, from the next request on. Answered by [`Reply::Done`].
    AddAuth {
        /// How it is proved.
        scheme: String,
        /// What proves it.
        secret: Secret,
    },
    /// End the session: its ephemeral znodes go. Answered by [`Reply::Done`].
    Close,
}

impl Request {
    /// Whether this goes through the store's log, in an ensemble through its quorum.
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

/// The making of a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// Its path; for a sequential mode without the number.
    pub path: ZnodePath,
    /// What it shall hold.
    pub data: Bytes,
    /// How long it lives, and whether it is numbered.
    pub mode: CreateMode,
    /// Who may do what with it.
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
        /// What it shall hold.
        data: Bytes,
        /// The version that it must have.
        version: Option<i32>,
    },
    /// Fail unless the znode exists and is at this version (`None`: at any).
    Check {
        /// The znode.
        path: ZnodePath,
        /// The version that it must have.
        version: Option<i32>,
    },
}

/// One operation of a [`Request::MultiRead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOp {
    /// Read a znode's data.
    GetData(ZnodePath),
    /// List a znode's children.
    GetChildren(ZnodePath),
}

/// Joining a queue: the making of an ephemeral sequential znode, and the question who is ahead of it.
///
/// An entry of a queue is any child whose name ends with a number of ten digits or more, or a sign
/// and nine or more (ZooKeeper's `%010d`); order is numeric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueue {
    /// The queue.
    pub parent: ZnodePath,
    /// The entry's name, without the number. One valid part of a path.
    pub name: String,
    /// What the entry holds.
    pub data: Bytes,
    /// Who may do what with it.
    pub acl: Acl,
    /// Who counts as ahead.
    pub skip: Skip,
    /// Whether to say how many are ahead.
    pub count: bool,
}

/// The question who is ahead of an entry that is in its queue already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetPredecessor {
    /// The entry.
    pub entry: ZnodePath,
    /// Who counts as ahead.
    pub skip: Skip,
    /// Whether to say how many are ahead.
    pub count: bool,
}

/// Which entries ahead of mine do not block me.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Skip {
    /// All block.
    None,
    /// Shared entries do not: those with [`SHARED_MARK`] in their names.
    Shared,
}

/// What the name of a shared entry (a reader's) contains, as in Curator's read-write lock.
pub const SHARED_MARK: &str = "__READ__";

/// The children of a semaphore, as in Curator's: where one of them stands, the path is no queue's.
pub const SEMAPHORE_PARTS: [&str; 2] = ["locks", "leases"];

/// The number at the end of a queue entry's name, if it is one.
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
