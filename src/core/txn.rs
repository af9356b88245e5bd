//! [`Txn`]: what a write came to, with every decision made. A log can keep it, and
//! [`Core::replay`](super::Core::replay) carries it out again without deciding anything.

use bytes::Bytes;

use super::sessions::SessionRef;
use super::{Core, End};
use crate::acl::Acl;
use crate::error::{Error, Result};
use crate::path::ZnodePath;
use crate::protocol::Request;
use crate::size::{Scale, acl_entry_bytes, auth_entries};
use crate::types::{SessionId, Zxid};

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Txn {
    pub(crate) zxid: Zxid,
    pub(crate) unix_ms: i64,
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

/// Bytes of a transaction in a log beside its operation, rounded up: its kind, zxid, date and session.
const HEAD_BYTES: usize = 1 + NUMBER_BYTES + NUMBER_BYTES + 8;

/// Bytes of a number of 64 bits, rounded up.
const NUMBER_BYTES: usize = 10;

/// Bytes of a length or a number of 32 bits, rounded up.
const LENGTH_BYTES: usize = 5;

#[cfg(test)]
impl Txn {
    /// Bytes that this takes in a log, rounded up.
    pub(crate) fn log_bytes(&self) -> usize {
        HEAD_BYTES + self.op.log_bytes()
    }
}

impl TxnOp {
    /// Bytes that this takes in a log, rounded up, as the operation of a transaction or a part of one.
    pub(crate) fn log_bytes(&self) -> usize {
        match self {
            Self::OpenSession { password, .. } => 2 + NUMBER_BYTES + password.len(),
            Self::CloseSession(_) => 2,
            Self::Create(new) => new.log_bytes(),
            Self::Delete { path } => delete_bytes(path),
            Self::SetData { path, data, .. } => set_data_bytes(path, data.len()),
            Self::SetAcl { path, acl, .. } => set_acl_bytes(path, acl),
            Self::Check => 1,
            Self::Multi(ops) => MULTI_BYTES + ops.iter().map(Self::log_bytes).sum::<usize>(),
        }
    }
}

/// Bytes of a multi beside its operations.
pub(super) const MULTI_BYTES: usize = 1 + LENGTH_BYTES;

pub(super) fn delete_bytes(path: &ZnodePath) -> usize {
    1 + LENGTH_BYTES + path.as_str().len()
}

pub(super) fn set_data_bytes(path: &ZnodePath, data: usize) -> usize {
    delete_bytes(path) + LENGTH_BYTES + data + LENGTH_BYTES
}

pub(super) fn set_acl_bytes(path: &ZnodePath, acl: &Acl) -> usize {
    delete_bytes(path) + acl_bytes(acl) + LENGTH_BYTES
}

fn acl_bytes(acl: &Acl) -> usize {
    let entries = acl.entries().unwrap_or_default().iter();
    let entries = entries.map(|entry| 2 + 2 * LENGTH_BYTES + entry.scheme.len() + entry.id.len());
    LENGTH_BYTES + entries.sum::<usize>()
}

impl NewNode {
    /// See [`TxnOp::log_bytes`].
    #[inline]
    pub(super) fn log_bytes(&self) -> usize {
        let kind = 1 + NUMBER_BYTES;
        let sequence = 1 + NUMBER_BYTES;
        let data = LENGTH_BYTES + self.data.len();
        delete_bytes(&self.path) + data + acl_bytes(&self.acl) + kind + sequence + NUMBER_BYTES
    }
}

impl Core {
    /// Refuses an operation of so many bytes in a log, before anything of it is applied: whatever is
    /// acknowledged must fit into the log, and be read again.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    #[inline]
    pub(super) fn check_txn(&self, op_bytes: usize) -> Result<()> {
        let (actual, limit) = (HEAD_BYTES + op_bytes, self.options.limits.txn_bytes);
        if actual <= limit {
            return Ok(());
        }
        Err(too_large(actual, limit))
    }

    /// Bytes in a log of what may come of a request, rounded up, before its lists are resolved.
    pub(crate) fn txn_bytes(&self, session: SessionRef, request: &Request) -> usize {
        let known = self.sessions.slots.get(session.slot as usize);
        let identities = known.map_or(&[][..], |known| &known.identities);
        let proofs = identities.iter().filter(|identity| identity.is_proof());
        let proofs = proofs.map(|identity| acl_entry_bytes(identity.scheme, &identity.id));
        let expanded = auth_entries(request) * proofs.sum::<usize>();
        // A number behind the name, and what only creates have, are beyond what a request has itself.
        let beside = HEAD_BYTES + 6 * NUMBER_BYTES + 2 * LENGTH_BYTES;
        Scale { prefix: 0 }.request(request) + expanded + beside
    }
}

#[cold]
fn too_large(actual: usize, limit: usize) -> Error {
    Error::TooLarge {
        what: "a transaction, with all its access control lists,",
        actual,
        limit,
    }
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
