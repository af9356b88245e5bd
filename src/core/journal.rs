//! What a log is given to keep, and what may not be seen before it has kept it.

use super::intrusive_list::NIL;
use super::sessions::SessionRef;
use super::txn::{Kind, Txn, TxnOp};
use super::write::kind_of;
use super::{Core, Now, Stamp};
use crate::path::ZnodePath;
use crate::protocol::{Op, ReadOp, Request};
use crate::types::{SessionId, Zxid};

/// Which transactions are kept for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    Off,
    /// All but those that concern only sessions of this process: these die with it.
    Durable,
    All,
}

/// The journal's state in a core.
#[derive(Debug)]
pub(super) struct Kept {
    journal: Journal,
    txns: Vec<Txn>,
    /// The last transaction that nothing may run ahead of.
    last: i64,
    /// How sessions and their ephemerals are kept, where they are.
    sessions: Keep,
}

impl Kept {
    pub(super) const NONE: Self = Self {
        journal: Journal::Off,
        txns: Vec::new(),
        last: 0,
        sessions: Keep::Surely,
    };
}

/// How much it matters that a log has kept a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Keep {
    /// The log never sees it.
    Not,
    /// It is kept soon, but nobody waits for that.
    Lightly,
    /// Nothing that shows it may leave before it is kept.
    Surely,
}

impl Core {
    /// Keeps transactions for a log from now on.
    pub(crate) fn set_journal(&mut self, journal: Journal) {
        self.kept.journal = journal;
    }

    /// The transactions that the log is to keep, since the last call.
    pub(crate) fn kept(&mut self) -> &mut Vec<Txn> {
        &mut self.kept.txns
    }

    /// The last transaction that nothing that shows it may run ahead of.
    pub(crate) fn last_kept(&self) -> Zxid {
        Zxid(self.kept.last)
    }

    /// How a change is kept that concerns a znode of this owner (`NIL`: of no session).
    pub(super) fn keep(&self, owner: u32) -> Keep {
        match self.kept.journal {
            Journal::Off => Keep::Not,
            Journal::Durable if owner != NIL && self.sessions.get(owner).is_local => Keep::Not,
            Journal::Durable | Journal::All if owner != NIL => self.kept.sessions,
            Journal::Durable | Journal::All => Keep::Surely,
        }
    }

    /// From now on nobody waits until sessions and their ephemerals are kept.
    pub(crate) fn keep_sessions_lightly(&mut self) {
        self.kept.sessions = Keep::Lightly;
    }

    #[cfg(any(test, feature = "server"))]
    /// Keeps everything from now on, and all that was left out so far.
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

    #[cfg(any(test, feature = "server"))]
    /// The log hears late of a session and its ephemerals. It takes each for one that is made just now:
    /// their parents count it once more, so that the numbers of children do not go back.
    fn enter_session(&mut self, slot: u32, now: Now) {
        let session = self.sessions.get(slot);
        let id = session.id;
        let owned = session
            .ephemerals
            .iter(&self.tree.nodes, |node| &node.ephemerals);
        let owned: Vec<u32> = owned.map(|(index, _)| index).collect();
        self.log_session(slot, now);
        for index in owned {
            let creates = self.tree.count_create(self.tree.node(index).parent);
            let node = self.tree.node(index);
            let new = super::txn::NewNode {
                path: node.path.clone(),
                data: node.data.clone(),
                acl: node.acl.clone(),
                kind: node.kind,
                sequence: node.place.map(|(sequence, _)| sequence),
                creates,
            };
            let at = self.stamp(now, self.keep(slot));
            self.log(id, at, || TxnOp::Create(new));
        }
    }

    /// A container that is empty goes by itself, in its time; so one of a session of this process is kept
    /// lightly: if it is lost, so is everybody who knew of it. What is created in it is kept after it. Others
    /// outlive this process: their containers are kept as their ephemerals are, and so are all, once the log
    /// has to keep what others may see.
    pub(super) fn keep_create(&self, session: u32, kind: Kind) -> Keep {
        match (kind, self.kept.journal) {
            (_, Journal::Off) => Keep::Not,
            (Kind::Ephemeral, _) => self.keep(session),
            (Kind::Container, _) => self.keep(session).max(Keep::Lightly),
            _ => Keep::Surely,
        }
    }

    /// The number and date of the next transaction.
    pub(super) fn stamp(&mut self, now: Now, keep: Keep) -> Stamp {
        self.zxid += 1;
        if keep == Keep::Surely {
            self.kept.last = self.zxid;
        }
        Stamp {
            zxid: Zxid(self.zxid),
            unix_ms: now.unix_ms,
            keep,
        }
    }

    /// Hands a transaction to the log, if it is one that is kept.
    pub(super) fn log(&mut self, session: SessionId, at: Stamp, op: impl FnOnce() -> TxnOp) {
        if at.keep != Keep::Not {
            self.kept.txns.push(Txn {
                zxid: at.zxid,
                unix_ms: at.unix_ms,
                session,
                op: op(),
            });
        }
    }

    /// The last transaction that the answer to a request may show: it must not leave before that is
    /// kept. A request for a place in a queue shows only what dies with its session.
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
                .map(|op| match op {
                    ReadOp::GetData(path) | ReadOp::GetChildren(path) => self.shown_at(path),
                })
                .max()
                .unwrap_or(0),
            Request::Sync { .. }
            | Request::GetEphemerals { .. }
            | Request::GetAllChildrenNumber { .. } => self.kept.last,
            _ => 0,
        };
        Zxid(shown)
    }

    fn shown_at(&self, path: &ZnodePath) -> i64 {
        let node = self.tree.find(path.as_str());
        // Whether it was there, and when it went, nobody remembers.
        node.map_or(self.kept.last, |node| self.tree.node(node).kept)
    }

    /// Whether carrying this request out may take room in the log.
    pub(crate) fn needs_log(&self, session: SessionRef, request: &Request) -> bool {
        let known = self.sessions.slots.get(session.slot as usize);
        if known.is_none_or(|known| known.id != session.id || known.is_unproven) {
            return false; // it is over, and the request will be refused; or its end is no transaction
        }
        let kept = |keep: Keep| keep != Keep::Not;
        let at = |path: &ZnodePath| {
            let node = self.tree.find(path.as_str());
            node.is_some_and(|node| kept(self.keep(self.tree.node(node).owner_slot)))
        };
        let created = |mode| {
            let kind = kind_of(mode, &self.options);
            kind.is_ok_and(|kind| kept(self.keep_create(session.slot, kind)))
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
                Op::Check { .. } => false,
            }),
            // A wrong proof ends the session.
            Request::Enqueue(_) | Request::AddAuth { .. } | Request::Close => {
                kept(self.keep(session.slot))
            }
            _ => false,
        }
    }
}
