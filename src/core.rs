//! The store's state machine: znodes, sessions and watches. It has no clock, no IO and no randomness.
//!
//! Every call passes the time ([`Now`]) and returns a reply and [`Effects`]. The same calls give the same results, so
//! tests and replays are exact (invariant 1).
//!
//! A request is *admitted* if its session is alive (`lifecycle`). A write is then *resolved*, which means that all
//! rights, rules and limits are checked before anything changes (`acl`, `write`, `multi`, `queue`, `budget`). Finally
//! it is *applied* (`apply_create` and similar functions), which cannot fail. The journal keeps applied writes as
//! [`Txn`]s, and [`Core::replay`] applies them again without any decision.

mod acl;
mod budget;
#[cfg(any(test, feature = "simulation"))]
mod dump;
mod effects;
mod entries;
mod expiry;
#[cfg(any(test, feature = "server"))]
mod introspection;
mod intrusive_list;
mod journal;
mod known_paths;
mod lifecycle;
mod multi;
mod names;
mod options;
mod queue;
mod read;
mod reaper;
mod replay;
mod sessions;
#[cfg(any(test, feature = "server"))]
mod set_watches;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod watches;
mod work;
mod write;

pub(crate) use self::budget::bytes_of_acl;
pub(crate) use self::effects::Effects;
#[cfg(any(test, feature = "server"))]
pub(crate) use self::introspection::{Change, ChangeKind, Counts, Settings};
pub(crate) use self::journal::{Journal, NewNode, NodeKind, Txn, TxnOp};
pub(crate) use self::lifecycle::End;
#[cfg(any(test, feature = "server"))]
pub(crate) use self::lifecycle::Kicked;
pub(crate) use self::options::{CoreOptions, Limits};
pub(crate) use self::queue::Ahead;
#[cfg(any(test, feature = "server"))]
pub(crate) use self::read::{ANSWER_BYTES, Found};
pub(crate) use self::replay::{Damage, HIGHEST, NodeImage, SessionImage};
#[cfg(any(test, feature = "server"))]
pub(crate) use self::sessions::ReattachError;
pub(crate) use self::sessions::SessionRef;
#[cfg(any(test, feature = "server"))]
pub(crate) use self::set_watches::{SetWatches, WatchFilter};
pub(crate) use self::watches::{Fired, WatchKey};
#[cfg(any(test, feature = "server"))]
pub(crate) use self::work::UNIT_BYTES;

use self::budget::WATCH_BYTES;
use self::expiry::Verdict;
use self::journal::{JournalState, LogMode};
use self::reaper::Reaper;
use self::sessions::Sessions;
use self::tree::Tree;
use self::watches::{WatchKind, Watches};
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Reply, Request};
use crate::model::types::Zxid;
use crate::model::watch::{DeleteReason, WatchMode};
use crate::runtime::clock::BootInstant;

/// Units of work after which a tick stops, so that requests can run before the next tick (invariant 15).
const TICK_WORK: u64 = 16_384;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Now {
    /// Milliseconds since the Unix epoch.
    pub(crate) unix_ms: i64,
    /// Time for deadlines. Ignored for a session without a timeout.
    pub(crate) moment: BootInstant,
}

#[derive(Clone, Copy, Debug)]
struct Stamp {
    zxid: Zxid,
    unix_ms: i64,
    log_mode: LogMode,
}

impl Stamp {
    fn restored(zxid: Zxid) -> Self {
        Self {
            zxid,
            unix_ms: 0,
            log_mode: LogMode::None,
        }
    }
}

pub(crate) type CoreReply = Reply<WatchKey, WatchKey>;

#[derive(Debug)]
pub(crate) struct Core {
    options: CoreOptions,
    tree: Tree,
    watches: Watches,
    sessions: Sessions,
    reaper: Reaper,
    zxid: i64,
    kept: JournalState,
}

impl Core {
    pub(crate) fn new(options: CoreOptions) -> Self {
        Self {
            tree: Tree::new(options.hash_seed),
            watches: Watches::new(),
            sessions: Sessions::new(options.tick, options.hash_seed),
            reaper: Reaper::default(),
            zxid: options.last_zxid,
            kept: JournalState::NONE,
            options,
        }
    }

    #[cfg(any(test, feature = "server"))]
    pub(crate) fn work(&self) -> u64 {
        self.tree.work.total()
    }

    pub(crate) fn last_zxid(&self) -> Zxid {
        Zxid(self.zxid)
    }

    /// Executes a request.
    ///
    /// # Errors
    /// A refused request changes nothing, except that the session ends if its deadline has passed or if its proof of an
    /// identity is wrong.
    #[inline(always)] // so that the request is not copied on its way
    pub(crate) fn submit(
        &mut self,
        session: SessionRef,
        request: Request,
        now: Now,
        effects: &mut Effects,
    ) -> Result<CoreReply> {
        // Admit the session first, because every request is a sign of life, even one that is refused below.
        self.admit(session, now, effects)?;
        match request {
            Request::Create(create) => self.create(session, create, now, effects),
            Request::Delete { path, version } => self.delete(
                session,
                &path,
                version,
                DeleteReason::Released,
                now,
                effects,
            ),
            Request::Withdraw { entry } => {
                self.delete(session, &entry, None, DeleteReason::Unknown, now, effects)
            }
            Request::SetData {
                path,
                data,
                version,
            } => self.set_data(session, path, data, version, now, effects),
            Request::Exists { path, watch } => self.exists(session, &path, watch),
            Request::GetData { path, watch } => self.get_data(session, &path, watch),
            Request::GetChildren { path, watch } => self.get_children(session, &path, watch),
            Request::Multi(ops) => self.multi(session, ops, now, effects),
            Request::MultiRead(ops) => self.multi_read(session, &ops),
            // A sync has nothing to do, because all earlier writes are already applied. `shown_by` delays the reply
            // until the log contains them.
            Request::Sync { .. } => Ok(Reply::Done),
            Request::GetEphemerals { prefix } => self.get_ephemerals(session, &prefix),
            Request::GetAllChildrenNumber { path } => self.get_all_children_number(session, &path),
            Request::AddWatch { path, mode } => self.add_watch(session, &path, mode),
            Request::Enqueue(enqueue) => self.enqueue(session, enqueue, now, effects),
            Request::GetPredecessor(look) => self.get_predecessor(session, look, now),
            Request::GetQueue { parent, limit } => self.get_queue(session, &parent, limit),
            Request::GetAcl { path } => self.get_acl(session, &path),
            Request::SetAcl { path, acl, version } => {
                self.set_acl(session, path, acl, version, now)
            }
            Request::AddAuth { scheme, secret } => {
                self.add_auth(session, &scheme, secret.as_bytes(), now, effects)
            }
            Request::Close => {
                self.end_session(session.slot, End::Closed, now, effects);
                Ok(Reply::Done)
            }
        }
    }

    pub(crate) fn unwatch(&mut self, watch: WatchKey) -> bool {
        self.watches
            .disarm(&mut self.tree, &mut self.sessions, watch)
    }

    /// Ends overdue sessions, and deletes the container and TTL znodes that are due. If a sign of life of an overdue
    /// session may still be unread, the caller must first check the session's connection ([`Effects::asked`]).
    pub(crate) fn tick(&mut self, now: Now, effects: &mut Effects) {
        let before = self.tree.work.total();
        while let Some(slot) = self.sessions.first_due(now.moment) {
            if self.tree.work.total().wrapping_sub(before) >= TICK_WORK {
                // Leave the reaper to the next tick, which is due immediately because other sessions are still overdue.
                return;
            }
            self.tree.work.add(1);
            match self.sessions.check_deadline(slot, now.moment) {
                // A session with many watches stays due until enough of its watches are dropped.
                Verdict::Expire => self.expire(slot, now, effects),
                Verdict::Postpone { .. } => {}
                Verdict::Probe { .. } => effects.asked.push(slot),
            }
        }
        self.reap(now, effects);
    }

    pub(crate) fn next_deadline(
        &mut self,
        now: impl FnOnce() -> BootInstant,
    ) -> Option<BootInstant> {
        let sweep = self.reaper.next_sweep(self.options.reaper_interval, now);
        match (self.sessions.next_deadline(), sweep) {
            (Some(expiry), Some(sweep)) => Some(expiry.min(sweep)),
            (expiry, sweep) => expiry.or(sweep),
        }
    }

    fn add_watch(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        mode: WatchMode,
    ) -> Result<CoreReply> {
        let kind = match mode {
            WatchMode::Persistent => WatchKind::Persistent,
            WatchMode::PersistentRecursive => WatchKind::Recursive,
        };
        let node = self.tree.find(path.as_str());
        // A session may watch any path, because the right to read the znode is checked for each event
        // (`Watches::tell`).
        self.check_watch_limit(session, path)?;
        Ok(Reply::Watching(self.arm(session, kind, path, node)))
    }

    /// Checks that the session may have one more watch. Must be called before any change, because a refused request
    /// must change nothing.
    fn check_watch_limit(&self, session: SessionRef, path: &ZnodePath) -> Result<()> {
        self.check_watch_room(session, 1, path.as_str().len())
    }

    fn check_watch_room(&self, session: SessionRef, count: usize, path_bytes: usize) -> Result<()> {
        let limit = self.options.limits.watches_per_session;
        if count <= limit.saturating_sub(self.sessions.get(session.slot).watch_count) {
            // A watch ends with its session, so its bytes are charged to the session.
            let bytes = count * WATCH_BYTES + path_bytes;
            return self.budget().check(bytes, || self.payer(session, true));
        }
        Err(Error::LimitReached {
            what: "watches of a session",
            limit,
        })
    }

    fn arm(
        &mut self,
        session: SessionRef,
        kind: WatchKind,
        path: &ZnodePath,
        node: Option<u32>,
    ) -> WatchKey {
        self.watches.arm(
            &mut self.tree,
            &mut self.sessions,
            session.slot,
            kind,
            path,
            node,
        )
    }
}

fn no_node(path: &str) -> Error {
    Error::NoNode {
        path: path.to_owned(),
    }
}
