//! [`LocalEntry`]: a contender in a store of this process, known to the store by reference, from its creation to its turn.
//!
//! It takes the usual way of [`Waiter`](super::Waiter), entering, sleeping behind the nearest entry and holding once the
//! event states that nothing blocks, without a request and without a path. Wherever that is not the whole story, the entry
//! goes on as a [`Waiter`](super::Waiter): behind an entry of another recipe or library, after a turn that did not leave
//! the way clear, at the end of the session, and when it has waited long for its own session.

use std::pin::pin;
use std::sync::Arc;

use lockkeeper_store::{
    DeleteReason, EntryKey, EntryName, NewEntry, QueueHandle, Session, Turn, ZnodePath,
};

use super::cleanup::remove;
use super::grant::{HeldEntry, HeldNode};
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::select::{Either, select};

/// An entry that waits for its turn, or has it. Dropping it leaves the queue.
pub(crate) struct LocalEntry<'a> {
    session: &'a Session,
    queue: &'a Arc<QueueHandle>,
    name: EntryName,
    kind: Kind,
    key: EntryKey,
    /// `None` once the turn has come.
    turn: Option<Turn>,
    /// False once another is responsible for the entry.
    is_owned: bool,
}

impl<'a> LocalEntry<'a> {
    /// Joins a queue. `None`, and nothing was done, where that takes a request.
    #[inline]
    pub(crate) fn enter(
        session: &'a Session,
        queue: &'a Arc<QueueHandle>,
        kind: Kind,
        id: EntryId,
        data: &EntryData,
    ) -> Option<Self> {
        let name = kind.entry_name(id);
        let entered = session.enter(&NewEntry {
            queue,
            name,
            data: &data.to_bytes(),
            acl: session.acl(),
            blockers: kind.blockers(),
        })?;
        Some(Self {
            session,
            queue,
            name,
            kind,
            key: entered.entry,
            turn: entered.turn,
            is_owned: true,
        })
    }

    /// Waits for the turn. Returns true once it has come, false where the store has to be asked.
    #[inline]
    pub(crate) async fn wait(&mut self) -> bool {
        let Some(turn) = &mut self.turn else {
            return true;
        };
        if !turn.ahead().is_some_and(|ahead| self.kind.waits_for(ahead)) {
            return false;
        }
        // Tasks of one client may wait for themselves, which a `Waiter` warns of.
        let gone = match turn.is_own() && self.kind != Kind::Candidate {
            false => turn.await,
            true => match select(pin!(turn), self.session.clock().next_tick()).await {
                Either::Left(gone) => gone,
                Either::Right(_) => return false,
            },
        };
        // The event states, from the transaction that deleted the other, that this entry exists and is not blocked
        // (invariant 8).
        let is_clear = gone.is_ok_and(|gone| gone.clear);
        if is_clear {
            self.turn = None;
        }
        is_clear
    }

    /// Hands the entry over to a guard. The caller makes sure that the turn has come.
    #[inline]
    pub(crate) fn hold(mut self) -> HeldNode {
        self.is_owned = false;
        HeldNode::entry(self.entry())
    }

    /// Hands the entry over to a [`Waiter`](super::Waiter), by its path.
    pub(crate) fn into_path(mut self) -> ZnodePath {
        self.is_owned = false;
        if let Some(turn) = self.turn.take() {
            self.session.forget(&turn);
        }
        self.entry().path()
    }

    /// Returns the entry's reference.
    pub(crate) fn key(&self) -> EntryKey {
        self.key
    }

    fn entry(&self) -> HeldEntry {
        HeldEntry {
            queue: self.queue.clone(),
            name: self.name,
            key: self.key,
        }
    }
}

impl Drop for LocalEntry<'_> {
    fn drop(&mut self) {
        if !self.is_owned {
            return;
        }
        if let Some(turn) = &self.turn {
            self.session.forget(turn);
        }
        // The waiters behind must not take it for a release: perhaps the turn has come unnoticed.
        if !self.session.leave(self.key, DeleteReason::Unknown) {
            remove(self.session, &self.entry().path());
        }
    }
}
