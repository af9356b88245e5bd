//! Carrying kept transactions out again. It decides nothing, and what cannot be is [`Damage`].

use super::intrusive_list::NIL;
use super::sessions::Session;
use super::tree::is_system_path;
use super::txn::{Kind, NewNode, Txn, TxnOp};
use super::{Core, Effects, End, Journal, Keep, Now, Stamp};
use crate::clock::BootInstant;
use crate::path::{ZnodePath, parent_of};
use crate::types::{SessionId, Zxid};
use crate::watch::DeleteReason;

/// Why a transaction or a znode of a log or a snapshot cannot be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damage(pub(crate) String);

/// Far beyond what a store ever counts to, and far enough from the end to count on.
const HIGHEST: i64 = 1 << 62;

impl Core {
    /// Carries out a transaction that was kept. Sessions get their deadlines from
    /// [`restart_timeouts`](Self::restart_timeouts).
    pub(crate) fn replay(&mut self, txn: Txn) -> Result<(), Damage> {
        if txn.zxid.0 <= self.zxid || txn.zxid.0 > HIGHEST {
            return Err(Damage(format!(
                "transaction {} after {}",
                txn.zxid,
                Zxid(self.zxid)
            )));
        }
        self.zxid = txn.zxid.0;
        let at = Stamp {
            zxid: txn.zxid,
            unix_ms: txn.unix_ms,
            keep: Keep::Not,
        };
        self.replay_op(txn.session, txn.op, at)
    }

    fn replay_op(&mut self, session: SessionId, op: TxnOp, at: Stamp) -> Result<(), Damage> {
        let effects = &mut Effects::default();
        match op {
            TxnOp::OpenSession {
                timeout_ms,
                password,
                is_local,
            } => self.replay_session(Session::new(session, password, timeout_ms, is_local))?,
            TxnOp::CloseSession(end) => {
                let slot = self.sessions.find(session);
                let slot = slot.ok_or_else(|| {
                    Damage(format!("the end of session {session}, which is not there"))
                })?;
                self.remove_session(slot, end, at, effects);
            }
            TxnOp::Multi(ops) => {
                for op in ops {
                    self.replay_op(session, op, at)?;
                }
            }
            TxnOp::Create(new) => self.replay_create(session, new, at, effects)?,
            TxnOp::Delete { path } => {
                let node = self.known(&path)?;
                if is_system_path(path.as_str()) || self.tree.node(node).children() > 0 {
                    return Err(Damage(format!(
                        "a delete of {path}, which cannot be deleted"
                    )));
                }
                // Nobody watches yet, so nobody asks why.
                self.apply_delete(node, DeleteReason::Unknown, at, effects);
            }
            TxnOp::SetData {
                path,
                data,
                version,
            } => {
                let node = self.known(&path)?;
                self.apply_set(node, data, version, at, effects);
            }
            TxnOp::SetAcl {
                path,
                acl,
                aversion,
            } => {
                let node = self.known(&path)?;
                self.apply_set_acl(node, acl, aversion, at);
            }
            TxnOp::Check => {}
        }
        Ok(())
    }

    pub(super) fn replay_session(&mut self, session: Session) -> Result<(), Damage> {
        if self.sessions.find(session.id).is_some() {
            return Err(Damage(format!("a second session {}", session.id)));
        }
        self.sessions.insert(session);
        Ok(())
    }

    /// Each path is hashed once: a log of a million creates is read while somebody waits.
    fn replay_create(
        &mut self,
        session: SessionId,
        new: NewNode,
        at: Stamp,
        effects: &mut Effects,
    ) -> Result<(), Damage> {
        let hash = self.tree.hash(new.path.as_str());
        let parent = self.check_kept(session, &new, hash)?;
        let slot = match new.kind {
            Kind::Ephemeral => self.sessions.find(session).unwrap_or(NIL),
            _ => NIL,
        };
        self.apply_create((session, slot), parent, new, hash, at, effects);
        Ok(())
    }

    /// The parent of a znode that can be made.
    fn check_kept(&self, session: SessionId, new: &NewNode, hash: u64) -> Result<u32, Damage> {
        let path = &new.path;
        let parent = parent_of(path.as_str()).and_then(|parent| self.tree.find(parent));
        let Some(parent) = parent else {
            return Err(Damage(format!("{path}, whose parent is not there")));
        };
        if self.tree.node(parent).kind == Kind::Ephemeral {
            return Err(Damage(format!("{path}, whose parent is ephemeral")));
        }
        if self.tree.find_hashed(path.as_str(), hash).is_some() {
            return Err(Damage(format!("a second {path}")));
        }
        let creates = self.tree.node(parent).creates();
        if new.creates <= creates || new.creates > HIGHEST {
            return Err(Damage(format!(
                "{path} as child {} after child {creates}",
                new.creates
            )));
        }
        if new.kind == Kind::Ephemeral && self.sessions.find(session).is_none() {
            return Err(Damage(format!(
                "{path} of session {session}, which is not there"
            )));
        }
        Ok(parent)
    }

    fn known(&self, path: &ZnodePath) -> Result<u32, Damage> {
        let node = self.tree.find(path.as_str());
        node.ok_or_else(|| Damage(format!("a change of {path}, which is not there")))
    }

    /// Gives every session its full timeout from `now` on, as after a restart.
    pub(crate) fn restart_timeouts(&mut self, now: BootInstant) {
        self.sessions.touch_all(now);
    }

    /// Begins anew after a restart: nothing will have a zxid up to `last`, and the sessions that died
    /// with their process are ended.
    pub(crate) fn leave_behind(&mut self, last: Zxid, unix_ms: i64) {
        self.zxid = last.0;
        self.set_journal(Journal::All);
        self.end_sessions(|session| session.is_local, End::Closed, unix_ms);
    }

    /// Ends the sessions of other processes, of which the log may lack what was acknowledged last. Returns how many
    /// there were.
    pub(crate) fn end_remote_sessions(&mut self, unix_ms: i64) -> usize {
        self.end_sessions(|session| !session.is_local, End::Expired, unix_ms)
    }

    fn end_sessions(&mut self, which: fn(&Session) -> bool, end: End, unix_ms: i64) -> usize {
        let sessions = self.sessions.slots.iter();
        let ended: Vec<u32> = sessions
            .filter(|(_, session)| which(session))
            .map(|(slot, _)| slot as u32)
            .collect();
        let now = Now {
            unix_ms,
            ..Now::default()
        };
        for slot in &ended {
            self.end_session(*slot, end, now, &mut Effects::default());
        }
        ended.len()
    }

    /// The longest timeout of a session of another process, in milliseconds; 0 if there is none.
    pub(crate) fn longest_remote_timeout_ms(&self) -> u64 {
        let sessions = self.sessions.slots.iter();
        let remote = sessions.filter(|(_, session)| !session.is_local);
        remote
            .map(|(_, session)| session.granted_ms)
            .max()
            .unwrap_or(0)
    }
}
