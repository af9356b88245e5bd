//! The journal: the transactions ([`Txn`]) that a log keeps. It also determines which transaction must be durable
//! before a reply may be sent.
//!
//! [`Core::replay`](super::Core::replay) applies a logged transaction without deciding anything again (invariant 1). A
//! transaction's size is checked before the transaction is applied, so every acknowledged write fits into the log
//! (invariant 2).

use bytes::Bytes;

use super::intrusive_list::NIL;
use super::lifecycle::End;
use super::sessions::SessionRef;
use super::write::kind_of;
use super::{Core, Now, Stamp};
use crate::model::acl::Acl;
use crate::model::entry::EnqueueMode;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Condition, Enqueue, GetPredecessor, Op, Request};
use crate::model::size::{Scale, acl_entry_bytes, auth_entries};
use crate::model::types::{CreateMode, SessionId, Zxid};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Txn {
    pub(crate) zxid: Zxid,
    pub(crate) unix_ms: i64,
    pub(crate) session: SessionId,
    pub(crate) op: TxnOp,
}

/// Effect of a transaction. All decisions are already made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TxnOp {
    OpenSession {
        timeout_ms: u64,
        password: [u8; 16],
        is_local: bool,
    },
    CloseSession(End),
    Create(NewNode),
    Delete {
        path: ZnodePath,
    },
    SetData {
        path: ZnodePath,
        data: Bytes,
        version: i32,
    },
    SetAcl {
        path: ZnodePath,
        acl: Acl,
        aversion: i32,
    },
    /// A check in a multi, which changes nothing.
    Check,
    Multi(Vec<TxnOp>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewNode {
    pub(crate) path: ZnodePath,
    pub(crate) data: Bytes,
    pub(crate) acl: Acl,
    pub(crate) kind: NodeKind,
    pub(crate) sequence: Option<i64>,
    /// The parent's count of creates, including the create of this node.
    pub(crate) creates: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Persistent,
    Ephemeral,
    Container,
    Ttl { ms: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    Off,
    /// Keeps all transactions except changes to local sessions and their ephemerals, which end with this process.
    Durable,
    All,
}

#[derive(Debug)]
pub(super) struct JournalState {
    journal: Journal,
    txns: Vec<Txn>,
    last: i64,
    /// Log mode of changes to sessions and their ephemerals.
    sessions: LogMode,
}

impl JournalState {
    pub(super) const NONE: Self = Self {
        journal: Journal::Off,
        txns: Vec::new(),
        last: 0,
        sessions: LogMode::Sync,
    };
}

/// Guarantee of the log for a transaction, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LogMode {
    None,
    /// Logged soon. No reply waits for the log.
    Async,
    /// Logged. Replies that show the transaction's effect wait for the log.
    Sync,
}

impl Core {
    pub(crate) fn set_journal(&mut self, journal: Journal) {
        self.kept.journal = journal;
    }

    /// Returns the transactions to be logged. The caller must log them and empty the list.
    pub(crate) fn kept(&mut self) -> &mut Vec<Txn> {
        &mut self.kept.txns
    }

    pub(crate) fn last_kept(&self) -> Zxid {
        Zxid(self.kept.last)
    }

    /// Returns the log mode of a change to a znode. `owner` is the owner's slot, or `NIL`.
    pub(super) fn log_mode_of(&self, owner: u32) -> LogMode {
        match self.kept.journal {
            Journal::Off => LogMode::None,
            // The znode ends with this process, so its log records would be useless after a restart.
            Journal::Durable if owner != NIL && self.sessions.get(owner).is_local => LogMode::None,
            Journal::Durable | Journal::All if owner != NIL => self.kept.sessions,
            Journal::Durable | Journal::All => LogMode::Sync,
        }
    }

    pub(crate) fn logs_session(&self, slot: u32) -> bool {
        let is_known = self.sessions.slots.contains(slot as usize);
        is_known && self.log_mode_of(slot) != LogMode::None
    }

    pub(crate) fn keep_sessions_lightly(&mut self) {
        self.kept.sessions = LogMode::Async;
    }

    /// Keeps all transactions from now on. Also logs the existing local sessions and their ephemerals.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn keep_all(&mut self, now: Now) {
        let was = std::mem::replace(&mut self.kept.journal, Journal::All);
        let sessions = self.sessions.slots.iter();
        let left_out: Vec<u32> = sessions
            .filter(|(_, session)| session.is_local && was == Journal::Durable)
            .map(|(slot, _)| slot as u32)
            .collect();
        for slot in left_out {
            self.enter_session(slot, now);
        }
    }

    /// Logs a session and its ephemerals as if they were just created. Each logged create increments the parent's count
    /// of creates, because a replay checks that this count grows.
    #[cfg(any(test, feature = "server"))]
    fn enter_session(&mut self, slot: u32, now: Now) {
        let session = self.sessions.get(slot);
        let id = session.id;
        let owned = session
            .ephemerals
            .iter(&self.tree.nodes, |node| &node.ephemerals);
        let owned: Vec<u32> = owned.map(|(index, _)| index).collect();
        // Log the session first, because a replay refuses an ephemeral without its session.
        self.log_session(slot, now);
        for index in owned {
            // Use a transaction for each ephemeral, because a single transaction for all of them could exceed the size
            // limit.
            let creates = self.tree.count_create(self.tree.node(index).parent);
            let new = self.as_new(index, creates);
            let at = self.stamp(now, self.log_mode_of(slot));
            self.log(id, at, || TxnOp::Create(new));
        }
    }

    pub(super) fn as_new(&self, index: u32, creates: i64) -> NewNode {
        let node = self.tree.node(index);
        NewNode {
            path: self.tree.path(index),
            data: node.data.clone(),
            acl: node.acl.clone(),
            kind: node.kind,
            sequence: node.queue_key.map(|(sequence, _)| sequence),
            creates,
        }
    }

    /// Returns the log mode of a create. A container that a local session creates is logged asynchronously, so that
    /// acquiring a lock does not wait for the disk. This is safe, because a crash that loses the container also ends
    /// every session that has seen it, and because the log contains the container before any of its logged children.
    pub(super) fn log_mode_of_create(&self, session: u32, kind: NodeKind) -> LogMode {
        match (kind, self.kept.journal) {
            (_, Journal::Off) => LogMode::None,
            (NodeKind::Ephemeral, _) => self.log_mode_of(session),
            (NodeKind::Container, _) => self.log_mode_of(session).max(LogMode::Async),
            _ => LogMode::Sync,
        }
    }

    /// Starts the next transaction. Must be called after all checks, because a refused write must not take a zxid.
    pub(super) fn stamp(&mut self, now: Now, log_mode: LogMode) -> Stamp {
        self.zxid += 1;
        // From here on, replies that show this transaction's effect wait for the log.
        if log_mode == LogMode::Sync {
            self.kept.last = self.zxid;
        }
        Stamp {
            zxid: Zxid(self.zxid),
            unix_ms: now.unix_ms,
            log_mode,
        }
    }

    pub(super) fn log(&mut self, session: SessionId, at: Stamp, op: impl FnOnce() -> TxnOp) {
        if at.log_mode != LogMode::None {
            self.kept.txns.push(Txn {
                zxid: at.zxid,
                unix_ms: at.unix_ms,
                session,
                op: op(),
            });
        }
    }

    /// Returns the last logged transaction that the answer to a request may show. The answer must wait until the log
    /// contains this transaction (invariant 2).
    ///
    /// A read waits only for writes of the znodes that it shows. A write waits for its own transaction anyway. An
    /// enqueue or a predecessor request waits only for writes of the znodes in its conditions, because a condition
    /// reveals as much as a read, even if the condition fails. The queue entries in its reply need no wait, because
    /// they end with their sessions.
    pub(crate) fn shown_by(&self, request: &Request) -> Zxid {
        let shown = match request {
            _ if self.kept.journal == Journal::Off => 0,
            Request::Exists { path, .. }
            | Request::GetData { path, .. }
            | Request::GetChildren { path, .. }
            | Request::GetAcl { path }
            | Request::GetQueue { parent: path, .. } => self.shown_at(path),
            Request::MultiRead(ops) => ops
                .iter()
                .map(|op| self.shown_at(op.path()))
                .max()
                .unwrap_or(0),
            Request::Multi(ops) => ops
                .iter()
                .map(|op| match op {
                    Op::Check { path, .. } => self.shown_at(path),
                    Op::Require(condition) => self.shown_by_part(condition),
                    Op::Create(_) | Op::Delete { .. } | Op::SetData { .. } => 0,
                })
                .max()
                .unwrap_or(0),
            Request::Enqueue(Enqueue { conditions, .. })
            | Request::GetPredecessor(GetPredecessor { conditions, .. }) => conditions
                .iter()
                .map(|condition| self.shown_by_part(condition))
                .max()
                .unwrap_or(0),
            // The answers to these requests may show any part of the store.
            Request::Sync { .. }
            | Request::GetEphemerals { .. }
            | Request::GetAllChildrenNumber { .. } => self.kept.last,
            _ => 0,
        };
        Zxid(shown)
    }

    pub(super) fn has_journal(&self) -> bool {
        self.kept.journal != Journal::Off
    }

    fn shown_at(&self, path: &ZnodePath) -> i64 {
        let node = self.tree.find(path.as_str());
        // Any logged transaction may have deleted the missing znode.
        node.map_or(self.kept.last, |node| self.tree.node(node).kept)
    }

    fn shown_by_condition<Z, D>(&self, condition: &Condition<Z, D>, node: Option<u32>) -> i64 {
        match (node, condition) {
            (Some(node), _) => self.tree.node(node).kept,
            (None, Condition::Data { .. }) => self.kept.last,
            // A znode has no children when it is deleted, so its delete cannot change the result of a children
            // condition.
            (None, Condition::Children { .. }) => 0,
        }
    }

    fn shown_by_part(&self, condition: &Condition) -> i64 {
        let node = self.tree.find(condition.znode().as_str());
        self.shown_by_condition(condition, node)
    }

    pub(crate) fn shown_by_place(&self, mode: EnqueueMode<'_>) -> Zxid {
        let conditions = match mode {
            EnqueueMode::When(conditions) if self.has_journal() => conditions,
            _ => &[],
        };
        let shown = conditions.iter().map(|condition| {
            let node = self.tree.find_known(condition.znode());
            self.shown_by_condition(condition, node)
        });
        Zxid(shown.max().unwrap_or(0))
    }

    pub(crate) fn needs_log(&self, session: SessionRef, request: &Request) -> bool {
        let known = self.sessions.slots.get(session.slot as usize);
        if known.is_none_or(|known| known.id != session.id || known.is_unproven) {
            return false; // neither an ended nor an unproven session logs anything
        }
        let kept = |keep: LogMode| keep != LogMode::None;
        // A request for a missing znode is refused and needs no room in the log.
        let at = |path: &ZnodePath| {
            let node = self.tree.find(path.as_str());
            node.is_some_and(|node| kept(self.log_mode_of(self.tree.node(node).owner_slot)))
        };
        let created = |mode| {
            let kind = kind_of(mode, &self.options);
            kind.is_ok_and(|kind| kept(self.log_mode_of_create(session.slot, kind)))
        };
        match request {
            Request::Create(create) => created(create.mode),
            Request::Delete { path, .. }
            | Request::Withdraw { entry: path }
            | Request::SetData { path, .. }
            | Request::SetAcl { path, .. } => at(path),
            Request::Multi(ops) => ops.iter().any(|op| match op {
                Op::Create(create) => created(create.mode),
                Op::Delete { path, .. } | Op::SetData { path, .. } => at(path),
                Op::Check { .. } | Op::Require(_) => false,
            }),
            Request::Enqueue(enqueue) => {
                kept(self.log_mode_of(session.slot))
                    || created(CreateMode::Container) && self.makes_a_queue(enqueue)
            }
            // A wrong proof ends the session, which is a logged transaction.
            Request::AddAuth { .. } | Request::Close => kept(self.log_mode_of(session.slot)),
            _ => false,
        }
    }
}

/// Upper bound on a transaction's bytes without its operation: kind, zxid, date and session.
const HEAD_BYTES: usize = 1 + NUMBER_BYTES + NUMBER_BYTES + 8;

const NUMBER_BYTES: usize = 10;

const LENGTH_BYTES: usize = 5;

#[cfg(test)]
impl Txn {
    pub(crate) fn log_bytes(&self) -> usize {
        HEAD_BYTES + self.op.log_bytes()
    }
}

impl TxnOp {
    /// Returns an upper bound on the operation's bytes in a log, on its own or in a multi.
    pub(crate) fn log_bytes(&self) -> usize {
        match self {
            Self::OpenSession { password, .. } => 2 + NUMBER_BYTES + password.len(),
            Self::CloseSession(_) => 2,
            Self::Create(new) => new.log_bytes(),
            Self::Delete { path } => delete_bytes(path.as_str().len()),
            Self::SetData { path, data, .. } => set_data_bytes(path, data.len()),
            Self::SetAcl { path, acl, .. } => set_acl_bytes(path, acl),
            Self::Check => 1,
            Self::Multi(ops) => MULTI_BYTES + ops.iter().map(Self::log_bytes).sum::<usize>(),
        }
    }
}

pub(super) const MULTI_BYTES: usize = 1 + LENGTH_BYTES;

pub(super) fn delete_bytes(path_bytes: usize) -> usize {
    1 + LENGTH_BYTES + path_bytes
}

pub(super) fn set_data_bytes(path: &ZnodePath, data: usize) -> usize {
    delete_bytes(path.as_str().len()) + LENGTH_BYTES + data + LENGTH_BYTES
}

pub(super) fn set_acl_bytes(path: &ZnodePath, acl: &Acl) -> usize {
    delete_bytes(path.as_str().len()) + acl_bytes(acl) + LENGTH_BYTES
}

fn acl_bytes(acl: &Acl) -> usize {
    let (entries, text_bytes) = acl.size();
    LENGTH_BYTES + entries * (2 + 2 * LENGTH_BYTES) + text_bytes
}

impl NewNode {
    #[inline]
    pub(super) fn log_bytes(&self) -> usize {
        create_bytes(self.path.as_str().len(), self.data.len(), &self.acl)
    }
}

#[inline]
pub(super) fn create_bytes(path_bytes: usize, data_bytes: usize, acl: &Acl) -> usize {
    let kind = 1 + NUMBER_BYTES;
    let sequence = 1 + NUMBER_BYTES;
    let data = LENGTH_BYTES + data_bytes;
    delete_bytes(path_bytes) + data + acl_bytes(acl) + kind + sequence + NUMBER_BYTES
}

impl Core {
    /// Refuses an operation that is too large for the log, a snapshot or a backup, before any of it is applied
    /// (invariant 2).
    #[inline]
    pub(super) fn check_txn(&self, op_bytes: usize) -> Result<()> {
        let (actual, limit) = (HEAD_BYTES + op_bytes, self.options.limits.txn_bytes);
        if actual <= limit {
            return Ok(());
        }
        Err(too_large(actual, limit))
    }

    /// Returns an upper bound on the bytes that a request takes in the log, before the request is resolved.
    pub(crate) fn txn_bytes(&self, session: SessionRef, request: &Request) -> usize {
        let known = self.sessions.slots.get(session.slot as usize);
        let identities = known.map_or(&[][..], |known| &known.identities);
        let proofs = identities.iter().filter(|identity| identity.is_proof());
        let proofs = proofs.map(|identity| acl_entry_bytes(identity.scheme, &identity.id));
        let expanded = auth_entries(request) * proofs.sum::<usize>();
        let beside = HEAD_BYTES + 6 * NUMBER_BYTES + 2 * LENGTH_BYTES;
        let bytes = Scale { prefix: 0 }.request(request) + expanded + beside;
        match request {
            Request::Enqueue(enqueue) => {
                let missing = self.missing_queue(enqueue).unwrap_or_default();
                bytes * (1 + missing.len())
            }
            _ => bytes,
        }
    }

    fn makes_a_queue(&self, enqueue: &Enqueue) -> bool {
        self.missing_queue(enqueue)
            .is_some_and(|missing| !missing.is_empty())
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
