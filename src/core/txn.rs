//! [`Txn`]: what a write came to, with every decision made. A log can keep it, and
//! [`Core::replay`] carries it out again without deciding anything.

use bytes::Bytes;

use super::sessions::Session;
use super::{Core, Effects, End, Stamp};
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

#[cfg_attr(not(test), expect(dead_code, reason = "the way in for a durable log"))]
impl Core {
    /// Keeps each transaction from now on, until [`take_recorded`](Self::take_recorded).
    pub(crate) fn record(&mut self) {
        self.recorded.get_or_insert_default();
    }

    /// The transactions since the last call.
    pub(crate) fn take_recorded(&mut self) -> Vec<Txn> {
        self.recorded
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Carries out a transaction that was recorded. Sessions get their deadlines from
    /// [`restart_timeouts`](Self::restart_timeouts).
    pub(crate) fn replay(&mut self, txn: Txn) {
        let at = Stamp {
            zxid: txn.zxid,
            date_ms: txn.date_ms,
        };
        self.zxid = txn.zxid.0;
        let effects = &mut Effects::default();
        match txn.op {
            TxnOp::OpenSession {
                timeout_ms,
                password,
            } => {
                self.sessions
                    .insert(Session::new(txn.session, password, timeout_ms));
            }
            TxnOp::CloseSession(end) => {
                let slot = self
                    .sessions
                    .find(txn.session)
                    .expect("a session that was opened");
                self.remove_session(slot, end, at, effects);
            }
            op => {
                self.apply(txn.session, op, at, effects);
            }
        }
    }

    /// Gives every session its full timeout from `now` on, as after a restart.
    pub(crate) fn restart_timeouts(&mut self, now: crate::clock::Moment) {
        self.sessions.touch_all(now);
    }
}
