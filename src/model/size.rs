//! Limits of requests, frames and transactions, and the size of a request on the wire. A ZooKeeper server closes the
//! connection if a request is too large.
//!
//! The limits of the log, the snapshot and the backup are derived from the limit of a transaction, so every
//! acknowledged write can be read again (invariant 2).

use bytes::Bytes;

use crate::model::acl::Acl;
use crate::model::entry::NewEntry;
use crate::model::error::{Error, Result};
use crate::model::identity::AUTH;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Condition, Create, Op, ReadOp, Request};

/// Largest request in bytes: ZooKeeper's `jute.maxbuffer` minus room for its framing.
pub const LARGEST_REQUEST_BYTES: usize = 1_048_575 - 1_024;

pub(crate) const MAX_FRAME_BYTES: usize = 2 << 20;

/// Largest transaction in a log. A transaction may be far larger than its request, because each `auth` in an access
/// control list is replaced with the session's identities. The largest request without `auth` always fits.
pub(crate) const MAX_TXN_BYTES: usize = MAX_FRAME_BYTES + (1 << 10);

/// Bytes of a multi's operation without its path, data and list, rounded up.
const FRAMING_BYTES: usize = 64;

const READ_FRAMING_BYTES: usize = 18;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) prefix: usize,
}

impl Scale {
    #[inline]
    pub(crate) fn check(self, request: &Request) -> Result<()> {
        let actual = self.request(request);
        if actual > LARGEST_REQUEST_BYTES {
            return Err(Error::TooLarge {
                what: "a request",
                actual,
                limit: LARGEST_REQUEST_BYTES,
            });
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn request(self, request: &Request) -> usize {
        match request {
            Request::Create(create) => self.create(create),
            Request::SetData { path, data, .. } => self.path(path) + data.len(),
            Request::Enqueue(enqueue) => {
                let (name, data) = (enqueue.name.len(), enqueue.data.len());
                let queue_data = enqueue.queue_data.as_ref().map_or(0, Bytes::len);
                self.path(&enqueue.parent)
                    + 1
                    + name
                    + data
                    + queue_data
                    + acl_bytes(&enqueue.acl)
                    + self.conditions(&enqueue.conditions)
            }
            Request::Multi(ops) => ops.iter().map(|op| self.op(op)).sum(),
            Request::MultiRead(ops) => ops
                .iter()
                .map(ReadOp::path)
                .map(|path| self.path(path) + READ_FRAMING_BYTES)
                .sum(),
            Request::GetPredecessor(look) => {
                self.path(&look.entry) + self.conditions(&look.conditions)
            }
            Request::Withdraw { entry: path }
            | Request::GetEphemerals { prefix: path }
            | Request::GetQueue { parent: path, .. }
            | Request::Delete { path, .. }
            | Request::Exists { path, .. }
            | Request::GetData { path, .. }
            | Request::GetChildren { path, .. }
            | Request::Sync { path }
            | Request::GetAllChildrenNumber { path }
            | Request::AddWatch { path, .. } => self.path(path),
            Request::GetAcl { path } => self.path(path),
            Request::SetAcl { path, acl, .. } => self.path(path) + acl_bytes(acl),
            Request::AddAuth { scheme, secret } => scheme.len() + secret.as_bytes().len(),
            Request::Close => 0,
        }
    }

    fn op(self, op: &Op) -> usize {
        FRAMING_BYTES
            + match op {
                Op::Create(create) => self.create(create),
                Op::SetData { path, data, .. } => self.path(path) + data.len(),
                Op::Delete { path, .. } | Op::Check { path, .. } => self.path(path),
                Op::Require(condition) => self.prefix + condition.bytes(),
            }
    }

    fn conditions(self, conditions: &[Condition]) -> usize {
        let bytes = |condition: &Condition| FRAMING_BYTES + self.prefix + condition.bytes();
        conditions.iter().map(bytes).sum()
    }

    fn create(self, create: &Create) -> usize {
        self.path(&create.path) + create.data.len() + acl_bytes(&create.acl)
    }

    pub(crate) fn create_op(self, path: usize, data: usize, acl: &Acl) -> usize {
        FRAMING_BYTES + self.prefix + path + data + acl_bytes(acl)
    }

    pub(crate) fn takes_entry(self, entry: &NewEntry<'_>) -> bool {
        let path = entry.queue.path().as_str().len() + entry.name.len();
        self.create_op(path, entry.data.len(), entry.acl) <= LARGEST_REQUEST_BYTES / 2
    }

    fn path(self, path: &ZnodePath) -> usize {
        self.prefix + path.as_str().len()
    }
}

/// The bytes of the open list are part of the framing.
fn acl_bytes(acl: &Acl) -> usize {
    let entries = acl.entries().unwrap_or_default().iter();
    entries
        .map(|entry| acl_entry_bytes(&entry.scheme, &entry.id))
        .sum()
}

pub(crate) fn acl_entry_bytes(scheme: &str, id: &str) -> usize {
    12 + scheme.len() + id.len()
}

pub(crate) fn auth_entries(request: &Request) -> usize {
    let of = |acl: &Acl| {
        let entries = acl.entries().unwrap_or_default().iter();
        entries.filter(|entry| entry.scheme == AUTH).count()
    };
    match request {
        Request::Create(create) => of(&create.acl),
        Request::Enqueue(enqueue) => of(&enqueue.acl),
        Request::SetAcl { acl, .. } => of(acl),
        Request::Multi(ops) => {
            let creates = ops.iter().map(|op| match op {
                Op::Create(create) => of(&create.acl),
                _ => 0,
            });
            creates.sum()
        }
        _ => 0,
    }
}
