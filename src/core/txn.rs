//! [`Txn`]: what a write came to, with every decision made. A log can keep it, and
//! [`Core::replay`](super::Core::replay) carries it out again without deciding anything.

use bytes::Bytes;

use super::End;
use crate::path::ZnodePath;
use crate::types::{Acl, SessionId, Zxid};

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Txn {
    pub(crate) zxid: Zxid,
    pub(crate) date_ms: i64,
    /// Who asked; 0 for the store itself.
    pub(crate) session: SessionId,
    pub(crate) op: TxnOp,
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TxnOp {
    OpenSession {
        /// 0: the session never expires.
        timeout_ms: u64,
        password: [u8; 16],
        /// Whether it dies with the store's process.
        is_local: bool,
    },
    /// The session and all its ephemeral znodes go.
    CloseSession(End),
    Create(NewNode),
    Delete {
        path: ZnodePath,
    },
    SetData {
        path: ZnodePath,
        data: Bytes,
        /// The version that the znode gets.
        version: i32,
    },
    SetAcl {
        path: ZnodePath,
        acl: Acl,
        /// The version that the list gets.
        aversion: i32,
    },
    /// A part of a multi that changes nothing.
    Check,
    Multi(Vec<TxnOp>),
}

/// A znode to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewNode {
    /// Its final path, number included.
    pub(crate) path: ZnodePath,
    pub(crate) data: Bytes,
    pub(crate) acl: Acl,
    pub(crate) kind: Kind,
    /// Its number, if its name makes it an entry of a queue.
    pub(crate) sequence: Option<i64>,
    /// The parent's count of child creates, this one included.
    pub(crate) creates: i64,
}

/// How long a znode lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Persistent,
    /// Belongs to the session that makes it.
    Ephemeral,
    Container,
    Ttl {
        ms: u64,
    },
}
