//! [`LocalEntry`]: a contender that waits in a store of this process, known to the store by reference.
//!
//! It goes the way of a [`Waiter`](super::Waiter), sleeping behind the nearest entry and holding once the event states
//! that nothing blocks, without a request and without a path. Wherever that is not the whole story, the entry goes on as a
//! [`Waiter`](super::Waiter): behind an entry of another recipe or library, after a turn that did not leave the way clear,
//! at the end of the session, and when it has waited long for its own session.

use std::pin::Pin;
use std::sync::Arc;

use lockkeeper_store::{
    DeleteReason, Entered, EntryKey, NewEntry, Place, Session, Turn, ZnodeHandle, ZnodePath,
};

use super::cleanup::remove;
use super::grant::HeldEntry;
use super::untaken::{Contender, attended};
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::select::{Either, select};

/// Puts an entry with default metadata in a queue of a store in this process. `None`, and nothing was done, where that
/// takes a request.
#[inline]
pub(crate) fn enter_locally(
    session: &Session,
    queue: &Arc<ZnodeHandle>,
    kind: Kind,
    place: Place<'_>,
    id: EntryId,
    queued_at_ms: i64,
) -> Option<Entered> {
    session.enter(NewEntry {
        queue,
        name: kind.entry_name(id),
        place,
        data: EntryData::Default { queued_at_ms }.to_bytes(),
        acl: session.acl(),
        unix_ms: queued_at_ms,
    })
}

/// An entry that waits for its turn. Dropping it leaves the queue.
pub(crate) struct LocalEntry(Option<Waiting>);

struct Waiting {
    session: Session,
    entry: HeldEntry,
    /// `None` once the turn has come.
    turn: Option<Turn>,
    kind: Kind,
}

impl LocalEntry {
    pub(crate) fn new(session: Session, entry: HeldEntry, turn: Option<Turn>, kind: Kind) -> Self {
        Self(Some(Waiting {
            session,
            entry,
            turn,
            kind,
        }))
    }

    /// Waits for the turn. Returns true once it has come, false where the store has to be asked.
    pub(crate) async fn wait(&mut self) -> bool {
        let waiting = self.0.as_mut().expect("it has not been handed over");
        let Some(turn) = &mut waiting.turn else {
            return true;
        };
        let kind = waiting.kind;
        if !turn.ahead().is_some_and(|ahead| kind.waits_for(ahead)) {
            return false;
        }
        // Tasks of one client may wait for themselves, which a `Waiter` warns of; a reader also behind another's writer.
        let may_be_own = turn.is_own() && kind != Kind::Candidate || kind == Kind::Read;
        let (session, entry) = (&waiting.session, &waiting.entry);
        let contender = || Contender {
            session: session.clone(),
            queue: entry.queue.path().clone(),
            name: entry.name,
            // Whose metadata has no label.
            data: EntryData::Default { queued_at_ms: 0 },
            permits: None,
        };
        let turn = attended(Pin::new(turn), contender);
        let gone = match may_be_own {
            false => turn.await,
            true => match select(turn, session.clock().next_tick()).await {
                Either::Left(gone) => gone,
                Either::Right(_) => return false,
            },
        };
        // The event states, from the transaction that deleted the other, that this entry exists and is not blocked
        // (invariant 8).
        let is_clear = gone.is_ok_and(|gone| gone.clear);
        if is_clear {
            waiting.turn = None;
        }
        is_clear
    }

    /// Returns the entry's reference.
    pub(crate) fn key(&self) -> EntryKey {
        self.0
            .as_ref()
            .expect("it has not been handed over")
            .entry
            .key
    }

    /// Hands the entry over to a guard. The caller makes sure that the turn has come.
    pub(crate) fn hold(mut self) -> (Session, HeldEntry) {
        let waiting = self.0.take().expect("it has not been handed over");
        (waiting.session, waiting.entry)
    }

    /// Hands the entry over to a [`Waiter`](super::Waiter), by its path.
    pub(crate) fn into_path(mut self) -> (Session, ZnodePath) {
        let waiting = self.0.take().expect("it has not been handed over");
        if let Some(turn) = &waiting.turn {
            waiting.session.forget(turn);
        }
        (waiting.session, waiting.entry.path())
    }
}

impl Drop for LocalEntry {
    fn drop(&mut self) {
        let Some(waiting) = &self.0 else {
            return;
        };
        if let Some(turn) = &waiting.turn {
            waiting.session.forget(turn);
        }
        // The waiters behind must not take it for a release: perhaps the turn has come unnoticed.
        if !waiting
            .session
            .leave(waiting.entry.key, DeleteReason::Unknown)
        {
            remove(&waiting.session, &waiting.entry.path());
        }
    }
}
